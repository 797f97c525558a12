"""A team of threads per point: the loops inside a point are spread over the team, reductions joined by shuffles.

Stage: codegen.  In: kernel, nest, schedule of kind ``row`` or ``column``.  Out: ``Source``.  Softmax, norms, arg-max,
row sums; with ``split`` also sums over everything, whose last block finishes.  Read next: ``kept``, ``joins``,
``gathered`` (its parts), ``columns``, ``scans``.

A team is ``team`` neighbouring lanes of a warp, or a whole block of several warps.  In a ``column`` block the threads
of one warp stand side by side along the points and the team stands across warps, so memory is still read in lines.
Short rows are kept in registers between loops (``Schedule.chunks``): read once, used by every loop.  Where few blocks do
many points each (``Schedule.blocks``), sums over points wait in registers, and the next point's row is asked for early
(``ahead``).
"""

from __future__ import annotations

from typing import Any

from codegen_cupy.ahead import Ahead
from codegen_cupy.body import Emitter
from codegen_cupy.combines import Accumulator
from codegen_cupy.gathered import Gathered
from codegen_cupy.joins import Joins, settle
from codegen_cupy.kept import Kept, declared, each_round, read_part
from codegen_cupy.kernel_text import Source, finish
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import Flat, Nest, fast_axis, loop_axes, vectorizable
from codegen_cupy.schedule import WARP, Schedule, inner_loops
from codegen_cupy.spell import safe
from codegen_cupy.twopass import two_pass
from compiler.loop.ir import Init, Kernel, Load, Loop, Stmt, Store, Update, walk
from compiler.sym.expr import Symbol, as_int, ceildiv, lift


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    return RowKernel(kernel, two_pass(nest) if schedule.chunks else nest, schedule).source(name)


