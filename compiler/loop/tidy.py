"""The last touch on a kernel's body: contiguous loops become one, names become canonical.

Stage: loop.  In: statements.  Out: a ``Kernel`` whose text depends on nothing but what it computes, so that equal
kernels (those of twelve equal transformer blocks) are equal objects and are compiled once.  Read next: ``host``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from compiler.loop import ir
from compiler.loop.ir import Buffer, Int, Kernel, walk
from compiler.sym.expr import Expr, Symbol, as_int, lift
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify


def merged(body: tuple[ir.Stmt, ...], ranges: Mapping[Symbol, Interval]) -> tuple[ir.Stmt, ...]:
    """Turn ``for i: for j:`` into one loop wherever every index counts ``i * extent(j) + j``."""
    out: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, ir.Loop):
            inside = {**ranges, Symbol(s.axis): extent(s.extent)}
            s = replace(s, body=merged(s.body, inside))
            if len(s.body) == 1 and isinstance(s.body[0], ir.Loop) and s.body[0].kind == s.kind != "scan":
                s = _joined(s, s.body[0], ranges) or s
        out.append(s)
    return tuple(out)


def _joined(outer: ir.Loop, inner: ir.Loop, ranges: Mapping[Symbol, Interval]) -> ir.Loop | None:
    i, j, both = Symbol(outer.axis), Symbol(inner.axis), Symbol(inner.axis + "_")
    count = as_int(lift(outer.extent) * inner.extent)
    known = {**ranges, both: extent(count)}
    known |= {Symbol(s.axis): extent(s.extent) for s in walk(inner.body) if isinstance(s, ir.Loop)}
    replacement: dict[Expr, Int] = {j: both - i * inner.extent}
    failed = False

    def change(e: Int) -> Int:
        nonlocal failed
        new = simplify(lift(e).subs(replacement), known)
        failed = failed or i in new.free_symbols
        return as_int(new)

    body = tuple(rewrite(s, change, lambda n: n) for s in inner.body)
    return None if failed else ir.Loop(both.name, count, outer.kind, body)


def rewrite(s: ir.Stmt, index: Callable[[Int], Int], name: Callable[[str], str]) -> ir.Stmt:
    """A copy of a statement (and what is in it) with index expressions and value names mapped; buffers stay."""

    def value(v: ir.Value) -> ir.Value:
        return name(v) if isinstance(v, str) else v

    match s:
        case ir.Let():
            return replace(s, name=name(s.name), args=tuple(map(value, s.args)))
        case ir.Index():
            return ir.Index(name(s.name), index(s.expr))
        case ir.Load():
            mask = None if s.mask is None else name(s.mask)
            return replace(s, name=name(s.name), index=index(s.index), mask=mask)
        case ir.Store():
            mask = None if s.mask is None else name(s.mask)
            return replace(s, index=index(s.index), value=value(s.value), mask=mask)
        case ir.Init():
            return replace(s, names=tuple(map(name, s.names)))
        case ir.Update():
            return replace(s, names=tuple(map(name, s.names)), values=tuple(map(value, s.values)))
        case ir.Check():
            return replace(s, cond=name(s.cond), value=None if s.value is None else name(s.value))
        case ir.Loop():
            body = tuple(rewrite(x, index, name) for x in s.body)
            return replace(s, axis=name(s.axis), extent=index(s.extent), body=body)
    raise TypeError(s)


def canonical(body: tuple[ir.Stmt, ...], buffers: Mapping[str, Buffer], title: str) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel with names counted from 0, and the buffers its parameters stand for, in order."""
    names = dict(_new_names(body))
    order = list(dict.fromkeys(s.buffer for s in walk(body) if isinstance(s, ir.Load | ir.Store)))
    written = {s.buffer for s in walk(body) if isinstance(s, ir.Store)}
    order.sort(key=lambda b: b in written)
    params = {b: f"{'out' if b in written else 'in'}{n}" for n, b in enumerate(order)}
    symbols: dict[Expr, Int] = {Symbol(a): Symbol(b) for a, b in names.items()}

    def index(e: Int) -> Int:
        return as_int(lift(e).subs(symbols))

    renamed = tuple(with_buffers(rewrite(s, index, lambda n: names.get(n, n)), params.__getitem__) for s in body)
    declared = tuple(replace(buffers[b], name=params[b]) for b in order)
    sizes = _sizes(renamed, declared)
    writes = frozenset(params[b] for b in written)
    return Kernel(title, declared, writes, sizes, renamed), tuple(order)


def _new_names(body: Iterable[ir.Stmt]) -> Iterable[tuple[str, str]]:
    """Old and new names, counted as ``build.KernelRecorder`` counts."""
    values = 0
    axes = 0
    for s in walk(body):
        if isinstance(s, ir.Loop):
            yield s.axis, f"i{axes}"
            axes += 1
        elif isinstance(s, ir.Init):
            for n, name in enumerate(s.names):
                yield name, f"a{values + n}"
            values += len(s.names)
        elif isinstance(s, ir.Let | ir.Load | ir.Index):
            yield s.name, f"v{values}"
            values += 1


def with_buffers(s: ir.Stmt, name: Callable[[str], str]) -> ir.Stmt:
    """A copy of a statement (and what is in it) over renamed buffers."""
    if isinstance(s, ir.Load | ir.Store):
        return replace(s, buffer=name(s.buffer))
    if isinstance(s, ir.Loop):
        return replace(s, body=tuple(with_buffers(x, name) for x in s.body))
    return s


def _sizes(body: tuple[ir.Stmt, ...], params: tuple[Buffer, ...]) -> tuple[str, ...]:
    """Free symbols that are neither axes nor values."""
    own = {new for _, new in _new_names(body)}
    exprs: list[Int] = [n for b in params for n in (*b.shape, *b.stride)]
    for s in walk(body):
        if isinstance(s, ir.Loop):
            exprs.append(s.extent)
        elif isinstance(s, ir.Load | ir.Store):
            exprs.append(s.index)
        elif isinstance(s, ir.Index):
            exprs.append(s.expr)
    return tuple(sorted({x.name for e in exprs for x in lift(e).free_symbols} - own))
