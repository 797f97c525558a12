"""How rows are walked: read once from registers where they fit, by one team, a cluster of blocks or blocks that ask ahead.

Stage: codegen.  In: ``Kernel``, ``Nest`` with inner loops, ``Situation``.  Out: a ``Schedule`` of kind ``row``, or the fields of one
that only fits some rows (``clustered``, ``waiting``).  Read next: ``rows``, ``choice``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from codegen_cupy.nest import Nest, changing, divides, fast_axis, value_at
from codegen_cupy.schedule import (
    MOST_AHEAD,
    MULTIPROCESSORS,
    SHARED_LIMIT,
    WARP,
    Schedule,
    Situation,
    inner_loops,
    splittable,
    widest_vector,
)
from compiler.loop.ir import Int, Kernel, Let, Load, Loop, Store, Update, walk
from compiler.sym.expr import Expr, Symbol, as_int, lift

LONG = 16384  # elements of a row that several blocks share, if there are few
ONLINE = 16384  # elements: longer rows go through the online softmax, shorter ones stay in registers
TWO_PASSES = ("softmax", "welford")  # what is reduced in two passes over rows in registers
MOST_BLOCKS = 8  # of a cluster, on any machine that has them
HELD, HELD_BY_1024 = 40, 28  # registers of a thread that a row may take, so that blocks of 256 threads share a multiprocessor
OWN_REGISTERS, MOST_REGISTERS, REGISTERS = 40, 168, 65536  # of a thread for all else; of a thread; of a multiprocessor
DRAWING = 48  # more registers where random numbers are drawn: a counter, a key and four words for each access


def row(kernel: Kernel, nest: Nest, at: Situation, base: Schedule, length: int, points: int) -> Schedule:
    """The schedule of ``points`` rows, ``base`` for all that is the same whatever the kind."""
    loops = inner_loops(nest)
    together = waiting(kernel, nest, at) or clustered(kernel, nest, at)
    if together is not None:
        return replace(base, **together)
    vector = row_vector(kernel, nest, at, length)
    per_thread = vector * max(1, 16 // vector)
    team = 1
    while team < 1024 and team * per_thread < length:
        team *= 2
    team = max(team, 4)
    rounds = -(-length // (team * vector))
    items = {b.name: max(4, b.dtype.itemsize) for b in kernel.params}
    sum_bytes = sum(items[s.buffer] for s in walk(nest.body) if isinstance(s, Store) and s.mode == "add")
    sums = sum_bytes > 0
    keep = _keepable(nest) and (sums or _rereads(nest)) and rounds <= max(8, 32 // vector)
    split = 1
    if splittable(nest) and points * team < MULTIPROCESSORS * 1024 and length > LONG:
        team, split = _parts(points)
        split = max(1, min(split, length // (team * vector * 2)))
        keep = keep and split == 1
    if keep and len(loops) == 1 and length > ONLINE and _one_softmax(nest):
        keep = False
    only_maps = not any(loop.kind == "reduce" for loop in loops)
    if split == 1 and not keep and points >= MULTIPROCESSORS * 8:  # many rows: small blocks, several on each multiprocessor
        team = min(team, 512 if only_maps else 128 if len(loops) == 1 else 256)  # who reads once wants many to read
    threads = team if team > WARP else 128
    if only_maps and split == 1 and points >= MULTIPROCESSORS * 16:
        threads = max(threads, 512)
    resident = 0
    if keep and sums:  # few blocks of many rows: each block adds its sums to memory once
        early = _arriving(kernel, nest, at, length, points, vector)
        if early is not None:
            return replace(base, **early)
        team, threads, resident = _gathering(team, length, vector, (_row_bytes(kernel, nest) + sum_bytes) / 4, _draws(nest))
        rounds = -(-length // (team * vector))
    return replace(
        base, kind="row", vector=vector, team=team, threads=threads, chunks=rounds if keep else 0, split=split,
        blocks=resident * MULTIPROCESSORS, prefetch=resident == 1 and threads == team, resident=resident,
        stream=only_maps and _flat(nest) and vector > 1,
    )  # fmt: skip


def _parts(points: int) -> tuple[int, int]:
    """(team, split) of few long reductions: all blocks run at once, as few as will do, and no multiprocessor has one more
    than another if that can be had."""
    choices = [(1024, 1), (1024, 2), (512, 3), (512, 4)]  # threads of a block, blocks of a multiprocessor
    full = {(team, n): MULTIPROCESSORS * n // points * points / (MULTIPROCESSORS * n) for team, n in choices}
    team, n = next((c for c in choices if full[c] > 0.95), max(choices, key=lambda c: full[c]))
    return team, MULTIPROCESSORS * n // points


def _draws(nest: Nest) -> bool:
    return any(isinstance(s, Let) and s.fn == "philox" for s in walk(nest.body))


def _gathering(team: int, length: int, vector: int, words: float, draws: bool) -> tuple[int, int, int]:
    """(team, threads, blocks of a multiprocessor) of rows whose sums wait in registers, at ``words`` an element: three
    blocks, so that one loads while others compute and store.  If their registers are too many, half as many threads
    hold twice as much each, which leaves more to each; if that is too much as well, large blocks do what they can."""
    for team_, threads in ((team, max(team, 256)), (max(1, team // 2), max(team // 2, 128))):
        elements = -(-length // (team_ * vector)) * vector
        registers = OWN_REGISTERS + DRAWING * draws + elements * words
        if registers <= MOST_REGISTERS and 3 * threads * registers <= REGISTERS:
            return team_, threads, 3
    threads = max(team, 256)
    return team, threads, max(1, 512 // threads)


def _arriving(kernel: Kernel, nest: Nest, at: Situation, length: int, points: int, vector: int) -> dict[str, Any] | None:
    """Fields of a schedule for rows whose sums wait in registers, where a team of 512 has one access to each row: the next
    rows arrive in shared memory, which takes no registers, so that two such blocks fill a multiprocessor.  None for rows
    that would leave half of the team idle or need a second access."""
    team, blocks, items = 512, 2, _row_items(kernel, nest, own=True)
    if not at.restrict or not team // 2 < length / vector <= team or points < 4 * blocks * MULTIPROCESSORS:
        return None
    if not 0 < len(items) <= MOST_AHEAD or any(vector * n % 16 for n in items) or blocks * length * sum(items) > SHARED_LIMIT:
        return None
    return dict(kind="row", vector=vector, team=team, threads=team, chunks=1, blocks=blocks * MULTIPROCESSORS,
                resident=blocks, prefetch=True, waits="shared")  # fmt: skip


def row_vector(kernel: Kernel, nest: Nest, at: Situation, length: int, least: int = 8) -> int:
    """Elements per access along the rows, of which there are ``least`` at least."""
    facts, loops = dict(at.facts), inner_loops(nest)
    vector = max(widest_vector(kernel, Nest((), loop.body), fast_axis(loop).name, facts) for loop in loops) if at.aligned else 1
    while vector > 1 and not (all(divides(vector, fast_axis(loop).extent, facts) for loop in loops) and length >= least * vector):
        vector //= 2
    return vector


def clustered(kernel: Kernel, nest: Nest, at: Situation) -> dict[str, Any] | None:
    """Fields of a schedule in which the blocks of a cluster keep a long row in their registers: the row is read once, and
    several small blocks on a multiprocessor load, compute and store at different times.  None where that does not fit."""
    loops = inner_loops(nest)
    if not at.clusters or not _keepable(nest) or not _rereads(nest) or all(x.kind != "reduce" for x in loops):
        return None
    length, points = value_at(loops[0].extent, at.sizes), value_at(nest.points, at.sizes)
    if length <= ONLINE or points * MOST_BLOCKS < MULTIPROCESSORS or (len(loops) == 1 and _one_softmax(nest)):
        return None
    if any(isinstance(s, Store) and s.mode != "set" for s in walk(nest.body)):
        return None
    vector, word = row_vector(kernel, nest, at, length), _row_bytes(kernel, nest) / 4
    for team, held in ((256, HELD), (512, HELD), (1024, HELD_BY_1024)):
        for cluster in (2, 4, 8):
            rounds = -(-length // (team * cluster * vector))
            busy = cluster == MOST_BLOCKS or points * cluster >= 2 * MULTIPROCESSORS
            if busy and rounds * vector * word <= held:
                return dict(kind="row", vector=vector, team=team, threads=team, cluster=cluster, chunks=rounds)
    return None


def waiting(kernel: Kernel, nest: Nest, at: Situation) -> dict[str, Any] | None:
    """Fields of a schedule in which a few persistent blocks keep a long row in registers while the next one arrives in
    shared memory: memory is busy all the time, with nobody waiting for it.  None where that does not fit."""
    fits = clustered(kernel, nest, at)
    if fits is None or not at.restrict:
        return None
    length, points = value_at(inner_loops(nest)[0].extent, at.sizes), value_at(nest.points, at.sizes)
    vector, items, bytes_ = row_vector(kernel, nest, at, length), _row_items(kernel, nest), _row_bytes(kernel, nest)
    if not 0 < len(items) <= MOST_AHEAD or any(vector * n % 16 for n in items):
        return None
    for team, blocks in ((512, 2), (1024, 1)):
        rounds = -(-length // (team * vector))
        enough = points >= 4 * blocks * MULTIPROCESSORS and rounds * vector * bytes_ / 4 <= HELD_BY_1024
        if enough and blocks * length * bytes_ <= SHARED_LIMIT:
            return dict(kind="row", vector=vector, team=team, threads=team, chunks=rounds, blocks=blocks * MULTIPROCESSORS,
                        resident=blocks, prefetch=True, waits="shared")  # fmt: skip
    return None


def _keepable(nest: Nest) -> bool:
    """Are the loops of one known length, with nothing inside?"""
    loops = inner_loops(nest)
    return _flat(nest) and all(isinstance(x.extent, int) for x in loops) and len({x.extent for x in loops}) == 1


def _flat(nest: Nest) -> bool:
    return all(not isinstance(s, Loop) for loop in inner_loops(nest) for s in loop.body)


def _row_bytes(kernel: Kernel, nest: Nest) -> int:
    """Of the rows that are read more than once, per element."""
    return sum(_row_items(kernel, nest)) or 1


def _row_items(kernel: Kernel, nest: Nest, *, own: bool = False) -> list[int]:
    """The bytes of an element of each row that is read more than once; ``own``: without rows that all points share."""
    items = {b.name: b.dtype.itemsize for b in kernel.params}
    times: Counter[tuple[str, Int]] = Counter()
    lost = changing(nest)
    for loop in inner_loops(nest):
        axis: dict[Expr, Int] = {Symbol(loop.axis): Symbol("_here")}
        passes = 2 if any(isinstance(s, Update) and s.combine in TWO_PASSES for s in loop.body) else 1
        for key in {(s.buffer, as_int(lift(s.index).subs(axis))) for s in loop.body if isinstance(s, Load) and s.buffer not in lost}:
            times[key] += passes
    points = {a.symbol for a in nest.axes} if own else set()
    return [items[b] for (b, at), n in times.items() if n > 1 and (not own or lift(at).free_symbols & points)]


def _one_softmax(nest: Nest) -> bool:
    """Is all that is done with a row a softmax's maximum and sum?  Then one pass will do, with nothing to be kept."""
    updates = [s for s in walk(nest.body) if isinstance(s, Update)]
    return all(s.combine == "softmax" for s in updates) and bool(updates)


def _rereads(nest: Nest) -> bool:
    """Would keeping a row in registers save anything?"""
    loops = inner_loops(nest)
    two_pass = any(isinstance(s, Update) and s.combine in TWO_PASSES for s in walk(nest.body))
    return len(loops) > 1 or two_pass
