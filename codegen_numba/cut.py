"""Cutting the top level of a kernel: each heavy loop becomes a phase that threads can share.

Stage: codegen_numba.  In: a kernel's body.  Out: ``Piece``s in order.  A heavy reduction is run in blocks, each of which
writes its result to a word of *work* memory; whoever needs the value joins those words first.  How many blocks there
are depends on sizes alone, so the result does not depend on the number of threads.  What a piece needs of the
statements before it (scalars, joins of earlier reductions) it computes again: that is its prologue.
Read next: ``schedule``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from codegen_numba import analysis
from codegen_numba.analysis import Body, ceil_div, known
from compiler.loop.ir import Buffer, Check, Index, Init, Int, Let, Load, Loop, Stmt, Store, Update, walk
from compiler.sym.expr import Symbol, lift, minimum

#: Combines whose partial results are joined by the same ``Update`` that takes terms.
SPLITTABLE = frozenset(("add", "mul", "max", "min", "and", "or", "xor", "argmax", "argmin"))
MOST_BLOCKS = 64
TERMS = 8192  # of a block whose loop has no known length


@dataclass(frozen=True)
class Piece:
    """A body, the pure statements it needs first, and the work memory it writes and reads."""

    body: Body
    prologue: Body = ()
    work: tuple[Buffer, ...] = ()


def cut(body: Body, writes: frozenset[str], heavy: int) -> list[Piece]:
    """The top level in pieces; one piece if nothing is heavy or it cannot be cut."""
    if len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "map":
        return [Piece(body)]
    try:
        return _Cutter(writes, heavy).run(body)
    except _CannotCutError:
        return [Piece(body)]


class _CannotCutError(Exception):
    """A later piece would need what only an earlier one may compute."""


class _Cutter:
    def __init__(self, writes: frozenset[str], heavy: int) -> None:
        self.writes, self.heavy = writes, heavy
        self.done: list[Stmt] = []  # everything so far, heavy reductions replaced by their joins
        self.pending: list[Stmt] = []  # with effects, not yet in a piece
        self.work: list[Buffer] = []
        self.pieces: list[Piece] = []

    def run(self, body: Body) -> list[Piece]:
        inits = {n: s for s in body if isinstance(s, Init) for n in s.names}
        for s in body:
            if isinstance(s, Loop) and self._is_heavy(s):
                self._loop(s, inits)
            else:
                self.done.append(s)
                if isinstance(s, Store | Check) or isinstance(s, Loop) and _has_effect(s):
                    self.pending.append(s)
        self._flush()
        return self.pieces

    def _is_heavy(self, s: Loop) -> bool:
        unknown = any(known(x.extent) is None for x in walk((s,)) if isinstance(x, Loop))
        return unknown or analysis.hint(s.extent) * analysis.cost(s.body) >= self.heavy

    def _flush(self) -> None:
        if self.pending:
            chosen = self._slice(self.pending, self.pending)
            self._add(tuple(s for s in self.done if s in chosen), ())
            self.pending = []

    def _add(self, body: Body, prologue: Body, more: Iterable[Buffer] = ()) -> None:
        used = {s.buffer for s in walk((*body, *prologue)) if isinstance(s, Load | Store)}
        self.pieces.append(Piece(body, prologue, tuple(b for b in (*self.work, *more) if b.name in used)))

    def _loop(self, s: Loop, inits: dict[str, Init]) -> None:
        updated = [u.names[0] for u in walk(s.body) if isinstance(u, Update)]
        accs = {id(inits[n]): inits[n] for n in updated if n in inits}
        if s.kind == "map":
            self._flush()
            self._add((s,), self._prologue(s, ()))
        elif s.kind == "reduce" and not _stores(s) and all(a.combine in SPLITTABLE for a in accs.values()):
            self._flush()
            self._split(s, list(accs.values()))
        else:
            self.done.append(s)
            if _has_effect(s):
                self.pending.append(s)

    # --- a reduction in blocks ---
    def _split(self, s: Loop, accs: list[Init]) -> None:
        chunk, count = self._blocks(s)
        axis = f"{s.axis}_block"
        rest = lift(s.extent) - Symbol(axis) * chunk
        length: Int = chunk if _divides(chunk, s.extent) else minimum(lift(chunk), rest)
        inner = shifted(s.body, s.axis, Symbol(axis) * chunk + Symbol(s.axis))
        stores: list[Stmt] = []
        joins: list[Stmt] = []
        made: list[Buffer] = []
        for a in accs:
            words = [Buffer(f"{n}_work", d, (count,), (1,)) for n, d in zip(a.names, a.dtypes, strict=True)]
            made += words
            stores += [Store(w.name, Symbol(axis), n) for w, n in zip(words, a.names, strict=True)]
            at = f"{a.names[0]}_join"
            loads = [Load(f"{n}_joined", w.name, Symbol(at), w.dtype) for w, n in zip(words, a.names, strict=True)]
            update = Update(a.names, a.combine, tuple(x.name for x in loads))
            joins.append(Loop(at, count, "reduce", (*loads, update)))
        loop = Loop(s.axis, length, "reduce", inner)
        self._add((Loop(axis, count, "map", (*accs, loop, *stores)),), self._prologue(s, accs), made)
        self.work += made
        self.done += joins

    def _blocks(self, s: Loop) -> tuple[int, Int]:
        """Terms of the outer loop per block, and how many blocks."""
        n = known(s.extent)
        if n is None:
            chunk = 1 if analysis.has_loop(s.body) else TERMS
            return chunk, ceil_div(s.extent, chunk)
        total = n * analysis.cost(s.body)
        count = max(1, min(MOST_BLOCKS, n, total // max(1, self.heavy // 4)))
        chunk = -(-n // count)
        return chunk, -(-n // chunk)

    # --- what must be computed again ---
    def _prologue(self, s: Loop, own: Iterable[Init]) -> Body:
        mine = {n for a in own for n in a.names}
        chosen = self._slice([s], [], without=mine)
        return tuple(x for x in self.done if x in chosen and x is not s)

    def _slice(self, roots: list[Stmt], allowed: list[Stmt], without: Iterable[str] = ()) -> list[Stmt]:
        """The statements before that ``roots`` depend on, and the roots."""
        chosen: list[Stmt] = list(roots)
        wanted = frozenset().union(*(analysis.uses(r) for r in roots)) - set(without)
        for s in reversed(self.done):
            if s in chosen:
                continue
            gives = {
                *analysis.defines(s),
                *(n for u in walk((s,)) if isinstance(u, Update) for n in u.names),
            }
            if not gives & wanted:
                continue
            if s not in allowed and not self._pure(s):
                raise _CannotCutError
            chosen.append(s)
            wanted |= analysis.uses(s)
        return chosen

    def _pure(self, s: Stmt) -> bool:
        return not any(
            isinstance(x, Store | Check) or (isinstance(x, Load) and x.buffer in self.writes)
            for x in walk((s,))
        )


def _stores(s: Loop) -> bool:
    return any(isinstance(x, Store) for x in walk(s.body))


def _has_effect(s: Loop) -> bool:
    return any(isinstance(x, Store | Check) for x in walk(s.body))


def _divides(chunk: int, n: Int) -> bool:
    value = known(n)
    return value is not None and value % chunk == 0


def shifted(body: Body, axis: str, by: Any) -> Body:
    """``body`` with ``by`` for the axis in every index."""

    def change(e: Int) -> Int:
        if isinstance(e, int):
            return e
        out = e.subs({Symbol(axis): by})
        value = known(out)
        return out if value is None else value

    out: list[Stmt] = []
    for s in body:
        match s:
            case Load() | Store():
                out.append(replace(s, index=change(s.index)))
            case Index():
                out.append(Index(s.name, change(s.expr)))
            case Loop():
                out.append(Loop(s.axis, change(s.extent), s.kind, shifted(s.body, axis, by)))
            case Let() | Init() | Update() | Check():
                out.append(s)
    return tuple(out)
