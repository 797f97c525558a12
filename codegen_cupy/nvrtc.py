"""Compiles CUDA C++ text to machine code with NVRTC, through ctypes: needs the library, no driver and no GPU.

Stage: codegen.  In: kernel text and an architecture such as ``sm_90a``.  Out: a cubin.  Read next: ``machine_code``.
Run as a module it is a worker: requests on standard input, one JSON line each, answers on standard output.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from functools import cache

from codegen_cupy import libraries

#: Correctly rounded division and square root, no flush to zero: NVRTC's defaults, said aloud.
OPTIONS = ("-std=c++17", "-default-device", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")


class CompileError(RuntimeError):
    """NVRTC refused the text; the message is its log."""


@cache
def library() -> ctypes.CDLL:
    """The NVRTC library; RuntimeError with the remedy if there is none."""
    found = libraries.opened(libraries.paths("nvrtc", "cuda_nvrtc"))
    if found is None:
        raise RuntimeError("NVRTC was not found: pip install nvidia-cuda-nvrtc-cu12, or install the CUDA toolkit")
    return found


def available() -> bool:
    try:
        library()
    except RuntimeError:
        return False
    return True


@cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _ok(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _ok(code: int) -> None:
    if code:
        text = library().nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        raise CompileError(f"NVRTC: {text(code).decode()}")


def compile_text(text: str, arch: str, *, fmad: bool = True, name: str = "kernel.cu") -> bytes:
    """The cubin of a translation unit for ``arch``; CompileError with the compiler's log."""
    lib = library()
    program = ctypes.c_void_p()
    _ok(lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
    try:
        options = [*OPTIONS, f"-arch={arch}", f"-fmad={'true' if fmad else 'false'}"]
        array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        if lib.nvrtcCompileProgram(program, len(options), array):
            raise CompileError(f"{name} for {arch}:\n{_log(program)}")
        size = ctypes.c_size_t()
        _ok(lib.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        out = ctypes.create_string_buffer(size.value)
        _ok(lib.nvrtcGetCUBIN(program, out))
        return out.raw
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _log(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library().nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library().nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def serve() -> None:
    """The worker's loop: ``{"text", "arch", "fmad", "name"}`` in, ``{"cubin": base64}`` or ``{"error"}`` out."""
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = {"cubin": base64.b64encode(compile_text(**ask)).decode()}
        except Exception as e:  # the asking process raises it
            answer = {"error": str(e)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
