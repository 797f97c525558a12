"""Deciding which nests share a kernel.

Stage: loop.  In: the nests and extern calls of a ``Program``.  Out: groups of nests, each to be one kernel.
A group's nests share their outermost loops, its *spine*; inside they may go through the row several times.  Groups join
greedily, best first by the bytes that need not travel to memory and back; a joint must keep every producer in step with
its consumers (``deps``), close no cycle, and not make a loop run against the grain of memory.
Read next: ``order``, ``kernel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.loop import deps
from compiler.loop.emit import Names
from compiler.loop.ir import Int
from compiler.loop.nest import Axis, Nest
from compiler.loop.program import ExternCall, Program
from compiler.loop.sizes import hint
from compiler.sym.expr import Const, Expr, lift, quotient

#: Joined without a common loop only if that small in all (elements): one launch instead of two.
TINY = 2048
#: So few elements may always stand before a kernel's loops.
SCALARS = 8
#: Rows longer than this (bytes) do not stay in cache between the loops of a row kernel.
ROW_BYTES = 1 << 20
#: On a GPU a long row's loops become launches of their own all the same (``codegen_cupy.phases``), with less to store.
GPU_ROW_BYTES = 1 << 24
#: Inner loops shorter than this are not worth more of them.
SHORT = 32
NEIGHBOURS = 24
#: A kernel with more buffers than this would pass most of its time in loading addresses (and LLVM in sorting them out).
MOST_BUFFERS = 40
COMBINABLE = frozenset(("add", "mul", "max", "min"))


@dataclass(frozen=True, eq=False)
class Group:
    """Nests, in program order, whose first ``len(spine)`` axes are the same loops (and carry the same names)."""

    nests: tuple[Nest, ...]
    spine: tuple[str, ...]

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(a.buffer for n in self.nests for a in n.reads)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset(a.buffer for n in self.nests for a in n.writes)

    @property
    def number(self) -> int:
        return self.nests[0].number

    @cached_property
    def ops(self) -> int:
        return sum(n.ops for n in self.nests)

    @cached_property
    def work(self) -> int:
        return sum(hint(n.numel) for n in self.nests)

    def extent(self, name: str) -> Int:
        return next(a.extent for a in self.nests[0].axes if a.name == name)

    def split(self, name: str, inner: Int, fresh: Names) -> Group:
        """Split an axis in every nest that has it."""
        a, b = fresh("x"), fresh("x")

        def change(n: Nest) -> Nest:
            axis = next((x for x in n.axes if x.name == name), None)
            if axis is None:
                return n
            outer = quotient(lift(axis.extent), lift(inner))[0]
            return n.split(name, Axis(a, _int(outer), axis.kind), Axis(b, inner, axis.kind))

        spine = tuple(x for s in self.spine for x in ((a, b) if s == name else (s,)))
        return Group(tuple(map(change, self.nests)), spine)


Task = Group | ExternCall


def _int(e: Expr) -> Int:
    return e.value if isinstance(e, Const) else e


class Fuser:
    def __init__(self, program: Program, config: Any) -> None:
        self.program = program
        self.buffers = program.buffers
        self.limit = config.max_fusion_size * 4
        self.tasks: dict[int, Task] = {}
        for t in program.tasks:
            self.tasks[t.number] = self.alone(t) if isinstance(t, Nest) else t
        self.writers: dict[str, list[int]] = {}
        for t in program.tasks:
            for b in _writes(t):
                self.writers.setdefault(b, []).append(t.number)
        self.before: dict[int, int] = {}  # task -> bit set of the tasks it needs, directly or not
        self.after: dict[int, int] = {}  # and of those that need it
        self.users: dict[str, set[int]] = {}  # buffer -> tasks that touch it, by their number in the program
        for t in program.tasks:
            for b in {*_reads(t), *_writes(t)}:
                self.users.setdefault(b, set()).add(t.number)
        self._find_order()
        self.failed: set[tuple[int, ...]] = set()

    def alone(self, nest: Nest) -> Group:
        if self.buffers[nest.writes[0].buffer].device == "cpu":
            nest = with_the_grain(nest)
        return Group((nest,), tuple(a.name for a in nest.axes))

    # --- the order that data imposes ---
    def _find_order(self) -> None:
        for t in self.program.tasks:
            need = 0
            for b in set(_reads(t)) | set(_writes(t)):
                for w in self.writers.get(b, ()):
                    if w < t.number:
                        need |= self.before[w] | 1 << w
            self.before[t.number] = need
            self.after[t.number] = 0
            for n in _bits(need):
                self.after[n] |= 1 << t.number

    def closes_cycle(self, a: int, b: int) -> bool:
        """Would joining tasks ``a`` and ``b`` put some third task both after and before the joint?"""
        return bool(self.after[a] & self.before[b] or self.after[b] & self.before[a])

    def run(self) -> None:
        """Join groups until no pair gains."""
        while True:
            joined = False
            for _, a, b in self.candidates():
                if a in self.tasks and b in self.tasks:
                    joined = self.join(a, b) or joined
            if not joined:
                return

    def candidates(self) -> list[tuple[tuple[int, int], int, int]]:
        """Pairs of groups with a buffer in common, the most bytes first, then the nearest."""
        users: dict[str, list[int]] = {}
        for n, t in self.tasks.items():
            if isinstance(t, Group):
                for b in t.reads | t.writes:
                    users.setdefault(b, []).append(n)
        pairs: dict[tuple[int, int], int] = {}
        for b, ns in users.items():
            ns.sort()
            for i, x in enumerate(ns):
                for y in ns[i + 1 : i + 1 + NEIGHBOURS]:
                    pairs[x, y] = pairs.get((x, y), 0) + self.bytes(b)
        ranked = [((-size, y - x), x, y) for (x, y), size in pairs.items() if (x, y) not in self.failed]
        return sorted(ranked)

    def bytes(self, buffer: str) -> int:
        b = self.buffers[buffer]
        return hint(b.numel) * b.dtype.itemsize

    def join(self, x: int, y: int) -> bool:
        a, b = self.tasks[x], self.tasks[y]
        assert isinstance(a, Group) and isinstance(b, Group)
        if self.closes_cycle(x, y):
            return False  # not for ever: the task between may join too
        if self.before[x] >> y & 1:
            a, b = b, a
        joint = self.joint(a, b)
        if joint is None:
            self.failed.add((x, y))
            return False
        self._replace(x, y, joint)
        return True

    def _replace(self, x: int, y: int, joint: Group) -> None:
        kept, gone = (x, y) if joint.number == x else (y, x)
        del self.tasks[gone]
        self.tasks[kept] = joint
        both = 1 << x | 1 << y
        need = (self.before[x] | self.before[y]) & ~both
        later = (self.after[x] | self.after[y]) & ~both
        del self.before[gone], self.after[gone]
        self.before[kept], self.after[kept] = need, later
        for n in _bits(later):
            self.before[n] = (self.before[n] | need | 1 << kept) & ~(1 << gone)
        for n in _bits(need):
            self.after[n] = (self.after[n] | later | 1 << kept) & ~(1 << gone)
        self.failed = {p for p in self.failed if kept not in p and gone not in p}

    # --- joining two groups ---
    def joint(self, a: Group, b: Group) -> Group | None:
        """The joint of a producer ``a`` and consumer ``b`` (or of two with common reads); None if it may not be."""
        if a.ops + b.ops > self.limit or self.device(a) != self.device(b) or self.buffers_of(a, b) > MOST_BUFFERS:
            return None
        links = [(p, c, buf) for p in a.nests for c in b.nests for buf in _made_for(p, c)]
        if any(len(self.writers[buf]) > 1 or buf in p.final for p, _, buf in links):
            return None
        twice = a.writes & b.writes  # pieces of one buffer may be written side by side, a scatter only by itself
        if any(buf in n.final for n in (*a.nests, *b.nests) for buf in twice):
            return None
        a, b = self.refined(a, b)
        links = [(p, c, buf) for p in a.nests for c in b.nests for buf in _made_for(p, c)]
        pairs = self.pairs(a, b, links)
        if not pairs:
            return self.side_by_side(a, b, links)
        joint = self.aligned(a, b, pairs)
        if joint is None and not links:  # neither comes first: the other's order of loops may suit both
            joint = self.aligned(b, a, self.pairs(b, a, links))
        return joint if joint is not None and self.worthwhile(a, b, joint, links) else None

    def buffers_of(self, a: Group, b: Group) -> int:
        """How many buffers the joint has in common with others, the graph's inputs and outputs among them."""
        touched = a.reads | a.writes | b.reads | b.writes
        own = {n.number for g in (a, b) for n in g.nests}
        return sum(x not in self.writers or not self.users.get(x, own) <= own for x in touched)

    def refined(self, a: Group, b: Group) -> tuple[Group, Group]:
        """Split axes of either group until the two walk their common buffers in the same steps."""
        for _ in range(8):
            found = next(
                (s for p in a.nests for c in b.nests for buf in _made_for(p, c) if (s := deps.wanted_split(p, c, buf))),
                None,
            )
            if found is None:
                break
            nest, axis, inner = found
            if nest in a.nests:
                a = a.split(axis, inner, self.program.names)
            else:
                b = b.split(axis, inner, self.program.names)
        return a, b

    def pairs(self, a: Group, b: Group, links: Sequence[tuple[Nest, Nest, str]]) -> list[deps.Pair]:
        """Axes of the two spines that can be one loop, in the order of the first spine."""
        allowed: set[deps.Pair] | None = None
        for p, c, buf in links:
            found = deps.in_step(p, c, buf, _spine_axes(a, p), _spine_axes(b, c))
            allowed = found if allowed is None else allowed & found
        if allowed is None:
            allowed = set(pair for p in a.nests for c in b.nests for pair in deps.alike(p, c, _spine_axes(a, p), _spine_axes(b, c)))
        out: list[deps.Pair] = []
        for name in a.spine:
            partners = [q for p, q in allowed if p == name and q not in {o for _, o in out}]
            if partners:
                out.append((name, sorted(partners)[0]))
        return out

    def aligned(self, a: Group, b: Group, pairs: Sequence[deps.Pair]) -> Group | None:
        spine = tuple(p for p, _ in pairs)
        rename = {q: p for p, q in pairs}
        if not all(_in_turn(n, names) for g, names in ((a, spine), (b, tuple(rename))) for n in g.nests):
            return None
        nests = [_spine_first(n, spine) for n in a.nests]
        nests += [_spine_first(n.renamed(rename), spine) for n in b.nests]
        old = [*a.nests, *b.nests]
        if any(not self.allowed(n) or _against_grain(o, n) for o, n in zip(old, nests, strict=True)):
            return None
        return Group(tuple(sorted(nests, key=lambda n: n.number)), spine)

    def allowed(self, nest: Nest) -> bool:
        """Reduced loops outside of kept ones need a combining store."""
        if not outer_reduction(nest):
            return True
        return combinable(nest)

    def worthwhile(self, a: Group, b: Group, joint: Group, links: Sequence[Any]) -> bool:
        rows = 1
        for name in joint.spine:
            rows *= hint(joint.extent(name))
        full = all(len(n.axes) == len(joint.spine) for n in joint.nests)
        if not full:
            traffic = sum(self.bytes(x) for x in joint.reads | joint.writes)
            most = ROW_BYTES if self.device(joint) == "cpu" else GPU_ROW_BYTES
            if traffic // max(rows, 1) > most or (rows < 8 and joint.work > TINY):
                return False
            if self.device(joint) != "cpu" and any(rows < self.rows(g) for g in (a, b)):
                return False  # on a GPU rows are what runs side by side
        for p, _, _ in links:  # a consumer inside must not need what is complete only at the kernel's end
            nest = next(n for n in joint.nests if n.number == p.number)
            if outer_reduction(nest):
                return False
        if links:
            return True
        if not full and any(hint(n.numel) < SHORT * rows for n in joint.nests):
            return False
        common = sum(self.bytes(x) for x in (a.reads | a.writes) & (b.reads | b.writes))
        smaller = min(sum(self.bytes(x) for x in g.reads | g.writes) for g in (a, b))
        return common * 4 >= smaller and common > 64

    def rows(self, g: Group) -> int:
        """How many rows a row kernel has; 0 for one of elements."""
        if all(len(n.axes) == len(g.spine) for n in g.nests):
            return 0
        rows = 1
        for name in g.spine:
            rows *= hint(g.extent(name))
        return rows

    def side_by_side(self, a: Group, b: Group, links: Sequence[Any]) -> Group | None:
        """In one kernel without a common loop: two tiny groups, or scalars before the loops that read them."""
        if (a.work + b.work > TINY and a.work > SCALARS) or self.device(a) != "cpu" or not links:
            return None
        if any(outer_reduction(n) for g in (a, b) for n in g.nests):
            return None
        return Group(tuple(sorted((*a.nests, *b.nests), key=lambda n: n.number)), ())

    def device(self, g: Group) -> str:
        return self.buffers[g.nests[0].writes[0].buffer].device


