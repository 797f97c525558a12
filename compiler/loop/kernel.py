"""From a group of nests to one kernel's body: weave the loops, write the statements, drop what nobody reads.

Stage: loop.  In: a ``Group`` and the buffers that others need.  Out: a body before its names are canonical.  Large full
reductions are cut into parts first, which run side by side and meet in a combining store.
Read next: ``weave``, ``write`` (the two halves), ``tidy`` (merging contiguous loops, canonical names), ``order``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from compiler.loop import ir
from compiler.loop.fuse import Group, combinable, outer_reduction
from compiler.loop.ir import walk
from compiler.loop.nest import Nest
from compiler.loop.program import Program, fill_of
from compiler.loop.sizes import hint
from compiler.loop.weave import Weaver
from compiler.loop.write import Writer
from compiler.sym.expr import lift

#: A full reduction larger than this is cut into independent parts joined by a combining store.
SPLIT_FROM = 1 << 15
PARTS = 64


# --- reductions that cannot finish inside: combining stores ---------------------------------------------------------
def with_combining_store(nest: Nest) -> Nest:
    """The reduce loops outside of the last map loop (or outermost, if all reduce) become map loops over a combining
    store; those inside stay and make the value it adds."""
    last = max((n for n, a in enumerate(nest.axes) if a.kind == "map"), default=0)
    axes = tuple(replace(a, kind="map") if n <= last else a for n, a in enumerate(nest.axes))
    (post,) = nest.post
    assert isinstance(post, ir.Store) and nest.init is not None and nest.update is not None
    store = replace(post, mode=nest.init.combine)  # type: ignore[arg-type]
    if any(a.kind == "reduce" for a in axes):
        return replace(nest, axes=axes, post=(store,))
    store = replace(store, value=nest.update.values[0])
    return replace(nest, axes=axes, body=(*nest.body, store), init=None, update=None, post=())


def split_full_reductions(group: Group, program: Program) -> Group:
    """Cut the outermost loop of large full reductions so that parts of it can run side by side."""
    if not group.nests[0].axes or not any(_is_large_full(n) for n in group.nests):
        return group
    outer = next(n for n in group.nests if _is_large_full(n)).axes[0]
    if group.spine[:1] != (outer.name,) or not isinstance(outer.extent, int) or outer.extent <= 2 * PARTS:
        return group
    parts = next((p for p in range(PARTS, 4 * PARTS) if outer.extent % p == 0), None)
    parts = parts or next((p for p in range(PARTS, 8, -1) if outer.extent % p == 0), None)
    return group if parts is None else group.split(outer.name, outer.extent // parts, program.names)


def _is_large_full(nest: Nest) -> bool:
    reduced = nest.axes and all(a.kind == "reduce" for a in nest.axes)
    return bool(reduced) and combinable(nest) and hint(nest.numel) >= SPLIT_FROM


# --- putting it together ---------------------------------------------------------------------------------------------
@dataclass
class Built:
    """A kernel's body before it gets canonical names."""

    body: tuple[ir.Stmt, ...]
    fills: dict[str, Any]
    group: Group


def build(group: Group, program: Program, needed: frozenset[str]) -> Built:
    """Weave and write a group; ``needed`` are buffers that other tasks or the caller read."""
    group = split_full_reductions(group, program)
    fills: dict[str, Any] = {}
    nests = []
    for n in group.nests:
        if outer_reduction(n) or (_is_large_full(n) and _has_parts(n, group)):
            fills[n.writes[0].buffer] = fill_of(n.init.combine, n.init.dtypes[0])  # type: ignore[union-attr]
            n = with_combining_store(n)
        nests.append(n)
    weaver = Weaver(nests, group.spine, program.names)
    tree = weaver.weave([(n.number, 0) for n in nests])
    private = frozenset(w.buffer for n in nests for w in n.writes) - needed
    writer = Writer(weaver.nests, program, private)
    writer.tree(tree)
    body = drop_dead(tuple(writer.blocks[0].stmts), private)
    return Built(body, fills, group)


def _has_parts(n: Nest, group: Group) -> bool:
    """Is there an outermost loop, over few enough parts or rows, to run side by side?"""
    return len(n.axes) > 1 and group.spine[:1] == (n.axes[0].name,)


def drop_dead(body: tuple[ir.Stmt, ...], private: frozenset[str]) -> tuple[ir.Stmt, ...]:
    """Without stores to private buffers that nothing loads, and without values that nothing uses."""
    while True:
        loaded = {s.buffer for s in walk(body) if isinstance(s, ir.Load)}
        used = set(_used(body))
        new = _without_dead(body, private - loaded, used)
        if new == body:
            return body
        body = new


def _used(body: Iterable[ir.Stmt]) -> Iterable[str]:
    for s in walk(body):
        if isinstance(s, ir.Let):
            yield from (a for a in s.args if isinstance(a, str))
        elif isinstance(s, ir.Load | ir.Store):
            yield from (x.name for x in lift(s.index).free_symbols)
            yield from (x for x in (s.mask, getattr(s, "value", None)) if isinstance(x, str))
        elif isinstance(s, ir.Index):
            yield from (x.name for x in lift(s.expr).free_symbols)
        elif isinstance(s, ir.Update):
            yield from (v for v in s.values if isinstance(v, str))
        elif isinstance(s, ir.Check):
            yield s.cond
            yield s.value or s.cond


def _without_dead(body: tuple[ir.Stmt, ...], silent: frozenset[str], used: set[str]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, ir.Store) and s.buffer in silent:
            continue
        if isinstance(s, ir.Let | ir.Load | ir.Index) and s.name not in used:
            continue
        if isinstance(s, ir.Init) and not used & set(s.names):
            continue
        if isinstance(s, ir.Update) and not used & set(s.names):
            continue
        if isinstance(s, ir.Loop):
            inner = _without_dead(s.body, silent, used)
            if not inner:
                continue
            s = replace(s, body=inner)
        out.append(s)
    return tuple(out)
