"""LLVM's two long steps, passes and emission, without the lock that llvmlite holds during every call.

Stage: codegen_numba.  In: objects of llvmlite's.  Out: what its own methods give.  One lock around the whole library means
that threads compile one after the other.  LLVM itself asks for less: a context and a target machine for each thread.  So
these two steps call llvmlite's library by a second handle, which takes no lock (and, being ctypes, gives the interpreter's
away); everything short keeps llvmlite's.  With one thread (``config.compile_threads``), and where its insides look otherwise
than known, its own methods are used.
Read next: ``compile``, ``kernels``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llvmlite.binding import ffi

from compiler.config import config

PASSES, EMIT = "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"
NEEDED = (PASSES, EMIT, "LLVMPY_GetBufferStart", "LLVMPY_GetBufferSize", "LLVMPY_DisposeMemoryBuffer")


@cache
def _functions() -> dict[str, Any] | None:
    try:
        library = ctypes.CDLL(ffi.lib._name)
        found = {}
        for name in NEEDED:
            own, found[name] = getattr(ffi.lib, name), getattr(library, name)
            found[name].argtypes, found[name].restype = own.argtypes, own.restype
    except (AttributeError, OSError):
        return None
    return found if all(f.argtypes for f in found.values()) else None


def run_passes(manager: Any, module: Any, builder: Any) -> None:
    """``manager.run(module, builder)``."""
    functions = _functions() if config.compile_threads != 1 else None
    if functions is None:
        manager.run(module, builder)
    else:
        functions[PASSES](manager, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """``machine.emit_object(module)``."""
    functions = _functions() if config.compile_threads != 1 else None
    if functions is None:
        return bytes(machine.emit_object(module))
    with ffi.OutputString() as error:
        buffer = functions[EMIT](machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        return ctypes.string_at(
            functions["LLVMPY_GetBufferStart"](buffer), functions["LLVMPY_GetBufferSize"](buffer)
        )
    finally:
        functions["LLVMPY_DisposeMemoryBuffer"](buffer)
