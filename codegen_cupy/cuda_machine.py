"""The current CUDA device, through CuPy's driver bindings.

Stage: codegen (run time).  In: kernel sources, sizes in bytes.  Out: loaded kernels, memory, launches, fills, products, graphs.
CuPy is imported when the machine is made, not before.  Read next: ``machine`` (what is asked of it), ``machine_code``,
``cublaslt``, ``graph_driver``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from codegen_cupy import machine_code
from codegen_cupy.cublaslt import Handle
from codegen_cupy.cublaslt import library as cublas_library
from codegen_cupy.graph_driver import DriverGraphs, call
from codegen_cupy.host import View
from codegen_cupy.kernel_text import Source
from codegen_cupy.matmul import Product
from codegen_cupy.matmul import addresses as product_addresses

#: Bytes of shared memory a launch may ask for without more ado, and the driver's name for asking for more.
DEFAULT_SHARED, MAX_DYNAMIC_SHARED = 48 << 10, 8
#: Bytes from which the memory pool is tidied before a program's block is taken.
BIG = 64 << 20


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
        self.memset = cupy.cuda.runtime.memsetAsync
        self._loaded: dict[tuple[str, bool], Any] = {}
        self._products: dict[int, Handle] = {}

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

    def make_room(self, size: int) -> None:
        pool = self.xp.get_default_memory_pool()
        if size >= BIG and pool.free_bytes() >= size // 2:  # blocks of the last program, which may not fit this one
            pool.free_all_blocks()

    def address(self, array: Any) -> int:
        return array.data.ptr  # type: ignore[no-any-return]

    def owners(self, arrays: Sequence[Any]) -> list[Any]:
        return [x for a in arrays for x in (a.data, a.data.mem)]

    def fill(self, address: int, pattern: bytes, count: int, stream: int) -> None:
        if len(set(pattern)) == 1:
            self.memset(address, pattern[0], count * len(pattern), stream)
        else:
            fill_words(address, pattern, count, stream)

    def product(self, p: Product) -> Callable[..., None] | None:
        if cublas_library() is None:
            return None
        device = self.xp.cuda.runtime.getDevice()
        if device not in self._products:
            name = self.xp.cuda.runtime.getDeviceProperties(device)["name"].decode()
            self._products[device] = Handle(self.alloc, self.stream, self.time, self.noise, name)
        handle = self._products[device]
        timed = handle.timed
        try:
            run = handle.prepared(p).run
        except RuntimeError:
            if p.then:
                return None  # there is another way
            raise
        if handle.timed > timed:
            self.make_room(BIG)  # what the library's choices were timed on
        if not any(p.offsets) and len(p.repeats) == 1:
            return run

        def runs(*pointers: int) -> None:
            for x in product_addresses(p, *pointers[:-1]):
                run(*x, pointers[-1])

        return runs

    def noise(self, memory: Any, size: int, dtype: Any) -> None:
        """Random numbers, a block of them over and over."""
        block = np.random.default_rng(0).standard_normal(1 << 18, np.float32).astype(dtype.np)
        count = size // block.itemsize
        array = self.xp.ndarray((count,), block.dtype, memory)
        done = min(count, block.size)
        array[:done] = self.xp.asarray(block[:done])
        while done < count:
            more = min(done, count - done)
            array[done : done + more] = array[:more]
            done += more

    def time(self, fn: Callable[[], None], repeats: int = 4) -> float:
        """Milliseconds that the work ``fn`` enqueues takes: the least of a few, after one to warm up."""
        runtime, stream = self.xp.cuda.runtime, self.stream()
        events = [runtime.eventCreate() for _ in range(repeats + 1)]
        fn()
        runtime.eventRecord(events[0], stream)
        for e in events[1:]:
            fn()
            runtime.eventRecord(e, stream)
        runtime.eventSynchronize(events[-1])
        times = [runtime.eventElapsedTime(x, y) for x, y in pairwise(events)]
        for e in events:
            runtime.eventDestroy(e)
        return float(min(times))

    def graphs(self) -> DriverGraphs:
        return cuda_graphs()


def fill_words(address: int, pattern: bytes, count: int, stream: int) -> None:
    """Set elements of two, four, eight or sixteen bytes that are not one byte repeated."""
    at, to = ctypes.c_uint64(address), ctypes.c_void_p(stream)
    if len(pattern) == 2:
        call("cuMemsetD16Async", at, ctypes.c_ushort(int.from_bytes(pattern, "little")), ctypes.c_size_t(count), to)
        return
    for i in range(0, len(pattern), 4):
        word, pitch = int.from_bytes(pattern[i : i + 4], "little"), ctypes.c_size_t(len(pattern))
        start, width = ctypes.c_uint64(address + i), ctypes.c_size_t(1)
        if len(pattern) == 4:
            call("cuMemsetD32Async", start, ctypes.c_uint(word), ctypes.c_size_t(count), to)
        else:
            call("cuMemsetD2D32Async", start, pitch, ctypes.c_uint(word), width, ctypes.c_size_t(count), to)


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


def has_clusters() -> bool:
    """Can blocks of the current device work in clusters?"""
    return int(architecture().removeprefix("sm_").rstrip("a")) >= 90


@cache
def cuda_graphs() -> DriverGraphs:
    return DriverGraphs()
