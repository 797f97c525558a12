"""How the threads that share a point join their accumulators: by shuffles in a warp, and from warp to warp and block to block.

Stage: codegen.  In: accumulators, each with the C++ variable of a thread's own part.  Out: lines of C++ after which every
thread has the whole.  Warps of a block meet in shared memory, blocks of a cluster in each other's; without a cluster, blocks leave
their parts in memory and the last one goes on alone.  Read next: ``rows``, ``columns``, ``helpers.cuh`` (the shuffles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from codegen_cupy.body import Emitter
from codegen_cupy.combines import Accumulator
from codegen_cupy.kernel_text import Scratch
from codegen_cupy.schedule import WARP
from compiler.sym.expr import as_int, lift

Part = tuple[Accumulator, str]  # with the variable of a thread's part


@dataclass
class Joins:
    """All joins of a kernel.  ``turns``: warps show their parts in two places by turns; ``met``: the blocks of the cluster
    have waited for each other."""

    e: Emitter
    scratch: list[Scratch] = field(default_factory=list)
    turns: bool = False
    met: bool = False
    names: int = 0

    def join(self, parts: Sequence[Part]) -> None:
        e, s = self.e, self.e.schedule
        if not parts or s.team == 1:
            return
        if s.kind == "column":
            join_over_warps(e, [(acc, x, self._fresh(f"{x}_parts")) for acc, x in parts])
            return
        lanes = min(s.team, WARP)
        for acc, x in parts:
            e.line(f"{x} = warp_reduce<{lanes}>({x}, {acc.join});")
        if s.cluster > 1:
            self._join_cluster(parts)
        elif s.team > WARP:
            self._join_block(parts)

    def _join_block(self, parts: Sequence[Part]) -> None:
        """Each warp shows its part to the others, and joins the parts of all."""
        e, s = self.e, self.e.schedule
        warps = s.team // WARP
        named = [(acc, x, self._fresh(f"{x}_parts")) for acc, x in parts]
        for acc, _, name in named:
            e.line(f"__shared__ {acc.type} {name}{'[2]' if self.turns else ''}[{s.threads // WARP}];")
        named = [(acc, x, f"{name}[turn]" if self.turns else name) for acc, x, name in named]
        mine = f"threadIdx.x % {warps}" if s.rows == 1 else f"team * {warps} + threadIdx.x % {warps}"
        stores = " ".join(f"{name}[threadIdx.x / 32] = {x};" for _, x, name in named)
        e.line(f"if (threadIdx.x % 32 == 0) {{ {stores} }}")
        e.line("__syncthreads();")
        for acc, x, name in named:
            e.line(f"{x} = warp_reduce<{warps}>({name}[{mine}], {acc.join});")

    # --- blocks of a cluster ---
    def _join_cluster(self, parts: Sequence[Part]) -> None:
        """Each warp shows its part to all blocks: one barrier, and every warp joins the parts of all."""
        e, s = self.e, self.e.schedule
        warps, count = s.team // WARP, s.team * s.cluster // WARP
        named = [(acc, x, self._fresh(f"{x}_parts")) for acc, x in parts]
        for acc, _, name in named:
            e.line(f"__shared__ {acc.type} {name}[{count}];")
        self._await_cluster()
        with e.block(f"if (threadIdx.x % 32 < {s.cluster})"):
            for _, x, name in named:
                e.line(f"store_in_block({name} + blockIdx.y * {warps} + threadIdx.x / 32, threadIdx.x % 32, {x});")
        self.meet()
        for acc, x, name in named:
            e.line(f"{x} = {name}[threadIdx.x % {min(count, WARP)}];")
            for more in range(WARP, count, WARP):
                e.line(f"{x} = {acc.join}({x}, {name}[{more} + threadIdx.x % 32]);")
            e.line(f"{x} = warp_reduce<{min(count, WARP)}>({x}, {acc.join});")

    def _await_cluster(self) -> None:
        """All blocks have arrived where they first did, at the start: now each may write to the others."""
        if not self.met:
            self.e.line("cluster_wait();")
            self.met = True

    def meet(self) -> None:
        """A barrier for all threads of the cluster."""
        self._await_cluster()
        self.e.line("cluster_arrive();")
        self.e.line("cluster_wait();")

    # --- blocks without one ---
    def finish_in_last_block(self, parts: Sequence[Part]) -> None:
        """Leave this block's part in memory; only the last block of the point goes on, with all parts joined."""
        e, s, nest = self.e, self.e.schedule, self.e.nest
        point = "point" if nest.axes else "0"
        base = f"{point} * {s.split} + " if nest.axes else ""
        e.line("")
        for acc, x in parts:
            name = f"{x}_partial"
            self.scratch.append(Scratch(name, acc.type, as_int(lift(nest.points) * s.split), acc.bytes))
            e.line(f"if (lane == 0) {name}[{base}part] = {x};")
        self.scratch.append(Scratch("arrived", "unsigned", nest.points, 4, zeroed=True))
        e.line(f"if (!last_to_arrive(arrived + {point}, {s.split})) {'continue' if s.blocks else 'return'};")
        for acc, x in parts:
            e.line(f"{x} = {acc.start};")
        with e.block(f"for (int p = lane; p < {s.split}; p += {s.team})"):
            for acc, x in parts:
                e.line(f"{x} = {acc.join}({x}, {x}_partial[{base}p]);")
        self.join(parts)
        for acc, x in parts:
            settle(e, acc, x)

    def _fresh(self, name: str) -> str:
        self.names += 1
        return name if self.names == 1 else f"{name}{self.names}"


def settle(e: Emitter, acc: Accumulator, x: str, vector: int = 1) -> None:
    """What is done when all has been joined."""
    if acc.combine == "softmax":
        each(e, vector, f"{x} = settled({x});")


# --- a column per lane -----------------------------------------------------------------------------------------------
def join_over_warps(e: Emitter, parts: Sequence[tuple[Accumulator, str, str]], vector: int = 1, *, declare: bool = True) -> None:
    """Across the warps of a block, with ``vector`` columns per lane: a tree in shared memory whose result every warp reads.  A part
    comes with the name of its place there.  Columns of one thread lie a warp apart, so that a warp touches all banks."""
    slot = "[threadIdx.x]" if vector == 1 else "[k * 32 + threadIdx.x]"
    for acc, x, name in parts:
        if declare:
            e.line(f"__shared__ {acc.type} {name}[{e.schedule.team}][{WARP * vector}];")
        each(e, vector, f"{name}[lane]{slot} = {x};")
    e.line("__syncthreads();")
    with e.block(f"for (int d = {e.schedule.team // 2}; d > 0; d /= 2)"):
        with e.block("if (lane < d)"):
            for acc, _, name in parts:
                each(e, vector, f"{name}[lane]{slot} = {acc.join}({name}[lane]{slot}, {name}[lane + d]{slot});")
        e.line("__syncthreads();")
    for _, x, name in parts:
        each(e, vector, f"{x} = {name}[0]{slot};")


def each(e: Emitter, vector: int, text: str) -> None:
    """A statement for each column of the thread, counted by ``k``."""
    if vector == 1:
        e.line(text)
    else:
        e.pragma("unroll")
        e.line(f"for (int k = 0; k < {vector}; ++k) {text}")
