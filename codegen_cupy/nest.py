"""Reads the shape of a kernel: which loops are spread over the grid, and how memory is walked along them.

Stage: codegen.  In: ``compiler.loop.ir.Kernel``.  Out: ``Nest``s, each a set of independent points and what is done at
one.  Read next: ``choice`` (how a nest meets blocks and threads), ``body`` (writing its statements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from compiler.loop.ir import Check, Index, Init, Int, Kernel, Let, Load, Loop, Stmt, Store, Update, walk
from compiler.sym.expr import Const, Expr, Symbol, as_int, coefficient, lift, linear
from compiler.sym.ranges import Interval, bounds

Access = Load | Store


@dataclass(frozen=True)
class Axis:
    """One loop variable: ``name`` runs in ``range(extent)``."""

    name: str
    extent: Int

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.name)


@dataclass(frozen=True)
class Flat(Loop):
    """Two or more loops directly inside each other, run as one over ``axis``; ``parts`` are the loops' own axes,
    outermost first, found again by division where no index walks them as one."""

    parts: tuple[Axis, ...] = ()


def fast_axis(loop: Loop) -> Axis:
    """The axis of a loop along which its iterations are neighbours."""
    return loop.parts[-1] if isinstance(loop, Flat) else Axis(loop.axis, loop.extent)


def loop_axes(loop: Loop) -> tuple[Axis, ...]:
    return loop.parts if isinstance(loop, Flat) else (Axis(loop.axis, loop.extent),)


@dataclass(frozen=True)
class Nest:
    """``body`` done once at every point of ``axes`` (outermost first), in any order or side by side."""

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]

    @property
    def points(self) -> Int:
        return product(a.extent for a in self.axes)


def product(factors: Iterator[Int] | tuple[Int, ...]) -> Int:
    out: Int = 1
    for f in factors:
        out = f * out
    return as_int(lift(out))


# --- from kernel to nests --------------------------------------------------------------------------------------------
def nests(kernel: Kernel) -> tuple[Nest, ...]:
    """The independent loop nests of a kernel.  Map loops side by side at the top become one nest each; anything else
    there (a reduction over everything) is one point of work."""
    before: list[Stmt] = [s for s in kernel.body if isinstance(s, (Let, Load, Index, Check))]
    maps = [s for s in kernel.body if isinstance(s, Loop) and s.kind == "map"]
    if maps and len(before) + len(maps) == len(kernel.body):
        return tuple(simplified(_peel(replace(m, body=(*_wanted(before, m), *m.body)))) for m in maps)
    return (Nest((), tuple(_merge_inner(s) for s in kernel.body)),)


def _wanted(before: list[Stmt], loop: Loop) -> tuple[Stmt, ...]:
    """What is read before the loops and used in this one; checks always."""
    names = {v for s in walk((loop,)) for v in used(s)}
    keep: list[Stmt] = []
    for s in reversed(before):
        if isinstance(s, Check) or (isinstance(s, (Let, Load, Index)) and s.name in names):
            keep.append(s)
            names |= set(used(s))
    return tuple(reversed(keep))


def _peel(loop: Loop) -> Nest:
    axes, body = [Axis(loop.axis, loop.extent)], loop.body
    while True:
        *before, last = body
        inner_map = isinstance(last, Loop) and last.kind == "map"
        if not inner_map or not all(isinstance(s, (Let, Load, Index, Check)) for s in before):
            return Nest(tuple(axes), body)
        assert isinstance(last, Loop)
        axes.append(Axis(last.axis, last.extent))
        body = (*before, *last.body)  # what was read once per outer point is read per inner point: caches absorb it


def simplified(nest: Nest) -> Nest:
    nest = _merge_axes(_fastest_axis_last(nest))
    return replace(nest, body=tuple(_merge_inner(s) for s in nest.body))


def _fastest_axis_last(nest: Nest) -> Nest:
    """Put the axis along which most bytes are neighbours innermost, so that neighbouring threads touch them."""
    if len(nest.axes) < 2 or any(isinstance(s, Loop) for s in nest.body):
        return nest
    votes = [
        sum(2 if isinstance(s, Store) else 1 for s in accesses(nest.body) if _unit(s.index, a.symbol))
        for a in nest.axes
    ]
    best = max(range(len(votes)), key=lambda i: (votes[i], i))
    return replace(nest, axes=(*nest.axes[:best], *nest.axes[best + 1 :], nest.axes[best]))


def _unit(e: Int, axis: Symbol) -> bool:
    c = coefficient(e, axis)
    return isinstance(c, int) and c == 1


def _merge_axes(nest: Nest) -> Nest:
    """Join neighbouring axes that every index walks as one: ``(i, j)`` into ``m = i*len(j) + j``, named ``j``."""
    axes, body = list(nest.axes), nest.body
    i = len(axes) - 2
    while i >= 0:
        outer, inner = axes[i], axes[i + 1]
        joined = _joined(body, outer, inner)
        if joined is not None:
            body = joined
            axes[i : i + 2] = [Axis(inner.name, as_int(lift(outer.extent) * inner.extent))]
        i -= 1
    return Nest(tuple(axes), body)


def _joined(body: tuple[Stmt, ...], outer: Axis, inner: Axis) -> tuple[Stmt, ...] | None:
    """The body with ``j - len(j)*i`` for ``j``, if ``i`` then cancels everywhere."""
    i, j = outer.symbol, inner.symbol
    shift: dict[Expr, Int] = {j: j - lift(inner.extent) * i}
    out = map_exprs(body, lambda e: as_int(lift(e).subs(shift)))
    return None if any(i in lift(e).free_symbols for e in exprs(out)) else out


def _merge_inner(stmt: Stmt) -> Stmt:
    """The same for a loop directly inside another one of its kind: a reduction over two dimensions becomes one loop."""
    if not isinstance(stmt, Loop):
        return stmt
    loop = replace(stmt, body=tuple(_merge_inner(s) for s in stmt.body))
    if len(loop.body) == 1:
        inner = loop.body[0]
        if isinstance(inner, Loop) and inner.kind == loop.kind:
            joined = None
            if not isinstance(inner, Flat):
                joined = _joined(inner.body, Axis(loop.axis, loop.extent), Axis(inner.axis, inner.extent))
            extent = as_int(lift(loop.extent) * inner.extent)
            if joined is not None:
                return Loop(inner.axis, extent, loop.kind, joined)
            if loop.kind != "scan" and not any(isinstance(s, Loop) for s in inner.body):
                parts = (*loop_axes(loop), *loop_axes(inner))
                return Flat(f"{loop.axis}_{fast_axis(inner).name}", extent, loop.kind, inner.body, parts)
    return loop


# --- walking ---------------------------------------------------------------------------------------------------------
def accesses(body: tuple[Stmt, ...]) -> Iterator[Access]:
    return (s for s in walk(body) if isinstance(s, (Load, Store)))


def exprs(body: tuple[Stmt, ...]) -> Iterator[Int]:
    """Every index expression and extent."""
    for s in walk(body):
        if isinstance(s, (Load, Store)):
            yield s.index
        elif isinstance(s, Index):
            yield s.expr
        elif isinstance(s, Loop):
            yield s.extent


def map_exprs(body: tuple[Stmt, ...], f: Callable[[Int], Int]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, (Load, Store)):
            s = replace(s, index=f(s.index))
        elif isinstance(s, Index):
            s = replace(s, expr=f(s.expr))
        elif isinstance(s, Loop):
            s = replace(s, extent=f(s.extent), body=map_exprs(s.body, f))
        out.append(s)
    return tuple(out)


def defined(body: tuple[Stmt, ...]) -> Iterator[str]:
    """Names given a value anywhere in the body."""
    for s in walk(body):
        if isinstance(s, (Let, Load, Index)):
            yield s.name
        elif isinstance(s, Init):
            yield from s.names


def used(s: Stmt) -> Iterator[str]:
    """Value names that a statement (not what is inside it, for a loop) reads."""
    found: list[object] = []
    if isinstance(s, Let):
        found += s.args
    elif isinstance(s, Load):
        found += [s.mask, *_symbols(s.index)]
    elif isinstance(s, Store):
        found += [s.mask, s.value, *_symbols(s.index)]
    elif isinstance(s, Index):
        found += _symbols(s.expr)
    elif isinstance(s, Update):
        found += s.values
    elif isinstance(s, Check):
        found += [s.cond, s.value]
    elif isinstance(s, Loop):
        found += _symbols(s.extent)
    return (v for v in found if isinstance(v, str))


def _symbols(e: Int) -> list[str]:
    return sorted(s.name for s in lift(e).free_symbols)


def slice_for(body: tuple[Stmt, ...], wanted: set[str]) -> tuple[Stmt, ...]:
    """The loads and lets of straight-line ``body`` that the names need, in order."""
    keep: list[Stmt] = []
    wanted = set(wanted)
    for s in reversed(body):
        if isinstance(s, (Let, Load, Index)) and s.name in wanted:
            keep.append(s)
            wanted |= set(used(s))
    return tuple(reversed(keep))


def vectorizable(stmts: tuple[Stmt, ...]) -> bool:
    """No loop inside (nor what is left of one without iterations), and nothing is read at another place than it is written."""
    if any(isinstance(s, (Loop, Init)) for s in stmts):
        return False
    written = {s.buffer: s.index for s in stmts if isinstance(s, Store)}
    return all(s.buffer not in written or written[s.buffer] == s.index for s in stmts if isinstance(s, Load))


def changing(nest: Nest) -> set[str]:
    """Buffers of which an element may change before it was read for the last time: all that the nest writes, except where
    its last loop over them overwrites each element of the point's own row, behind all reads of it."""
    written = {s.buffer for s in accesses(nest.body) if isinstance(s, Store)}
    return {b for b in written if not _overwritten_last(nest, b)}


