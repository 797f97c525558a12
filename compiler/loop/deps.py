"""Which iteration of a producer makes the element that an iteration of a consumer reads.

Stage: loop.  In: two nests that share a buffer.  Out: pairs of axes that may become one loop.
A producer stores each element once, at an index like ``1024*i + j``; read backwards, ``e // 1024`` and ``e % 1024``
are its iteration.  Put the consumer's index in the place of ``e``, simplify, and if a bare axis is left, then that axis
and the producer's run in step.  Read next: ``fuse``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.loop.ir import Int
from compiler.loop.nest import Access, Axis, Nest
from compiler.sym.expr import Const, Expr, FloorDiv, Mod, Symbol, as_int, lift, linear, quotient
from compiler.sym.simplify import simplify

Pair = tuple[str, str]


def decode(nest: Nest, write: Access, axis: Axis, element: Expr, consumer: Nest) -> Expr | None:
    """The value of ``axis`` in the iteration of ``nest`` that stores ``element``; None if the store does not tell."""
    own = _decoded(nest, write, axis, write.index, nest)
    if own is not axis.symbol:
        return None
    return _decoded(nest, write, axis, element, consumer)


def _decoded(nest: Nest, write: Access, axis: Axis, element: Expr, where: Nest) -> Expr | None:
    found = linear(write.index, [a.symbol for a in nest.axes])
    if found is None:
        return None
    strides, offset = found
    stride = strides.get(axis.symbol, 0)
    empty = isinstance(axis.extent, int) and axis.extent == 0
    if empty or isinstance(stride, int) and stride <= 0:
        return None
    return simplify((element - offset) // stride % axis.extent, where.ranges)


def in_step(producer: Nest, consumer: Nest, buffer: str, outer: Iterable[Axis], inner: Iterable[Axis]) -> set[Pair]:
    """Pairs (axis of the producer, axis of the consumer) such that every element of ``buffer`` read in an iteration
    was stored in the iteration of the producer with the same value of the axis."""
    writes = [w for w in producer.writes if w.buffer == buffer]
    reads = [r for r in consumer.reads if r.buffer == buffer]
    if len(writes) != 1 or writes[0].mode != "set":
        return set()
    by_symbol = {a.symbol: a for a in inner}
    out: set[Pair] = set()
    for axis in outer:
        if axis.kind == "reduce":
            continue
        places = {decode(producer, writes[0], axis, r.index, consumer) for r in reads}
        if len(places) == 1:
            (place,) = places
            other = by_symbol.get(place) if isinstance(place, Symbol) else None
            if other is not None and same(axis.extent, other.extent) and (axis.kind == "scan") == (other.kind == "scan"):
                out.add((axis.name, other.name))
    return out


def alike(a: Nest, b: Nest, outer: Iterable[Axis], inner: Iterable[Axis]) -> list[Pair]:
    """Pairs of axes that walk some buffer, read (or stored) by both nests, with equal strides."""
    inner = list(inner)
    pairs: dict[Pair, None] = {}
    for x in a.accesses:
        for y in b.accesses:
            if x.buffer != y.buffer:
                continue
            p, q = strides(a, x), strides(b, y)
            for axis in outer:
                s = p.get(axis.symbol, 0)
                same_stride = [
                    o for o in inner
                    if same(q.get(o.symbol, 0), s) and same(o.extent, axis.extent) and "scan" not in (o.kind, axis.kind)
                ]  # fmt: skip
                if s != 0 and len(same_stride) == 1:
                    pairs[axis.name, same_stride[0].name] = None
    return list(pairs)


def strides(nest: Nest, access: Access) -> dict[Symbol, Int]:
    found = linear(access.index, [a.symbol for a in nest.axes])
    return {} if found is None else found[0]


def same(a: Int, b: Int) -> bool:
    return lift(a) is lift(b)


def wanted_split(producer: Nest, consumer: Nest, buffer: str) -> tuple[Nest, str, Int] | None:
    """A split of an axis of either nest that brings them closer to step: (which nest, its axis, inner extent)."""
    writes = [w for w in producer.writes if w.buffer == buffer]
    if len(writes) != 1:
        return None
    for read in (r for r in consumer.reads if r.buffer == buffer):
        for axis in producer.axes:
            if axis.kind == "reduce":
                continue
            place = decode(producer, writes[0], axis, read.index, consumer)
            if place is None or isinstance(place, Symbol | Const):
                continue
            found = _split_of(place, producer, axis, consumer)
            if found is not None:
                return found
    return None


def _split_of(place: Expr, producer: Nest, axis: Axis, consumer: Nest) -> tuple[Nest, str, Int] | None:
    """``q // k`` or ``q % k`` splits the consumer's axis q; ``k*q + r`` splits the producer's."""
    theirs = {a.symbol: a for a in consumer.axes}
    if isinstance(place, FloorDiv | Mod) and place.num in theirs and not place.den.free_symbols & theirs.keys():
        other = theirs[place.num]  # type: ignore[index]
        return (consumer, other.name, as_int(place.den)) if divides(place.den, other.extent) else None
    found = linear(place, theirs)
    if found is None or found[1] is not lift(0):
        return None
    for k in found[0].values():
        if k != 1 and divides(k, axis.extent):
            return producer, axis.name, k
    return None


def divides(k: Int, extent: Int) -> bool:
    if isinstance(k, int) and k <= 1:
        return False
    count, rest = quotient(lift(extent), lift(k))
    return rest is lift(0) and count is not lift(1) and count is not lift(0)


def shared_buffers(a: Nest, b: Nest) -> Iterator[str]:
    mine = {x.buffer for x in a.accesses}
    yield from (n for n in dict.fromkeys(x.buffer for x in b.accesses) if n in mine)
