"""``Nest``: one perfect loop nest that makes one buffer, the unit that scheduling orders, joins and splits.

Stage: loop.  In: what ``lower`` recorded.  Out: nests over renamed or split axes, and what they read and write.
Read next: ``deps`` (which element of a producer a consumer needs), ``fuse``.

The axes' names are unique in a compilation.  ``body`` runs innermost.  A reduction has an ``update`` there, and
``post``, run when its reduce axes are done.  The order of ``axes`` is the order of loops and may be changed at will,
but for those of a scan: innermost, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.loop import ir
from compiler.loop.ir import Int
from compiler.sym.expr import Const, Expr, FloorDiv, Mod, Symbol, as_int, lift, quotient, walk
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify


@dataclass(frozen=True)
class Axis:
    name: str
    extent: Int
    kind: str = "map"  # map, reduce, scan

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.name)


@dataclass(frozen=True)
class Access:
    """A load or a store: which element, and how."""

    buffer: str
    index: Expr
    mode: str = "load"
    masked: bool = False


@dataclass(frozen=True, eq=False)
class Nest:
    """See the module's docstring.  ``number`` is its place in program order."""

    number: int
    axes: tuple[Axis, ...]
    body: tuple[ir.Stmt, ...]
    init: ir.Init | None = None
    update: ir.Update | None = None
    post: tuple[ir.Stmt, ...] = ()
    origin: tuple[str, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = ()
    sizes: Mapping[Symbol, Interval] = field(default_factory=dict)
    final: frozenset[str] = frozenset()  # buffers that are complete only when the whole nest is (scatters)

    @cached_property
    def ranges(self) -> dict[Symbol, Interval]:
        return {**self.sizes, **{a.symbol: extent(a.extent) for a in self.axes}}

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        return tuple(a for s in (*self.body, *self.post) if (a := access(s)) is not None)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        return tuple(a for a in self.accesses if a.mode == "load")

    @cached_property
    def writes(self) -> tuple[Access, ...]:
        return tuple(a for a in self.accesses if a.mode != "load")

    @cached_property
    def reduce(self) -> frozenset[str]:
        return frozenset(a.name for a in self.axes if a.kind != "map")

    @property
    def scan(self) -> bool:
        return any(a.kind == "scan" for a in self.axes)

    @property
    def pointwise(self) -> bool:
        return self.update is None and all(w.mode == "set" for w in self.writes)

    @cached_property
    def numel(self) -> Int:
        n: Int = 1
        for a in self.axes:
            n = n * a.extent
        return as_int(lift(n))

    @cached_property
    def ops(self) -> int:
        return sum(isinstance(s, ir.Let) for s in self.body)

    def ordered(self, names: tuple[str, ...]) -> Nest:
        """The same nest with its loops in another order."""
        by_name = {a.name: a for a in self.axes}
        assert set(names) == set(by_name)
        return replace(self, axes=tuple(by_name[n] for n in names))

    def renamed(self, mapping: Mapping[str, str]) -> Nest:
        """Other names for axes."""
        if not mapping:
            return self
        axes = tuple(replace(a, name=mapping.get(a.name, a.name)) for a in self.axes)
        return self._mapped({Symbol(a): Symbol(b) for a, b in mapping.items()}, axes)

    def split(self, name: str, outer: Axis, inner: Axis) -> Nest:
        """The axis ``name`` as two: ``name = outer * inner.extent + inner``."""
        axes = tuple(x for a in self.axes for x in ((outer, inner) if a.name == name else (a,)))
        return self._mapped({Symbol(name): outer.symbol * inner.extent + inner.symbol}, axes)

    def _mapped(self, mapping: Mapping[Expr, Int], axes: tuple[Axis, ...]) -> Nest:
        ranges = {**self.sizes, **{a.symbol: extent(a.extent) for a in axes}}

        def change(e: Int) -> Int:
            return as_int(simplify(lift(e).subs(mapping), ranges))

        return replace(
            self,
            axes=axes,
            body=tuple(with_indices(s, change) for s in self.body),
            post=tuple(with_indices(s, change) for s in self.post),
        )


def access(s: ir.Stmt) -> Access | None:
    if isinstance(s, ir.Load):
        return Access(s.buffer, lift(s.index), "load", s.mask is not None)
    if isinstance(s, ir.Store):
        return Access(s.buffer, lift(s.index), s.mode, s.mask is not None)
    return None


def with_indices(s: ir.Stmt, change: Callable[[Int], Int]) -> ir.Stmt:
    """A copy of a statement with every index expression changed."""
    if isinstance(s, ir.Load | ir.Store):
        return replace(s, index=change(s.index))
    if isinstance(s, ir.Index):
        return replace(s, expr=change(s.expr))
    return s


def split_for_division(nest: Nest, fresh: Callable[[str], str]) -> Nest:
    """Split axes that indices divide (``x // 128``, ``x % 128``), so that what remains is linear.

    A reshape that merges dimensions leads to such indices; after the split they are strides again.
    """
    for _ in range(16):
        found = _divided_axis(nest)
        if found is None:
            return nest
        axis, inner = found
        outer = as_int(quotient(lift(axis.extent), lift(inner))[0])
        nest = nest.split(axis.name, Axis(fresh("x"), outer, axis.kind), Axis(fresh("x"), inner, axis.kind))
    return nest


def _divided_axis(nest: Nest) -> tuple[Axis, Int] | None:
    by_symbol = {a.symbol: a for a in nest.axes}
    for access in nest.accesses:
        for part in walk(access.index):
            if isinstance(part, FloorDiv | Mod) and isinstance(part.num, Symbol) and part.num in by_symbol:
                axis = by_symbol[part.num]
                if part.den.free_symbols & by_symbol.keys() or part.den == axis.extent:
                    continue
                if isinstance(part.den, Const) and part.den.value <= 1:
                    continue
                count, rest = quotient(lift(axis.extent), part.den)
                if rest == Const(0) and count != Const(1):
                    return axis, as_int(part.den)
    return None