def _overwritten_last(nest: Nest, buffer: str) -> bool:
    users = [s for s in nest.body if any(a.buffer == buffer for a in accesses((s,)))]
    last = users[-1]
    if not isinstance(last, Loop) or isinstance(last, Flat) or any(isinstance(s, Loop) for s in last.body):
        return False
    if any(isinstance(a, Store) and a.buffer == buffer for a in accesses(tuple(users[:-1]))):
        return False
    mine = [a for a in accesses(last.body) if a.buffer == buffer]
    loads = [isinstance(a, Load) for a in mine]
    if loads != sorted(loads, reverse=True) or any(isinstance(a, Store) and a.mode != "set" for a in mine):
        return False
    here = Symbol("_here")
    loops = [s for s in users if isinstance(s, Loop)]
    places = {lift(a.index).subs({Symbol(s.axis): here}) for s in loops for a in accesses(s.body) if a.buffer == buffer}
    return len(places) == 1 and {a.symbol for a in nest.axes} <= next(iter(places)).free_symbols


# --- sizes and alignment ---------------------------------------------------------------------------------------------
Facts = Mapping[str, int]  # size symbol -> a power of two that divides it


def divides(n: int, e: Int, facts: Facts) -> bool:
    """Is ``e`` known to be a multiple of ``n`` (a power of two) for all values of the axes in it?"""
    const, terms = lift(e).split()
    if const % n:
        return False
    for monomial, c in terms:
        known = abs(c)
        for atom in monomial.factors():
            if isinstance(atom, Symbol):
                known *= facts.get(atom.name, 1)
        if gcd(known, n) % n:
            return False
    return True


