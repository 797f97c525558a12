"""What one pass over a row computes at a price, the next pass reads back from a scratch row.

Stage: codegen_numba.  In: the body of a row kernel.  Out: the same with ``Keep`` and ``Recall`` statements.
A softmax goes over its row three times and would take the exponential twice.  Rows are short enough for the cache, so
the first pass writes its exponentials down and the last one reads them.  Only loops side by side over equal
extents qualify, and only values that depend on nothing that changes in between.  An extent that is known only at run
time is taken to be at most ``LONGEST``: ``emit`` writes both bodies then, and asks.  Read next: ``emit``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from codegen_numba import analysis
from codegen_numba.analysis import Body, Keep, Recall, known
from compiler.loop.ir import Index, Int, Let, Load, Loop, Stmt
from compiler.sym.expr import Symbol
from tinytorch.dtypes import DType

#: A value is kept if computing it costs at least this (units of ``analysis.COSTS``), loads and all.
DEAR = 8
#: Elements of a scratch row, and of all of one kernel together.
LONGEST, ROOM = 16_384, 32_768

Key: TypeAlias = Any


def remember(body: Body, written: Iterable[str]) -> Body:
    """``body`` with dear values of one loop kept for the later loops beside it."""
    return _Memo(frozenset(written)).run(body)


def unknown(body: Body) -> Int | None:
    """The extent of the loops that keep a row whose length only run time knows."""
    for s in body:
        if isinstance(s, Loop) and known(s.extent) is None and any(isinstance(x, Keep) for x in s.body):
            return s.extent
    return None


class _Memo:
    def __init__(self, written: frozenset[str]) -> None:
        self.written = written
        self.first: dict[Key, tuple[int, str, DType]] = {}  # value -> (loop, name, type)
        self.rows: dict[Key, str] = {}
        self.kept: dict[int, list[Key]] = {}
        self.room = ROOM
        self.unknown = ""  # the one extent that only run time knows

    def run(self, body: Body) -> Body:
        out: list[Stmt] = list(body)
        for n, s in enumerate(body):
            if not isinstance(s, Loop) or s.kind == "scan" or analysis.has_loop(s.body):
                continue
            length = self._length(s.extent)
            if length is None:
                continue
            named = keys(s, self.written)
            out[n] = self._recall(s, n, named, length, body)
            for name, key in named.items():
                let = next(x for x in s.body if name in analysis.defines(x))
                if key is not None and isinstance(let, Let):
                    self.first.setdefault(key, (n, name, let.dtype))
        for n, keys_ in self.kept.items():
            out[n] = self._keep(out[n], keys_)
        return tuple(out)

    def _length(self, extent: Int) -> int | None:
        """Room for a row; None if it is not worth it, too long, or another unknown one than before."""
        length = known(extent)
        if length is not None:
            return length if 32 < length <= LONGEST else None
        self.unknown = self.unknown or str(extent)
        return LONGEST if str(extent) == self.unknown else None

    def _recall(self, s: Loop, n: int, keys: dict[str, Key], length: int, body: Body) -> Loop:
        """Read what an earlier loop computed, from the last value back: what only made such values is no longer needed."""
        lines: list[Any] = []
        wanted: set[str] = set()
        changed = False
        for x in reversed(s.body):
            if isinstance(x, Let | Load | Index) and x.name not in wanted:
                continue
            key = keys.get(x.name) if isinstance(x, Let) else None
            found = self.first.get(key) if key is not None else None
            if found is None or not isinstance(x, Let) or _price(s, x.name) < DEAR or not self._has_room(key, length):
                lines.append(x)
                wanted |= analysis.uses(x)
                continue
            row = self.rows.setdefault(key, f"{found[1]}_kept")
            if key not in self.kept.setdefault(found[0], []):
                self.kept[found[0]].append(key)
            lines.append(Recall(row, x.name, s.axis, x.dtype))
            changed = True
        return replace(s, body=tuple(reversed(lines))) if changed else s

    def _has_room(self, key: Key, length: int) -> bool:
        if key in self.rows:
            return True
        if self.room < length:
            return False
        self.room -= length
        return True

    def _keep(self, s: Any, keys: list[Key]) -> Loop:
        lines: list[Any] = []
        for x in s.body:
            lines.append(x)
            for key in keys:
                _, name, dtype = self.first[key]
                if isinstance(x, Let) and x.name == name:
                    lines.append(Keep(self.rows[key], name, s.axis, dtype, known(s.extent) or LONGEST))
        return replace(s, body=tuple(lines))


def keys(s: Loop, written: Iterable[str]) -> dict[str, Key]:
    """What each name of a straight loop body stands for, with the axis nameless; None if it may change."""
    made: dict[str, Key] = {}
    for x in s.body:
        match x:
            case Let():
                args = [_operand(a, made) for a in x.args]
                made[x.name] = None if None in args else (x.fn, x.dtype.name, s.extent, *args)
            case Load():
                good = x.mask is None and x.buffer not in written and not analysis.names_in(x.index) & set(made)
                made[x.name] = ("load", x.buffer, _nameless(x.index, s.axis)) if good else None
            case Index():
                good = not analysis.names_in(x.expr) & set(made)
                made[x.name] = ("index", _nameless(x.expr, s.axis)) if good else None
    return made


def _operand(a: Any, made: dict[str, Key]) -> Key:
    if isinstance(a, str):
        return made[a] if a in made else ("outer", a)
    return type(a).__name__, repr(a)


def _nameless(e: Int, axis: str) -> Any:
    return e if isinstance(e, int) else str(e.subs({Symbol(axis): Symbol("_")}))


def _price(s: Loop, name: str) -> int:
    """The cost of all of the loop's statements that a name depends on."""
    makers = {n: x for x in s.body for n in analysis.defines(x)}
    needed: set[str] = set()
    pending = [name]
    while pending:
        n = pending.pop()
        if n in makers and n not in needed:
            needed.add(n)
            pending += analysis.uses(makers[n])
    return analysis.cost(makers[n] for n in needed if isinstance(makers[n], Let))
