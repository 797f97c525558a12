"""Few points with long loops, one loop after another: one launch per loop, so that all blocks can share each.

Stage: codegen.  In: a nest such as ``x / x.sum()`` or softmax over a few very long rows.  Out: nests to be launched in
order, and small buffers that carry the row's values from one to the next.  A block per point would leave most of the
machine idle; a reduction split over blocks (``Schedule.split``) needs the loops after it in launches of their own.
Read next: ``sources``, ``choice``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen_cupy.kernel_text import HOST
from codegen_cupy.nest import Axis, Nest, accesses, defined, loop_axes, simplified, used, value_at
from compiler.loop.ir import (
    Buffer,
    Check,
    Index,
    Init,
    Int,
    Kernel,
    Let,
    Load,
    Loop,
    Stmt,
    Store,
    Update,
    walk,
)
from compiler.sym.expr import as_int, lift
from tinytorch.dtypes import DType, int64

FEW = 132  # points: fewer than the machine has multiprocessors
LONG = 16384  # iterations


@dataclass(frozen=True)
class Phases:
    """``kernel`` with the carrying buffers among its parameters, and the nests in launch order."""

    kernel: Kernel
    nests: tuple[Nest, ...]
    carried: tuple[Buffer, ...] = ()


def split(kernel: Kernel, nest: Nest, sizes: Mapping[str, int]) -> Phases:
    """The nest itself, or its loops one by one."""
    loops = [s for s in nest.body if isinstance(s, Loop)]
    fits = len(loops) > 1 and all(s.kind in ("map", "reduce") and _flat(s) for s in loops)
    if not fits or value_at(nest.points, sizes) >= FEW or max(value_at(s.extent, sizes) for s in loops) < LONG:
        return Phases(kernel, (nest,))
    segments = _checked(_segments(nest.body))
    types = _types(nest.body)
    produced = [_row_names(s) for s in segments]
    carried: dict[str, Buffer] = {}
    out: list[Nest] = []
    for n, segment in enumerate(segments):
        wanted = {v for s in walk(segment) for v in used(s)} | {v for s in walk(segment) if isinstance(s, Update) for v in s.names}
        loads = []
        for name in sorted(v for v in wanted & types.keys() if v not in produced[n] and not _inside(segment, v)):
            carried.setdefault(name, _buffer(kernel, nest, name, types[name]))
            loads.append(Load(name, carried[name].name, _row(nest), types[name]))
        out.append(Nest(nest.axes, (*loads, *segment)))
    for n, names in enumerate(produced):
        stores = tuple(Store(carried[v].name, _row(nest), v) for v in names if v in carried)
        out[n] = replace(out[n], body=(*out[n].body, *stores))
    buffers = tuple(carried.values())
    grown = replace(kernel, params=(*kernel.params, *buffers), writes=kernel.writes | {b.name for b in buffers})
    return Phases(grown, tuple(_opened(x) for x in out), buffers)


def row_sums(kernel: Kernel, nest: Nest, sizes: Mapping[str, int]) -> Phases:
    """A reduction over rows that each reduce themselves (the mean of row losses): the rows' values first, side by side
    and kept in memory, then the reduction over them."""
    outer = [s for s in nest.body if isinstance(s, Loop) and s.kind == "reduce" and any(isinstance(x, Loop) for x in s.body)]
    if len(outer) != 1 or value_at(nest.points, sizes) >= FEW:
        return Phases(kernel, (nest,))
    loop = outer[0]
    own = {n for s in loop.body if isinstance(s, Init) for n in s.names}
    updates = [s for s in loop.body if isinstance(s, Update) and s.names[0] not in own]
    inside = {n for s in walk(loop.body) if isinstance(s, Update) and s not in updates for n in s.names}
    before = nest.body[: nest.body.index(loop)]
    pure = tuple(s for s in before if not isinstance(s, (Init, Store)))
    started = {n for s in nest.body if isinstance(s, Init) for n in s.names}
    if not updates or inside & started or any(isinstance(s, Loop) for s in pure):
        return Phases(kernel, (nest,))
    axes = (*nest.axes, Axis(loop.axis, loop.extent))
    rows = Nest(axes, (*pure, *(s for s in loop.body if s not in updates)))
    types = _types(rows.body)
    carried: list[Buffer] = []
    loads: list[Stmt] = []
    stores: list[Stmt] = []
    for name in dict.fromkeys(v for u in updates for v in u.values if isinstance(v, str) and v in types):
        carried.append(_buffer(kernel, rows, name, types[name]))
        stores.append(Store(carried[-1].name, _row(rows), name))
        loads.append(Load(name, carried[-1].name, _row(rows), types[name]))
    second = replace(loop, body=(*loads, *updates))
    body = tuple(second if s is loop else s for s in nest.body)
    grown = replace(kernel, params=(*kernel.params, *carried), writes=kernel.writes | {b.name for b in carried})
    return Phases(grown, (simplified(replace(rows, body=(*rows.body, *stores))), Nest(nest.axes, body)), tuple(carried))


def gathered_columns(nest: Nest) -> Nest:
    """A pointwise nest that also sums over its outer axes (a bias gradient beside what it is the sum of): rows, so that
    the sums wait in registers instead of one atomic update per element."""
    sums = [s for s in nest.body if isinstance(s, Store) and s.mode == "add"]
    if len(nest.axes) < 2 or not sums or any(isinstance(s, Loop) for s in nest.body):
        return nest
    *outer, last = nest.axes
    moving = {a.name for a in outer} | set(defined(nest.body))
    apart = all(not {x.name for x in lift(s.index).free_symbols} & moving and last.symbol in lift(s.index).free_symbols for s in sums)
    if not apart:
        return nest
    return Nest(tuple(outer), (Loop(last.name, last.extent, "map", nest.body),))


def _flat(loop: Loop) -> bool:
    return not any(isinstance(s, (Loop, Init)) for s in loop.body)


def _segments(body: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    """A reduction with what precedes and follows it; a map loop alone, and before it what precedes it, which is a part of the
    map loop's segment if nobody else wants it and it only computes."""
    inits = {s.names[0]: s for s in body if isinstance(s, Init)}
    updated = {s.names[0] for s in walk(body) if isinstance(s, Update)}  # others are reductions over nothing
    out: list[tuple[Stmt, ...]] = []
    waiting: list[Stmt] = []
    for n, s in enumerate(body):
        if isinstance(s, Init) and s.names[0] in updated:
            continue
        if isinstance(s, Loop) and s.kind == "map":
            wanted = {v for x in walk(body[n + 1 :]) for v in used(x)}
            joins = all(isinstance(x, (Let, Load, Index)) and x.name not in wanted for x in waiting)
            out += [(*waiting, s)] if joins else [tuple(waiting), (s,)]
            waiting = []
        elif isinstance(s, Loop):
            names = dict.fromkeys(x.names[0] for x in walk((s,)) if isinstance(x, Update))
            out.append((*waiting, *(inits[x] for x in names), s))
            waiting = []
        elif out and not _maps(out[-1]):
            out[-1] = (*out[-1], s)
        else:
            waiting.append(s)
    return [*out, tuple(waiting)] if waiting else out


