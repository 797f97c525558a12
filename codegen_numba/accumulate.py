"""Accumulators: how a reduction runs, in blocks whose terms LLVM may regroup.

Stage: codegen_numba, a part of ``statements``.  In: ``Init``, reduce loops, ``Update``.  Out: lines of kernel source.
Three ways, chosen at the ``Init``:  ``plain``, one term after the other (few terms, or a scan);  ``single``, one block
that holds all;  ``blocks``, partial results of blocks joined in a wider accumulator.  Combines of several components
(softmax, welford, argmax) write a block's values to a scratch row, so that each of their steps is a vector loop.
Read next: ``schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING, Literal

from codegen_numba import analysis, spell
from codegen_numba.analysis import known
from compiler.loop.ir import Init, Loop, Stmt, Update
from tinytorch.dtypes import DType, bool_, int64

if TYPE_CHECKING:
    from codegen_numba.statements import Statements

#: Combines whose block goes through a scratch row.
SCRATCH = frozenset(("softmax", "welford", "argmax", "argmin"))
NOWHERE = 2**63 - 1
#: The vocabulary name of each combine of one component.
WORDS = {
    "add": "add", "mul": "mul", "max": "maximum", "min": "minimum", "and": "bit_and", "or": "bit_or", "xor": "bit_xor",
}  # fmt: skip


@dataclass(frozen=True)
class Accumulator:
    names: tuple[str, ...]  # as written in the source
    combine: str
    dtypes: tuple[DType, ...]
    way: Literal["plain", "single", "blocks"]
    loop: Loop | None  # the loop beside the Init that feeds it

    @property
    def regroups(self) -> bool:
        """Does a block need a partial accumulator of its own?"""
        return self.way != "plain" and self.combine in ("add", "mul") and self.dtypes[0].kind == "f"

    @property
    def wide(self) -> bool:
        """Are the blocks of a sum added up in float64?"""
        return self.way == "blocks" and self.regroups and self.combine == "add" and self.dtypes[0].itemsize <= 4

    @property
    def carries(self) -> bool:
        """Is the rounding error of a float64 sum of blocks kept?"""
        return self.way == "blocks" and self.regroups and self.combine == "add" and self.dtypes[0].itemsize == 8

    @property
    def scratch(self) -> bool:
        return self.way != "plain" and self.combine in SCRATCH


def identity(combine: str, dtype: DType) -> str:
    """What joining leaves unchanged, as a literal."""
    if combine in ("add", "or", "xor", "welford"):
        return spell.literal(0, dtype)
    if combine == "mul":
        return spell.literal(1, dtype)
    if combine == "and":
        return spell.literal(-1 if dtype.kind == "i" else _greatest(dtype), dtype)
    low = combine in ("max", "argmax", "softmax")
    if dtype.kind == "f":
        return spell.literal(-inf if low else inf, dtype)
    least = -_greatest(dtype) - 1 if dtype.kind == "i" else 0
    return spell.literal(least if low else _greatest(dtype), dtype)


def _greatest(dtype: DType) -> int:
    return 1 if dtype.kind == "b" else 2 ** (8 * dtype.itemsize - (dtype.kind == "i")) - 1


class Accumulators:
    """The accumulators of one phase."""

    def __init__(self, emitter: Statements) -> None:
        self.e = emitter
        self.live: dict[str, Accumulator] = {}
        self.place = ""  # of the current term in its block
        self.one_by_one = False  # every accumulator the plain way

    # --- start and end ---
    def init(self, s: Init, after: tuple[Stmt, ...]) -> None:
        way, loop = self._way(s, after)
        a = Accumulator(tuple(map(self.e.name, s.names)), s.combine, s.dtypes, way, loop)
        for n, d in zip(s.names, s.dtypes, strict=True):
            self.live[n], self.e.dtypes[n] = a, d
        if a.wide or a.carries:
            self.e.out(f"{a.names[0]}_sum = 0.0")
        if a.carries:
            self.e.out(f"{a.names[0]}_lost = 0.0")
        if a.scratch:
            self._scratch(a)
        starts = [identity(s.combine, s.dtypes[0]), *(spell.literal(0, d) for d in s.dtypes[1:])]
        if s.combine in ("argmax", "argmin"):
            starts[1] = str(NOWHERE)
        if not (a.wide or a.carries):
            for n, start in zip(a.names, starts, strict=True):
                self.e.out(f"{n} = {start}")

    def _scratch(self, a: Accumulator) -> None:
        self.e.out(f"{a.names[0]}_row = scratch_{spell.register_type(a.dtypes[0])}({self.e.tune.scratch})")
        if a.combine.startswith("arg"):
            self.e.out(f"{a.names[0]}_at = scratch_int64({self.e.tune.scratch})")

    def _way(self, s: Init, after: tuple[Stmt, ...]) -> tuple[Literal["plain", "single", "blocks"], Loop | None]:
        loop = next((x for x in after if isinstance(x, Loop) and s.names[0] in analysis.uses(x)), None)
        path = None if loop is None else _path_to(loop, s.names[0])
        if (
            self.one_by_one
            or path is None
            or any(x.kind != "reduce" for x in path)
            or analysis.has_loop(path[-1].body)
        ):
            return "plain", loop
        if s.combine.startswith("arg") and s.dtypes[0].kind == "b":
            return "plain", loop
        terms = [known(x.extent) for x in path]
        if None not in terms and prod(t or 0 for t in terms) <= self.e.tune.few:
            return "plain", loop
        if len(path) == 1 and terms[0] is not None and terms[0] <= self._block(path[0]):
            return "single", loop
        return "blocks", loop

    def _block(self, loop: Loop) -> int:
        """How many terms a block has: all accumulators of one loop share it."""
        scratch = any(isinstance(s, Update) and s.combine in SCRATCH for s in loop.body)
        return self.e.tune.scratch if scratch else self.e.tune.block

    # --- loops ---
    def reduce(self, s: Loop) -> None:
        fed = [self.live[u.names[0]] for u in s.body if isinstance(u, Update)]
        if any(a.regroups or a.scratch for a in fed):
            self._blocks(s, fed)
        else:
            self.e.plain_loop(s)
        for a in {id(a): a for a in self.live.values() if a.loop is s}.values():
            self._finish(a)

    def _blocks(self, s: Loop, fed: list[Accumulator]) -> None:
        e, axis, n, size = self.e, self.e.name(s.axis), self.e.index(s.extent), self._block(s)
        total = known(s.extent)
        if total is not None and total <= size:
            self._one_block(s, fed, "0", n)
            return
        with e.out.block(f"for {axis}_0 in range(0, {n}, {size}):"):
            whole = total is not None and total % size == 0  # then LLVM need not write code for a rest
            e.out(f"{axis}_1 = {axis}_0 + {size}" if whole else f"{axis}_1 = least({axis}_0 + {size}, {n})")
            self._one_block(s, fed, f"{axis}_0", f"{axis}_1")

    def _one_block(self, s: Loop, fed: list[Accumulator], low: str, high: str) -> None:
        e, axis = self.e, self.e.name(s.axis)
        for a in fed:
            if a.regroups:
                e.out(f"{a.names[0]}_block = {identity(a.combine, a.dtypes[0])}")
        self.place = axis if low == "0" else f"{axis} - {low}"
        with e.inside(s), e.straight(s.axis, s.body, low, high):
            e.body(s.body)
        for a in fed:
            self._join_block(a, high if low == "0" else f"{high} - {low}")

    def _join_block(self, a: Accumulator, count: str) -> None:
        out, name = self.e.out, a.names[0]
        if a.scratch:
            join = {"softmax": self._softmax, "welford": self._welford}.get(a.combine, self._arg)
            join(a, count)
        elif a.wide:
            out(f"{name}_sum = {name}_sum + float64({name}_block)")
        elif a.carries:
            out(f"{name}_lost = {name}_lost + lost_by_adding({name}_sum, {name}_block)")
            out(f"{name}_sum = {name}_sum + {name}_block")
        elif a.regroups and a.way == "single":
            out(f"{name} = {name}_block")
        elif a.regroups:
            out(f"{name} = {name} * {name}_block")

    def _finish(self, a: Accumulator) -> None:
        """After the loop that feeds it, an accumulator is an ordinary value."""
        name = a.names[0]
        if a.wide:
            self.e.out(f"{name} = float32({name}_sum)")
        elif a.carries:
            self.e.out(f"{name} = finish_sum({name}_sum, {name}_lost)")
        if self.e.strict and a.dtypes[0].name in spell.HALVES and a.combine in ("add", "mul"):
            self.e.out(f"{name} = {spell.HALVES[a.dtypes[0].name][2]}({name})")

    # --- terms ---
    def update(self, s: Update) -> None:
        a, out = self.live[s.names[0]], self.e.out
        value = self._operand(s.values[0], a.dtypes[0])
        if a.scratch:
            out(f"{a.names[0]}_row[{self.place}] = {value}")
            if a.combine.startswith("arg"):
                out(f"{a.names[0]}_at[{self.place}] = {self._operand(s.values[1], int64)}")
        elif a.combine in SCRATCH:
            term = {"softmax": self._softmax_term, "welford": self._welford_term}.get(a.combine)
            if term:
                term(a, value)
            else:
                self._arg_term(a, value, self._operand(s.values[1], int64))
        elif a.regroups:
            word = "accumulate" if a.combine == "add" else "multiply_up"
            out(f"{a.names[0]}_block = {word}({a.names[0]}_block, {value})")
        else:
            text = spell.spell(WORDS[a.combine], [a.names[0], value], a.dtypes[0], a.dtypes[0], False)
            out(f"{a.names[0]} = {text}")

    def _operand(self, v: str | float, dtype: DType) -> str:
        text = self.e.value(v, dtype)
        return spell.cast(text, self.e.dtypes[v], dtype) if isinstance(v, str) else text

    # --- combines of several components: a block at once, or one term ---
    def _softmax(self, a: Accumulator, count: str) -> None:
        out, (top, total), t = self.e.out, a.names, spell.register_type(a.dtypes[0])
        out(f"{top}_new = {top}")
        with out.block(f"for t in range({count}):"):
            out(f"{top}_new = maximum({top}_new, {top}_row[t])")
        out(f"{top}_ref = select({top}_new == {t}(-inf), {t}(0.0), {top}_new)")
        out(f"{total}_block = {t}(0.0)")
        with out.block(f"for t in range({count}):"):
            out(f"{total}_block = accumulate({total}_block, exp({top}_row[t] - {top}_ref))")
        out(f"{total} = {total} * exp({top} - {top}_ref) + {total}_block")
        out(f"{top} = {top}_new")

    def _softmax_term(self, a: Accumulator, x: str) -> None:
        out, (top, total), t = self.e.out, a.names, spell.register_type(a.dtypes[0])
        out(f"{top}_new = maximum({top}, {x})")
        out(f"{top}_ref = select({top}_new == {t}(-inf), {t}(0.0), {top}_new)")
        out(f"{total} = {total} * exp({top} - {top}_ref) + exp({x} - {top}_ref)")
        out(f"{top} = {top}_new")

    def _welford(self, a: Accumulator, count: str) -> None:
        out, (mean, m2, n), t = self.e.out, a.names, spell.register_type(a.dtypes[0])
        c = spell.register_type(a.dtypes[2])
        out(f"{mean}_count = {t}({count})")
        out(f"{mean}_block = {t}(0.0)")
        with out.block(f"for t in range({count}):"):
            out(f"{mean}_block = accumulate({mean}_block, {mean}_row[t])")
        out(f"{mean}_block = {mean}_block / {mean}_count")
        out(f"{m2}_block = {t}(0.0)")
        with out.block(f"for t in range({count}):"):
            out(f"{mean}_d = {mean}_row[t] - {mean}_block")
            out(f"{m2}_block = accumulate({m2}_block, {mean}_d * {mean}_d)")
        out(f"{mean}_all = {t}({n}) + {mean}_count")
        out(f"{mean}_d = {mean}_block - {mean}")
        out(f"{m2} = {m2} + {m2}_block + {mean}_d * {mean}_d * ({t}({n}) * {mean}_count / {mean}_all)")
        out(f"{mean} = {mean} + {mean}_d * ({mean}_count / {mean}_all)")
        out(f"{n} = {c}({mean}_all)")

    def _welford_term(self, a: Accumulator, x: str) -> None:
        out, (mean, m2, n), t = self.e.out, a.names, spell.register_type(a.dtypes[0])
        c = spell.register_type(a.dtypes[2])
        out(f"{n} = {n} + {c}(1)")
        out(f"{mean}_d = {x} - {mean}")
        out(f"{mean} = {mean} + {mean}_d / {t}({n})")
        out(f"{m2} = {m2} + {mean}_d * ({x} - {mean})")

    def _arg(self, a: Accumulator, count: str) -> None:
        """The block's extreme is found by vectors; only if it beats the best so far is its place looked for."""
        out, (best, at) = self.e.out, a.names
        word, beats = ("maximum", ">") if a.combine == "argmax" else ("minimum", "<")
        out(f"{best}_new = {best}")
        with out.block(f"for t in range({count}):"):
            out(f"{best}_new = {word}({best}_new, {best}_row[t])")
        better = f"{best}_new {beats} {best}"
        same = f"{best}_row[t] == {best}_new"
        if a.dtypes[0].kind == "f":
            better += f" or ({best}_new != {best}_new and {best} == {best})"
            same += f" or ({best}_new != {best}_new and {best}_row[t] != {best}_row[t])"
        with out.block(f"if {at} == {NOWHERE} or {better}:"):
            out(f"{best} = {best}_new")
            with out.block(f"for t in range({count}):"), out.block(f"if {same}:"):
                out(f"{at} = {best}_at[t]")
                out("break")

    def _arg_term(self, a: Accumulator, x: str, where: str) -> None:
        out, (best, at) = self.e.out, a.names
        beats = spell.spell("gt" if a.combine == "argmax" else "lt", [x, best], a.dtypes[0], bool_, False)
        better = f"({at} == {NOWHERE}) | ({beats})"
        if a.dtypes[0].kind == "f":
            better += f" | (({x} != {x}) & ({best} == {best}))"
        out(f"{best}_takes = {better}")
        out(f"{best} = select({best}_takes, {x}, {best})")
        out(f"{at} = select({best}_takes, {where}, {at})")


def _path_to(loop: Loop, name: str) -> list[Loop] | None:
    """The loops from ``loop`` down to the one whose body updates ``name``."""
    if any(isinstance(s, Update) and name in s.names for s in loop.body):
        return [loop]
    for s in loop.body:
        if isinstance(s, Loop):
            below = _path_to(s, name)
            if below:
                return [loop, *below]
    return None
