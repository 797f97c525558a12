"""The two machines a program may run on, behind one face: a GPU through CuPy's driver bindings, or the emulator.

Stage: codegen.  In: kernel sources, sizes in bytes.  Out: loaded kernels, memory, launches.  ``launch`` generates the
same host code for both, so all of it but the speed is tested without a GPU.  Read next: ``launch``, ``emulate``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from codegen_cupy import emulate, machine_code
from codegen_cupy.host import View
from codegen_cupy.kernel_text import Source

#: Bytes of shared memory a launch may ask for without more ado, and the driver's name for asking for more.
DEFAULT_SHARED, MAX_DYNAMIC_SHARED = 48 << 10, 8


class Machine(Protocol):
    """What generated host code needs.  ``pointer`` and ``memory`` are format strings over the name of an array."""

    xp: Any
    pointer: str
    memory: str

    def functions(self, sources: Sequence[Source], *, fmad: bool) -> list[Any]:
        """Loaded kernels, each with an integer ``ptr`` that ``launch`` takes."""
        ...

    def alloc(self, size: int) -> Any:
        """Memory with ``ptr``, to which an offset can be added."""
        ...

    def ndarray(self, shape: Any, dtype: Any, memory: Any, strides: Any) -> Any: ...
    def launch(self, kernel: int, *grid_block_shared_stream_params: int) -> None: ...
    def stream(self) -> int: ...
    def words(self) -> tuple[Any, int]:
        """Two host words that kernels can write, zero: (ctypes array, its address on the device)."""
        ...

    def look(self, array: Any, v: View) -> Any: ...
    def watch(self, inputs: Sequence[Any]) -> None:
        """Called with the arrays of a call before anything else."""
        ...

    synchronous: bool


class CudaMachine:
    """The current CUDA device, through CuPy."""

    pointer = "{}.data.ptr"
    memory = "{}.data"
    synchronous = False

    def __init__(self) -> None:
        import cupy
        from cupy_backends.cuda.api import driver

        self.xp, self.alloc, self.ndarray, self.launch = cupy, cupy.cuda.alloc, cupy.ndarray, driver.launchKernel
        self.stream, self.driver = _stream_pointer(cupy), driver
        self._loaded: dict[tuple[str, bool], Any] = {}

    def functions(self, sources: Sequence[Source], *, fmad: bool) -> list[Any]:
        wanted = {s.text: s.name for s in sources if (s.text, fmad) not in self._loaded}
        codes = machine_code.cubins(list(wanted.items()), architecture(), fmad=fmad) if wanted else []
        for (text, name), code in zip(wanted.items(), codes, strict=True):
            module = self.xp.cuda.function.Module()
            module.load(code)
            self._loaded[text, fmad] = module.get_function(name)
        for s in sources:
            if s.shared > DEFAULT_SHARED:
                self.driver.funcSetAttribute(self._loaded[s.text, fmad].ptr, MAX_DYNAMIC_SHARED, s.shared)
        return [self._loaded[s.text, fmad] for s in sources]

    def words(self) -> tuple[Any, int]:
        memory = self.xp.cuda.alloc_pinned_memory(64)
        words = (ctypes.c_int64 * 2).from_address(memory.ptr)
        words[:] = [0, 0]
        words._keeps_alive = memory  # type: ignore[attr-defined]
        return words, memory.ptr

    def look(self, array: Any, v: View) -> Any:
        item = array.dtype.itemsize
        strides = tuple(s * item for s in v.stride)
        if array.shape == v.shape and array.strides == strides and not v.offset:
            return array
        return self.xp.ndarray(v.shape, array.dtype, array.data + v.offset * item, strides)

    def watch(self, inputs: Sequence[Any]) -> None:
        pass


def _stream_pointer(cupy: Any) -> Callable[[], int]:
    try:
        from cupy_backends.cuda.stream import get_current_stream_ptr
    except ImportError:
        return lambda: cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]
    return get_current_stream_ptr  # type: ignore[no-any-return]


@cache
def architecture() -> str:
    """NVRTC's name of the current device; Hopper's own instructions need ``sm_90a``."""
    import cupy

    found = cupy.cuda.Device().compute_capability
    return "sm_90a" if found == "90" else f"sm_{found}"


class EmulatedMemory:
    """A block of host memory that looks like CuPy's ``MemoryPointer``; new contents are a pattern, not zeros."""

    def __init__(self, block: np.ndarray[Any, Any], offset: int = 0) -> None:
        self.block, self.offset = block, offset
        self.ptr = block.ctypes.data + offset

    def __add__(self, offset: int) -> EmulatedMemory:
        return EmulatedMemory(self.block, self.offset + offset)