def _maps(segment: tuple[Stmt, ...]) -> bool:
    last = segment[-1]
    return isinstance(last, Loop) and last.kind == "map"


def _checked(segments: list[tuple[Stmt, ...]]) -> list[tuple[Stmt, ...]]:
    """Whoever reads or writes at a place that an earlier segment computed asks what that one checked: a launch that follows
    a failed check must not leave its buffers."""
    out: list[tuple[Stmt, ...]] = []
    checks: list[Stmt] = []
    for segment in segments:
        own = set(_row_names(segment)) | {s.name for s in walk(segment) if isinstance(s, (Let, Load, Index))}
        axes = {s.axis for s in walk(segment) if isinstance(s, Loop)}
        places = {x.name for s in accesses(segment) for x in lift(s.index).free_symbols} - own - axes
        earlier = {n for s in out for n in _row_names(s)}
        out.append((*checks, *segment) if places & earlier else segment)
        checks += [s for s in segment if isinstance(s, Check)]
    return out


def _types(body: tuple[Stmt, ...]) -> dict[str, DType]:
    """The names defined at the level of the row."""
    out: dict[str, DType] = {}
    for s in body:
        if isinstance(s, (Let, Load)):
            out[s.name] = s.dtype
        elif isinstance(s, Index):
            out[s.name] = int64
        elif isinstance(s, Init):
            out.update(zip(s.names, s.dtypes, strict=True))
    return out


def _row_names(segment: tuple[Stmt, ...]) -> list[str]:
    return list(_types(segment))


def _inside(segment: tuple[Stmt, ...], name: str) -> bool:
    """Is the name a loop's own?"""
    return any(isinstance(s, (Let, Load, Index)) and s.name == name for s in walk(segment))


def _buffer(kernel: Kernel, nest: Nest, name: str, dtype: DType) -> Buffer:
    taken, own = {b.name for b in kernel.params}, f"{name}_carried"
    while own in taken:  # by what the rows carried that this nest is over
        own += "_"
    return Buffer(own, dtype, (nest.points,), (1,), next(b.device for b in kernel.params if b.device != HOST))


def _row(nest: Nest) -> Int:
    at: Int = 0
    for a in nest.axes:
        at = lift(at) * a.extent + a.symbol
    return as_int(lift(at))


def _opened(nest: Nest) -> Nest:
    """A map loop below the points is more points."""
    *before, last = nest.body
    pure = all(isinstance(s, (Let, Load, Index, Check)) for s in before)
    if isinstance(last, Loop) and last.kind == "map" and pure:
        return simplified(Nest((*nest.axes, *loop_axes(last)), (*before, *last.body)))
    return nest
