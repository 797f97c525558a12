"""Softmax in one pass: a maximum, then a sum of ``exp(x - maximum)``, become one loop that keeps both.

Stage: codegen.  In, out: ``Nest``.  The loop IR writes softmax as it is defined: three loops over the row.  Where the
row stays in registers (``twopass``) that is also the best; everywhere else each loop is a trip through memory, and the
online softmax (Milakov and Gimelshein, 2018) saves one of them.  Read next: ``twopass``, ``phases``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from codegen_cupy.nest import Flat, Nest, slice_for, used
from compiler.loop.ir import Init, Int, Let, Load, Loop, Stmt, Store, Update, walk
from compiler.loop.tidy import rewrite
from compiler.sym.expr import Expr, Symbol, as_int, lift
from tinytorch.dtypes import bool_


def online(nest: Nest) -> Nest:
    """The nest with such pairs of loops joined, and rows that were only stored to be read again computed again."""
    if any(isinstance(s, Flat) for s in nest.body):
        return nest
    return _joined(_computed_again(nest))


# --- exp(x - maximum), summed -----------------------------------------------------------------------------------------
def _joined(nest: Nest) -> Nest:
    body = list(nest.body)
    for n, s in enumerate(body):
        if not isinstance(s, Loop) or s.kind != "reduce":
            continue
        sums = _exp_sum(s)
        if sums is None:
            continue
        peak, total, gap = sums
        first = next((m for m in range(n) if _updates(body[m], peak, "max")), None)
        if first is None or not _only_between(body[first + 1 : n], total, peak):
            continue
        a = body[first]
        assert isinstance(a, Loop)
        value = next(x.values[0] for x in a.body if isinstance(x, Update))
        if not _same_value(a, value, s, gap):
            continue
        inits = [x for x in body if isinstance(x, Init) and x.names[0] in (peak, total)]
        if len(inits) != 2:
            continue
        d = next(x for x in inits if x.names[0] == peak).dtypes[0]
        online_total = f"{total}_online"
        names = (peak, online_total)
        update = Update(names, "softmax", (value,))
        loop = replace(a, body=tuple(update if isinstance(x, Update) else x for x in a.body))
        empty = f"{total}_empty"
        end: list[Stmt] = [  # exp(-inf + inf) is what a row of nothing but -inf sums
            Let(empty, "eq", (peak, -math.inf), bool_),
            Let(total, "where", (empty, math.nan, online_total), d),
        ]
        body = [x for x in body if x not in inits]
        at, gone = body.index(a), body.index(s)
        body = [*body[:at], Init(names, "softmax", (d, d)), loop, *body[at + 1 : gone], *end, *body[gone + 1 :]]
        return _joined(replace(nest, body=tuple(body)))
    return nest


def _exp_sum(loop: Loop) -> tuple[str, str, str] | None:
    """(maximum, sum, the element) of a loop that does nothing but sum ``exp(element - maximum)``."""
    updates = [s for s in loop.body if isinstance(s, Update)]
    if len(updates) != 1 or updates[0].combine != "add" or not all(isinstance(s, (Let, Load, Update)) for s in loop.body):
        return None
    lets = {s.name: s for s in loop.body if isinstance(s, Let)}
    e = lets.get(str(_uncast(lets, updates[0].values[0])))
    gap = lets.get(str(_uncast(lets, e.args[0]))) if e is not None and e.fn == "exp" else None
    if gap is None or gap.fn != "sub" or not all(isinstance(v, str) for v in gap.args) or gap.args[1] in lets:
        return None
    return str(gap.args[1]), updates[0].names[0], str(gap.args[0])


def _uncast(lets: dict[str, Let], v: object) -> object:
    while isinstance(v, str) and v in lets and lets[v].fn == "cast" and lets[v].dtype.kind == "f":
        inner = lets[v].args[0]
        if isinstance(inner, str) and inner in lets and lets[inner].dtype is not lets[v].dtype:
            break
        v = inner
    return v


def _updates(s: Stmt, name: str, combine: str) -> bool:
    """A loop with this one update and otherwise reads and arithmetic."""
    if not isinstance(s, Loop) or s.kind != "reduce" or not all(isinstance(x, (Let, Load, Update)) for x in s.body):
        return False
    updates = [x for x in s.body if isinstance(x, Update)]
    return len(updates) == 1 and updates[0].combine == combine and updates[0].names == (name,)


def _only_between(stmts: list[Stmt], total: str, peak: str) -> bool:
    """No loop lies between; what is stored there is not read by the loops."""
    return not any(isinstance(s, Loop) for s in stmts)


def _same_value(a: Loop, x: object, b: Loop, y: str) -> bool:
    if not isinstance(x, str) or lift(a.extent) is not lift(b.extent):
        return False
    return _shape(a, x) == _shape(b, y)


def _shape(loop: Loop, value: str) -> list[Stmt]:
    """The statements that make a value, with canonical names."""
    stmts = [s for s in slice_for(loop.body, {value}) if not _is_plain_cast(s, loop)]
    names: dict[str, str] = {}
    for s in slice_for(loop.body, {value}):
        if _is_plain_cast(s, loop):
            assert isinstance(s, Let)
            source = str(s.args[0])
            names[s.name] = names.get(source, source)
        else:
            names[s.name] = f"_{len(names)}"  # type: ignore[union-attr]
    axis: dict[Expr, Int] = {Symbol(loop.axis): Symbol("_axis")}
    return [rewrite(s, lambda e: as_int(lift(e).subs(axis)), lambda n: names.get(n, n)) for s in stmts]


def _is_plain_cast(s: Stmt, loop: Loop) -> bool:
    """A cast to the type that the value already has."""
    if not isinstance(s, Let) or s.fn != "cast":
        return False
    made = next((x for x in loop.body if isinstance(x, (Let, Load)) and x.name == s.args[0]), None)
    return made is not None and made.dtype is s.dtype


# --- rows stored to be read again ----------------------------------------------------------------------------------------
def _computed_again(nest: Nest) -> Nest:
    """``store y[j]; ...; load y[j], store y[j]``: the last loop computes the first value again, the first store goes."""
    loops = [s for s in nest.body if isinstance(s, Loop)]
    for n, first in enumerate(loops):
        for store in (s for s in first.body if isinstance(s, Store) and s.mode == "set" and s.mask is None):
            later = [x for x in loops[n + 1 :] if any(isinstance(s, Load) and s.buffer == store.buffer for s in walk((x,)))]
            touched = [s for s in walk(nest.body) if isinstance(s, (Load, Store)) and s.buffer == store.buffer]
            if len(later) != 1 or len(touched) != 3 or not isinstance(store.value, str):
                continue
            again = _with_value(first, store, later[0])
            if again is not None:
                shorter = replace(first, body=tuple(s for s in first.body if s is not store))
                body = tuple(shorter if s is first else again if s is later[0] else s for s in nest.body)
                return _computed_again(replace(nest, body=body))
    return nest


def _with_value(first: Loop, store: Store, last: Loop) -> Loop | None:
    load = next(s for s in walk(last.body) if isinstance(s, Load) and s.buffer == store.buffer)
    end = next((s for s in last.body if isinstance(s, Store) and s.buffer == store.buffer), None)
    if load not in last.body or load.mask or end is None or end.mask or end.mode != "set":
        return None
    axis: dict[Expr, Int] = {Symbol(first.axis): Symbol(last.axis)}
    same = lift(load.index) is lift(end.index) is lift(as_int(lift(store.index).subs(axis)))
    if not same or lift(first.extent) is not lift(last.extent) or any(isinstance(s, Loop) for s in (*first.body, *last.body)):
        return None
    made = slice_for(first.body, {str(store.value)})
    if any(isinstance(s, Load) and s.buffer == store.buffer for s in made) or sum(isinstance(s, Let) for s in made) > _CHEAP:
        return None
    own = {n.name for n in made}  # type: ignore[union-attr]
    copy = [rewrite(s, lambda e: as_int(lift(e).subs(axis)), lambda n: f"{n}_again" if n in own else n) for s in made]
    value = f"{store.value}_again"
    dtype = next((s.dtype for s in made if s.name == store.value), load.dtype)  # type: ignore[union-attr]
    out: list[Stmt] = []
    for s in last.body:
        if s is load:
            out += [*copy, Let(load.name, "cast", (value,), load.dtype)] if dtype is not None else copy
        else:
            out.append(s)
    return replace(last, body=tuple(out)) if not set(used(end)) & own else None


_CHEAP = 6  # statements worth computing twice to save a trip through memory
