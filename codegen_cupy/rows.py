"""A team of threads per point: the loops inside a point are spread over the team, reductions joined by shuffles.

Stage: codegen.  In: kernel, nest, schedule of kind ``row`` or ``column``.  Out: ``Source``.  Softmax, norms, arg-max,
row sums; with ``split`` also sums over everything, whose last block finishes.  Read next: ``columns``, ``scans``.

A team is ``team`` neighbouring lanes of a warp, or a whole block of several warps.  In a ``column`` block the threads
of one warp stand side by side along the points and the team stands across warps, so memory is still read in lines.
Short rows are kept in registers between loops (``Schedule.chunks``): read once, used by every loop.  Where few blocks do
many points each (``Schedule.blocks``), sums over points wait in registers, and the next point's row is asked for early
(``ahead``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from codegen_cupy.ahead import Ahead, read_row
from codegen_cupy.body import Emitter, Kept, atomic, safe
from codegen_cupy.combines import Accumulator
from codegen_cupy.kernel_text import Scratch, Source, finish
from codegen_cupy.nest import (
    Flat,
    Nest,
    changing,
    divides,
    fast_axis,
    loop_axes,
    rest_along,
    vectorizable,
    walk,
)
from codegen_cupy.pointwise import unflatten
from codegen_cupy.schedule import WARP, Schedule, inner_loops
from codegen_cupy.spell import from_memory, memory_type, register_type, to_memory
from codegen_cupy.twopass import two_pass
from compiler.loop.ir import Init, Kernel, Load, Loop, Stmt, Store, Update
from compiler.sym.expr import Symbol, as_int, ceildiv, coefficient, lift


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    return RowKernel(kernel, two_pass(nest) if schedule.chunks else nest, schedule).source(name)


def gathered(nest: Nest, kernel: Kernel) -> list[tuple[Store, Loop]]:
    """Sums into places that do not depend on the point (weight gradients of a norm), with their loops."""
    out: list[tuple[Store, Loop]] = []
    for loop in inner_loops(nest):
        if not vectorizable(loop.body) or isinstance(loop, Flat):
            continue
        for x in loop.body:
            if isinstance(x, Store) and x.mode == "add" and x.mask is None:
                names = {n.name for n in lift(x.index).free_symbols}
                if names <= {loop.axis, *kernel.sizes} and coefficient(x.index, Symbol(loop.axis)) == 1:
                    out.append((x, loop))
    return out


def gathers_all(nest: Nest, schedule: Schedule, kernel: Kernel) -> bool:
    """Do all additions to memory wait in registers?"""
    if schedule.kind != "row" or not (schedule.blocks and schedule.chunks):
        return False
    adds = [s for s in walk(nest.body) if isinstance(s, Store) and s.mode != "set"]
    return len(gathered(nest, kernel)) == len(adds)


class RowKernel:
    """One kernel while it is written."""

    def __init__(self, kernel: Kernel, nest: Nest, schedule: Schedule) -> None:
        self.e = Emitter(kernel, nest, schedule)
        self.kernel, self.nest, self.schedule = kernel, nest, schedule
        self.scratch: list[Scratch] = []
        self.stored: set[str] = set()  # buffers written since the last barrier
        self.read: set[tuple[str, Any]] = set()  # (buffer, place in the row) read since then
        self.joins = False  # do teams of several warps join parts at one point after another?
        self.met = False  # have the blocks of the cluster waited for each other?
        self.several = schedule.team > WARP or schedule.kind == "column"
        self.kept = Kept({})
        self.rows: dict[tuple[str, str], tuple[Load, Loop]] = {}  # what the kept rows are first read by
        self.shared = 0  # bytes that the launch gives
        self.gathered: dict[int, tuple[Store, str, Loop]] = {}  # combining stores gathered over the points of a team

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
        self._gather_stores()
        per_block = WARP if s.kind == "column" else s.rows
        self._points(per_block)
        self._scatter_gathered()
        block = (WARP, s.team) if s.kind == "column" else (s.threads, 1)
        work = as_int(ceildiv(self.nest.points, per_block))
        blocks = s.blocks or 2**31 - 1
        return finish(
            e, name, work=work, block=block, scratch=tuple(self.scratch), split=s.split * s.cluster, max_blocks=blocks,
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
            self._declare_kept()
            self._load_common_rows()
            ahead = Ahead(e, self.kept, self.rows, self._each_round)
            if s.prefetch and per_block == 1:
                ahead.declare()
            self.shared = ahead.shared
            ahead.ask(first, points)
            joined = any(x.kind == "reduce" for x in inner_loops(self.nest))
            self.joins = joined and s.team > WARP
            if self.joins:
                e.line("int turn = 0;  // of two places where warps show their parts: who is late still reads the other one")
            with e.block(f"for ({t} first = {first}; first < {points}; first += {step})"):
                self._place("first", within if per_block > 1 else None, points)
                ahead.take()
                ahead.ask(f"first + {step}", points)
                self._point()
                if self.joins:
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
        unflatten(e, self.nest.axes, "point")

    # --- one point ---
    def _point(self) -> None:
        if not self.schedule.blocks:
            self._declare_kept()
        for s in self.nest.body:
            self._barrier_before(s)
            if isinstance(s, Loop):
                self._spread(s)
                if s.kind == "reduce" and self.schedule.split > 1:
                    self._finish_in_last_block(self._joined_in(s))
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
                self._meet()
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
            self._rounds(loop)
        else:
            self._strided(loop)
        self.stored |= {x.buffer for x in stores}
        if loop.kind == "reduce":
            accs = self._joined_in(loop)
            self._join(accs)
            for acc in accs:
                self._settle(acc)

    def _rounds(self, loop: Loop) -> None:
        with self._each_round(loop) as axis:
            self._round(loop, axis)

    @contextmanager
    def _each_round(self, loop: Loop) -> Iterator[str]:
        """Unrolled rounds, so that what a round reads can stay in registers."""
        e, s = self.e, self.schedule
        axis, n = safe(loop.axis), loop.extent
        e.pragma("unroll")
        with e.block(f"for (int c = 0; c < {s.chunks}; ++c)"):
            where = "lane" if s.chunks == 1 else f"c * {s.lanes} + lane"
            where = where if s.vector == 1 else f"({where}) * {s.vector}"
            e.line(f"const int {axis} = {where};")
            e.text[loop.axis] = axis
            exact = isinstance(n, int) and n == s.chunks * s.lanes * s.vector
            with nullcontext() if exact else e.block(f"if ({axis} < {e.index(n)})"):
                yield axis

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
            unflatten(e, loop.parts, axis)
        body = loop.body
        if vectorizable(body):
            self.kept.axes = loop_axes(loop)
            e.neighbours(body, fast_axis(loop), self.schedule.vector, self.kept if self.schedule.chunks else None)
        else:
            for s in body:
                e.statement(s)

    # --- rows in registers ---
    def _declare_kept(self) -> None:
        """An array of registers for every read that more than one loop wants."""
        e, s = self.e, self.schedule
        self.kept = Kept({})
        if not s.chunks:
            return
        written = changing(self.nest)
        seen: dict[tuple[str, str], int] = {}
        first: dict[tuple[str, str], Load] = {}
        loops: dict[tuple[str, str], Loop] = {}
        for loop in inner_loops(self.nest):
            for key, load in {Kept.key(x, loop_axes(loop)): x for x in loop.body if isinstance(x, Load)}.items():
                if self._can_keep(load, loop, written):
                    seen[key] = seen.get(key, 0) + 1
                    first.setdefault(key, load)
                    loops.setdefault(key, loop)
        for key, count in seen.items():
            if count > 1:
                self.rows[key] = first[key], loops[key]
                name = f"{safe(first[key].name)}_row"
                t = memory_type(e.buffers[key[0]].dtype)
                e.line(f"{t if s.vector == 1 else f'Pack<{t}, {s.vector}>'} {name}[{s.chunks}];")
                self.kept.names[key] = name

    def _load_common_rows(self) -> None:
        """Kept rows that are the same for all points (a norm's weight) are read once."""
        points = {a.name for a in self.nest.axes}
        for key, (load, loop) in self.rows.items():
            if not isinstance(loop, Flat) and not {n.name for n in lift(load.index).free_symbols} & points:
                with self._each_round(loop):
                    self.e.line(read_row(self.e, self.kept.names[key], load))
                self.kept.loaded.add(key)

    def _can_keep(self, load: Load, loop: Loop, written: set[str]) -> bool:
        """Plain reads along the row, not of something this kernel writes before it is read again."""
        if load.mask or load.buffer in written:
            return False
        symbols = {x.name for x in lift(load.index).free_symbols}
        if symbols & self.e.dtype.keys():
            return False
        return coefficient(load.index, fast_axis(loop).symbol) == 1 and (
            self.schedule.vector == 1 or self._aligned(load, loop)
        )

    def _aligned(self, load: Load | Store, loop: Loop) -> bool:
        found = rest_along(load.index, fast_axis(loop).symbol)
        return found is not None and divides(self.schedule.vector, found[1], dict(self.schedule.facts))

    # --- joining accumulators over the team ---
    def _joined_in(self, loop: Loop) -> list[tuple[Accumulator, str]]:
        """The accumulators started outside the loop that it updates."""
        own = {n for s in walk(loop.body) if isinstance(s, Init) for n in s.names}
        names = dict.fromkeys(s.names[0] for s in walk(loop.body) if isinstance(s, Update) and s.names[0] not in own)
        return [self.e.accumulators[n] for n in names]

    def _join(self, accs: list[tuple[Accumulator, str]]) -> None:
        e, s = self.e, self.schedule
        if not accs or s.team == 1:
            return
        if s.kind == "column":
            self._join_columns(accs)
            return
        lanes = min(s.team, WARP)
        for acc, x in accs:
            e.line(f"{x} = warp_reduce<{lanes}>({x}, {acc.join});")
        if s.cluster > 1:
            self._join_cluster(accs)
            return
        if s.team > WARP:
            warps = s.team // WARP
            parts = [(acc, x, self._fresh(f"{x}_parts")) for acc, x in accs]
            for acc, _, name in parts:
                e.line(f"__shared__ {acc.type} {name}{'[2]' if self.joins else ''}[{s.threads // WARP}];")
            parts = [(acc, x, f"{name}[turn]" if self.joins else name) for acc, x, name in parts]
            mine = f"threadIdx.x % {warps}" if s.rows == 1 else f"team * {warps} + threadIdx.x % {warps}"
            stores = " ".join(f"{name}[threadIdx.x / 32] = {x};" for _, x, name in parts)
            e.line(f"if (threadIdx.x % 32 == 0) {{ {stores} }}")
            e.line("__syncthreads();")
            for acc, x, name in parts:
                e.line(f"{x} = warp_reduce<{warps}>({name}[{mine}], {acc.join});")

    def _join_cluster(self, accs: list[tuple[Accumulator, str]]) -> None:
        """Each warp shows its part to all blocks: one barrier, and every warp joins the parts of all."""
        e, s = self.e, self.schedule
        warps, parts = s.team // WARP, s.team * s.cluster // WARP
        named = [(acc, x, self._fresh(f"{x}_parts")) for acc, x in accs]
        for acc, _, name in named:
            e.line(f"__shared__ {acc.type} {name}[{parts}];")
        self._await_cluster()
        with e.block(f"if (threadIdx.x % 32 < {s.cluster})"):
            for _, x, name in named:
                e.line(f"store_in_block({name} + blockIdx.y * {warps} + threadIdx.x / 32, threadIdx.x % 32, {x});")
        self._meet()
        for acc, x, name in named:
            e.line(f"{x} = {name}[threadIdx.x % {min(parts, WARP)}];")
            for more in range(WARP, parts, WARP):
                e.line(f"{x} = {acc.join}({x}, {name}[{more} + threadIdx.x % 32]);")
            e.line(f"{x} = warp_reduce<{min(parts, WARP)}>({x}, {acc.join});")

    def _await_cluster(self) -> None:
        """All blocks have arrived where they first did, at the start: now each may write to the others."""
        if not self.met:
            self.e.line("cluster_wait();")
            self.met = True

    def _meet(self) -> None:
        """A barrier for all threads of the cluster."""
        self._await_cluster()
        self.e.line("cluster_arrive();")
        self.e.line("cluster_wait();")

    def _join_columns(self, accs: list[tuple[Accumulator, str]]) -> None:
        """Across warps, a column per lane: a tree in shared memory whose result everyone reads."""
        e, s = self.e, self.schedule
        parts = [(acc, x, self._fresh(f"{x}_parts")) for acc, x in accs]
        for acc, x, name in parts:
            e.line(f"__shared__ {acc.type} {name}[{s.team}][32];")
            e.line(f"{name}[lane][threadIdx.x] = {x};")
        e.line("__syncthreads();")
        with e.block(f"for (int d = {s.team // 2}; d > 0; d /= 2)"):
            with e.block("if (lane < d)"):
                for acc, _, name in parts:
                    e.line(
                        f"{name}[lane][threadIdx.x] = {acc.join}({name}[lane][threadIdx.x], {name}[lane + d][threadIdx.x]);"
                    )
            e.line("__syncthreads();")
        for _, x, name in parts:
            e.line(f"{x} = {name}[0][threadIdx.x];")

    def _settle(self, acc_x: tuple[Accumulator, str]) -> None:
        acc, x = acc_x
        if acc.combine == "softmax" and self.schedule.split == 1:
            self.e.line(f"{x} = settled({x});")

    _names = 0

    def _fresh(self, name: str) -> str:
        self._names += 1
        return name if self._names == 1 else f"{name}{self._names}"

    # --- several blocks per point ---
    def _finish_in_last_block(self, accs: list[tuple[Accumulator, str]]) -> None:
        """Leave this block's part in memory; only the last block of the point goes on, with all parts joined."""
        e, s = self.e, self.schedule
        point = "point" if self.nest.axes else "0"
        base = f"{point} * {s.split}" if self.nest.axes else ""
        e.line("")
        for acc, x in accs:
            name = f"{x}_partial"
            self.scratch.append(Scratch(name, acc.type, as_int(lift(self.nest.points) * s.split), accumulator_bytes(acc)))
            e.line(f"if (lane == 0) {name}[{f'{base} + part' if base else 'part'}] = {x};")
        self.scratch.append(Scratch("arrived", "unsigned", self.nest.points, 4, zeroed=True))
        e.line(f"if (!last_to_arrive(arrived + {point}, {s.split})) {'continue' if s.blocks else 'return'};")
        for acc, x in accs:
            e.line(f"{x} = {acc.start};")
        with e.block(f"for (int p = lane; p < {s.split}; p += {s.team})"):
            for acc, x in accs:
                e.line(f"{x} = {acc.join}({x}, {x}_partial[{f'{base} + p' if base else 'p'}]);")
        self._join(accs)
        for acc, x in accs:
            if acc.combine == "softmax":
                e.line(f"{x} = settled({x});")

    # --- combining stores gathered over points ---
    def _gather_stores(self) -> None:
        """Sums into places that do not depend on the point (weight gradients of a norm) wait in registers until the
        team has done all its points."""
        s = self.schedule
        if not (s.blocks and s.chunks):
            return
        for x, loop in gathered(self.nest, self.kernel):
            self._gather(x, loop)

    def _gather(self, x: Store, loop: Loop) -> None:
        e, s = self.e, self.schedule
        name = f"{safe(x.buffer)}_sum{len(self.gathered) or ''}"
        extra = "" if s.vector == 1 else f"[{s.vector}]"
        e.line(f"{register_type(e.buffers[x.buffer].dtype)} {name}[{s.chunks}]{extra} = {{}};")
        e.private[id(x)] = f"{name}[c]" if s.vector == 1 else f"{name}[c][k]"
        self.gathered[id(x)] = (x, name, loop)

    def _scatter_gathered(self) -> None:
        """Teams of a block add up in shared memory, in order; then the block adds to memory once per element."""
        e, s = self.e, self.schedule
        for x, name, loop in self.gathered.values():
            if s.rows > 1:
                self._sum_over_teams(x, name, loop)
            elif s.ordered:
                with self._mine(loop):
                    e.line(f"if ({safe(loop.axis)} < {e.index(loop.extent)}) {self._part(x, name, loop)} = {self._slot(name)};")
            else:
                self._add_to_memory(x, name, loop)
        if s.ordered and self.gathered:
            self._add_in_order()

    def _part(self, x: Store, name: str, loop: Loop, block: str = "blockIdx.x") -> str:
        """Where a block leaves its sum, for the last one to add all in order."""
        e, s = self.e, self.schedule
        if not any(p.name == f"{name}_partial" for p in self.scratch):
            d = e.buffers[x.buffer].dtype
            self.scratch.append(Scratch(f"{name}_partial", register_type(d), as_int(lift(loop.extent) * s.blocks), max(4, d.itemsize)))
        return f"{name}_partial[{block} * {e.index(loop.extent)} + {safe(loop.axis)}]"

    def _add_in_order(self) -> None:
        e, s = self.e, self.schedule
        self.scratch.append(Scratch("arrived", "unsigned", 1, 4, zeroed=True))
        e.line("if (!last_to_arrive(arrived, gridDim.x)) return;")
        for x, name, loop in self.gathered.values():
            axis, d = safe(loop.axis), e.buffers[x.buffer].dtype
            with e.block(f"for (int {axis} = threadIdx.x; {axis} < {e.index(loop.extent)}; {axis} += {s.threads})"):
                e.text[loop.axis] = axis
                place = f"{safe(x.buffer)}[{e.index(x.index)}]"
                e.line(f"{register_type(d)} all = {from_memory(place, d)};")
                e.line(f"for (int b = 0; b < gridDim.x; ++b) all += {self._part(x, name, loop, 'b')};")
                e.line(f"{place} = {to_memory('all', d)};")

    def _add_to_memory(self, x: Store, name: str, loop: Loop) -> None:
        e, s = self.e, self.schedule
        d = e.buffers[x.buffer].dtype
        if s.vector % 4 == 0 and d.name == "float32" and self._aligned(x, loop):
            with self._each_round(loop) as axis:
                for k in range(0, s.vector, 4):
                    e.text[loop.axis] = f"({axis} + {k})" if k else axis
                    four = ", ".join(f"{name}[c][{k + j}]" for j in range(4))
                    e.line(f"add_4(&{safe(x.buffer)}[{e.index(x.index)}], {four});")
            return
        with self._mine(loop):
            add = atomic("add", f"&{safe(x.buffer)}[{e.index(x.index)}]", self._slot(name), e.buffers[x.buffer].dtype)
            e.line(f"if ({safe(loop.axis)} < {e.index(loop.extent)}) {add}")

    def _sum_over_teams(self, x: Store, name: str, loop: Loop) -> None:
        e, s = self.e, self.schedule
        axis, d = safe(loop.axis), e.buffers[x.buffer].dtype
        e.line(f"__shared__ {register_type(d)} {name}_block[{s.chunks * s.team * s.vector}];")
        with e.block(f"for (int t = 0; t < {s.rows}; ++t)"):
            with e.block("if (t == team)"), self._mine(loop):
                e.line(f"{name}_block[{axis}] = t == 0 ? {self._slot(name)} : {name}_block[{axis}] + {self._slot(name)};")
            e.line("__syncthreads();")
        with e.block(f"for (int {axis} = threadIdx.x; {axis} < {e.index(loop.extent)}; {axis} += {s.threads})"):
            e.text[loop.axis] = axis
            if s.ordered:
                e.line(f"{self._part(x, name, loop)} = {name}_block[{axis}];")
            else:
                e.line(atomic("add", f"&{safe(x.buffer)}[{e.index(x.index)}]", f"{name}_block[{axis}]", d))

    def _slot(self, name: str) -> str:
        return f"{name}[c]" if self.schedule.vector == 1 else f"{name}[c][k]"

    @contextmanager
    def _mine(self, loop: Loop) -> Iterator[None]:
        """Over the elements of a row that this lane holds, counted by the loop's axis."""
        e, s = self.e, self.schedule
        e.pragma("unroll")
        with e.block(f"for (int c = 0; c < {s.chunks}; ++c)"):
            e.pragma("unroll")
            with e.block(f"for (int k = 0; k < {s.vector}; ++k)"):
                e.line(f"const int {safe(loop.axis)} = (c * {s.team} + lane) * {s.vector} + k;")
                e.text[loop.axis] = safe(loop.axis)
                yield


def accumulator_bytes(acc: Accumulator) -> int:
    scalar = acc.dtypes[0].itemsize
    width = max(scalar, 4) if acc.dtypes[0].kind == "f" else scalar
    return {"argmax": 16, "argmin": 16, "welford": 3 * width, "softmax": 2 * width}.get(acc.combine, width)
