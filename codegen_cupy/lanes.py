"""Which works of a recorded graph run side by side: a plan of lanes, each in order, with waits from one to another.

Stage: codegen.  In: ``Work``s in the order of the recipe, each with the bytes it reads and writes and about how long it takes.
Out: for each, its lane and whom it waits for.  Pure: knows no machine and no recipe.
Read next: ``work`` (works of a recipe), ``graphs`` (records them).

A work depends on an earlier one if one of them writes bytes that the other touches.  Bytes, not names: memory planning gives
the same bytes to one buffer after another, and so a buffer waits for the last readers of the one before it.

Lane 0 is the recipe's own line.  A work leaves it if the line gets shorter, by a model: what runs beside the line takes its share
of the card from it, and a wait from lane to lane costs ``hop``.  What fills the card alone therefore stays in line, and so
does, nearly always, what the longest chain of dependencies goes through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

Span = tuple[str, int, int]  # a space of memory, first byte, byte after the last


@dataclass(frozen=True)
class Work:
    """Something that a graph does.  ``share``: of the card that it fills; ``us``: how long it takes with the card to itself.
    ``alone``: it takes all registers or shared memory of a multiprocessor, so that nothing runs beside it."""

    name: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    share: float = 1.0
    us: float = 1.0
    alone: bool = False


@dataclass(frozen=True)
class Placed:
    """Where a work goes: after everything earlier in its lane, and after the works ``after`` of other lanes."""

    lane: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """``lanes``: at most so many.  ``hop``: microseconds until another lane sees that a work is done.  A work leaves the line if
    the line gets shorter by ``gain`` microseconds.  All that together has to make it shorter by ``least`` microseconds and by
    ``part`` of it: the model is rough."""

    lanes: int = 3
    hop: float = 1.5
    gain: float = 0.5
    least: float = 4.0
    part: float = 0.03


RULE, CHAIN = Rule(), Rule(lanes=1)
PATIENCE = 40_000  # works looked at while planning, per lane


# --- who needs whom ---------------------------------------------------------------------------------------------------
def needs(works: Sequence[Work]) -> list[frozenset[int]]:
    """For each work the earlier ones that it has to follow, but for those that one of them follows by the same bytes."""
    touched: dict[str, list[tuple[int, int, int, bool]]] = {}  # by space: from, to, who, did it write
    out = []
    for i, w in enumerate(works):
        found = {j for s in w.reads for j, wrote in _meeting(touched, s) if wrote}
        found |= {j for s in w.writes for j, _ in _meeting(touched, s)}
        for space, low, high in w.writes:  # whoever comes later follows this work, and so all that it covers
            rest = [t for t in touched.get(space, ()) if not (low <= t[0] and t[1] <= high)]
            touched[space] = [*rest, (low, high, i, True)]
        for space, low, high in set(w.reads) - set(w.writes):
            touched.setdefault(space, []).append((low, high, i, False))
        out.append(frozenset(found - {i}))
    return out


def _meeting(touched: dict[str, list[tuple[int, int, int, bool]]], span: Span) -> Iterator[tuple[int, bool]]:
    space, low, high = span
    for start, end, who, wrote in touched.get(space, ()):
        if start < high and low < end:
            yield who, wrote


def unordered(works: Sequence[Work], plan: Sequence[Placed]) -> list[tuple[int, int]]:
    """Pairs that touch the same bytes, one of them writing, and that the plan leaves in no order: none, if it is right."""
    before: list[set[int]] = []
    last: dict[int, int] = {}
    for i, p in enumerate(plan):
        direct = {*p.after, *([last[p.lane]] if p.lane in last else [])}
        before.append(direct.union(*(before[j] for j in direct)))
        last[p.lane] = i
    pairs = ((i, j) for j in range(len(works)) for i in range(j) if i not in before[j])
    return [(i, j) for i, j in pairs if _conflict(works[i], works[j])]


def _conflict(a: Work, b: Work) -> bool:
    return _meet(a.writes, b.writes) or _meet(a.writes, b.reads) or _meet(a.reads, b.writes)


def _meet(xs: Sequence[Span], ys: Sequence[Span]) -> bool:
    return any(s == t and a < d and c < b for s, a, b in xs for t, c, d in ys)


# --- who goes where ---------------------------------------------------------------------------------------------------
def planned(works: Sequence[Work], rule: Rule | None = None) -> list[Placed]:
    """A lane for each work, and what it waits for."""
    rule = rule or RULE
    lanes = [0] * len(works)
    if works and rule.lanes > 1:
        needed = needs(works)
        whole = took = _length(works, needed, lanes, rule)
        for i in _candidates(works, needed, rule):
            tried = [_with(lanes, i, n) for n in range(1, min(max(lanes) + 2, rule.lanes))]  # those in use, and one more
            best, better = min((_length(works, needed, t, rule), t) for t in tried)
            if best <= took - rule.gain:
                lanes, took = better, best
        if whole - took >= max(rule.least, rule.part * whole):
            return waits(needed, lanes)
    return [Placed()] * len(works)


def _candidates(works: Sequence[Work], needed: Sequence[frozenset[int]], rule: Rule) -> list[int]:
    """Works that leave room beside them, and beside which others do, first those that the rest is in the least hurry for."""
    begin: list[float] = []  # at the earliest
    for need in needed:
        begin.append(max((begin[j] + works[j].us for j in need), default=0.0))
    longest = max(b + w.us for b, w in zip(begin, works, strict=True))
    end, use = [longest] * len(works), [len(works)] * len(works)  # at the latest; who needs it first
    for i in reversed(range(len(works))):
        for j in needed[i]:
            end[j], use[j] = min(end[j], end[i] - works[i].us), i
    beside = [0.0, *accumulate(0.0 if w.alone else w.us for w in works)]
    found = []
    for i, w in enumerate(works):
        others = beside[use[i]] - beside[max(needed[i], default=-1) + 1] - (0.0 if w.alone else w.us)
        if min(w.us, others) * (1 - w.share) >= rule.gain:
            found.append(i)
    hurry = {i: begin[i] + works[i].us - end[i] for i in found}
    return sorted(found, key=lambda i: hurry[i])[: max(8, PATIENCE // len(works))]


def _with(lanes: list[int], i: int, lane: int) -> list[int]:
    return [*lanes[:i], lane, *lanes[i + 1 :]]


def _length(works: Sequence[Work], needed: Sequence[frozenset[int]], lanes: Sequence[int], rule: Rule) -> float:
    """About when the last work ends."""
    free = [0.0] * rule.lanes
    end: list[float] = []
    for w, need, lane in zip(works, needed, lanes, strict=True):
        start = max((end[j] + (rule.hop if lanes[j] != lane else 0.0) for j in need), default=0.0)
        free[lane] = max(free[lane], start) + w.us
        end.append(free[lane])
    return max(end, default=0.0) + sum(w.us * w.share for w, lane in zip(works, lanes, strict=True) if lane)


def waits(needed: Sequence[frozenset[int]], lanes: Sequence[int]) -> list[Placed]:
    """The plan that puts each work on its lane, with as few waits as order what has to be: none for what a lane knows to be
    done."""
    done: list[dict[int, int]] = []  # by work: the last work of each lane that is over when it is
    last: dict[int, int] = {}
    plan = []
    for i, lane in enumerate(lanes):
        known = dict(done[last[lane]]) if lane in last else {}
        after = []
        for j in sorted(needed[i], reverse=True):  # the latest first: it may know of the others
            if known.get(lanes[j], -1) < j:
                after.append(j)
                known = {n: max(known.get(n, -1), done[j].get(n, -1)) for n in known.keys() | done[j].keys()}
        known[lane] = i
        done.append(known)
        last[lane] = i
        plan.append(Placed(lane, tuple(sorted(after))))
    return plan


def without(plan: Sequence[Placed], i: int, j: int) -> list[Placed]:
    """The plan in which work ``i`` does not wait for ``j``: wrong, for tests of what finds that out."""
    return [replace(p, after=tuple(x for x in p.after if x != j)) if n == i else p for n, p in enumerate(plan)]


def shown(works: Sequence[Work], plan: Sequence[Placed], rule: Rule | None = None) -> str:
    """What the model expects, and a line per work, indented by its lane."""
    needed, placed = needs(works), [p.lane for p in plan]
    count = 1 + max(placed, default=0)
    took, whole = (_length(works, needed, x, replace(rule or RULE, lanes=count)) for x in (placed, [0] * len(works)))
    gain = f" on {count} lanes, {whole:.0f} us" if count > 1 else ""
    lines = [f"{len(works)} works, about {took:.0f} us{gain} in one line"]
    for i, (w, p) in enumerate(zip(works, plan, strict=True)):
        after = f"  after {', '.join(map(str, p.after))}" if p.after else ""
        lines.append(f"{i:4d} {'    ' * p.lane}{w.name}  {w.us:.1f} us, {w.share:.0%}{after}")
    return "\n".join(lines)
