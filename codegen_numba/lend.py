"""Memory of large results: lent to an array, and lent again when the last array over it is gone.

Stage: codegen_numba.  In: shapes and types of a plan's results.  Out: arrays.  Memory fresh from the system is cleared page by
page at the first touch, which for a result of many megabytes takes longer than computing it.  So a result's base is a
``Loan``: views keep it alive as they keep any base, and when it goes its block waits here for the next result of about
its size.  At most ``config.kept_results`` megabytes wait, the longest waiting go first; small results are NumPy's own.
Nothing here takes a lock, for a loan may end anywhere, also in a collection started here.  Read next: ``runtime``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen_numba.runtime import Block
from compiler.config import config

#: Bytes below which the allocator's own reuse serves as well.
LEAST = 1 << 20
#: A waiting block serves a result of at least this share of its size.
FIT = 0.75

_waiting: list[Block] = []


def give_back(block: Block) -> None:
    _waiting.append(block)
    total = sum(b.size for b in _waiting.copy())
    while total > config.kept_results << 20:
        try:
            total -= _waiting.pop(0).size
        except IndexError:  # another thread was faster
            return


class Loan:
    """Holds a block while any array lies in it."""

    def __init__(self, block: Block, size: int) -> None:
        self.block = block
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (block.base, False)}

    def __del__(self, give_back: Callable[[Block], None] = give_back) -> None:
        give_back(self.block)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """As ``numpy.empty``."""
    size = prod(shape) * dtype.itemsize
    if size < LEAST or not config.kept_results:
        return np.empty(shape, dtype)
    return np.asarray(Loan(_take(size), size)).view(dtype).reshape(shape)


def _take(size: int) -> Block:
    """A block of at least ``size`` bytes; the latest that fits, which is the likeliest to be in a cache."""
    for block in reversed(_waiting.copy()):
        if size <= block.size and size >= block.size * FIT:
            try:
                _waiting.remove(block)
            except ValueError:  # another thread was faster
                continue
            return block
    return Block(size)


def waiting() -> int:
    """Bytes that wait."""
    return sum(b.size for b in _waiting.copy())


def release() -> None:
    """Give what waits back to the system."""
    _waiting.clear()