def rest_along(e: Int, axis: Symbol) -> tuple[Int, Expr] | None:
    """(stride along the axis, the index at its start); None where the index is not linear in it."""
    found = linear(e, (axis,))
    if found is None:
        return None
    return found[0].get(axis, 0), found[1]


def steps_by_one(s: Access, axis: Symbol) -> bool:
    """Do points that are neighbours along the axis touch neighbouring elements?"""
    found = rest_along(s.index, axis)
    return found is not None and isinstance(found[0], int) and found[0] == 1


def value_at(e: Int, sizes: Mapping[str, int]) -> int:
    """The number an extent or stride is, given the sizes."""
    return e if isinstance(e, int) else e.evaluate(sizes)


def ranges_of(axes: Iterator[Axis] | tuple[Axis, ...], sizes: Mapping[str, int]) -> dict[Symbol, Interval]:
    out = {Symbol(s): Interval(n, n) for s, n in sizes.items()}
    for a in axes:
        out[a.symbol] = Interval(0, max(value_at(a.extent, sizes) - 1, 0))
    return out


def all_axes(nest: Nest) -> tuple[Axis, ...]:
    loops = [s for s in walk(nest.body) if isinstance(s, Loop)]
    return (*nest.axes, *(Axis(s.axis, s.extent) for s in loops), *(a for s in loops for a in loop_axes(s)))


def needs_64_bits(kernel: Kernel, nest: Nest, sizes: Mapping[str, int]) -> bool:
    """Whether an index, or the count of points, may pass 2**31.  Values loaded as indices lie inside their buffer."""
    limit = 2**31 - 2**26
    if value_at(nest.points, sizes) >= limit:
        return True
    ranges = ranges_of(all_axes(nest), sizes)
    span = 0
    for b in kernel.params:
        shape = [value_at(s, sizes) for s in b.shape]
        stride = [value_at(s, sizes) for s in b.stride]
        span = max(span, sum(abs(t) * max(s - 1, 0) for s, t in zip(shape, stride, strict=True)))
    if span >= limit:
        return True
    inner = [value_at(s.extent, sizes) for s in walk(nest.body) if isinstance(s, Loop)]
    if any(n >= limit for n in inner):
        return True
    for s in accesses(nest.body):
        if lift(s.index).free_symbols - ranges.keys():
            continue  # indirect: the span of the buffer is the bound
        lo, hi = bounds(s.index, ranges)
        if lo <= -limit or hi >= limit:
            return True
    return False


def is_const(e: Int) -> bool:
    return isinstance(e, (int, Const))
