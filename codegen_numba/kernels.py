"""Source to address, by the shortest way: this process's memory, the disk, the compiler.

Stage: codegen_numba.  In: a ``Source``.  Out: the address of its entry.  Equal sources (comments and the function's
name aside) are compiled once.  A plan names all its kernels before it needs an address, and LLVM's half of the work, the
longer one, is done by threads meanwhile (``config.compile_threads``).  Read next: ``build``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache as remember
from importlib.metadata import version

from codegen_numba import compile as compiler_
from codegen_numba import target
from codegen_numba.compile import Source
from codegen_numba.load import load
from compiler import cache, logs
from compiler.config import config

_addresses: dict[str, int] = {}
_underway: dict[str, Future[bytes]] = {}
_lock = threading.RLock()


def address(source: Source) -> int:
    """Where the entry of ``source`` is; compiled now if it never was."""
    return begin(source)()


def begin(source: Source) -> Callable[[], int]:
    """Have ``source`` compiled; the result waits for that and says where the entry is."""
    key = content_key(source)
    with _lock:
        if key not in _addresses and key not in _underway:
            code = cache.get("object", key)
            if code is None:
                _underway[key] = _start(source, key)
            else:
                _addresses[key] = load(code)
            if logs.enabled("asm"):
                logs.artifact("asm", source.name, compiler_.assembly(source), ".s")
        if key in _addresses:
            found = _addresses[key]
            return lambda: found
        compiling = _underway[key]
        return lambda: _finish(key, compiling)


def content_key(source: Source) -> str:
    return cache.key_of(
        plain(source.text), [t for _, t in source.params], source.contract, source.alias, source.pool, source.vectors,
        target.description(), versions(), cache.package_hash("codegen_numba"),
    )  # fmt: skip


@remember
def versions() -> list[str]:
    return [version(package) for package in ("numba", "llvmlite")]


def plain(text: str) -> str:
    """Source without its comment lines; the function's own name does not count either."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    kept[0] = re.sub(r"^def \w+", "def kernel", kept[0])
    return "\n".join(kept)


def _start(source: Source, key: str) -> Future[bytes]:
    """The front at once, for it is Python; LLVM beside what comes next."""
    began = time.perf_counter()
    text = compiler_.front(source)
    front = time.perf_counter() - began
    if config.compile_threads != 1:
        return _threads(config.compile_threads or _cores()).submit(_compile, source, key, text, front)
    made: Future[bytes] = Future()
    try:
        made.set_result(_compile(source, key, text, front))
    except Exception as e:
        made.set_exception(e)
    return made


def _compile(source: Source, key: str, text: str, front: float) -> bytes:
    began = time.perf_counter()
    code = compiler_.machine_code(text)
    seconds = front + time.perf_counter() - began
    logs.log("kernels", f"{source.name}: compiled in {seconds:.3f} s, {len(code)} bytes")
    cache.put("object", key, code, {"name": source.name, "source": source.text})
    return code


def _finish(key: str, compiling: Future[bytes]) -> int:
    try:
        code = compiling.result()
        with _lock:
            if key not in _addresses:
                _addresses[key] = load(code)
            return _addresses[key]
    finally:  # also what failed is gone: whoever asks again hears why
        _underway.pop(key, None)


@remember
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="tinytorch-compile")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _forget_threads() -> None:
    """The child of a fork has none of them."""
    global _lock
    _lock = threading.RLock()
    _underway.clear()
    _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