class EmulatedMachine:
    """The CPU emulator as a device; ``TT_CUDA_CHECK=1`` adds the race and bounds check to every launch."""

    pointer = "{}.ctypes.data"
    memory = "memory_of({})"
    synchronous = True
    xp = np

    def __init__(self) -> None:
        self.check = os.environ.get("TT_CUDA_CHECK", "") not in ("", "0")
        self._kernels: dict[int, emulate.EmulatedKernel] = {}
        self._blocks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._inputs: list[Any] = []

    def functions(self, sources: Sequence[Source], *, fmad: bool) -> list[Any]:
        out = []
        for s in sources:
            kernel = emulate.compile_kernel(s.text, s.name, check=self.check)
            self._kernels[kernel.ptr] = kernel
            out.append(kernel)
        return out

    def alloc(self, size: int) -> EmulatedMemory:
        block = np.full(size + 64, 0xA5, np.uint8)
        block = block[-block.ctypes.data % 64 :][:size]
        self._blocks[block.ctypes.data] = block
        return EmulatedMemory(block)

    def ndarray(self, shape: Any, dtype: Any, memory: EmulatedMemory, strides: Any) -> np.ndarray[Any, Any]:
        return np.ndarray(shape, dtype, memory.block, memory.offset, strides)

    def launch(
        self, kernel: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int, params: int,
        extra: int,
    ) -> None:  # fmt: skip
        k = self._kernels[kernel]
        if self.check:
            k.set_ranges([*self._blocks.values(), *self._inputs])
        k.launch((gx, gy, gz), (bx, by, bz), params)

    def stream(self) -> int:
        return 0

    def words(self) -> tuple[Any, int]:
        block = np.zeros(2, np.int64)
        self._blocks[block.ctypes.data] = block
        words = (ctypes.c_int64 * 2).from_address(block.ctypes.data)
        words._keeps_alive = block  # type: ignore[attr-defined]
        return words, block.ctypes.data

    def look(self, array: Any, v: View) -> Any:
        return look(array, v)

    def watch(self, inputs: Sequence[Any]) -> None:
        if self.check:
            self._inputs = list(inputs)


def memory_of(array: np.ndarray[Any, Any]) -> EmulatedMemory:
    """The memory a NumPy array spans, pointing at its first element (not the lowest, where strides are negative)."""
    low, high = np.lib.array_utils.byte_bounds(array)
    if not array.size:
        return EmulatedMemory(np.empty(0, np.uint8))
    block = (ctypes.c_char * (high - low)).from_address(low)
    block._keeps_alive = array  # type: ignore[attr-defined]
    return EmulatedMemory(np.frombuffer(memoryview(block), np.uint8), array.ctypes.data - low)


def look(array: np.ndarray[Any, Any], v: View) -> np.ndarray[Any, Any]:
    """A strided view of a block, given in elements from the array's first one."""
    item = array.dtype.itemsize
    strides = tuple(s * item for s in v.stride)
    if array.shape == v.shape and array.strides == strides and not v.offset:
        return array
    if 0 in v.shape:
        return np.empty(v.shape, array.dtype)
    memory = memory_of(array)
    return np.ndarray(v.shape, array.dtype, memory.block, memory.offset + v.offset * item, strides)


@cache
def machine(emulated: bool) -> Machine:
    return EmulatedMachine() if emulated else CudaMachine()  # type: ignore[return-value]
