"""Which order of the launches holds the fewest bytes at once.

Stage: loop, behind ``order``.  In: what each launch touches and may overwrite, and how large buffers are.  Out: an order.
The program's own order is kept unless another's peak is lower by what is worth it; then it is the one nearest to the
program's that holds no more.  ``peak`` plays through ``inplace`` and ``memory`` for an order; orders to try come from walks
over the graph of launches, from its beginning and from its end, that take what grows memory least.  Of two launches in the
program's order that touch a buffer, one of them to write, none overtakes the other; nor does one that raises overtake one
that may write to an input.  All is a function of its arguments, so equal graphs get equal plans.  Read next: ``memory``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

#: Another order is taken if its peak is lower by so many bytes, and by this share.
BYTES, SHARE = 1 << 16, 1 / 64
#: Launches that a walk looks at before it takes one that does not fit.
LOOKS = 16
#: Budgets that are tried: the lowest peak found, and less.
BUDGETS = (1.0, 0.9)
#: Stands for what the caller sees of a launch that raises; no buffer's name.
RAISED = "!"


@dataclass(frozen=True)
class Work:
    """A launch: buffers it touches, which of them it writes, and over which operands it might write a result.

    Whether it ``may`` is asked late, for it takes longer to find out.
    """

    touches: tuple[str, ...]
    writes: frozenset[str]
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    may: Callable[[str, str], bool] = lambda result, operand: True
    raises: bool = False


@dataclass(frozen=True)
class Memory:
    """Bytes of buffers, and who owns them: ``given`` by the caller, ``kept`` by it, ``donated`` to the plan.

    Buffers of one ``kind`` fit each other's memory.  ``homes``: results that are to lie in an input.
    """

    sizes: Mapping[str, int]
    given: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    donated: frozenset[str] = frozenset()
    homes: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, Any] = field(default_factory=dict)

    def kind(self, buffer: str) -> Any:
        return self.kinds.get(buffer, self.sizes.get(buffer))


@dataclass(frozen=True)
class Choice:
    """An order of launches, by their places in the program, and the peaks of the program's order and of this one."""

    order: tuple[int, ...]
    before: int
    after: int

    def __str__(self) -> str:
        said = f"{len(self.order)} launches hold {self.before} bytes at most in the program's order"
        return said if self.after == self.before else f"{said}, {self.after} in another"


def lowest(works: Sequence[Work], memory: Memory) -> Choice:
    """The order to run ``works`` in."""
    program = tuple(range(len(works)))
    before = peak(works, memory, program)
    enough = min(before - BYTES, int(before * (1 - SHARE)))
    best = Choice(program, before, before)
    if enough < bound(works, memory):
        return best
    walks = _Walks(works, memory)
    found = [(peak(works, memory, order), order) for order in walks.greedy()]
    low = min(bytes_ for bytes_, _ in found)
    for share in BUDGETS:
        for order in walks.within(int(low * share)):
            found.append((peak(works, memory, order), order))
    low = min(bytes_ for bytes_, _ in found)
    if low > enough:
        return best
    near = [(_distance(order), order) for bytes_, order in found if bytes_ <= low + low * SHARE / 4]
    _, order = min(near)
    return Choice(order, before, peak(works, memory, order))


def _distance(order: Sequence[int]) -> int:
    """How often a launch is not followed by the one that follows it in the program."""
    return sum(b != a + 1 for a, b in pairwise(order))


