"""A library call writes its result where it belongs: into a part of a larger buffer, instead of beside it.

Stage: loop.  In: a lowered ``Program``.  Out: the same without nests that only copy what a library call made to another place
(a piece of a concatenation, another order of dimensions): the call's output becomes a view of that place.  The gradients of
q, k and v, say, lie side by side as the product behind them wants to read them, and their sum for the bias reads them there.
Any index will do that is, like the old one, a stride for each dimension of the output; and rows stay rows, 16-byte
steps stay such, so that no call becomes slower by it.  Read next: ``epilogue``, ``fuse``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.loop import ir
from compiler.loop.deps import decode
from compiler.loop.epilogue import same
from compiler.loop.ir import ArrayView, Int
from compiler.loop.nest import Access, Nest
from compiler.loop.program import ExternCall, Program, Task, users
from compiler.loop.sizes import numel
from compiler.loop.value import flat
from compiler.loop.verify import span
from compiler.sym.expr import Expr, Symbol, as_int, lift, linear, quotient
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify
from tinytorch.dtypes import float32

#: Rows whose calls write to any strides, in both codegens.
PLACED = ("matmul", "attention", "attention_backward")
STEP = 16  # bytes


def placed(program: Program) -> None:
    """Let library calls write where their results are only copied to."""
    Placer(program).run()


class Placer:
    def __init__(self, program: Program) -> None:
        self.program, self.buffers = program, program.buffers
        self.tasks: dict[int, Task] = {t.number: t for t in program.tasks}
        self.fixed = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
        self.fixed |= {b.name for b in program.inputs} | set(program.fills)
        self.writers, self.readers = users(program)

    def run(self) -> None:
        for number in [t.number for t in self.program.tasks]:
            nest = self.tasks[number]
            if isinstance(nest, Nest):
                self.copy(nest)
        self.program.tasks[:] = [self.tasks[n] for n in sorted(self.tasks)]

    def copy(self, nest: Nest) -> None:
        """If ``nest`` does nothing but move results of calls, the calls put them there."""
        found = moves(nest)
        if found is None:
            return
        load, store = found
        source, target = self.buffers[load.buffer], self.buffers[store.buffer]
        makers = [self.tasks[n] for n in self.writers.get(source.name, ())]
        others = [self.tasks[n] for n in self.readers[source.name] if n != nest.number]
        if source.name in self.fixed or target.name in self.program.fills or self.readers[source.name].count(nest.number) != 1:
            return
        if source.dtype is not target.dtype or source.device != target.device or not self.all_of(nest, load, source):
            return
        looks = self.redirected(others, nest, load, store)
        if looks is None:
            return
        changed: list[ExternCall] = []
        for call in makers:
            if not isinstance(call, ExternCall) or call.step.fn not in PLACED or "then" in call.step.params:
                return
            outs = [self.moved(v, nest, load, store) if v.buffer == source.name else v for v in call.step.outs]
            if any(v is None for v in outs):
                return
            origin = tuple(dict.fromkeys((*call.step.origin, *nest.origin)))
            changed.append(replace(call, step=replace(call.step, outs=tuple(v for v in outs if v is not None), origin=origin)))
        news: list[Task] = [*changed, *looks]
        for task in news:
            self.tasks[task.number] = task
        del self.tasks[nest.number]
        del self.writers[source.name], self.readers[source.name]
        rest = [n for n in self.writers[target.name] if n != nest.number]
        self.writers[target.name] = sorted({*rest, *(c.number for c in changed)})
        self.readers[target.name] = sorted({*self.readers.get(target.name, ()), *(n.number for n in looks)})

    def redirected(self, others: list[Task], nest: Nest, load: ir.Load, store: ir.Store) -> list[Nest] | None:
        """Further readers of what ``nest`` copies, reading the copy; None if they could not, or the copy is part of something
        larger, which would live as long as they need it."""
        whole = self.writers[store.buffer] == [nest.number] and same(numel(self.buffers[store.buffer].shape), nest.numel)
        if others and not whole:
            return None
        out: list[Nest] = []
        for t in others:
            if not isinstance(t, Nest):
                return None
            body: list[ir.Stmt] = []
            for s in t.body:
                if isinstance(s, ir.Load) and s.buffer == load.buffer:
                    at = self.place(lift(s.index), nest, load, store, t.ranges)
                    if linear(at, [a.symbol for a in t.axes]) is None:
                        return None
                    s = replace(s, buffer=store.buffer, index=as_int(at))
                body.append(s)
            out.append(replace(t, body=tuple(body)))
        return out

    def place(self, element: Expr, nest: Nest, load: ir.Load, store: ir.Store, ranges: Mapping[Symbol, Interval]) -> Expr:
        """Where ``nest`` copies this element of what it reads."""
        strides, offset = linear(load.index, [a.symbol for a in nest.axes]) or ({}, lift(0))
        at = element - offset
        places: dict[Expr, Int] = {a.symbol: simplify(at // strides[a.symbol] % a.extent, ranges) for a in nest.axes}
        return simplify(lift(store.index).subs(places), ranges)

    def all_of(self, nest: Nest, load: ir.Load, source: ir.Buffer) -> bool:
        """Does each iteration of the nest read an element of its own, and all together the whole buffer?"""
        low, high = span(source)
        whole = same(numel(source.shape), as_int(lift(high) - low)) and same(nest.numel, numel(source.shape))
        access = Access(load.buffer, lift(load.index))
        return whole and all(decode(nest, access, a, lift(load.index), nest) is a.symbol for a in nest.axes)

    def moved(self, view: ArrayView, nest: Nest, load: ir.Load, store: ir.Store) -> ArrayView | None:
        """The output as a view of the buffer that ``nest`` copies it to."""
        axes = tuple(Symbol(f"_d{n}") for n in range(len(view.shape)))
        ranges: dict[Symbol, Interval] = {**nest.sizes, **{a: extent(n) for a, n in zip(axes, view.shape, strict=True)}}
        index = tuple(0 if one(n) else a for a, n in zip(axes, view.shape, strict=True))
        found = linear(self.place(lift(flat(view, index)), nest, load, store, ranges), axes)
        if found is None:
            return None
        steps = tuple(old if one(n) else as_int(found[0].get(a, 0)) for a, n, old in zip(axes, view.shape, view.stride, strict=True))
        new = ArrayView(store.buffer, view.shape, steps, as_int(found[1]))
        return new if self.as_good(view, new) else None

    def as_good(self, old: ArrayView, new: ArrayView) -> bool:
        """Can a library write it as fast?  Its rows are as contiguous, and begin at multiples of 16 bytes if they did."""
        item = self.buffers[new.buffer].dtype.itemsize
        for a, b, n in zip((*old.stride, old.offset), (*new.stride, new.offset), (*old.shape, 0), strict=True):
            if not one(n) and (same(a, 1) != same(b, 1) or steps_of(a, item) and not steps_of(b, item)):
                return False
        return True


def moves(nest: Nest) -> tuple[ir.Load, ir.Store] | None:
    """The load and the store of a nest that only stores what it loads."""
    if not nest.body:  # a reduction of nothing but a number
        return None
    load, store = nest.body[0], nest.body[-1]
    if not isinstance(load, ir.Load) or not isinstance(store, ir.Store) or load.mask or store.mask or not nest.pointwise:
        return None
    name = load.name
    for s in nest.body[1:-1]:
        if not isinstance(s, ir.Let) or s.fn != "cast" or s.args != (name,) or s.dtype not in (load.dtype, float32):
            return None
        if s.dtype is not load.dtype and (load.dtype.kind != "f" or load.dtype.itemsize > 2):
            return None
        name = s.name
    return (load, store) if store.value == name and all(a.kind == "map" for a in nest.axes) else None


def one(n: Int) -> bool:
    return isinstance(n, int) and n == 1


def steps_of(x: Int, item: int) -> bool:
    """Is it a multiple of 16 bytes?"""
    return quotient(lift(x) * item, lift(STEP))[1] is lift(0)