def _bits(bits: int) -> Iterable[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


# --- small questions -------------------------------------------------------------------------------------------------
def outer_reduction(nest: Nest) -> bool:
    """Does a reduced loop stand outside of a kept one?"""
    kinds = [a.kind for a in nest.axes]
    return "reduce" in kinds and "map" in kinds[kinds.index("reduce") :]


def combinable(nest: Nest) -> bool:
    """May parts of the result be made in any order and joined?  Not those of a scan, each of which is a result."""
    return nest.init is not None and nest.init.combine in COMBINABLE and len(nest.post) == 1 and not nest.scan


def with_the_grain(nest: Nest) -> Nest:
    """A big reduction over outer dimensions walks memory in order, adding rows to a row of results."""
    if not combinable(nest) or hint(nest.numel) < TINY:
        return nest
    kept = 1
    for a in nest.axes:
        kept *= hint(a.extent) if a.kind == "map" else 1
    reads = [s for r in nest.reads if len(s := deps.strides(nest, r)) == len(nest.axes)]
    if not reads or kept > ROW_BYTES // 16:
        return nest
    order = sorted(nest.axes, key=lambda a: -hint(reads[0][a.symbol]))
    if order[-1].kind != "map" or hint(order[-1].extent) < 8:
        return nest
    return nest.ordered(tuple(a.name for a in order))


def _spine_axes(g: Group, n: Nest) -> list[Axis]:
    return [a for a in n.axes if a.name in g.spine]


def _in_turn(n: Nest, spine: tuple[str, ...]) -> bool:
    """A scan takes its value from one element to the next: its loops stay innermost, and in their order."""
    scans = tuple(a for a in n.axes if a.kind == "scan")
    return not scans or _spine_first(n, spine).axes[-len(scans) :] == scans


def _spine_first(n: Nest, spine: tuple[str, ...]) -> Nest:
    rest = [a.name for a in n.axes if a.name not in spine]
    return n.ordered((*spine, *rest))


def _against_grain(before: Nest, after: Nest) -> bool:
    """Did reordering take the innermost loop off the contiguous axis?"""
    if not after.axes or before.axes[-1].name == after.axes[-1].name:
        return False
    return _contiguity(after) < _contiguity(before)


def _contiguity(n: Nest) -> int:
    inner = n.axes[-1].symbol
    return sum(deps.strides(n, a).get(inner, 0) == 1 for a in n.accesses)


def _made_for(p: Nest, c: Nest) -> Iterable[str]:
    """Buffers that ``p`` stores and ``c`` loads."""
    made = {w.buffer for w in p.writes}
    return dict.fromkeys(r.buffer for r in c.reads if r.buffer in made)


def _reads(t: Nest | ExternCall) -> Iterable[str]:
    return [a.buffer for a in t.reads] if isinstance(t, Nest) else t.reads


def _writes(t: Nest | ExternCall) -> Iterable[str]:
    return [a.buffer for a in t.writes] if isinstance(t, Nest) else t.writes