class RowKernel:
    """One kernel while it is written."""

    def __init__(self, kernel: Kernel, nest: Nest, schedule: Schedule) -> None:
        self.e = Emitter(kernel, nest, schedule)
        self.kernel, self.nest, self.schedule = kernel, nest, schedule
        self.kept = Kept()
        self.joins = Joins(self.e)
        self.sums = Gathered(self.e, self.joins.scratch)
        self.stored: set[str] = set()  # buffers written since the last barrier
        self.read: set[tuple[str, Any]] = set()  # (buffer, place in the row) read since then
        self.several = schedule.team > WARP or schedule.kind == "column"
        self.shared = 0  # bytes that the launch gives

    # --- the frame ---
    def source(self, name: str) -> Source:
        e, s = self.e, self.schedule
        if s.kind == "column":
            e.line("const int lane = threadIdx.y;")
        elif s.cluster > 1:
            e.line(f"const int lane = blockIdx.y * {s.team} + threadIdx.x;")
            e.line("cluster_arrive();")
        elif s.rows == 1:
            e.line("const int lane = threadIdx.x;")
        else:
            e.line(f"const int lane = threadIdx.x % {s.team}, team = threadIdx.x / {s.team};")
        if s.split > 1:
            e.line("const int part = blockIdx.y;")
        self.sums.declare()
        per_block = WARP if s.kind == "column" else s.rows
        self._points(per_block)
        self.sums.scatter()
        block = (WARP, s.team) if s.kind == "column" else (s.threads, 1)
        work = as_int(ceildiv(self.nest.points, per_block))
        blocks = s.blocks or 2**31 - 1
        return finish(
            e, name, work=work, block=block, scratch=tuple(self.joins.scratch), split=s.split * s.cluster, max_blocks=blocks,
            shared=self.shared,
        )

    def _points(self, per_block: int) -> None:
        """The loop (or the single round) over this team's points."""
        e, s = self.e, self.schedule
        if not self.nest.axes and per_block == 1:
            self._point()
            return
        points = e.index(self.nest.points)
        within = "threadIdx.x" if s.kind == "column" else "team"
        t = e.int_type
        block = "(long long)blockIdx.x" if s.wide else "blockIdx.x"
        first = block if per_block == 1 else f"{block} * {per_block}"
        if s.blocks:
            step = "gridDim.x" if per_block == 1 else f"gridDim.x * {per_block}"
            self.kept = declared(e)
            self._read_common_rows()
            ahead = Ahead(e, self.kept)
            if s.prefetch and per_block == 1:
                ahead.declare()
            self.shared = ahead.shared
            ahead.ask(first, points)
            joined = any(x.kind == "reduce" for x in inner_loops(self.nest))
            self.joins.turns = joined and s.team > WARP
            if self.joins.turns:
                e.line("int turn = 0;  // of two places where warps show their parts: who is late still reads the other one")
            with e.block(f"for ({t} first = {first}; first < {points}; first += {step})"):
                self._place("first", within if per_block > 1 else None, points)
                ahead.take()
                ahead.ask(f"first + {step}", points)
                self._point()
                if self.joins.turns:
                    e.line("turn ^= 1;")
        else:
            self._place(first, within if per_block > 1 else None, points)
            self._point()

    def _place(self, first: str, within: str | None, points: str) -> None:
        """Declare this team's point; lanes beyond the last one repeat it, and store nothing."""
        e = self.e
        if within is None:
            e.line(f"const {e.int_type} point = {first};")
        else:
            e.line(f"const bool live = {first} + {within} < {points};")
            e.line(f"const {e.int_type} point = live ? {first} + {within} : {points} - 1;")
        e.store_guard = "live" if within else None
        e.unflatten(self.nest.axes, "point")

    def _read_common_rows(self) -> None:
        """Kept rows that are the same for all points (a norm's weight) are read once."""
        points = {a.name for a in self.nest.axes}
        for key, (load, loop) in self.kept.rows.items():
            if not isinstance(loop, Flat) and not {n.name for n in lift(load.index).free_symbols} & points:
                with each_round(self.e, loop):
                    read_part(self.e, self.kept.names[key], load)
                self.kept.loaded.add(key)

    # --- one point ---
    def _point(self) -> None:
        if not self.schedule.blocks:
            self.kept = declared(self.e)
        for s in self.nest.body:
            self._barrier_before(s)
            if isinstance(s, Loop):
                self._spread(s)
                if s.kind == "reduce" and self.schedule.split > 1:
                    self.joins.finish_in_last_block(self._joined_in(s))
            elif isinstance(s, Store):
                with self.e.block("if (lane == 0)"):
                    self.e.statement(s)
                self.stored.add(s.buffer)
            else:
                self.e.statement(s)

    def _barrier_before(self, next_: Stmt) -> None:
        """What other lanes of the team stored must be seen before it is read, and what they read must have been read
        before it is overwritten."""
        inside = list(walk((next_,)))
        writes = {(s.buffer, self._place_in(next_, s)) for s in inside if isinstance(s, Store)}
        written = {b for b, _ in writes}
        late = any(b in written and (b, place) not in writes for b, place in self.read)
        if late or any(isinstance(s, Load) and s.buffer in self.stored for s in inside):
            if self.schedule.cluster > 1:
                self.joins.meet()
            else:
                self.e.line("__syncthreads();" if self.several else "__syncwarp();")
            self.stored.clear()
            self.read.clear()
        self.read |= {(s.buffer, self._place_in(next_, s)) for s in inside if isinstance(s, Load)}

    def _place_in(self, loop: Stmt, s: Load | Store) -> Any:
        """The same for two accesses only if each lane makes them to the same elements.  Beside loops all lanes load, and one
        stores."""
        if not isinstance(loop, Loop):
            return isinstance(s, Store)
        rounds = bool(self.schedule.chunks) and vectorizable(loop.body)
        return lift(s.index).subs({Symbol(loop.axis): Symbol("_lane")}), rounds, loop.extent

    # --- spreading a loop over the team ---
    def _spread(self, loop: Loop) -> None:
        s = self.schedule
        stores = [x for x in walk(loop.body) if isinstance(x, Store)]
        if s.chunks and vectorizable(loop.body):
            with each_round(self.e, loop) as axis:
                self._round(loop, axis)
        else:
            self._strided(loop)
        self.stored |= {x.buffer for x in stores}
        if loop.kind == "reduce":
            accs = self._joined_in(loop)
            self.joins.join(accs)
            for acc, x in accs if self.schedule.split == 1 else ():
                settle(self.e, acc, x)

    def _strided(self, loop: Loop) -> None:
        """A loop with the team side by side, each lane at every ``team``-th vector."""
        e, s = self.e, self.schedule
        axis, v = safe(loop.axis), s.vector if vectorizable(loop.body) else 1
        lane = f"part * {s.team} + lane" if s.split > 1 else "lane"
        first = lane if v == 1 else f"({lane}) * {v}"
        head = f"for ({e.int_type} {axis} = {first}; {axis} < {e.index(loop.extent)}; {axis} += {s.lanes * v * s.split})"
        if vectorizable(loop.body):
            alone = len(inner_loops(self.nest)) == 1
            e.pragma("unroll 4" if loop.kind == "reduce" or alone else "unroll 2")
        with e.block(head):
            self._round(loop, axis)

    def _round(self, loop: Loop, axis: str) -> None:
        """The body of a spread loop, for this lane's element or vector."""
        e = self.e
        e.text[loop.axis] = axis
        if isinstance(loop, Flat):
            e.unflatten(loop.parts, axis)
        body = loop.body
        if vectorizable(body):
            self.kept.axes = loop_axes(loop)
            neighbours(e, body, fast_axis(loop), self.schedule.vector, self.kept if self.schedule.chunks else None)
        else:
            for s in body:
                e.statement(s)

    def _joined_in(self, loop: Loop) -> list[tuple[Accumulator, str]]:
        """The accumulators started outside the loop that it updates."""
        own = {n for s in walk(loop.body) if isinstance(s, Init) for n in s.names}
        names = dict.fromkeys(s.names[0] for s in walk(loop.body) if isinstance(s, Update) and s.names[0] not in own)
        return [self.e.accumulators[n] for n in names]
