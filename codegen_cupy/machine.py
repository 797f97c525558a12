"""The two machines a program may run on, behind one face: a GPU through CuPy's driver bindings, or the emulator.

Stage: codegen.  In: kernel sources, sizes in bytes.  Out: loaded kernels, memory, launches.  ``launch`` generates the
same host code for both, so all of it but the speed is tested without a GPU.  Read next: ``cuda_machine``,
``emulated_machine``, ``launch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from codegen_cupy.cuda_machine import CudaMachine
from codegen_cupy.emulated_machine import EmulatedMachine
from codegen_cupy.host import View
from codegen_cupy.kernel_text import Source
from codegen_cupy.matmul import Product


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


@cache
def machine(emulated: bool) -> Machine:
    return EmulatedMachine() if emulated else CudaMachine()  # type: ignore[return-value]
