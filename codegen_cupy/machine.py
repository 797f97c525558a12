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
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from codegen_cupy import emulate, machine_code
from codegen_cupy.cublaslt import Handle
from codegen_cupy.cublaslt import library as cublas_library
from codegen_cupy.host import View
from codegen_cupy.kernel_text import Source
from codegen_cupy.matmul import Product, by_numpy
from codegen_cupy.matmul import addresses as product_addresses
from codegen_cupy.recorded import RecordedGraphs

#: Bytes of shared memory a launch may ask for without more ado, and the driver's name for asking for more.
DEFAULT_SHARED, MAX_DYNAMIC_SHARED = 48 << 10, 8
#: Bytes from which the memory pool is tidied before a program's block is taken.
BIG = 64 << 20


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

    def make_room(self, size: int) -> None:
        """A big block is about to be wanted for good."""
        ...

    def address(self, array: Any) -> int: ...
    def owners(self, arrays: Sequence[Any]) -> list[Any]:
        """What views of these arrays hold on to besides the arrays themselves."""
        ...

    def fill(self, address: int, pattern: bytes, count: int, stream: int) -> None:
        """Set ``count`` elements to ``pattern``, on the stream."""
        ...

    def product(self, p: Product) -> Callable[..., None] | None:
        """``run(A, B, D, ..., stream)`` on addresses of buffers; None without the library, or if it refuses."""
        ...

    def graphs(self) -> Graphs: ...

    synchronous: bool


class Graphs(Protocol):
    """Records what is launched on ``stream`` between ``begin`` and ``end``, to be launched again as a whole.

    Also on ``lane(1)`` and so on, from when it first waits for something recorded until ``stream`` waits for it.
    """

    stream: int

    def begin(self) -> None: ...
    def lane(self, number: int) -> int:
        """A stream; lane 0 is ``stream``."""
        ...

    def mark(self, stream: int) -> Any:
        """What is on the stream so far, for ``wait``."""
        ...

    def wait(self, stream: int, mark: Any) -> None:
        """What comes on the stream follows what was marked."""
        ...

    def node(self, stream: int) -> Any:
        """What was launched last on the stream, for ``move``."""
        ...

    def end(self) -> Any: ...
    def abandon(self) -> None:
        """End a recording that failed."""
        ...

    def move(self, graph: Any, node: Any) -> None:
        """Read the arguments of a kernel again from where they lay when it was recorded."""
        ...

    def launch(self, graph: Any, stream: int) -> None: ...
    def after(self, stream: int, earlier: int) -> None:
        """What comes on ``stream`` waits for what is on ``earlier``."""
        ...


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

    def graphs(self) -> Graphs:
        return cuda_graphs()


def fill_words(address: int, pattern: bytes, count: int, stream: int) -> None:
    """Set elements of two, four, eight or sixteen bytes that are not one byte repeated."""
    from codegen_cupy.graph_driver import call

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

    def graphs(self) -> Graphs:
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


@cache
def cuda_graphs() -> Graphs:
    from codegen_cupy.graph_driver import DriverGraphs

    return DriverGraphs()


@cache
def machine(emulated: bool) -> Machine:
    return EmulatedMachine() if emulated else CudaMachine()  # type: ignore[return-value]
