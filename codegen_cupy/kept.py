"""Rows held in registers between the loops of a point: read once, used by every loop.

Stage: codegen.  In: a nest whose loops take a known number of unrolled rounds (``Schedule.chunks``).  Out: lines of C++: the
rounds, the arrays that hold a lane's parts of a row, a slot per round, and the reads that fill them.
Read next: ``rows``, ``ahead`` (the next point's rows), ``gathered`` (sums over points, held in the same way).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from codegen_cupy.body import Emitter
from codegen_cupy.nest import Axis, changing, divides, fast_axis, loop_axes, rest_along
from codegen_cupy.schedule import Schedule, inner_loops
from codegen_cupy.spell import literal, memory_type, safe, to_memory
from compiler.loop.ir import Load, Loop, Store
from compiler.sym.expr import Symbol, coefficient, lift

Key = tuple[str, str]  # (buffer, index from the loop's start)


@dataclass
class Kept:
    """``names``: the array of a row; ``rows``: what it is first read by, and in which loop; ``axes``: of the loop being
    written; ``loaded``: rows that are there."""

    names: dict[Key, str] = field(default_factory=dict)
    rows: dict[Key, tuple[Load, Loop]] = field(default_factory=dict)
    axes: tuple[Axis, ...] = ()
    loaded: set[Key] = field(default_factory=set)

    def slot(self, s: Load) -> str | None:
        """The array that a read is kept in."""
        return None if s.mask else self.names.get(key(s, self.axes))

    def first(self, s: Load) -> bool:
        """Is this the read that fills the array?  Asked once."""
        new = key(s, self.axes) not in self.loaded
        self.loaded.add(key(s, self.axes))
        return new


def key(s: Load, axes: tuple[Axis, ...]) -> Key:
    return s.buffer, str(lift(s.index).subs({a.symbol: Symbol(f"_here{n}") for n, a in enumerate(axes)}))


# --- which rows ------------------------------------------------------------------------------------------------------
def declared(e: Emitter) -> Kept:
    """Arrays of registers, one for every read that more than one loop wants."""
    kept, s = Kept(), e.schedule
    if not s.chunks:
        return kept
    written = changing(e.nest)
    seen: dict[Key, int] = {}
    first: dict[Key, tuple[Load, Loop]] = {}
    for loop in inner_loops(e.nest):
        for k, load in {key(x, loop_axes(loop)): x for x in loop.body if isinstance(x, Load)}.items():
            if _can_keep(e, load, loop, written):
                seen[k] = seen.get(k, 0) + 1
                first.setdefault(k, (load, loop))
    for k, count in seen.items():
        if count > 1:
            load, _ = kept.rows[k] = first[k]
            kept.names[k] = f"{safe(load.name)}_row"
            e.line(f"{part_type(e, load)} {kept.names[k]}[{s.chunks}];")
    return kept


def _can_keep(e: Emitter, load: Load, loop: Loop, written: set[str]) -> bool:
    """Plain reads along the row, not of something this kernel writes before it is read again."""
    if load.mask or load.buffer in written:
        return False
    symbols = {x.name for x in lift(load.index).free_symbols}
    if symbols & e.dtype.keys():
        return False
    along = coefficient(load.index, fast_axis(loop).symbol) == 1
    return along and (e.schedule.vector == 1 or aligned(e.schedule, load, loop))


def aligned(s: Schedule, access: Load | Store, loop: Loop) -> bool:
    """Does the access start at a multiple of the vector?"""
    found = rest_along(access.index, fast_axis(loop).symbol)
    return found is not None and divides(s.vector, found[1], dict(s.facts))


# --- a lane's parts --------------------------------------------------------------------------------------------------
def part(s: Schedule) -> str:
    """Which of a row's parts a lane has in round ``c``."""
    return "lane" if s.chunks == 1 else f"c * {s.lanes} + lane"


def part_type(e: Emitter, load: Load) -> str:
    t, v = memory_type(e.buffers[load.buffer].dtype), e.schedule.vector
    return t if v == 1 else f"Pack<{t}, {v}>"


def read_part(e: Emitter, name: str, load: Load, mask: str | None = None) -> None:
    """One round of a row, into the array ``name``."""
    where, v, buffer = e.index(load.index), e.schedule.vector, safe(load.buffer)
    text = f"{buffer}[{where}]" if v == 1 else f"load_pack<{v}>({buffer} + {where})"
    if mask:
        d = e.buffers[load.buffer].dtype
        other = to_memory(literal(0, d), d) if v == 1 else f"{part_type(e, load)}{{}}"
        text = f"{mask} ? {text} : {other}"
    e.line(f"{name}[c] = {text};")


@contextmanager
def each_round(e: Emitter, loop: Loop) -> Iterator[str]:
    """Unrolled rounds, so that what a round reads can stay in registers."""
    s, axis, n = e.schedule, safe(loop.axis), loop.extent
    e.pragma("unroll")
    with e.block(f"for (int c = 0; c < {s.chunks}; ++c)"):
        where = part(s) if s.vector == 1 else f"({part(s)}) * {s.vector}"
        e.line(f"const int {axis} = {where};")
        e.text[loop.axis] = axis
        exact = isinstance(n, int) and n == s.chunks * s.lanes * s.vector
        with nullcontext() if exact else e.block(f"if ({axis} < {e.index(n)})"):
            yield axis
