"""A row's exponentials over their sum: the one division of a softmax, by a divisor that a whole row has in common.

Stage: codegen_numba, a part of ``statements``.  In: statements and loops side by side.  Out: the same with ``x / total`` as
a word of its own where a row shows what it needs to know of both: ``x`` is an exponential of what is not above the row's
maximum, so 1 at most, and the total the sum of all of them, so 1 at least.  The word divides once for a whole row.
Read next: ``joined_math`` (``share``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from codegen_numba import analysis, memo
from codegen_numba.analysis import Body
from compiler.loop.ir import Init, Let, Loop, Stmt, Update, walk

SHARE = "share"


def mark(body: Body, written: frozenset[str]) -> Body:
    """``body`` with the divisions of its softmaxes as shares; ``written``: buffers that change in between."""
    loops = [s for s in body if isinstance(s, Loop) and s.kind != "scan" and not analysis.has_loop(s.body)]
    keys = {id(s): memo.keys(s, written) for s in loops}
    updates = [(s, u) for s in loops for u in s.body if isinstance(u, Update)]
    often = Counter(n for x in walk(body) if isinstance(x, Update) for n in x.names)
    begun = {n for x in body if isinstance(x, Init) for n in x.names}

    def fed(combine: str) -> dict[str, tuple[Any, Any]]:
        """What each accumulator of one loop, begun in this row, is fed with, and over which extent."""
        return {
            u.names[0]: (keys[id(s)].get(str(u.values[0])), s.extent)
            for s, u in updates
            if u.combine == combine and u.names[0] in begun and often[u.names[0]] == 1
        }

    tops, totals = fed("max"), fed("add")

    def marked(s: Loop, x: Stmt) -> Stmt:
        if not isinstance(x, Let) or x.fn != "div":
            return x
        key, (total, extent) = keys[id(s)].get(str(x.args[0])), totals.get(str(x.args[1]), (None, None))
        found = key is not None and key == total and s.extent == extent and _below_top(key, tops)
        return replace(x, fn=SHARE) if found else x

    changed = {id(s): replace(s, body=tuple(marked(s, x) for x in s.body)) for s in loops}
    return tuple(changed.get(id(s), s) for s in body)


def _below_top(key: Any, tops: dict[str, tuple[Any, Any]]) -> bool:
    """Is this ``exp(x - top)`` with ``top`` the maximum of all ``x``?"""
    match key:
        case ("exp", _, extent, ("sub", _, _, x, ("outer", top))):
            return bool(tops.get(top) == (x, extent))
    return False
