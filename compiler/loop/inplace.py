"""Writing a result over an operand that nobody needs any more.

Stage: loop.  In: the bodies of all kernels, in order of launch.  Out: a renaming: a buffer that is a dead operand's
memory from then on.  The kernel then loads from and stores to one parameter, so a codegen sees no aliasing, cache lines
are not fetched twice, and an optimizer's new parameter lands where the old one was (``gm.meta["inplace"]``).
Read next: ``memory``.

It is allowed where an iteration can only overwrite what was its own to read: no load of the operand follows the store,
and for every earlier load the loops it shares with the store walk the operand in step with it.  An index that a value
chooses is where its check says: a row may be overwritten after one of its elements was picked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from compiler.loop import ir
from compiler.loop.ir import Buffer
from compiler.loop.sizes import numel
from compiler.sym.expr import Expr, Symbol, lift, linear
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify

Path = tuple[ir.Loop, ...]


@dataclass(frozen=True)
class Site:
    """A load or store: where in the text, under which loops."""

    place: int
    path: Path
    stmt: ir.Load | ir.Store


def sites(body: Iterable[ir.Stmt]) -> list[Site]:
    return [Site(n, path, s) for n, (path, s) in enumerate(_accesses(body, ()))]


def _accesses(body: Iterable[ir.Stmt], path: Path) -> Iterator[tuple[Path, ir.Load | ir.Store]]:
    for s in body:
        if isinstance(s, ir.Loop):
            yield from _accesses(s.body, (*path, s))
        elif isinstance(s, ir.Load | ir.Store):
            yield path, s


class Takeovers:
    """Which operands' memory the results of a kernel could take over, were nobody else to need them."""

    def __init__(
        self, body: tuple[ir.Stmt, ...], buffers: Mapping[str, Buffer], sizes: Mapping[Symbol, Interval]
    ) -> None:
        self.body, self.buffers, self.sizes = body, buffers, sizes
        self.loads: dict[str, list[Site]] = {}
        self.stores: dict[str, list[Site]] = {}
        for s in sites(body):
            (self.loads if isinstance(s.stmt, ir.Load) else self.stores).setdefault(s.stmt.buffer, []).append(s)
        self.known: dict[tuple[str, str], bool] = {}

    @cached_property
    def ranges(self) -> dict[Symbol, Interval]:
        return {**self.sizes, **checked(self.body)}

    def __call__(self, target: str, operand: str) -> bool:
        """May ``target``, new in this kernel, lie where ``operand`` does?"""
        found = self.known.get((target, operand))
        if found is None:
            found = self.known[target, operand] = self._may(target, operand)
        return found

    def _may(self, target: str, operand: str) -> bool:
        if len(self.stores[target]) != 1 or not same_layout(self.buffers[operand], self.buffers[target]):
            return False
        (store,) = self.stores[target]
        assert isinstance(store.stmt, ir.Store)
        if store.stmt.mode != "set" or store.stmt.mask is not None:
            return False
        loads = self.loads.get(operand)
        return bool(loads) and all(_in_step(load, store, self.ranges) for load in loads or ())


def checked(body: Iterable[ir.Stmt]) -> dict[Symbol, Interval]:
    """What checks say of indices: a kernel whose check fails raises, whatever it has written."""
    flat = list(_all(body))
    made = {s.name: s for s in flat if isinstance(s, ir.Let)}
    out: dict[Symbol, Interval] = {}
    for s in flat:
        both = made.get(s.cond) if isinstance(s, ir.Check) else None
        if both is None or both.fn != "bit_and":
            continue
        low, high = (made.get(a) if isinstance(a, str) else None for a in both.args)
        if low is not None and high is not None and (low.fn, high.fn, low.args[1]) == ("ge", "lt", 0):
            name, bound = high.args
            if low.args[0] == name and isinstance(name, str) and type(bound) is int:
                out[Symbol(name)] = Interval(0, bound - 1)
    return out


def _all(body: Iterable[ir.Stmt]) -> Iterator[ir.Stmt]:
    for s in body:
        yield s
        if isinstance(s, ir.Loop):
            yield from _all(s.body)


