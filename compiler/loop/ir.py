"""Loop IR: every node type of the third stage on one screen.

Stage: loop.  In: a functional graph of op rows (``compiler.loop.lower``).  Out: a ``Plan``, a host program over
fused ``Kernel``s and extern calls, for a codegen.  Read next: ``printer`` (a plan as Python), ``interp`` (what the
types mean, executed in plain Python), ``lower`` (where they come from).

A kernel is a tree of loops over scalar statements in single-assignment form.  Names are strings; an index is an
integer expression (``compiler.sym``) over axis names, size names and *integer value names* (indirect indexing),
counted in elements from the start of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from compiler.sym.expr import Expr
from tinytorch.dtypes import DType

Int: TypeAlias = "int | Expr"
Scalar: TypeAlias = "int | float | bool"
Value: TypeAlias = "str | Scalar"  # a statement's operand: an earlier name or a literal

#: How an accumulator joins two values, and how many components it has.  ``argmax``/``argmin`` hold (value, index) and
#: keep the first of equals and the first NaN; ``welford`` holds (mean, m2, count); ``softmax`` holds (running max,
#: sum of exp(x - max)), the online softmax of Milakov and Gimelshein.
COMBINES: dict[str, int] = {
    "add": 1, "mul": 1, "max": 1, "min": 1, "and": 1, "or": 1, "xor": 1,
    "argmax": 2, "argmin": 2, "welford": 3, "softmax": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """A block of memory: ``shape`` and ``stride`` in elements, ``offset`` in elements from the array's first one."""

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    stride: tuple[Int, ...]
    device: str = "cpu"

    @property
    def numel(self) -> Int:
        n: Int = 1
        for s in self.shape:
            n = n * s
        return n


# --- statements ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Let:
    """``name = fn(*args)``: one function of the scalar vocabulary (``tinytorch.ops.scalars``), computed in ``dtype``."""

    name: str
    fn: str
    args: tuple[Value, ...]
    dtype: DType  # of the result; for comparisons bool, for cast/const/bitcast the target
    origin: tuple[str, ...] = ()  # names of the graph nodes this came from


@dataclass(frozen=True)
class Index:
    """``name = expr`` as an int64 value (arange, the counter of a random draw, an argmax's candidate)."""

    name: str
    expr: Int


class Alike:
    """Equal where all fields are the same or equal: a NaN among them equals itself, unlike by a dataclass of Python 3.13."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


@dataclass(frozen=True, eq=False)
class Load(Alike):
    """``name = buffer[index]``; where ``mask`` (a bool name) is false, ``other`` instead and memory is not touched."""

    name: str
    buffer: str
    index: Int
    dtype: DType
    mask: str | None = None
    other: Scalar = 0


@dataclass(frozen=True, eq=False)
class Store(Alike):
    """``buffer[index] = value``, or with ``mode`` add/max/min/... ``buffer[index] = combine(buffer[index], value)``.

    A combining store may be reached by many iterations with the same index, in any order: the codegen makes it
    atomic or gives each worker a private copy.  Its buffer holds meaningful values before the kernel starts.
    """

    buffer: str
    index: Int
    value: Value
    mode: Literal["set", "add", "mul", "max", "min"] = "set"
    mask: str | None = None


@dataclass(frozen=True)
class Init:
    """Start an accumulator at its combine's identity; one name per component, one dtype per component."""

    names: tuple[str, ...]
    combine: str
    dtypes: tuple[DType, ...]


@dataclass(frozen=True)
class Update:
    """``names = combine(names, values)``, inside a reduce or scan loop below the matching ``Init``.

    ``values`` has one item per component; for ``welford`` and ``softmax`` just the new element.  After the loop the
    names are ordinary values; inside a scan loop they may be read right after the update (inclusive scan).
    """

    names: tuple[str, ...]
    combine: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Check:
    """Raise ``IndexError(message)`` from the whole kernel unless ``cond`` holds (bounds of indirect indexing).

    If ``value`` names an int64 value, ``{}`` in the message stands for what it was in an iteration that failed.
    """

    cond: str
    message: str
    value: str | None = None


@dataclass(frozen=True)
class Loop:
    """``for axis in range(extent)``.

    map: iterations are independent (up to combining stores) and may run in any order or side by side.
    reduce: iterations meet only in ``Update`` of accumulators started outside, and are independent otherwise: they may
    store elements of their own and hold inner loops.  scan: in order, carrying accumulators.

    Later statements of one iteration may load what earlier ones (in other inner loops, too) stored.
    """

    axis: str
    extent: Int
    kind: Literal["map", "reduce", "scan"]
    body: tuple[Stmt, ...]


Stmt: TypeAlias = "Let | Index | Load | Store | Init | Update | Check | Loop"


def walk(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement, a loop before those inside of it."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from walk(s.body)


@dataclass(frozen=True)
class Kernel:
    """A fused loop nest.  ``params`` in call order; ``writes`` names those stored to; ``sizes`` the free size symbols.

    Outermost ``map`` loops are what a codegen spreads over threads or blocks.  ``origin`` lists the graph nodes fused
    here; ``lines`` the user's source lines they stand for, as (file, line, text).
    """

    name: str
    params: tuple[Buffer, ...]
    writes: frozenset[str]
    sizes: tuple[str, ...]
    body: tuple[Stmt, ...]
    origin: tuple[str, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = ()


# --- the host program ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Alloc(Alike):
    """A new buffer, contents undefined (``fill`` given: every element is that), or reusing the memory of ``reuse``."""

    buffer: Buffer
    fill: Scalar | None = None
    reuse: str | None = None


@dataclass(frozen=True)
class Run:
    """Launch ``kernel`` (by its index in ``Plan.kernels``) on these buffers, one per kernel parameter.

    ``sizes`` are values for sizes of the kernel that are not the plan's: kernels that differ in numbers only are one
    kernel, launched with different ones (``compiler.loop.share``).
    """

    kernel: int
    args: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Extern:
    """A library call on whole arrays: ``fn`` names an op row; writes ``outs`` (strided views of allocated buffers).

    ``views`` gives how each tensor argument looks at its buffer: (buffer name, shape, stride, offset), in elements.
    """

    fn: str
    args: tuple[ArrayView | Scalar, ...]
    outs: tuple[ArrayView, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayView:
    """A strided look at a buffer, in elements."""

    buffer: str
    shape: tuple[Int, ...]
    stride: tuple[Int, ...]
    offset: Int = 0


@dataclass(frozen=True)
class Free:
    """The last use of a buffer is over: its memory may be reused by a later ``Alloc``."""

    buffer: str


Step: TypeAlias = "Alloc | Run | Extern | Free"


@dataclass(frozen=True)
class Plan:
    """What a codegen builds: inputs in call order, kernels, host steps, and how each output looks at its buffer.

    Inputs are strided arrays: each input ``Buffer`` states the strides its kernels were compiled for.  ``sizes`` are
    the size symbols in the order the built callable takes them.  An output that is an input or shares a buffer with
    another one says so by its ``ArrayView``; ``None`` and (symbolic) ints are handed back as they are.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[ArrayView | Int | None, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    sizes: tuple[str, ...] = ()
