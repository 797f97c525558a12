"""``Value``: a tensor of the graph while lowering: how to compute its element at an index, or where it lies in memory.

Stage: loop.  In, out: used by ``lower`` and its rules.  This is define-by-run lowering: a value is a closure over a
handler ``s`` and an index; calling it with the recording handler writes its code into whatever loop needs it, so a
value that is never stored costs no memory and fusing it into its user is a function call.  Read next: ``lower``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.loop.emit import Emitter, Index, V
from compiler.loop.ir import ArrayView, Int
from compiler.sym.expr import Symbol, as_int, lift, linear
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, float32


@dataclass(frozen=True)
class Cost:
    """What computing one element takes: statements, elementary functions among them, loads."""

    ops: int = 0
    heavy: int = 0
    loads: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.ops + other.ops, self.heavy + other.heavy, self.loads + other.loads)


IN_MEMORY = Cost(0, 0, 1)
#: Scalar functions of many instructions each.
HEAVY = frozenset(
    "div floordiv mod fmod pow exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
    "acosh atanh erf philox".split()
)


class Value:
    """``compute(s, index)`` gives the element; once ``place`` is set it is loaded from there instead.

    ``base`` is set for views: the value looked at and the map from an index of the view to one of the base.
    """

    def __init__(
        self,
        shape: tuple[Int, ...],
        dtype: DType,
        compute: Callable[[Emitter, Index], V] | None = None,
        *,
        place: ArrayView | None = None,
        base: tuple[Value, Callable[[Index], Index]] | None = None,
        cost: Cost = IN_MEMORY,
        device: str = "cpu",
        fast: bool = True,
        origin: tuple[str, ...] = (),
        constant: Any = None,
    ) -> None:
        self.shape = tuple(as_int(s) for s in shape)
        self.dtype = dtype
        self.compute = compute
        self.place = place
        self.base = base
        self._cost = cost
        self.device = device
        self.fast = fast
        self.origin = origin
        self.constant = constant
        self.lines: tuple[tuple[str, int, str], ...] = ()

    @property
    def cost(self) -> Cost:
        if self.place is not None:
            return IN_MEMORY
        return self.base[0].cost if self.base is not None else self._cost

    @property
    def register(self) -> DType:
        """The type its elements have inside a kernel: half types compute in float32 unless numerics are strict."""
        return register(self.dtype, self.fast)

    def at(self, s: Emitter, index: Index) -> V:
        """The element at ``index``, of type ``register``."""
        if any(isinstance(n, int) and n == 0 for n in self.shape):
            return s.cast(s.const(0, self.dtype), self.register)  # there is none: nobody gets here at run time
        if self.place is not None:
            return s.cast(s.load(self.place.buffer, flat(self.place, index), self.dtype), self.register)
        if self.base is not None:
            value, map_index = self.base
            return value.at(s, map_index(index))
        assert self.compute is not None
        return s.cast(self.compute(s, index), self.register)

    def sources(self) -> frozenset[str]:
        """Names of the graph nodes whose code computing this runs."""
        return frozenset(self.origin)


def register(dtype: DType, fast: bool) -> DType:
    return float32 if fast and dtype.kind == "f" and dtype.itemsize == 2 else dtype


def flat(place: ArrayView, index: Index) -> Int:
    """The element of the buffer that a strided look shows at ``index``."""
    at: Int = place.offset
    for i, stride in zip(index, place.stride, strict=True):
        at = at + lift(i) * stride if not isinstance(i, int) or i else at
    return at


def broadcast_index(index: Index, shape: tuple[Int, ...]) -> Index:
    """An index of the result as one of an operand of ``shape``: trailing dimensions, ones stay at 0."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if isinstance(n, int) and n == 1 else i for i, n in zip(tail, shape, strict=True))


def view_place(
    base: ArrayView, map_index: Callable[[Index], Index], shape: tuple[Int, ...], sizes: dict[Symbol, Interval]
) -> ArrayView | None:
    """The strides under which a view shows its base's memory; None if there are none (only a copy will do)."""
    axes = tuple(Symbol(f"_d{n}") for n in range(len(shape)))
    ranges = {**sizes, **{a: extent(n) for a, n in zip(axes, shape, strict=True)}}
    index = tuple(0 if isinstance(n, int) and n == 1 else a for a, n in zip(axes, shape, strict=True))
    found = linear(simplify(flat(base, map_index(index)), ranges), axes)
    if found is None:
        return None
    strides, offset = found
    return ArrayView(base.buffer, shape, tuple(as_int(strides.get(a, 0)) for a in axes), as_int(offset))


def contiguous(shape: tuple[Int, ...]) -> tuple[Int, ...]:
    out: list[Int] = []
    step: Int = 1
    for n in reversed(shape):
        out.append(as_int(step))
        step = step * n
    return tuple(reversed(out))