def same_layout(a: Buffer, b: Buffer) -> bool:
    """Do equal indices mean equal bytes?"""
    if a.dtype is not b.dtype or a.device != b.device or lift(numel(a.shape)) is not lift(numel(b.shape)):
        return False
    return _walk_of(a) == _walk_of(b)


@lru_cache(1024)
def _walk_of(b: Buffer) -> list[tuple[Expr, Expr]]:
    """Extents and strides, with dimensions that are walked as one put together."""
    out: list[tuple[Expr, Expr]] = []
    for n, s in zip(b.shape, b.stride, strict=True):
        if isinstance(n, int) and n == 1:
            continue
        if out and out[-1][1] is lift(n) * s:
            out[-1] = (lift(out[-1][0] * n), lift(s))
        else:
            out.append((lift(n), lift(s)))
    return out


def _in_step(load: Site, store: Site, sizes: Mapping[Symbol, Interval]) -> bool:
    """Is everything that ``load`` reads overwritten only by the same iteration of the loops both stand in, later?"""
    if not isinstance(load.stmt, ir.Load) or load.place > store.place:
        return False
    shared = [a for a, b in zip(load.path, store.path, strict=False) if a is b]
    whole = len(shared) == len(load.path) == len(store.path)
    if whole and lift(load.stmt.index) is lift(store.stmt.index):
        return len(shared) == len(store.path)
    if whole:  # one iteration may store what a later one has yet to load
        return False
    ranges = {**sizes, **{Symbol(x.axis): extent(x.extent) for x in (*load.path, *store.path)}}
    axes = [Symbol(x.axis) for x in store.path]
    found = linear(store.stmt.index, axes)
    if found is None:
        return False
    strides, offset = found
    return all(
        _value(store.stmt.index, strides.get(Symbol(x.axis), 0), offset, x, ranges) is Symbol(x.axis)
        and _value(load.stmt.index, strides.get(Symbol(x.axis), 0), offset, x, ranges) is Symbol(x.axis)
        for x in shared
    )


def _value(
    index: ir.Int, stride: ir.Int, offset: Expr, loop: ir.Loop, ranges: Mapping[Symbol, Interval]
) -> Expr | None:
    """The iteration of ``loop`` to which an element belongs."""
    empty = isinstance(loop.extent, int) and loop.extent == 0
    if empty or isinstance(stride, int) and stride <= 0:
        return None
    return simplify((lift(index) - offset) // stride % loop.extent, ranges)


class Renaming:
    """Walks the launches in order and decides, kernel by kernel, which new buffers take over which dead ones."""

    def __init__(
        self, uses: list[frozenset[str]], buffers: Mapping[str, Buffer], sizes: Mapping[Symbol, Interval],
        fixed: frozenset[str], homes: Mapping[str, str], settled: int,
    ) -> None:  # fmt: skip
        self.buffers = buffers
        self.sizes = sizes
        self.fixed = fixed  # memory that must keep what it holds: inputs not given away, what the caller gets
        self.homes = homes  # result -> the input that the caller will overwrite with it
        self.settled = settled  # the first launch from which on nothing raises: a plan that raises has changed no input
        self.last = {b: n for n, names in enumerate(uses) for b in names}
        self.first: dict[str, int] = {}
        for n, names in enumerate(uses):
            for b in names:
                self.first.setdefault(b, n)
        self.now: dict[str, str] = {}

    def of(self, name: str) -> str:
        return self.now.get(name, name)

    def kernel(self, n: int, body: tuple[ir.Stmt, ...], inputs: frozenset[str]) -> None:
        """Decide for the kernel that is launch ``n``; ``body`` is already renamed."""
        may = Takeovers(body, self.buffers, self.sizes)
        stored, loaded = may.stores, may.loads
        taken: set[str] = set()
        for target in stored:
            if self.first.get(target) != n or target in inputs:
                continue
            home = self.homes.get(target) if n >= self.settled else None
            dead = [b for b in loaded if b not in self.fixed and b not in stored and self.last[b] == n]
            wanted = ([home] if home is not None and self.last.get(home, -1) == n else []) + dead
            operand = next((b for b in wanted if b not in taken and may(target, b)), None)
            if operand is not None:
                taken.add(operand)
                self.now[target] = operand
                self.last[operand] = self.last[target]
                if target in self.fixed or operand == home:
                    self.fixed |= {operand}
