"""CUDA graphs through the driver's own functions, by ctypes: record a stream, launch, exchange a kernel's arguments.

Stage: codegen (run time).  In: launches on streams of our own.  Out: an executable graph.  ``recorded`` is the same thing
without a GPU.  Read next: ``graphs``, which decides what is recorded and when.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from codegen_cupy import libraries

RELAXED = 2  # memory may be allocated while recording
NON_BLOCKING = 1
UNTIMED = 2  # an event that only orders


@cache
def library() -> ctypes.CDLL:
    found = libraries.opened(("libcuda.so.1", "libcuda.so", "nvcuda.dll"))
    if found is None:
        raise RuntimeError("the CUDA driver library was not found")
    return found


def call(name: str, *args: Any) -> None:
    """A driver function; RuntimeError with the driver's own name for what went wrong."""
    code = getattr(library(), name)(*args)
    if code:
        text = ctypes.c_char_p()
        library().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


class KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v1``."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("gx", ctypes.c_uint), ("gy", ctypes.c_uint), ("gz", ctypes.c_uint),
        ("bx", ctypes.c_uint), ("by", ctypes.c_uint), ("bz", ctypes.c_uint), ("shared", ctypes.c_uint),
        ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p),
    )  # fmt: skip


class Node:
    """A recorded kernel, and how it is launched (``describe`` is told by whoever launched it)."""

    def __init__(self, handle: int) -> None:
        self.handle = ctypes.c_void_p(handle)
        self.about: Any = None

    def describe(
        self, function: int, grid: tuple[int, int], block: tuple[int, int], shared: int, params: int, count: int
    ) -> None:
        self.about = KernelNode(function, *grid, 1, *block, 1, shared, params, None)
        self.pointer = ctypes.byref(self.about)


class Executable:
    """An instantiated graph, and the graph it was made from, whose nodes name its kernels."""

    def __init__(self, graph: ctypes.c_void_p) -> None:
        self.graph, self.handle = graph, ctypes.c_void_p()
        call("cuGraphInstantiateWithFlags", ctypes.byref(self.handle), graph, ctypes.c_uint64(0))
        self._library = library()

    def __del__(self) -> None:
        if self.handle:
            self._library.cuGraphExecDestroy(self.handle)
        self._library.cuGraphDestroy(self.graph)


class DriverGraphs:
    """Records on streams of its own: the first begins and ends, the others wait for it and it for them."""

    def __init__(self) -> None:
        self._lanes: list[ctypes.c_void_p] = []
        self.stream = self.lane(0)
        self._stream = self._lanes[0]
        lib = library()
        self._launch, self._set = lib.cuGraphLaunch, lib.cuGraphExecKernelNodeSetParams
        self._streams: dict[int, ctypes.c_void_p] = {}
        self._events: list[ctypes.c_void_p] = []
        self._marks = 0  # events that this recording has used

    def lane(self, number: int) -> int:
        while len(self._lanes) <= number:
            stream = ctypes.c_void_p()
            call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
            self._lanes.append(stream)
        return int(self._lanes[number].value or 0)

    def begin(self) -> None:
        self._marks = 0
        call("cuStreamBeginCapture_v2", self._stream, RELAXED)

    def mark(self, stream: int) -> ctypes.c_void_p:
        if self._marks == len(self._events):
            made = ctypes.c_void_p()
            call("cuEventCreate", ctypes.byref(made), UNTIMED)
            self._events.append(made)
        event = self._events[self._marks]
        self._marks += 1
        call("cuEventRecord", event, ctypes.c_void_p(stream))
        return event

    def wait(self, stream: int, mark: ctypes.c_void_p) -> None:
        call("cuStreamWaitEvent", ctypes.c_void_p(stream), mark, 0)

    def node(self, stream: int) -> Node:
        status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        before, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        call(
            "cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph),
            ctypes.byref(before), ctypes.byref(count),
        )  # fmt: skip
        if count.value != 1:
            raise RuntimeError(f"the recorded stream ends in {count.value} nodes")
        return Node(int(before[0] or 0))

    def end(self) -> Executable:
        graph = ctypes.c_void_p()
        call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        return Executable(graph)

    def abandon(self) -> None:
        graph = ctypes.c_void_p()
        library().cuStreamEndCapture(self._stream, ctypes.byref(graph))
        if graph:
            library().cuGraphDestroy(graph)

    def move(self, graph: Executable, node: Node) -> None:
        code = self._set(graph.handle, node.handle, node.pointer)
        if code:
            raise RuntimeError(f"cuGraphExecKernelNodeSetParams: error {code}")

    def launch(self, graph: Executable, stream: int) -> None:
        to = self._streams.get(stream)
        if to is None:
            to = self._streams[stream] = ctypes.c_void_p(stream)
        code = self._launch(graph.handle, to)
        if code:
            raise RuntimeError(f"cuGraphLaunch: error {code}")

    def after(self, stream: int, earlier: int) -> None:
        call("cuCtxSynchronize")  # rare, and ``earlier`` may be gone
