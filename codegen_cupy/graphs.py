"""CUDA graphs: a recipe recorded once and launched as a whole (``mode="reduce-overhead"``).

Stage: codegen (run time).  In: a recipe, a machine, the ordinary run of the recipe.  Out: a callable that runs
ordinarily the first time, records the second time, and from then on launches the graph.
Read next: ``lanes`` (what runs side by side), ``graph_driver`` (CUDA), ``recorded`` (the same without a GPU).

A graph holds addresses.  What lies elsewhere from call to call is dealt with as follows.

- Temporaries lie at fixed offsets of a block that the recordings of a recipe share.
- Inputs that only our own kernels read: the kernels' arguments are exchanged before the launch, about 1 us each.
- Inputs that a library call reads (its arguments are not ours to exchange): a graph is recorded for each set of
  addresses, up to ``SETS`` of them; an input that still lies elsewhere is then copied to memory of the graph first.
- Small outputs that few kernels of ours touch are new in each call, by exchanged arguments as well.
- Other outputs lie in memory of the graph, which is not launched again while anybody holds one of them: if so, another
  recording with memory of its own is used, and after ``RING`` of them one whose outputs are copied for the caller.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from sys import getrefcount
from typing import Any

from codegen_cupy import lanes
from codegen_cupy.arena import bytes_of, pattern, places, rounded, starts_at_zero
from codegen_cupy.host import Call, Launch, Memory, Recipe, View
from codegen_cupy.lanes import Rule, Work
from codegen_cupy.launch import Block, Check
from codegen_cupy.machine import Machine
from codegen_cupy.matmul import Product
from codegen_cupy.work import COPY, Works, copy_of
from compiler import logs
from tinytorch.late import ran

Run = Callable[[Sequence[Any]], list[Any]]

FEWEST = 3  # launches from which a graph is faster than launching
RING = 2
SETS = 3
SMALL = 256  # bytes of an output that is made anew
MOST_NODES = 4


def graphed(recipe: Recipe, machine: Machine, plain: Run, *, fmad: bool = True, rule: Rule | None = None) -> Run:
    """The recipe as graphs, side by side what ``rule`` allows; ``plain`` itself where a graph gains nothing or cannot be."""
    if sum(map(_works, recipe.steps)) < FEWEST:
        return plain
    why = refusal(recipe)
    if why:
        warnings.warn(f"tinytorch.compile: no CUDA graph: {why}; kernels are launched one by one", RuntimeWarning, stacklevel=2)
        return plain
    return Graphed(recipe, machine, plain, fmad=fmad, rule=rule)


def _works(step: Any) -> bool:
    return isinstance(step, Launch | Product | Call) or (isinstance(step, Memory) and step.fill is not None)


def refusal(recipe: Recipe) -> str:
    """Why a recipe cannot be recorded, or ""."""
    calls = sorted({s.fn for s in recipe.steps if isinstance(s, Call)})
    return f"{', '.join(calls)} runs through CuPy, whose work cannot be recorded" if calls else ""


class Graphed:
    """A recipe and the graphs recorded from it."""

    def __init__(self, recipe: Recipe, machine: Machine, plain: Run, *, fmad: bool, rule: Rule | None = None) -> None:
        self.recipe, self.machine, self.plain, self.rule = recipe, machine, plain, rule
        self.places = places(recipe)
        home = self.places.home
        self.kernels = machine.functions([s.source for s in recipe.launches], fmad=fmad)
        library = {home[b] for s in recipe.steps if isinstance(s, Product) for b in s.buffers}
        self.fixed_at = [i for i, b in enumerate(recipe.inputs) if b in library]
        self.fresh = self._fresh(library)
        self.copied: set[int] = set()
        self.recordings: list[Recording] = []
        self.calls, self.broken = 0, False
        self.lock = threading.Lock()
        self.last_stream = -1
        self.arena: Any = None
        self.inputs = {b: i for i, b in enumerate(recipe.inputs)}
        self.words = {self.inputs[b] for b in recipe.words}

    def _fresh(self, library: set[str]) -> dict[str, Memory]:
        """Outputs made anew in each call, by buffer."""
        home, out = self.places.home, {}
        views = [o for o in self.recipe.outputs if isinstance(o, View)]
        touched = [home[b] for s in self.recipe.launches for b in dict.fromkeys(s.buffers)]
        for m in (s for s in self.recipe.steps if isinstance(s, Memory)):
            mine = [v for v in views if home[v.buffer] == m.name]
            whole = len(mine) == 1 and mine[0].shape == m.shape and mine[0].stride == m.stride and not mine[0].offset
            few = touched.count(m.name) <= MOST_NODES and m.name not in library and m.fill is None
            if whole and few and mine[0].buffer == m.name and bytes_of(m) <= SMALL and m.items:
                out[m.name] = m
        return out

    # --- a call ---
    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        if not self.calls or self.broken:
            self.calls += 1
            return self.plain(arrays)
        address = self.machine.address
        at: list[Any]
        if self.words:  # numbers of the host lie nowhere: they are what the kernels' arguments hold
            at = [tuple(a.tolist()) if i in self.words else address(a) for i, a in enumerate(arrays)]
        else:
            at = [address(a) for a in arrays]
        with self.lock:
            r = self._find(at)
            if r is None:
                return self.plain(arrays)
            return r.replay(arrays, at)

    def _find(self, at: list[int]) -> Recording | None:
        """A recording for these addresses whose outputs nobody holds; recorded now if there is none."""
        fixed = [at[i] for i in self.fixed_at]
        same = 0
        for r in self.recordings:
            if r.fixed == fixed:
                same += 1
                if r.spare or r.idle():
                    return r
        if not same and len({tuple(r.fixed) for r in self.recordings}) >= SETS:
            self._copy_what_moves(fixed)
            if self.broken:
                return None
            fixed = [at[i] for i in self.fixed_at]
        return self._record(at, fixed, spare=same >= RING)

    def _copy_what_moves(self, fixed: list[int]) -> None:
        """Too many sets of addresses: inputs that keep moving get a copy in the graph."""
        sets = [fixed, *(r.fixed for r in self.recordings)]
        moving = [i for n, i in enumerate(self.fixed_at) if len({s[n] for s in sets}) > 1]
        why = [self.recipe.inputs[i] for i in moving if self.recipe.inputs[i] in self.recipe.written]
        why += [self.recipe.inputs[i] for i in moving if min(self.recipe.given[i].stride, default=0) < 0]
        if why:
            self.broken = True
            self._warn(f"{why[0]} lies elsewhere in each call, and is written in place or walked backwards by a library call")
        self.copied |= set(moving)
        self.fixed_at = [i for i in self.fixed_at if i not in self.copied]
        self.recordings.clear()

    def _record(self, at: list[int], fixed: list[int], *, spare: bool) -> Recording | None:
        try:
            made = Recording(self, at, fixed, spare)
        except Exception as e:  # whatever the driver or a library says against it
            self.broken = True
            self._warn(str(e))
            return None
        self.recordings.append(made)
        return made

    def _warn(self, why: str) -> None:
        text = f"tinytorch.compile: no CUDA graph: {why}; kernels are launched one by one"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


@dataclass
class Moved:
    """A kernel whose arguments are exchanged: which of them hold a buffer."""

    node: Any
    block: Block
    where: tuple[int, ...]


class Recording:
    """One graph, the memory it writes, and what its kernels' arguments are at the moment."""

    def __init__(self, owner: Graphed, at: list[int], fixed: list[int], spare: bool) -> None:
        self.owner, self.fixed, self.spare, self.at = owner, fixed, spare, list(at)
        self.machine = owner.machine
        self.uses: dict[str, list[Moved]] = {}  # by input or fresh output
        self.checks: list[Check] = []
        self.keep: list[Any] = []
        self.pointer = dict(zip(owner.recipe.inputs, at, strict=True))
        self._memory()
        self.graphs = self.machine.graphs()
        self.scratch = self._scratch()
        self.graphs.begin()
        try:
            self._work()
        except BaseException:
            self.graphs.abandon()
            raise
        self.graph = self.graphs.end()
        self.arrays = {b: self._array(b) for b in self.pinned}
        self.outputs = [self._output(o) for o in owner.recipe.outputs]
        self.held = self._held()

    # --- memory ---
    def _memory(self) -> None:
        recipe, spots, alloc = self.owner.recipe, self.owner.places, self.machine.alloc
        sizes = {s.name: s for s in recipe.steps if isinstance(s, Memory)}
        if self.owner.arena is None:  # recordings run one after the other, so they share it
            self.machine.make_room(spots.total)
            self.owner.arena = alloc(max(spots.total, 1))
        arena = self.owner.arena.ptr
        self.pinned = [b for b in sizes if b in spots.kept and b not in self.owner.fresh and spots.home[b] == b]
        self.pinned.sort(key=lambda b: not starts_at_zero(sizes[b]))  # those first, so that one fill does
        starts, total, self.zeros = {}, 0, 0
        for b in self.pinned:
            starts[b], total = total, total + rounded(bytes_of(sizes[b]))
            self.zeros = total if starts_at_zero(sizes[b]) else self.zeros
        self.block = alloc(max(total, 1))
        self.memory = {b: self.block + start for b, start in starts.items()}
        for b, m in sizes.items():
            home = spots.home[b]
            if home in spots.offsets:
                self.pointer[b] = arena + spots.offsets[home]
            elif home in starts:
                self.pointer[b] = self.block.ptr + starts[home]
            elif home in self.owner.fresh:
                first = alloc(max(bytes_of(m), 1))
                self.keep.append(first)
                self.pointer[b] = first.ptr
            else:
                self.pointer[b] = self.pointer[home]
        self.sizes = sizes

    def _scratch(self) -> list[list[Any]]:
        made = []
        for s in self.owner.recipe.launches:
            blocks = [self.machine.alloc(max(n, 1)) for n in s.scratch_bytes]
            for n, memory in zip(s.scratch_bytes, blocks, strict=True):
                self.machine.ndarray((max(n, 1),), "uint8", memory, (1,)).fill(0)
            made.append(blocks)
        return made

    # --- what is recorded ---
    def _work(self) -> None:
        """Everything on the stream of its lane, with waits where lanes need each other."""
        works = list(self._works())
        self.works = [w for w, _ in works]
        self.plan = lanes.planned(self.works, self.owner.rule)
        if logs.enabled("kernels"):
            logs.artifact("kernels", "lanes", lanes.shown(self.works, self.plan, self.owner.rule), ".txt")
        graphs = self.graphs
        streams = [graphs.lane(n) for n in range(1 + max((p.lane for p in self.plan), default=0))]
        start = graphs.mark(streams[0]) if len(streams) > 1 else None
        for stream in streams[1:]:
            graphs.wait(stream, start)
        wanted = {j for p in self.plan for j in p.after}
        marks: dict[int, Any] = {}
        for i, ((_, record), p) in enumerate(zip(works, self.plan, strict=True)):
            for j in p.after:
                graphs.wait(streams[p.lane], marks[j])
            record(streams[p.lane])
            if i in wanted:
                marks[i] = graphs.mark(streams[p.lane])
        for stream in streams[1:]:
            graphs.wait(streams[0], graphs.mark(stream))

    def _works(self) -> Iterator[tuple[Work, Callable[[int], None]]]:
        """What there is to do, in order, each with what puts it on a stream."""
        machine, recipe, spots = self.machine, self.owner.recipe, self.owner.places
        works = Works(recipe, spots, {b: self.memory[b].ptr - self.block.ptr for b in self.pinned})
        for i in sorted(self.owner.copied):
            name = recipe.inputs[i]
            memory = machine.alloc(max(works.size[name], 1))
            self.keep.append(memory)
            self.pointer[name + "/from"], self.pointer[name] = self.pointer[name], memory.ptr
            yield works.copy(name), partial(self._copy, i)
        for space, memory, size in (("arena", self.owner.arena, spots.zone), ("results", self.block, self.zeros)):
            if size:
                yield works.fill(space, (space, 0, size)), partial(machine.fill, memory.ptr, bytes(1), size)
        done = spots.zeroed | {b for b in self.pinned if starts_at_zero(self.sizes[b])}
        number = 0
        for step in recipe.steps:
            if isinstance(step, Memory):
                if step.fill is not None and step.items and step.name not in done:
                    fill = partial(machine.fill, self.pointer[step.name], pattern(step), step.items)
                    yield works.fill(step.name, works.span(step.name)), fill
            elif isinstance(step, Product):
                run = machine.product(step)
                assert run is not None
                yield works.of(step), partial(run, *(self.pointer[name] for name in step.buffers))
            elif isinstance(step, Launch):
                yield works.of(step), partial(self._launch, step, self.owner.kernels[number], self.scratch[number])
                number += 1

    def _launch(self, s: Launch, kernel: Any, scratch: list[Any], stream: int) -> None:
        block, source = Block(s), s.source
        for i, b in enumerate(s.buffers):
            block.put(i, self.pointer[b])
        at = len(s.buffers) + len(s.sizes)
        for i, memory in enumerate(scratch):
            block.put(at + i, memory.ptr)
        if source.messages:
            self.checks.append(Check(self.machine, source))
            block.put(at + len(scratch), self.checks[-1].address)
        (gx, gy), (bx, by) = s.grid, source.block
        self.machine.launch(kernel.ptr, gx, gy, 1, bx, by, 1, source.shared, stream, block.pointer, 0)
        node = self.graphs.node(stream)
        node.describe(kernel.ptr, s.grid, source.block, source.shared, block.pointer, block.count)
        self.keep.append((block, scratch, node))
        home = self.owner.places.home
        for b in dict.fromkeys(home.get(b, b) for b in s.buffers):
            if b in self.owner.inputs or b in self.owner.fresh:
                where = tuple(i for i, x in enumerate(s.buffers) if home.get(x, x) == b)
                self.uses.setdefault(b, []).append(Moved(node, block, where))

    def _copy(self, i: int, stream: int) -> None:
        """Input ``i`` into memory of the graph; only the copy's argument follows the input."""
        name = self.owner.recipe.inputs[i]
        kernel = self.machine.functions([COPY], fmad=True)[0]
        self._launch(copy_of(name, bytes_of(self.owner.recipe.given[i])), kernel, [], stream)
        (copy,) = self.uses.pop(name)
        self.uses[name + "/from"] = [replace(copy, where=(0,))]

    # --- outputs ---
    def _array(self, b: str) -> Any:
        m = self.sizes[b]
        item = m.dtype.itemsize
        return self.machine.ndarray(m.shape, m.dtype.np, self.memory[b], tuple(s * item for s in m.stride))

    def _output(self, o: Any) -> Any:
        """What a replay gives at this place: ("input", i, view), ("fresh", buffer), ("same", object)."""
        if not isinstance(o, View):
            return ("same", o)
        home = self.owner.places.home[o.buffer]
        if home in self.owner.inputs:
            i = self.owner.inputs[home]
            m = self.owner.recipe.given[i]
            whole = o.buffer == home and m.shape == o.shape and m.stride == o.stride and not o.offset
            return ("input", i, None if whole else o)
        if home in self.owner.fresh:
            return ("fresh", home)
        m = self.sizes[o.buffer]
        whole = o.buffer == home and m.shape == o.shape and m.stride == o.stride and not o.offset
        return ("same", self.arrays[home] if whole else self.machine.look(self.arrays[home], o))

    def _watched(self) -> list[Any]:
        """Objects of which somebody holds one as long as he holds an output or a view of it."""
        arrays = [o[1] for o in self.outputs if o[0] == "same" and isinstance(o[1], self.machine.xp.ndarray)]
        return [*arrays, *self.arrays.values(), *self.machine.owners([*arrays, *self.arrays.values()])]

    def _held(self) -> list[int]:
        self.watched = self._watched()
        return [getrefcount(x) for x in self.watched]

    def idle(self) -> bool:
        """Does nobody hold an output?"""
        return [getrefcount(x) for x in self.watched] == self.held

    # --- a replay ---
    def replay(self, arrays: Sequence[Any], at: list[int]) -> list[Any]:
        machine, stream = self.machine, self.machine.stream()
        owner = self.owner
        if machine.synchronous:
            machine.watch(arrays)
        if stream != owner.last_stream:
            if owner.last_stream >= 0:
                self.graphs.after(stream, owner.last_stream)
            owner.last_stream = stream
        for check in self.checks:
            if check.words[0]:
                check.look()
        moved: dict[int, Any] = {}
        if at != self.at:
            for name, old, new in zip(owner.recipe.inputs, self.at, at, strict=True):
                if old != new:
                    self._point(name + "/from" if name + "/from" in self.uses else name, new, moved)
            self.at = at
        made = {b: machine.alloc(bytes_of(m)) for b, m in owner.fresh.items()}
        for b, memory in made.items():
            self._point(b, memory.ptr, moved)
        for node in moved.values():
            self.graphs.move(self.graph, node)
        self.graphs.launch(self.graph, stream)
        for check in self.checks:
            if not machine.synchronous:
                ran[check] = stream
            elif check.words[0]:
                check.fail()
        return [self._given(o, arrays, made) for o in self.outputs]

    def _point(self, name: str, to: int, moved: dict[int, Any]) -> None:
        for use in self.uses.get(name, ()):
            for i in use.where:
                use.block.put(i, to)
            moved[id(use.node)] = use.node

    def _given(self, o: Any, arrays: Sequence[Any], made: dict[str, Any]) -> Any:
        if o[0] == "same":
            return o[1].copy(order="K") if self.spare and isinstance(o[1], self.machine.xp.ndarray) else o[1]
        if o[0] == "input":
            return arrays[o[1]] if o[2] is None else self.machine.look(arrays[o[1]], o[2])
        m = self.sizes[o[1]]
        item = m.dtype.itemsize
        return self.machine.ndarray(m.shape, m.dtype.np, made[o[1]], tuple(s * item for s in m.stride))
