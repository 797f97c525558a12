"""The emulator as a device, with memory of the host that looks like a GPU's.

Stage: codegen (run time).  In: kernel sources, sizes in bytes.  Out: what ``cuda_machine`` gives, on a CPU.  Everything is done
when it is asked for, and what nobody wrote holds a pattern.  Read next: ``machine`` (what is asked of it), ``emulate``, ``recorded``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen_cupy import emulate
from codegen_cupy.host import View
from codegen_cupy.kernel_text import Source
from codegen_cupy.matmul import Product, by_numpy
from codegen_cupy.recorded import RecordedGraphs


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
        self.recorder = RecordedGraphs()
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
        if stream and self.recorder.record(lambda p: self._run(k, (gx, gy, gz), (bx, by, bz), p), params, stream):
            return
        self._run(k, (gx, gy, gz), (bx, by, bz), params)

    def _run(self, kernel: emulate.EmulatedKernel, grid: Any, block: Any, params: int) -> None:
        if self.check:
            kernel.set_ranges([*self._blocks.values(), *self._inputs])
        kernel.launch(grid, block, params)

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

    def make_room(self, size: int) -> None:
        pass

    def address(self, array: Any) -> int:
        return array.ctypes.data  # type: ignore[no-any-return]

    def owners(self, arrays: Sequence[Any]) -> list[Any]:
        found = []
        for a in arrays:  # NumPy's views of views hold on to the last array of the chain
            while isinstance(a.base, np.ndarray):
                a = a.base
                found.append(a)
        return found

    def fill(self, address: int, pattern: bytes, count: int, stream: int) -> None:
        def run(_: int) -> None:
            ctypes.memmove(address, pattern * count, len(pattern) * count)

        if not (stream and self.recorder.record(run, 0, stream)):
            run(0)

    def product(self, p: Product) -> Callable[..., None] | None:
        def run(*pointers: int) -> None:
            *buffers, stream = pointers
            if not (stream and self.recorder.record(lambda _: by_numpy(p, *buffers), 0, stream)):
                by_numpy(p, *buffers)

        return run

    def graphs(self) -> RecordedGraphs:
        return self.recorder


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
