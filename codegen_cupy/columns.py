"""Reductions down the columns: neighbouring threads take neighbouring columns, warps take different rows.

Stage: codegen.  In: kernel, nest with one reduction loop, schedule of kind ``column``.  Out: ``Source``.  Bias and
norm-weight gradients, batch statistics.  A block is 32 threads wide (times ``vector`` columns each) and ``team`` warps
high; ``split`` blocks share a column and the last to arrive joins their parts, in a fixed order.  Read next: ``joins``, ``rows``.
"""

from __future__ import annotations

from codegen_cupy.body import Emitter
from codegen_cupy.combines import Accumulator
from codegen_cupy.joins import each, join_over_warps, settle
from codegen_cupy.kernel_text import Scratch, Source, finish
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import Flat, Nest, defined, used, vectorizable
from codegen_cupy.schedule import WARP, Schedule
from codegen_cupy.spell import safe
from compiler.loop.ir import Init, Kernel, Loop, Stmt, walk
from compiler.sym.expr import as_int, ceildiv, lift


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    return ColumnKernel(kernel, nest, schedule).source(name)


class ColumnKernel:
    """One kernel while it is written; accumulators are arrays with one element per column of the thread."""

    def __init__(self, kernel: Kernel, nest: Nest, schedule: Schedule) -> None:
        self.e = Emitter(kernel, nest, schedule)
        self.nest, self.schedule = nest, schedule
        at = next(i for i, s in enumerate(nest.body) if isinstance(s, Loop))
        loop = nest.body[at]
        assert isinstance(loop, Loop)
        self.loop = loop
        self.before = tuple(s for s in nest.body[:at] if not isinstance(s, Init))
        self.after = nest.body[at + 1 :]
        inits = [s for s in nest.body[:at] if isinstance(s, Init)]
        self.accs = [Accumulator(s.names, s.combine, s.dtypes) for s in inits]

    def source(self, name: str) -> Source:
        e, s = self.e, self.schedule
        points = as_int(lift(self.nest.points) // s.vector)
        total = e.index(points)
        block = "(long long)blockIdx.x" if s.wide else "blockIdx.x"
        e.line("const int lane = threadIdx.y;")
        if s.split > 1:
            e.line("const int part = blockIdx.y;")
        e.line(f"const bool live = {block} * 32 + threadIdx.x < {total};")
        e.line(f"const {e.int_type} point = live ? {block} * 32 + threadIdx.x : {total} - 1;")
        e.unflatten(self.nest.axes, "point", s.vector)
        self._before()
        self._down()
        if s.team > 1:
            self._join()
        scratch = self._finish_in_last_block() if s.split > 1 else ()
        self._after()
        work = as_int(ceildiv(points, WARP))
        return finish(e, name, work=work, block=(WARP, s.team), scratch=scratch, split=s.split)

    def _columns(self, stmts: tuple[Stmt, ...]) -> None:
        e = self.e
        for acc in self.accs:
            e.adopt(acc, self.variable(acc))
        if vectorizable(stmts):
            neighbours(e, stmts, self.nest.axes[-1], self.schedule.vector)
        else:
            for s in stmts:
                e.statement(s)

    def variable(self, acc: Accumulator, k: str = "k") -> str:
        name = safe(acc.names[0])
        return name if self.schedule.vector == 1 else f"{name}[{k}]"

    def _before(self) -> None:
        later = {n for s in walk((self.loop, *self.after)) for n in used(s)}
        if self.before:
            carried = self.e.carry(sorted(set(defined(self.before)) & later), self.schedule.vector)
            with self.e.block(""):
                neighbours(self.e, self.before, self.nest.axes[-1], self.schedule.vector, None, carried)
            self.e.text.update(carried)
        for acc in self.accs:
            self._declare(acc)

    def _declare(self, acc: Accumulator) -> None:
        name, v = safe(acc.names[0]), self.schedule.vector
        if v == 1:
            self.e.line(f"{acc.type} {name} = {acc.start};")
        else:
            self.e.line(f"{acc.type} {name}[{v}];")
            self._each(f"{name}[k] = {acc.start};")

    def _each(self, text: str) -> None:
        each(self.e, self.schedule.vector, text)

    def _down(self) -> None:
        e, s = self.e, self.schedule
        axis = safe(self.loop.axis)
        first = f"part * {s.team} + lane" if s.split > 1 else "lane"
        e.pragma("unroll 4")
        with e.block(
            f"for ({e.int_type} {axis} = {first}; {axis} < {e.index(self.loop.extent)}; {axis} += {s.team * s.split})"
        ):
            e.text[self.loop.axis] = axis
            if isinstance(self.loop, Flat):
                e.unflatten(self.loop.parts, axis)
            self._columns(self.loop.body)

    def _join(self, *, declare: bool = True) -> None:
        parts = [(acc, self.variable(acc), f"{safe(acc.names[0])}_parts") for acc in self.accs]
        join_over_warps(self.e, parts, self.schedule.vector, declare=declare)

    def _finish_in_last_block(self) -> tuple[Scratch, ...]:
        e, s = self.e, self.schedule
        scratch: list[Scratch] = []
        slots = as_int(ceildiv(self.nest.points, WARP * s.vector) * (WARP * s.vector))
        with e.block("if (lane == 0 && live)"):
            for acc in self.accs:
                name = f"{safe(acc.names[0])}_partial"
                scratch.append(Scratch(name, acc.type, as_int(lift(slots) * s.split), acc.bytes))
                self._each(f"{name}[{self._partial('part')}] = {self.variable(acc)};")
        scratch.append(Scratch("arrived", "unsigned", as_int(ceildiv(self.nest.points, WARP * s.vector)), 4, zeroed=True))
        e.line(f"if (!last_to_arrive(arrived + blockIdx.x, {s.split})) return;")
        for acc in self.accs:
            self._each(f"{self.variable(acc)} = {acc.start};")
        e.pragma("unroll 4")
        with e.block(f"for (int p = lane; p < {s.split}; p += {s.team})"):
            for acc in self.accs:
                part = f"{safe(acc.names[0])}_partial[{self._partial('p')}]"
                self._each(f"{self.variable(acc)} = {acc.join}({self.variable(acc)}, {part});")
        if s.team > 1:
            self._join(declare=False)
        return tuple(scratch)

    def _partial(self, part: str) -> str:
        v = self.schedule.vector
        points = self.e.index(self.nest.points)
        points = points if points.isidentifier() or points.isdigit() else f"({points})"
        return f"{part} * {points} + point" if v == 1 else f"{part} * {points} + point * {v} + k"

    def _after(self) -> None:
        e = self.e
        for acc in self.accs:
            settle(e, acc, self.variable(acc), self.schedule.vector)
        with e.block("if (lane == 0 && live)"):
            self._columns(self.after)

