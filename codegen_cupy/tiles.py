"""Pointwise nests that read along one axis and write along another: square tiles through shared memory.

Stage: codegen.  In: kernel, nest, schedule of kind ``tile``.  Out: ``Source``.  Transposes, permutes, and what is fused
with them.  A block reads its tile with neighbouring threads along the axis where the *reads* are neighbours, then
computes and writes with neighbouring threads along the axis where the *writes* are: both in whole lines, ``vector``
elements a thread.  What is read along the second axis anyway is asked for first, so that all reads are under way before
the barrier.  Rows of a tile are padded by one element, so that a column of it lies in different banks.
Read next: ``pointwise``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from codegen_cupy.body import Emitter
from codegen_cupy.kernel_text import Source, finish
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import Axis, Nest, accesses, divides, rest_along, value_at, vectorizable
from codegen_cupy.schedule import Schedule, Situation
from codegen_cupy.spell import cast, from_memory, memory_type, safe
from compiler.loop.ir import Kernel, Load
from compiler.sym.expr import as_int, ceildiv, lift

SIDES = (64, 32)
MOST_THREADS = 1024


def shape(kernel: Kernel, nest: Nest, at: Situation) -> dict[str, Any] | None:
    """The fields of a tile's schedule; None if no read jumps along the fastest axis and has neighbours along another."""
    if len(nest.axes) < 2 or not vectorizable(nest.body):
        return None
    fast, least = nest.axes[-1], SIDES[-1] // 2
    votes: dict[str, int] = {}
    for axis in nest.axes[:-1]:
        turned = sum(isinstance(s, Load) and _turned(s, nest, axis) for s in nest.body)
        if turned and min(value_at(a.extent, at.sizes) for a in (axis, fast)) >= least:
            votes[axis.name] = turned
    if not votes:
        return None
    slow = next(a for a in nest.axes if a.name == max(votes, key=lambda n: votes[n]))
    shortest = min(value_at(a.extent, at.sizes) for a in (slow, fast))
    side = next((s for s in SIDES if s <= shortest), SIDES[-1])
    vector = _vector(kernel, nest, at, slow)
    threads = min(MOST_THREADS, side**2 // vector)  # one access each: all of a tile is asked for at once
    return dict(kind="tile", across=slow.name, vector=vector, side=side, threads=threads)


def _vector(kernel: Kernel, nest: Nest, at: Situation, slow: Axis) -> int:
    """Neighbours a thread can move at once on both sides of the tile: 16 bytes of the narrowest buffer, or fewer."""
    facts, fast = dict(at.facts), nest.axes[-1]
    items = {b.name: b.dtype.itemsize for b in kernel.params}
    v = 16 // max(2, min(items[s.buffer] for s in accesses(nest.body))) if at.aligned else 1
    along = [rest_along(s.index, slow.symbol) for s in _staged(nest, slow)]
    while v > 1 and not all(divides(v, e, facts) for e in (slow.extent, fast.extent, *(x[1] for x in along if x))):
        v //= 2
    return v


def _turned(s: Load, nest: Nest, axis: Axis) -> bool:
    """A plain read that is contiguous along ``axis`` and jumps along the fastest axis."""
    if s.mask or _inner(s, nest):
        return False
    fast, slow = rest_along(s.index, nest.axes[-1].symbol), rest_along(s.index, axis.symbol)
    if fast is None or slow is None:
        return False
    return slow[0] == 1 and fast[0] not in (0, 1)


def _inner(s: Load, nest: Nest) -> bool:
    """Is its place a value that the nest computes?"""
    return bool({x.name for x in lift(s.index).free_symbols} & {n.name for n in nest.body if hasattr(n, "name")})


def _staged(nest: Nest, slow: Axis) -> list[Load]:
    return [s for s in nest.body if isinstance(s, Load) and _turned(s, nest, slow)]


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    return TileKernel(kernel, nest, schedule).source(name)


class TileKernel:
    """One kernel while it is written."""

    def __init__(self, kernel: Kernel, nest: Nest, schedule: Schedule) -> None:
        self.e = Emitter(kernel, nest, schedule)
        self.kernel, self.nest, self.schedule = kernel, nest, schedule
        self.fast = nest.axes[-1]
        self.slow = next(a for a in nest.axes if a.name == schedule.across)
        self.staged = _staged(nest, self.slow)
        self.ahead = [s for s in nest.body if isinstance(s, Load) and self._early(s)]

    def _early(self, s: Load) -> bool:
        """A read along the fastest axis that can be made before the barrier."""
        found = rest_along(s.index, self.fast.symbol)
        if s in self.staged or s.mask or _inner(s, self.nest) or s.buffer in self.kernel.writes or found is None:
            return False
        return found[0] == 1 and divides(self.schedule.vector, found[1], dict(self.schedule.facts))

    def source(self, name: str) -> Source:
        e, s = self.e, self.schedule
        others = tuple(a for a in self.nest.axes if a is not self.fast and a is not self.slow)
        tiles = [as_int(ceildiv(a.extent, s.side)) for a in (self.slow, self.fast)]
        e.line(f"const {e.int_type} block = blockIdx.x;")
        e.unflatten((*others, Axis("tile_row", tiles[0]), Axis("tile_column", tiles[1])), "block")
        wide = s.side // s.vector
        first = f"threadIdx.x % {wide}" if s.vector == 1 else f"threadIdx.x % {wide} * {s.vector}"
        e.line(f"const int row = threadIdx.x / {wide}, first = {first};")
        for x in self.staged:
            e.line(f"__shared__ {self._type(x)} {safe(x.name)}_tile[{s.side}][{s.side + 1}];")
        self._read_ahead()
        self._fill()
        e.line("__syncthreads();")
        self._compute()
        work = as_int(lift(tiles[0]) * tiles[1])
        for a in others:
            work = as_int(lift(work) * a.extent)
        return finish(e, name, work=work, block=(s.threads, 1))

    def _type(self, x: Load) -> str:
        return memory_type(self.e.buffers[x.buffer].dtype)

    def _read_ahead(self) -> None:
        e, s = self.e, self.schedule
        for x in self.ahead:
            t = self._type(x) if s.vector == 1 else f"Pack<{self._type(x)}, {s.vector}>"
            e.line(f"{t} {safe(x.name)}_ahead[{self.rounds}];")
        if self.ahead:
            with self._each_round(self.slow, self.fast, "tile_row", "tile_column"):
                for x in self.ahead:
                    place = f"{safe(x.buffer)}[{e.index(x.index)}]" if s.vector == 1 else self._packed(x)
                    e.line(f"{safe(x.name)}_ahead[c] = {place};")

    def _packed(self, x: Load) -> str:
        return f"load_pack<{self.schedule.vector}>({safe(x.buffer)} + {self.e.index(x.index)})"

    def _fill(self) -> None:
        """The turned reads, into shared memory as they lie."""
        e, v = self.e, self.schedule.vector
        with self._each_round(self.fast, self.slow, "tile_column", "tile_row"):
            for x in self.staged:
                tile = f"{safe(x.name)}_tile[r]"
                if v == 1:
                    e.line(f"{tile}[first] = {safe(x.buffer)}[{e.index(x.index)}];")
                    continue
                e.line(f"const Pack<{self._type(x)}, {v}> {safe(x.name)}_pack = {self._packed(x)};")
                e.pragma("unroll")
                e.line(f"for (int k = 0; k < {v}; ++k) {tile}[first + k] = {safe(x.name)}_pack.at[k];")

    def _compute(self) -> None:
        e, v = self.e, self.schedule.vector
        k = "first" if v == 1 else "first + k"
        for x in self.staged:
            self._given(x, f"{safe(x.name)}_tile[{k}][r]")
        for x in self.ahead:
            self._given(x, f"{safe(x.name)}_ahead[c]" if v == 1 else f"{safe(x.name)}_ahead[c].at[k]")
        with self._each_round(self.slow, self.fast, "tile_row", "tile_column"):
            neighbours(e, self.nest.body, self.fast, v)

    def _given(self, x: Load, text: str) -> None:
        d = self.e.buffers[x.buffer].dtype
        self.e.staged[id(x)] = cast(from_memory(text, d), d, x.dtype)

    @property
    def rounds(self) -> int:
        return self.schedule.side**2 // (self.schedule.threads * self.schedule.vector)

    @contextmanager
    def _each_round(self, rows: Axis, columns: Axis, row_tile: str, column_tile: str) -> Iterator[None]:
        """Over the rows of a tile that this thread has a part of; ``columns`` are counted by the thread."""
        e, s = self.e, self.schedule
        i, j = safe(rows.name), safe(columns.name)
        e.pragma("unroll")
        with e.block(f"for (int c = 0; c < {self.rounds}; ++c)"):
            e.line(f"const int r = row + c * {s.side // self.rounds};")
            e.line(f"const {e.int_type} {i} = {row_tile} * {s.side} + r, {j} = {column_tile} * {s.side} + first;")
            e.text[rows.name], e.text[columns.name] = i, j
            exact = all(isinstance(a.extent, int) and a.extent % s.side == 0 for a in (rows, columns))
            with nullcontext() if exact else e.block(f"if ({i} < {e.index(rows.extent)} && {j} < {e.index(columns.extent)})"):
                yield
