"""Which schedule a nest gets without measuring.

Stage: codegen.  In: ``Kernel``, ``Nest``, ``Situation``.  Out: ``Schedule``.  The tuner (``tune``) tries others beside it.
Read next: ``row_schedules``, ``sources``.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_cupy.nest import Nest, divides, value_at, vectorizable
from codegen_cupy.row_schedules import row, row_vector
from codegen_cupy.schedule import (
    MULTIPROCESSORS,
    WARP,
    Schedule,
    Situation,
    inner_loops,
    splittable,
    walks_columns,
    widest_vector,
)
from compiler.loop.ir import Init, Kernel

MANY = 2**16  # points that fill the machine
SHARED_BYTES = 40 * 1024  # of static shared memory a block may use; 48 KB is the limit


def choose(kernel: Kernel, nest: Nest, situation: Situation) -> Schedule:
    """A good schedule without measuring."""
    base = Schedule(
        "pointwise", wide=situation.wide, facts=situation.facts, restrict=situation.restrict, strict=situation.strict,
        ordered=situation.ordered,
    )  # fmt: skip
    loops = inner_loops(nest)
    if not loops:
        return replace(base, vector=_pointwise_vector(kernel, nest, situation))
    length = max(value_at(loop.extent, situation.sizes) for loop in loops)
    points = value_at(nest.points, situation.sizes)
    if any(loop.kind == "scan" for loop in loops):
        return _scan(kernel, nest, situation, base, length)
    if walks_columns(kernel, nest) and points > 1:
        return _column(kernel, nest, situation, base, length, points)
    if points >= MANY and length < 4:
        return base
    return row(kernel, nest, situation, base, length, points)


def _pointwise_vector(kernel: Kernel, nest: Nest, situation: Situation) -> int:
    if not nest.axes or not situation.aligned or not vectorizable(nest.body):
        return 1
    extent = nest.axes[-1].extent
    v = widest_vector(kernel, nest, nest.axes[-1].name, dict(situation.facts))
    points = value_at(nest.points, situation.sizes)
    while v > 1 and (not divides(v, extent, dict(situation.facts)) or points // v < MULTIPROCESSORS * WARP):
        v //= 2
    return v


def _scan(kernel: Kernel, nest: Nest, at: Situation, base: Schedule, length: int) -> Schedule:
    """A whole warp or block per row; rows too short for that are walked by one thread each."""
    points = value_at(nest.points, at.sizes)
    if length < 16 or (length < 64 and points > 2**14):
        return base
    vector = row_vector(kernel, nest, at, length, least=32)
    team = WARP
    while team < 512 and team * vector * 2 <= length:
        team *= 2
    return replace(base, kind="scan", vector=vector, team=team, threads=team)


def _column(kernel: Kernel, nest: Nest, at: Situation, base: Schedule, length: int, points: int) -> Schedule:
    simple = splittable(nest)
    vector = 1
    if simple and at.aligned and nest.axes:
        facts = dict(at.facts)
        vector = widest_vector(kernel, nest, nest.axes[-1].name, facts)
        while vector > 1 and not divides(vector, nest.axes[-1].extent, facts):
            vector //= 2
    while vector > 1 and points // vector < WARP:
        vector //= 2
    team = 1
    while team < 16 and team * 4 < length:
        team *= 2
    while team > 1 and team * WARP * vector * _accumulator_bytes(nest) > SHARED_BYTES:
        team //= 2
    split = 1
    if simple:
        groups = -(-points // (vector * WARP))
        split = max(1, min(-(-4 * MULTIPROCESSORS // groups), length // (team * 8)))
    return replace(base, kind="column", vector=vector, team=team, threads=WARP * team, split=split)


def _accumulator_bytes(nest: Nest) -> int:
    return sum(8 * len(s.names) for s in nest.body if isinstance(s, Init))
