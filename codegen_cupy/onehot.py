"""One-hot rows: their sums in closed form, ``sum over j of (j == t ? v : 0)`` is ``v`` where ``t`` is one of the ``j``; and
comparisons with ``j`` in 32 bits.

Stage: codegen.  In, out: ``Nest``.  The gradient of a gather is zero but for one element, and the gradient of softmax
wants the sum over its row: a loop over 50,000 classes to find one number.  Read next: ``rows``.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_cupy.nest import Flat, Nest, defined, used
from compiler.loop.ir import Index, Init, Let, Loop, Stmt, Update, walk
from compiler.sym.expr import Symbol, lift
from tinytorch.dtypes import bool_, int32

#: Functions that are zero wherever all their varying operands are.
_KEEP_ZERO = frozenset(("neg", "cast", "abs"))


def closed(nest: Nest) -> Nest:
    """The nest with such loops replaced by what they give."""
    loops = [s for s in nest.body if isinstance(s, Loop)]
    if not any(s.kind == "reduce" for s in loops):
        return nest
    inits = {s.names[0]: s for s in nest.body if isinstance(s, Init) and s.combine == "add"}
    updated = [x.names[0] for x in walk(nest.body) if isinstance(x, Update)]
    once = {n: s for n, s in inits.items() if updated.count(n) == 1}
    body: list[Stmt] = []
    gone: set[str] = set()
    for s in nest.body:
        short = _closed(s, once) if isinstance(s, Loop) else None
        if short is None:
            body.append(s)
        else:
            body += short
            gone |= {x.names[0] for x in walk((s,)) if isinstance(x, Update)}
    return replace(nest, body=tuple(s for s in body if not (isinstance(s, Init) and s.names[0] in gone)))


def narrowed(nest: Nest) -> Nest:
    """Places along a row compared as 32-bit numbers: ``t`` is narrowed once per row, a ``t`` outside of it to -1."""
    body: list[Stmt] = []
    for s in nest.body:
        if isinstance(s, Loop) and isinstance(s.extent, int) and 0 < s.extent < 2**31 and not isinstance(s, Flat):
            before, s = _narrowed(s)
            body += before
        body.append(s)
    return replace(nest, body=tuple(body))


def _narrowed(loop: Loop) -> tuple[list[Stmt], Loop]:
    assert isinstance(loop.extent, int)
    inside = set(defined(loop.body))
    places = {s.name for s in loop.body if isinstance(s, Index) and lift(s.expr) is Symbol(loop.axis)}
    before: list[Stmt] = []
    body: list[Stmt] = []
    for s in loop.body:
        found = _compared(s, places, inside) if isinstance(s, Let) and s.fn == "eq" else None
        if found is None:
            body.append(s)
            continue
        hit, target = found
        assert isinstance(s, Let)
        place = next(str(a) for a in s.args if a in places)
        least, most, within, short, narrow = (f"{hit}_{x}" for x in ("least", "most", "within", "short", "target"))
        before += [
            Let(least, "ge", (target, 0), bool_), Let(most, "lt", (target, loop.extent), bool_),
            Let(within, "bit_and", (least, most), bool_), Let(short, "cast", (target,), int32),
            Let(narrow, "where", (within, short, -1), int32),
        ]  # fmt: skip
        body += [Let(f"{hit}_place", "cast", (place,), int32), replace(s, args=(f"{hit}_place", narrow))]
    return before, replace(loop, body=tuple(body))


def _closed(loop: Loop, inits: dict[str, Init]) -> list[Stmt] | None:
    """Straight-line statements that give what the loop leaves in its accumulators; None if it is not of this kind."""
    if loop.kind != "reduce" or isinstance(loop, Flat):
        return None
    inside = set(defined(loop.body))
    places = {s.name for s in loop.body if isinstance(s, Index) and lift(s.expr) is Symbol(loop.axis)}
    wanted = next((_compared(s, places, inside) for s in loop.body if isinstance(s, Let) and s.fn == "eq"), None)
    if wanted is None:
        return None
    hit, target = wanted
    zero: set[str] = set()  # names of what is zero wherever the row is not hit
    low, high, extent = f"{hit}_low", f"{hit}_high", f"{hit}_extent"
    out: list[Stmt] = [
        Index(extent, loop.extent),
        Let(low, "ge", (target, 0), bool_),
        Let(high, "lt", (target, extent), bool_),
        Let(hit, "bit_and", (low, high), bool_),
    ]
    for s in loop.body:
        if isinstance(s, Let) and _zero_elsewhere(s, hit, zero, inside):
            zero.add(s.name)
            out.append(s)
        elif isinstance(s, Update) and s.names[0] in inits and s.values[0] in zero:
            out.append(Let(s.names[0], "add", (s.values[0], 0), inits[s.names[0]].dtypes[0]))
        elif not (isinstance(s, Index) and s.name in places or isinstance(s, Let) and s.name == hit):
            return None
    return out


def _compared(s: Let, places: set[str], inside: set[str]) -> tuple[str, str] | None:
    """(the comparison, what the place is compared with)."""
    a, b = s.args
    for place, other in ((a, b), (b, a)):
        if place in places and isinstance(other, str) and other not in inside:
            return s.name, other
    return None


def _zero_elsewhere(s: Let, hit: str, zero: set[str], inside: set[str]) -> bool:
    if s.fn == "where":
        return s.args[0] == hit and s.args[2] == 0 and s.args[1] not in inside
    return s.fn in _KEEP_ZERO and s.args[0] in zero and not set(used(s)) & (inside - zero)
