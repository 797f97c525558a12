"""A CUDA machine on the CPU: compiles the very text of a kernel with the C++ compiler and runs it, thread by thread.

Stage: codegen.  In: kernel text.  Out: a callable that launches it on NumPy arrays.  With ``check=True`` every memory
access is watched: races between barriers, reads of shared memory nobody wrote, accesses outside all buffers; the
report names the kernel's lines.  Read next: ``device.h`` (what the kernel sees), ``runtime.cpp`` (the machine).

    add_one = emulate.compile_kernel(text, "add_one")
    add_one((blocks,), (threads,), [x, np.int32(x.size)])

Blocks run one after another (those of a cluster together), their threads as fibers that switch at barriers and warp
operations.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler import cache as disk_cache

HERE = Path(__file__).parent
#: A kernel that names none of these needs no fibers: its threads run one after another.
_WAITS = re.compile(r"__sync|__shfl|__ballot|__any_sync|__all_sync|__barrier|cluster_")
_CLUSTER = re.compile(r"__cluster_dims__\((\d+), (\d+), (\d+)\)")
_FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-g1", "-gdwarf-4"]


class EmulationError(RuntimeError):
    """The kernel did something no GPU would forgive; the message names the lines."""


class EmulatedKernel:
    """One compiled kernel.  Arguments: NumPy arrays (their address is passed) and NumPy or ctypes scalars."""

    def __init__(self, library: Path, text: str, name: str, *, check: bool) -> None:
        self.path, self.text, self.name, self.check = library, text, name, check
        self.fibers = check or bool(_WAITS.search(text))
        found = _CLUSTER.search(text)
        self.cluster = (int(found[1]), int(found[2]), int(found[3])) if found else (1, 1, 1)
        self._lib = ctypes.CDLL(str(library))
        self._lock = threading.Lock()
        self.ptr = id(self)

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, backwards: bool = False
    ) -> None:
        """Launch.  ``backwards`` runs the threads in the opposite order, which a correct kernel cannot tell."""
        cells = [_cell(a) for a in args]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*[ctypes.addressof(c) for c in cells])
        if self.check:
            self.set_ranges([a for a in args if isinstance(a, np.ndarray)])
        self.launch(grid, block, ctypes.addressof(pointers), backwards=backwards)

    def launch(self, grid: Sequence[int], block: Sequence[int], params: int, *, backwards: bool = False) -> None:
        """Launch with the address of an array of argument addresses, as ``cuLaunchKernel`` takes it."""
        dims = (ctypes.c_uint * 9)(*_three(grid), *_three(block), *self.cluster)
        message = ctypes.create_string_buffer(2000)
        with self._lock:
            failed = self._lib.tt_launch(
                ctypes.c_void_p(params), dims, int(self.fibers), int(backwards), message, ctypes.c_size_t(len(message))
            )
        if failed:
            raise EmulationError(f"{self.name}: {self._with_lines(message.value.decode())}")

    def set_ranges(self, arrays: Sequence[np.ndarray]) -> None:
        """The memory that the next checked launch may touch."""
        spans = {np.lib.array_utils.byte_bounds(a) for a in arrays if a.size}
        flat = [n for low, high in sorted(spans) for n in (low, high - low)]
        self._lib.tt_set_ranges((ctypes.c_uint64 * max(1, len(flat)))(*flat), len(spans))

    def _with_lines(self, message: str) -> str:
        """``{pc 0x...}`` replaced by the kernel's line and its text."""
        base = _load_address(self._lib)
        return re.sub(r"\{pc (0x[0-9a-f]+)\}", lambda m: self._line(int(m[1], 16) - base), message)

    def _line(self, offset: int) -> str:
        tool = shutil.which("addr2line")
        if tool is None:
            return f"offset {offset:#x} (install binutils for line numbers)"
        command = [tool, "-i", "-e", str(self.path), hex(offset - 1)]
        frames = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
        mine = [f for f in frames if f"{self.name}.cu:" in f]
        if not mine:
            return frames[0]
        number = int(re.split(r"[:\s]", mine[-1].rsplit(".cu:", 1)[1])[0])
        lines = self.text.splitlines()
        shown = f" `{lines[number - 1].strip()}`" if number <= len(lines) else ""
        return f"{self.name}.cu:{number}{shown}"


def compile_kernel(text: str, name: str, *, check: bool = False, directory: Path | None = None) -> EmulatedKernel:
    """Compile one kernel for the CPU; RuntimeError without a C++ compiler, EmulationError with its complaints."""
    directory = directory or cache_directory()
    key = hashlib.sha256("\0".join([text, name, str(check), _machine_key()]).encode()).hexdigest()[:24]
    library = directory / f"{name}-{key}.so"
    if not library.exists():
        _compile(text, name, check, library)
    return EmulatedKernel(library, text, name, check=check)


