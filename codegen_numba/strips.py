"""Loops inside of a loop that runs with memory: the inside is done for a strip of neighbours at a time.

Stage: codegen_numba, a part of ``emit``.  In: the body of a map loop whose inner loops jump through memory while the
map loop itself would walk it (an argmax over the first axis).  Out: the same body turned inside out: every straight
run of statements becomes a loop over the strip, which LLVM vectorises, and values that one run gives another, and
accumulators, live in scratch rows with one element for each neighbour.  Read next: ``emit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen_numba import analysis, spell
from codegen_numba.analysis import Body
from compiler.loop.ir import Check, Index, Init, Loop, Stmt, Update, walk
from tinytorch.dtypes import DType, bool_, int64

if TYPE_CHECKING:
    from codegen_numba.statements import Statements


def suits(loop: Loop) -> bool:
    """Do the accesses inside the loops of ``loop`` run along its axis rather than along their own?"""
    if any(isinstance(s, Check) for s in walk(loop.body)):
        return False
    inside = [(path, run) for path, run in analysis.innermost(loop.body) if path]
    if any(loop.axis in analysis.names_in(x.extent) for path, _ in inside for x in path):
        return False  # neighbours do not run equally often: the last block of a reduction may be a shorter one
    along = sum(analysis.grain(run, loop.axis) for _, run in inside)
    own = sum(analysis.grain(run, path[-1].axis) for path, run in inside)
    return along > own and analysis.hint(loop.extent) >= 8


class Strip:
    """Writes one body inside out."""

    def __init__(self, emitter: Statements, loop: Loop, width: int) -> None:
        self.e, self.axis, self.width = emitter, emitter.name(loop.axis), width
        self.runs = list(_runs(loop.body))
        made = {n: k for k, run in enumerate(self.runs) for s in run for n in analysis.defines(s)}
        used: dict[str, set[int]] = {}
        for k, run in enumerate(self.runs):
            for s in run:
                for n in analysis.uses(s):
                    used.setdefault(n, set()).add(k)
        #: names that one run makes and another reads
        self.shared = {n for n, k in made.items() if used.get(n, set()) - {k}}
        self.types: dict[str, DType] = {}
        self.started: set[str] = set()
        self.next = 0

    def body(self, stmts: Body) -> None:
        straight: list[Stmt] = []
        for s in stmts:
            if isinstance(s, Loop):
                self._run(straight)
                straight = []
                with (
                    self.e.inside(s),
                    self.e.out.block(f"for {self.e.name(s.axis)} in range({self.e.index(s.extent)}):"),
                ):
                    self.body(s.body)
            else:
                straight.append(s)
        self._run(straight)

    def _run(self, stmts: list[Stmt]) -> None:
        if not stmts:
            return
        e, here = self.e, f"{self.axis} - {self.axis}_0"
        made = {n for s in stmts for n in analysis.defines(s)}
        changed = {n for s in stmts if isinstance(s, Update) for n in s.names} | made
        read = frozenset().union(*(analysis.uses(s) for s in stmts)) - made
        for s in stmts:
            for n, d in _typed(s):
                self.types[n] = d
        for n in sorted(made & self.shared):
            e.out(f"{e.name(n)}_strip = scratch_{_memory(self.types[n])}({self.width})")
        with e.out.block(f"for {self.axis} in range({self.axis}_0, {self.axis}_1):"):
            for n in sorted(read & self.shared):
                e.out(f"{e.name(n)} = {e.name(n)}_strip[{here}]{' != 0' if self.types[n] is bool_ else ''}")
            e.body(stmts, whole=False)
            for n in sorted(changed & self.shared):
                value = f"to_uint8({e.name(n)})" if self.types[n] is bool_ else e.name(n)
                e.out(f"{e.name(n)}_strip[{here}] = {value}")


def _runs(body: Body) -> list[list[Stmt]]:
    """Straight runs of statements, in the order they are written."""
    out: list[list[Stmt]] = [[]]
    for s in body:
        if isinstance(s, Loop):
            out += [*_runs(s.body), []]
        else:
            out[-1].append(s)
    return [run for run in out if run]


def _typed(s: Stmt) -> list[tuple[str, DType]]:
    if isinstance(s, Init):
        return list(zip(s.names, s.dtypes, strict=True))
    dtype = int64 if isinstance(s, Index) else getattr(s, "dtype", None)
    return [(n, dtype) for n in analysis.defines(s) if dtype is not None]


def _memory(dtype: DType) -> str:
    return "uint8" if dtype is bool_ else spell.register_type(dtype)
