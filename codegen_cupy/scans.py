"""Scans along rows: a team takes a stretch of the row at a time, each lane a few neighbours of it.

Stage: codegen.  In: kernel, nest with a scan loop, schedule of kind ``scan``.  Out: ``Source``.  Cumulative sums, products,
maxima.  Each lane combines its own elements, a scan over the lanes (and over warps through shared memory) tells it what
came before, and a second walk over the registers gives every element its prefix.  Read next: ``rows``.
"""

from __future__ import annotations

from codegen_cupy.combines import Accumulator
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import Axis, used, vectorizable
from codegen_cupy.rows import RowKernel
from codegen_cupy.schedule import WARP
from codegen_cupy.spell import safe
from compiler.loop.ir import Index, Init, Let, Load, Loop, Stmt, Store, Update


def scannable(loop: Loop) -> bool:
    """Straight-line, and what enters the accumulators does not depend on them."""
    if not vectorizable(loop.body) or any(isinstance(s, Init) for s in loop.body):
        return False
    _, after = parts(loop)
    late = {s.name for s in after if isinstance(s, (Let, Load, Index))}
    late |= {n for s in loop.body if isinstance(s, Update) for n in s.names}
    updates = [s for s in loop.body if isinstance(s, Update)]
    return bool(updates) and all(not late & set(used(s)) for s in updates)


def parts(loop: Loop) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """(what is ready before the accumulators are, updates and what follows them)."""
    tainted = {n for s in loop.body if isinstance(s, Update) for n in s.names}
    before: list[Stmt] = []
    after: list[Stmt] = []
    for s in loop.body:
        if isinstance(s, (Store, Update)) or tainted & set(used(s)):
            after.append(s)
            tainted |= {s.name} if isinstance(s, (Let, Load, Index)) else set()
        else:
            before.append(s)
    return tuple(before), tuple(after)


class ScanKernel(RowKernel):
    """A row kernel whose scan loops are spread over the team."""

    def _spread(self, loop: Loop) -> None:
        if loop.kind != "scan":
            super()._spread(loop)
            return
        e, s = self.e, self.schedule
        axis, n = safe(loop.axis), e.index(loop.extent)
        before, after = parts(loop)
        accs = self._joined_in(loop)
        names = [x.name for x in before if isinstance(x, (Let, Load, Index))]
        later = {v for x in after for v in used(x)}
        with e.block(f"for ({e.int_type} base = 0; base < {n}; base += {s.team * s.vector})"):
            e.line(f"const {e.int_type} {axis} = base + lane{f' * {s.vector}' if s.vector > 1 else ''};")
            for acc, x in accs:
                e.line(f"{acc.type} {x}_mine = {acc.start};")
            carried = e.carry([v for v in names if v in later], s.vector)
            with e.block(f"if ({axis} < {n})"):
                self._walk(loop, (*before, *(x for x in after if isinstance(x, Update))), accs, "_mine", carried)
            for acc, x in accs:
                self._prefix(acc, x)
            with e.block(f"if ({axis} < {n})"):
                e.text.update(carried)
                self._walk(loop, after, accs, "_run", {})
            for acc, x in accs:
                e.line(f"{x} = {acc.join}({x}, {x}_whole);")
            if s.team > WARP:
                e.line("__syncthreads();")
        self.stored |= {x.buffer for x in loop.body if isinstance(x, Store)}
        for acc, x in accs:
            e.adopt(acc, x)

    def _walk(
        self, loop: Loop, stmts: tuple[Stmt, ...], accs: list[tuple[Accumulator, str]], suffix: str, carried: dict[str, str]
    ) -> None:
        e = self.e
        e.text[loop.axis] = safe(loop.axis)
        for acc, x in accs:
            e.adopt(acc, x + suffix)
        neighbours(e, stmts, Axis(loop.axis, loop.extent), self.schedule.vector, None, carried)

    def _prefix(self, acc: Accumulator, x: str) -> None:
        """Declare ``x_run``, all that came before this lane's elements, and ``x_whole``, the stretch's total."""
        e, s = self.e, self.schedule
        e.line(f"const {acc.type} {x}_upto = warp_scan({x}_mine, {acc.join});")
        e.line(f"{acc.type} {x}_run = shuffle_up({x}_upto, 1);")
        e.line(f"if (threadIdx.x % 32 == 0) {x}_run = {acc.start};")
        if s.team <= WARP:
            e.line(f"const {acc.type} {x}_whole = shuffle_from({x}_upto, 31);")
            e.line(f"{x}_run = {acc.join}({x}, {x}_run);")
            return
        warps = s.team // WARP
        e.line(f"__shared__ {acc.type} {x}_warps[{warps}];")
        e.line(f"if (threadIdx.x % 32 == 31) {x}_warps[threadIdx.x / 32] = {x}_upto;")
        e.line("__syncthreads();")
        e.line(f"{acc.type} {x}_whole = {acc.start}, {x}_lower = {acc.start};")
        with e.block(f"for (int w = 0; w < {warps}; ++w)"):
            e.line(f"if (w == threadIdx.x / 32) {x}_lower = {x}_whole;")
            e.line(f"{x}_whole = {acc.join}({x}_whole, {x}_warps[w]);")
        e.line(f"{x}_run = {acc.join}({x}, {acc.join}({x}_lower, {x}_run));")
