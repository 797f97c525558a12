"""The Python half of running kernels: the worker threads, and the one foreign function a call goes through.

Stage: codegen_numba.  In: programs and tables as ``build`` lays them out.  Out: they have run.  The pool is made when
the first plan with something to share is built, made anew in a child after a fork, and left alone at exit (workers are
daemons asleep in C).  Read next: ``pool`` (what they run), ``build``.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from codegen_numba import kernels, pool
from tinytorch.functions.misc import get_num_threads

Words = npt.NDArray[np.int64]
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

#: One word: the address of the pool, 0 while there is none (then everything runs in the calling thread).
cell: Words = np.zeros(1, np.int64)
_lock = threading.Lock()
_kept: list[Words] = []


def thread_count() -> int:
    """How many threads share a large phase."""
    return get_num_threads()


@cache
def execute() -> Callable[[int, int, int, int], None]:
    """``execute(args, first, last, 0)``: run the records of a program; the interpreter lock is released."""
    return _ENTRY(kernels.address(pool.SOURCES["execute"]))


def ensure_pool() -> None:
    """Start the workers if they are not there (and the platform has pthreads)."""
    if cell[0] or os.name != "posix":
        return
    with _lock:
        if cell[0]:
            return
        words = aligned(pool.WORDS)
        _kept.append(words)
        address = words.ctypes.data
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_init(ctypes.c_void_p(address + 8 * pool.MUTEX), None)
        libc.pthread_cond_init(ctypes.c_void_p(address + 8 * pool.COND), None)
        worker = _ENTRY(kernels.address(pool.SOURCES["worker"]))
        argument = np.array([address], np.int64)
        _kept.append(argument)
        for n in range(thread_count() - 1):
            threading.Thread(
                target=worker, args=(argument.ctypes.data, 0, 0, 0), name=f"tinytorch-worker-{n}", daemon=True
            ).start()
        cell[0] = address


def _forget_pool() -> None:
    """In the child of a fork the workers do not exist; the memory they share is left behind."""
    global _lock
    cell[0] = 0
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _data_word() -> int | None:
    """Which word of an array object is the address of its data, if reading it there works."""
    probe = np.arange(3)
    word = object.__basicsize__ // 8
    found = ctypes.c_int64.from_address(id(probe) + 8 * word).value
    return word if found == probe.ctypes.data else None


DATA_WORD = _data_word()


# --- arenas: memory for temporaries, lent to one call at a time and shared by all plans ---
class Block:
    """Bytes that begin a cache line at ``base``, ``skip`` bytes into ``array``."""

    __slots__ = ("array", "base", "size", "skip")

    def __init__(self, size: int) -> None:
        self.array = np.empty(size + 64, np.uint8)
        self.skip = -self.array.ctypes.data % 64
        self.base, self.size = self.array.ctypes.data + self.skip, size


_blocks: list[Block] = []


def take_arena(size: int) -> Block:
    """A block of at least ``size`` bytes.  One thread that runs plans in turn ends with one block, the largest."""
    try:
        block = _blocks.pop()
    except IndexError:
        return Block(size)
    return block if block.size >= size else Block(size)


def give_arena(block: Block) -> None:
    _blocks.append(block)


def aligned(count: int) -> Words:
    """``count`` zeroed words that begin a cache line."""
    raw = np.zeros(count + 8, np.int64)
    skip = (-raw.ctypes.data // 8) % 8
    return raw[skip : skip + count]