def _compile(text: str, name: str, check: bool, library: Path) -> None:
    runtime = _runtime(check)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "launch.cpp"
        (Path(work) / f"{name}.cu").write_text(text + "\n", encoding="utf-8")
        source.write_text(f'#include "{_header(check)}"\n#include "{name}.cu"\nTT_ENTRY({name})\n', encoding="utf-8")
        _run([compiler(), *_flags(check), "-c", str(source), "-o", f"{work}/kernel.o"], text)
        own = ["-Wl,-Bsymbolic"] if sys.platform == "linux" else []  # a kernel may be called like a function of libc
        _run([compiler(), "-shared", *own, "-o", f"{work}/out.so", f"{work}/kernel.o", str(runtime)], text)
        os.replace(f"{work}/out.so", library) if _same_device(work, library) else _move(f"{work}/out.so", library)


def _same_device(a: str, b: Path) -> bool:
    return os.stat(a).st_dev == os.stat(b.parent).st_dev


def _move(source: str, target: Path) -> None:
    """Across file systems: copy beside the target, then rename."""
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as f:
        f.write(Path(source).read_bytes())
    os.replace(f.name, target)


def _flags(check: bool) -> list[str]:
    return [*_FLAGS, "-fsanitize=thread"] if check else _FLAGS


@cache
def _header(check: bool) -> Path:
    """``device.h``, compiled beforehand: g++ finds ``device.h.gch`` beside it and saves two thirds of a kernel's time."""
    text = (HERE / "device.h").read_text(encoding="utf-8")
    key = hashlib.sha256("\0".join([text, *_flags(check), _machine_key()]).encode()).hexdigest()[:24]
    folder = cache_directory() / f"device-{key}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work) / "made"
            made.mkdir(mode=0o700)
            (made / "device.h").write_text(text, encoding="utf-8")
            _run([compiler(), *_flags(check), "-x", "c++-header", str(made / "device.h"), "-o", str(made / "device.h.gch")], "")
            with contextlib.suppress(OSError):  # another process was first
                made.rename(folder)
    return folder / "device.h"


@cache
def _runtime(check: bool) -> Path:
    """The machine, compiled once."""
    source = HERE / "runtime.cpp"
    key = hashlib.sha256((source.read_text() + _machine_key()).encode()).hexdigest()[:24]
    target = cache_directory() / f"runtime-{'check-' if check else ''}{key}.o"
    if not target.exists():
        define = ["-DTT_CHECK"] if check else []
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            command = [compiler(), "-std=c++20", "-O2", "-fPIC", "-g1", *define, "-c", str(source)]
            _run([*command, "-o", f"{work}/runtime.o"], "")
            os.replace(f"{work}/runtime.o", target)
    return target


def _run(command: list[str], text: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"the C++ compiler refused the kernel:\n{done.stderr[:4000]}\n{text}")


@cache
def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        raise RuntimeError("the CUDA emulator needs a C++20 compiler (g++ or clang++), or set CXX")
    return found


def available() -> bool:
    try:
        compiler()
    except RuntimeError:
        return False
    return True


@cache
def _machine_key() -> str:
    """What else a compiled kernel depends on: the compiler, its flags, and this package's own sources."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    own = "".join((HERE / f).read_text(encoding="utf-8") for f in ("device.h", "runtime.cpp"))
    return "\0".join([version, " ".join(_FLAGS), own])


@cache
def cache_directory() -> Path:
    """Where compiled kernels are kept: in the cache's private folder, or for this process only if there is none."""
    kept = disk_cache.folder()
    if kept is None:
        temporary = tempfile.mkdtemp(prefix="tt-emulated-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)
    path = kept / "emulated"
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def _cell(a: Any) -> Any:
    """A ctypes object whose address goes into the argument array."""
    if isinstance(a, np.ndarray):
        return ctypes.c_void_p(a.ctypes.data)
    if isinstance(a, np.generic):
        return np.ctypeslib.as_ctypes_type(a.dtype)(a.item())  # type: ignore[arg-type]
    if isinstance(a, ctypes._SimpleCData):
        return a
    raise TypeError(f"a kernel argument must be a NumPy array or a typed scalar, not {type(a).__name__}")


def _three(dims: Sequence[int]) -> tuple[int, int, int]:
    return (*dims, 1, 1, 1)[:3]  # type: ignore[return-value]


class _DlInfo(ctypes.Structure):
    _fields_ = [("fname", ctypes.c_char_p), ("base", ctypes.c_void_p), ("sname", ctypes.c_char_p), ("addr", ctypes.c_void_p)]


def _load_address(lib: ctypes.CDLL) -> int:
    info = _DlInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr(ctypes.cast(lib.tt_launch, ctypes.c_void_p), ctypes.byref(info))
    return int(info.base or 0)
