"""How a nest meets the machine: one frozen value per candidate, which the autotuner may vary.

Stage: codegen.  In: ``Nest``, sizes, what is known of pointers.  Out: ``Schedule``.  A kernel's text is a function of
(kernel, nest, schedule) alone.  Read next: ``choice``, then ``pointwise``, ``rows``, ``columns`` (the text of each kind).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codegen_cupy.nest import Nest, accesses, fast_axis, steps_by_one
from compiler.loop.ir import Kernel, Loop, Store, Update
from compiler.sym.expr import Symbol

WARP = 32
MOST_AHEAD = 2  # rows that a thread asks for before it needs them
SHARED_LIMIT = 224 * 1024  # of all shared memory, on a machine that has clusters of blocks; 227 KB is the limit
MULTIPROCESSORS = 132  # of the machine schedules are made for; only a hint for how far to split


@dataclass(frozen=True)
class Schedule:
    """kind     pointwise: a thread per point (or per ``vector`` neighbouring points); inner loops run in the thread
             row: ``team`` threads share a point and spread its inner loops
             tile: a block per square of the fastest axis and ``across``, through shared memory
             scan: as row, with the team's lanes in order along the scanned axis
             column: as row, but the threads of a block stand side by side along the fastest axis of the *points*
    vector   neighbouring elements per thread and access
    threads  per block
    team     threads that share one point (row, column)
    chunks   row: the inner loops take this many unrolled rounds, with loaded values kept in registers; 0: a loop
    split    blocks that share one point's reduction
    cluster  row: blocks that share a point and exchange their parts through each other's shared memory
    side     tile: rows and columns of a tile
    blocks   row: at most so many blocks, each doing several points; 0: a block per point (or per ``rows`` points)
    wide     64-bit indices
    facts    (size symbol, power of two that divides it)
    prefetch row with blocks: a team asks for its next row before it works on this one
    waits    where the next row waits: "registers" or "shared" memory
    resident blocks that must fit on a multiprocessor together, which bounds a thread's registers; 0: as it comes
    ordered  sums into memory are added in one order, whichever block is first
    stream   results are stored as not to be read again soon
    once     pointwise: what is read at one point only does not go into the first cache
    rounds   pointwise: vectors of a thread, all of them asked for before the first is worked on
    restrict the buffers of a launch do not overlap
    """

    kind: str
    vector: int = 1
    threads: int = 128
    team: int = 1
    chunks: int = 0
    split: int = 1
    cluster: int = 1
    blocks: int = 0
    across: str = ""
    side: int = 32
    wide: bool = False
    facts: tuple[tuple[str, int], ...] = ()
    restrict: bool = True
    strict: bool = False
    prefetch: bool = False
    waits: str = "registers"
    resident: int = 0
    stream: bool = False
    once: bool = False
    rounds: int = 1
    ordered: bool = False

    @property
    def rows(self) -> int:
        """Points per block and round."""
        return max(1, self.threads // self.team)

    @property
    def lanes(self) -> int:
        """Threads that share a point, in all blocks of a cluster."""
        return self.team * self.cluster


@dataclass(frozen=True)
class Situation:
    """What a schedule may rely on, besides the kernel: the sizes, whether pointers are 16-byte aligned, whether the machine
    runs clusters of blocks (compute capability 9.0)."""

    sizes: Mapping[str, int]
    aligned: bool = True
    wide: bool = False
    restrict: bool = True
    strict: bool = False
    ordered: bool = False
    clusters: bool = True

    @property
    def facts(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, n & -n if 0 < (n & -n) < 16 else 16) for name, n in sorted(self.sizes.items()) if n)


def inner_loops(nest: Nest) -> list[Loop]:
    return [s for s in nest.body if isinstance(s, Loop)]


def widest_vector(kernel: Kernel, nest: Nest, axis: str, facts: Mapping[str, int]) -> int:
    """Elements in 16 bytes of the narrowest buffer walked one by one along the axis; 1 if there is none."""
    items = {b.name: b.dtype.itemsize for b in kernel.params}
    sizes = [items[s.buffer] for s in accesses(nest.body) if steps_by_one(s, Symbol(axis))]
    return 16 // max(2, min(sizes)) if sizes else 1


def walks_columns(kernel: Kernel, nest: Nest) -> bool:
    """Do the inner loops step far while neighbouring points lie side by side in memory?"""
    if not nest.axes:
        return False
    items = {b.name: b.dtype.itemsize for b in kernel.params}
    along_points = along_loops = 0
    for loop in inner_loops(nest):
        for s in accesses(loop.body):
            if steps_by_one(s, nest.axes[-1].symbol):
                along_points += items[s.buffer]
            if steps_by_one(s, fast_axis(loop).symbol):
                along_loops += items[s.buffer]
    return along_points > along_loops


def splittable(nest: Nest) -> bool:
    """One reduction loop, then straight-line code: several blocks may share it and the last one finishes.  What is stored
    before it all of them would store, at times into what another has yet to read."""
    loops = inner_loops(nest)
    if len(loops) != 1 or loops[0].kind != "reduce" or any(isinstance(s, Store) for s in nest.body[: nest.body.index(loops[0])]):
        return False
    return all(not isinstance(s, (Loop, Store)) for s in loops[0].body) and any(
        isinstance(s, Update) for s in loops[0].body
    )
