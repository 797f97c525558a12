"""Kernel source to LLVM IR: by our own front, or by Numba's where that one stops.

Stage: codegen_numba.  In: a ``Source``.  Out: an llvmlite module and its function.  The source is a Numba function, and
Numba says what it means.  But its passes would be three quarters of the time to compile a kernel, and its import most of
a cold start, so ``front`` translates what kernels are made of.  Read next: ``front``, ``numba_front``.
"""

from __future__ import annotations

import linecache
from typing import Any

from llvmlite import ir

from codegen_numba import atomics, types
from codegen_numba.compile import Source
from codegen_numba.front import UnknownError, lower
from codegen_numba.intrinsics import NAMES
from compiler import logs


def translate(source: Source) -> tuple[ir.Module, ir.Function]:
    try:
        return quickly(source)
    except UnknownError as e:
        logs.log("kernels", f"{source.name}: {e} is left to Numba")
        return by_numba(source)


def quickly(source: Source) -> tuple[ir.Module, ir.Function]:
    """By our own front, which knows what kernels are made of."""
    return lower(source.name, source.text, parameters(source), words(source), source.alias)


def by_numba(source: Source) -> tuple[ir.Module, ir.Function]:
    """By Numba's, which knows Python."""
    from codegen_numba import numba_front

    return numba_front.lower(define(source), [t for _, t in parameters(source)], source.alias)


def parameters(source: Source) -> list[tuple[str, types.Type]]:
    kinds = [(n, types.int64 if t == "size" else types.CPointer(types.BY_NAME[t])) for n, t in source.params]
    return [*kinds, *((n, types.int64) for n in ("start", "stop", "part"))]


def words(source: Source) -> dict[str, Any]:
    return {**NAMES, **atomics.NAMES} if source.pool else NAMES


def define(source: Source) -> Any:
    """The function object for Numba; its text is known to ``linecache``, so that Numba's errors show it."""
    from codegen_numba import numba_front

    filename = f"<tinytorch kernel {source.name}>"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace = {n: numba_front.as_numba(w) if isinstance(w, types.Type) else w for n, w in words(source).items()}
    exec(compile(source.text, filename, "exec"), namespace)
    return namespace[source.name]
