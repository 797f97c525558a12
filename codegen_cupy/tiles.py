"""Pointwise nests that read along one axis and write along another: square tiles through shared memory.

Stage: codegen.  In: kernel, nest, schedule of kind ``tile``.  Out: ``Source``.  Transposes, permutes, and what is fused
with them.  A block reads its tile with neighbouring threads along the axis where the *reads* are neighbours, then
computes and writes with neighbouring threads along the axis where the *writes* are: both in whole lines.
Rows of a tile are padded by one element, so that reading a column of it touches all banks.  Read next: ``pointwise``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from codegen_cupy.body import Emitter, safe
from codegen_cupy.kernel_text import Source, finish
from codegen_cupy.nest import Axis, Nest, rest_along, value_at, vectorizable
from codegen_cupy.pointwise import unflatten
from codegen_cupy.schedule import Schedule, Situation
from codegen_cupy.spell import cast, from_memory, memory_type
from compiler.loop.ir import Kernel, Load
from compiler.sym.expr import as_int, ceildiv, lift

SIDE = 32
ROWS = 8  # of threads: each does SIDE / ROWS elements, so that several loads are in flight


def across(nest: Nest, situation: Situation) -> str | None:
    """The other axis of a tile: where some read that jumps along the fastest axis finds its neighbours; None if no."""
    if len(nest.axes) < 2 or not vectorizable(nest.body):
        return None
    if value_at(nest.axes[-1].extent, situation.sizes) < SIDE // 2:
        return None
    votes: dict[str, int] = {}
    for s in nest.body:
        if isinstance(s, Load):
            for axis in nest.axes[:-1]:
                if _turned(s, nest, axis) and value_at(axis.extent, situation.sizes) >= SIDE // 2:
                    votes[axis.name] = votes.get(axis.name, 0) + 1
    return max(votes, key=lambda n: votes[n]) if votes else None


def _turned(s: Load, nest: Nest, axis: Axis) -> bool:
    """A plain read that is contiguous along ``axis`` and jumps along the fastest axis."""
    if s.mask or {x.name for x in lift(s.index).free_symbols} & {n.name for n in nest.body if hasattr(n, "name")}:
        return False
    fast, slow = rest_along(s.index, nest.axes[-1].symbol), rest_along(s.index, axis.symbol)
    if fast is None or slow is None:
        return False
    return slow[0] == 1 and fast[0] not in (0, 1)


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    e = Emitter(kernel, nest, schedule)
    fast = nest.axes[-1]
    slow = next(a for a in nest.axes if a.name == schedule.across)
    others = tuple(a for a in nest.axes if a is not fast and a is not slow)
    tiles = [as_int(ceildiv(a.extent, SIDE)) for a in (slow, fast)]
    grid = (*others, Axis("tile_row", tiles[0]), Axis("tile_column", tiles[1]))
    e.line(f"const {e.int_type} block = blockIdx.x;")
    unflatten(e, grid, "block")
    staged = [s for s in nest.body if isinstance(s, Load) and _turned(s, nest, slow)]
    for s in staged:
        e.line(f"__shared__ {memory_type(e.buffers[s.buffer].dtype)} {safe(s.name)}_tile[{SIDE}][{SIDE + 1}];")
    with _rounds(e, fast, slow, "tile_column", "tile_row"):
        for s in staged:
            e.line(f"{safe(s.name)}_tile[r][threadIdx.x] = {safe(s.buffer)}[{e.index(s.index)}];")
    e.line("__syncthreads();")
    for s in staged:
        d = e.buffers[s.buffer].dtype
        e.staged[id(s)] = cast(from_memory(f"{safe(s.name)}_tile[threadIdx.x][r]", d), d, s.dtype)
    with _rounds(e, slow, fast, "tile_row", "tile_column"):
        for stmt in nest.body:
            e.statement(stmt)
    work = as_int(lift(tiles[0]) * tiles[1])
    for a in others:
        work = as_int(lift(work) * a.extent)
    return finish(e, name, work=work, block=(SIDE, schedule.threads // SIDE))


class _rounds:  # noqa: N801 - a context manager
    """``for r`` over the rows of a tile, with ``rows`` counted by ``r`` and ``columns`` by the thread."""

    def __init__(self, e: Emitter, rows: Axis, columns: Axis, row_tile: str, column_tile: str) -> None:
        self.e, self.rows, self.columns, self.row_tile, self.column_tile = e, rows, columns, row_tile, column_tile

    def __enter__(self) -> None:
        e, r, c = self.e, safe(self.rows.name), safe(self.columns.name)
        e.pragma("unroll")
        self.outer = e.block(f"for (int r = threadIdx.y; r < {SIDE}; r += {e.schedule.threads // SIDE})")
        self.outer.__enter__()
        e.line(f"const {e.int_type} {r} = {self.row_tile} * {SIDE} + r, {c} = {self.column_tile} * {SIDE} + threadIdx.x;")
        e.text[self.rows.name], e.text[self.columns.name] = r, c
        exact = all(isinstance(a.extent, int) and a.extent % SIDE == 0 for a in (self.rows, self.columns))
        inside = f"if ({r} < {e.index(self.rows.extent)} && {c} < {e.index(self.columns.extent)})"
        self.inner: AbstractContextManager[None] = nullcontext() if exact else e.block(inside)
        self.inner.__enter__()

    def __exit__(self, *unused: object) -> None:
        self.inner.__exit__(None, None, None)
        self.outer.__exit__(None, None, None)