def needs(works: Sequence[Work], homes: Mapping[str, str]) -> list[set[int]]:
    """For each launch those it must come after: as if one that raises wrote to what those read that write to ``homes``."""
    out: list[set[int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for n, w in enumerate(works):
        written = w.writes | {RAISED} if w.raises else w.writes
        read = [b for b in w.touches if b not in written]
        if not w.raises and any(b in homes for b in w.writes):
            read.append(RAISED)
        need = {writer[b] for b in (*written, *read) if b in writer}
        for b in written:
            need.update(readers.pop(b, ()))
            writer[b] = n
        for b in read:
            readers.setdefault(b, []).append(n)
        out.append(need)
    return out


def bound(works: Sequence[Work], memory: Memory) -> int:
    """Bytes that no order can do without: what one launch touches, or what the caller keeps, if not in donated memory."""
    most = sum(memory.sizes[b] for b in memory.kept if b not in memory.given and b not in memory.homes)
    for w in works:
        new = [b for b in w.touches if b not in memory.given]
        most = max(most, sum(memory.sizes[b] for b in new if not w.over.get(b)))
    return max(0, most - sum(memory.sizes.get(b, 0) for b in memory.donated))


def peak(works: Sequence[Work], memory: Memory, order: Sequence[int]) -> int:
    """The most bytes that are live at once, inputs left out, when the launches run in this order."""
    last = {b: place for place, n in enumerate(order) for b in works[n].touches}
    settled = max((place + 1 for place, n in enumerate(order) if works[n].raises), default=0)
    cell: dict[str, tuple[int, Any]] = {b: (0, memory.kind(b)) for b in memory.given}  # the bytes that count, the kind
    idle: dict[Any, list[tuple[int, Any]]] = {}
    now = most = 0
    for place, n in enumerate(order):
        taken: set[str] = set()
        for b in works[n].touches:
            if b in cell:
                continue
            free = (x for x in _operands(works[n], memory, b, place >= settled) if x not in taken and last[x] == place)
            operand = next((x for x in free if works[n].may(b, x)), None)
            if operand is not None:
                taken.add(operand)
                cell[b] = cell[operand]
                continue
            kind = memory.kind(b)
            waiting = idle.get(kind) if b not in memory.kept else None
            cell[b] = waiting.pop() if waiting else (memory.sizes[b], kind)
            now += cell[b][0]
        most = max(most, now)
        for b in works[n].touches:
            if last[b] == place and b not in memory.kept and b not in taken and (b not in memory.given or b in memory.donated):
                now -= cell[b][0]
                idle.setdefault(cell[b][1], []).append(cell[b])
    return most


def _operands(work: Work, memory: Memory, target: str, settled: bool) -> Iterator[str]:
    for x in work.over.get(target, ()):
        if memory.homes.get(target) == x:
            if settled:
                yield x
        elif x not in memory.kept and (x not in memory.given or x in memory.donated):
            yield x


class _Walks:
    """Orders by walking the graph of launches, one ready launch after the other."""

    def __init__(self, works: Sequence[Work], memory: Memory) -> None:
        self.count = len(works)
        self.needs = needs(works, memory.homes)
        self.feeds: list[set[int]] = [set() for _ in works]
        for n, need in enumerate(self.needs):
            for m in need:
                self.feeds[m].add(n)
        counts = [{b for b in w.touches if b not in memory.given or b in memory.donated} for w in works]
        self.touches = [[b for b in dict.fromkeys(w.touches) if b in own] for w, own in zip(works, counts, strict=True)]
        self.users: dict[str, list[int]] = {}
        for n, own in enumerate(self.touches):
            for b in own:
                self.users.setdefault(b, []).append(n)
        self.sizes = memory.sizes
        self.kept = memory.kept
        self.given = memory.donated
        self.swaps = [
            [(b, x) for b, xs in w.over.items() for x in xs if x in own] for w, own in zip(works, counts, strict=True)
        ]
        self.may = [w.may for w in works]
        self.partner = self._partners(works)

    def _partners(self, works: Sequence[Work]) -> dict[int, int]:
        """Launches that the program runs next to each other, where the second alone reads what the first makes, and makes no more."""
        out: dict[int, int] = {}
        for n in range(self.count - 1):
            made = [b for b in works[n].writes if b in self.users]
            if made and all(self.users[b] == [n, n + 1] for b in made):
                if self._total(works[n + 1].writes) <= self._total(works[n].writes):
                    out[n] = n + 1
        return out

    def _total(self, buffers: frozenset[str]) -> int:
        return sum(self.sizes[b] for b in buffers if b in self.users)

    def greedy(self) -> Iterator[tuple[int, ...]]:
        """What grows memory least first, from both ends."""
        yield tuple(_Walk(self, forward=True).run())
        yield tuple(reversed(_Walk(self, forward=False).run()))

    def within(self, budget: int) -> Iterator[tuple[int, ...]]:
        """The program's order, but what does not fit waits, from both ends."""
        yield tuple(_Walk(self, forward=True, budget=budget).run())
        yield tuple(reversed(_Walk(self, forward=False, budget=budget).run()))


class _Walk:
    """One walk.  Backwards, a buffer begins at its last use and ends at its first."""

    def __init__(self, graph: _Walks, *, forward: bool, budget: int | None = None) -> None:
        self.graph, self.forward, self.budget = graph, forward, budget
        self.after = graph.feeds if forward else graph.needs
        self.missing = [len(x) for x in (graph.needs if forward else graph.feeds)]
        self.left = {b: len(users) for b, users in graph.users.items()}
        always = graph.given if forward else graph.kept  # alive at the beginning of the walk
        self.stay = graph.kept if forward else graph.given  # and at its end
        self.live = {b for b in always if b in graph.users}
        self.now = self.most = sum(graph.sizes[b] for b in self.live)
        self.costs: dict[int, tuple[int, int]] = {}  # of the launches that are ready: bytes more meanwhile, and afterwards
        self.wanted: list[tuple[int, int]] = []  # bytes more afterwards, unless there is a budget; place
        self.small: list[tuple[int, int, int]] = []  # bytes more meanwhile, afterwards, place
        self.partner = graph.partner if forward else {b: a for a, b in graph.partner.items()}
        for n in range(graph.count):
            if not self.missing[n]:
                self.offer(n)

    def effect(self, n: int) -> tuple[int, int]:
        """Bytes more while it runs, and afterwards."""
        sizes = self.graph.sizes
        born = {b for b in self.graph.touches[n] if b not in self.live}
        ends = {b for b in self.graph.touches[n] if self.left[b] == 1 and b not in self.stay}
        more = sum(sizes[b] for b in born)
        fewer = sum(sizes[b] for b in ends)
        shared = 0
        for target, operand in self.graph.swaps[n]:
            new, old = (target, operand) if self.forward else (operand, target)
            if new in born and old in ends and self.graph.may[n](target, operand):
                born.discard(new)
                ends.discard(old)
                shared += sizes[new]
        return more - shared, more - fewer

    def offer(self, n: int) -> None:
        need, net = self.costs[n] = self.effect(n)
        number = n if self.forward else -n
        heapq.heappush(self.small, (need, net, number))
        heapq.heappush(self.wanted, (net if self.budget is None else 0, number))

    def run(self) -> list[int]:
        out: list[int] = []
        last = -1
        for _ in range(self.graph.count):
            next_ = self.partner.get(last, -1)
            last = next_ if next_ in self.costs else self.choose()
            self.take(last)
            out.append(last)
        return out

    def choose(self) -> int:
        """The first wanted one that fits under what was needed so far, or under the budget; else the smallest."""
        limit = self.most if self.budget is None else self.budget
        aside: list[tuple[int, int]] = []
        chosen = -1
        while self.wanted and len(aside) < LOOKS and chosen < 0:
            entry = heapq.heappop(self.wanted)
            n = abs(entry[1])
            cost = self.costs.get(n)
            if cost is None or (self.budget is None and entry[0] != cost[1]):
                continue  # done, or offered again since
            if self.now + cost[0] <= limit:
                chosen = n
            else:
                aside.append(entry)
        for entry in aside:
            heapq.heappush(self.wanted, entry)
        while chosen < 0:
            need, net, number = heapq.heappop(self.small)
            if self.costs.get(abs(number)) == (need, net):
                chosen = abs(number)
        return chosen

    def take(self, n: int) -> None:
        need, net = self.costs.pop(n)
        self.most = max(self.most, self.now + need)
        self.now += net
        changed: set[int] = set()
        for b in self.graph.touches[n]:
            if b not in self.live:
                self.live.add(b)
                changed.update(self.graph.users[b])
            self.left[b] -= 1
            if self.left[b] == 1:
                changed.update(self.graph.users[b])
        for m in changed:
            if m in self.costs:
                self.offer(m)
        for m in self.after[n]:
            self.missing[m] -= 1
            if not self.missing[m]:
                self.offer(m)
