"""Work that a library product does on its way to memory: adding a bias or a matrix, summing an operand's columns.

Stage: loop.  In: a lowered ``Program``.  Out: the same with such nests gone: the product's ``then`` names what it does to
its result before it rounds and stores it once, further operands follow the factors, and sums come out as a second
result.  ``interp.library_result`` defines the meaning.  Products of graphics processors only (cublasLt; NumPy's would gain nothing), and
not where every rounding must be eager's.  Read next: ``fuse``, which would otherwise find a kernel for these nests.

    then=("bias",)   out[i, j] + bias[j]          then=("sums_x",)   second result: x.sum(1)
    then=("add",)    out[i, j] + c[i, j]          then=("sums_y",)   second result: y.sum(0)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer
from compiler.loop.lower import ExternCall, Program, numel
from compiler.loop.nest import Axis, Nest
from compiler.loop.value import contiguous
from compiler.sym.expr import Symbol, as_int, lift, linear
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bfloat16, float16, float32

TYPES = (float32, bfloat16, float16)
Task = Nest | ExternCall


def joined(program: Program, config: Any) -> None:
    """Give products the nests that they can do."""
    if config.epilogue_fusion and config.numerics == "fast":
        Joiner(program).run(sums=not config.deterministic)


class Joiner:
    def __init__(self, program: Program) -> None:
        self.program, self.buffers = program, program.buffers
        self.tasks: dict[int, Task] = {t.number: t for t in program.tasks}
        self.outputs = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        for t in program.tasks:
            for b in writes(t):
                self.writers.setdefault(b, []).append(t.number)
            for b in reads(t):
                self.readers.setdefault(b, []).append(t.number)

    def run(self, *, sums: bool) -> None:
        for nest in [t for t in self.program.tasks if isinstance(t, Nest)]:
            target = self.buffers[nest.writes[0].buffer]
            if target.device != "cpu" and target.dtype in TYPES:
                if nest.pointwise:
                    self.addition(nest, target)
                elif sums:
                    self.column_sums(nest)
        self.program.tasks[:] = [self.tasks[n] for n in sorted(self.tasks)]

    # --- out + bias, out + matrix ---
    def addition(self, nest: Nest, target: Buffer) -> None:
        """``nest`` adds to a product that nobody else reads: the product moves to its place and does so itself."""
        store = nest.body[-1]
        loads = terms(nest, target.dtype)
        if not isinstance(store, ir.Store) or not 2 <= len(loads) <= 3 or len(self.writers[target.name]) > 1:
            return
        products = [x for x in loads if same(x.index, store.index) and self.product(x.buffer, target) is not None]
        if not products:
            return
        mine = max(products, key=lambda x: self.writers[x.buffer][0])
        call = self.product(mine.buffer, target)
        assert call is not None
        width = call.step.outs[0].shape[-1]
        column = simplify(lift(store.index) % width, nest.ranges)
        rest = [x for x in loads if x is not mine]
        matrices = [x for x in rest if same(x.index, store.index) and self.whole(x.buffer, target)]
        biases = [x for x in rest if lift(x.index) is column and x not in matrices]
        if len(matrices) + len(biases) < len(rest) or max(len(matrices), len(biases)) > 1:
            return
        args, then, cast = list(call.step.args), [], None
        out = replace(call.step.outs[0], buffer=target.name)
        for x in biases:
            name = x.buffer
            if x.dtype is not target.dtype:
                if any(w > call.number for w in self.writers.get(name, ())):
                    return  # the place where the vector would be rounded comes too early
                cast = self.rounded(name, width, target.dtype, call.number, nest)
                name = cast.writes[0].buffer
            args.append(ArrayView(name, (width,), (1,)))
            then.append("bias")
        for x in matrices:
            args.append(replace(out, buffer=x.buffer))
            then.append("add")
        step = replace(call.step, args=tuple(args), outs=(out,), params={**call.step.params, "then": tuple(then)})
        step = replace(step, origin=tuple(dict.fromkeys((*step.origin, *nest.origin))))
        del self.tasks[call.number]
        self.settle(call, nest.number, step)
        if cast is not None:
            self.tasks[call.number] = cast
            self.move(cast.reads[0].buffer, nest.number, call.number)

    def settle(self, call: ExternCall, number: int, step: ir.Extern) -> None:
        """The call takes this place, as ``step``."""
        self.tasks[number] = ExternCall(number, step)
        for b in call.reads:
            self.move(b, call.number, number)
        for v in step.outs:
            self.writers[v.buffer] = [number]

    def move(self, buffer: str, old: int, new: int) -> None:
        """A reader of the buffer now stands elsewhere."""
        self.readers[buffer] = [new if r == old else r for r in self.readers[buffer]]

    def product(self, buffer: str, target: Buffer) -> ExternCall | None:
        """The product that fills ``buffer`` for one reader, in the type and size of ``target``."""
        if buffer in self.outputs or len(self.readers.get(buffer, ())) != 1 or len(self.writers.get(buffer, ())) != 1:
            return None
        call = self.tasks.get(self.writers[buffer][0])
        if not isinstance(call, ExternCall) or call.step.fn != "matmul" or "then" in call.step.params:
            return None
        return call if self.whole(buffer, target) and plain(call.step.outs[0], self.buffers[buffer]) else None

    def whole(self, buffer: str, target: Buffer) -> bool:
        b = self.buffers[buffer]
        return b.dtype is target.dtype and b.device == target.device and same(numel(b.shape), numel(target.shape))

    def rounded(self, source: str, width: ir.Int, dtype: DType, number: int, nest: Nest) -> Nest:
        """A nest that writes the vector in the product's type."""
        names, old = self.program.names, self.buffers[source]
        new = names("buf")
        self.buffers[new] = Buffer(new, dtype, (width,), (1,), old.device)
        axis, value, short = Axis(names("x"), width), names("v"), names("v")
        body = (
            ir.Load(value, source, axis.symbol, old.dtype),
            ir.Let(short, "cast", (value,), dtype),
            ir.Store(new, axis.symbol, short),
        )
        return Nest(number, (axis,), body, origin=nest.origin, lines=nest.lines, sizes=self.program.ranges)

    # --- sums of an operand ---
    def column_sums(self, nest: Nest) -> None:
        """``nest`` sums columns of a matrix over just the rows that a product sums over: the product does both."""
        if not nest.body or len(nest.post) != 1:  # a constant is summed
            return
        load, store = nest.body[0], nest.post[0]
        casts = all(isinstance(s, ir.Let) and s.fn == "cast" for s in nest.body[1:])
        if not (isinstance(load, ir.Load) and isinstance(store, ir.Store) and casts):
            return
        source, target = self.buffers[load.buffer], self.buffers[store.buffer]
        wanted = nest.init is not None and nest.init.combine == "add" and nest.init.dtypes == (float32,)
        if not wanted or load.mask or source.dtype not in TYPES or not dense(load.index, nest.axes):
            return
        number = next(filter(None, (self.sums_here(nest, n, load, store) for n in self.readers[load.buffer])), None)
        if number is None or (source.dtype is not float32 and not self.narrowed(target.name, source.dtype)):
            return
        call = self.tasks[number]
        assert isinstance(call, ExternCall)
        place = self.place(nest, call, target.name)
        if place is None:
            return
        out = ArrayView(target.name, (numel(target.shape),), (1,))
        x, _ = call.step.args
        which = "sums_x" if isinstance(x, ArrayView) and x.buffer == load.buffer else "sums_y"
        if source.dtype is not float32:
            self.narrow(target.name, source.dtype)
        step = replace(call.step, outs=(*call.step.outs, out), params={**call.step.params, "then": (which,)})
        del self.tasks[nest.number], self.tasks[number]
        self.move(load.buffer, nest.number, place)
        self.settle(call, place, step)

    def sums_here(self, nest: Nest, number: int, load: ir.Load, store: ir.Store) -> int | None:
        """``number`` if that task is a product whose inner dimension is the one ``nest`` sums over."""
        call = self.tasks.get(number)
        if not isinstance(call, ExternCall) or call.step.fn != "matmul" or "then" in call.step.params:
            return None
        x, y = call.step.args
        if not isinstance(x, ArrayView) or not isinstance(y, ArrayView) or x.buffer == y.buffer:
            return None
        (out,) = call.step.outs
        if len(out.shape) != 2 or len(x.shape) != 2 or not plain(out, self.buffers[out.buffer]):
            return None
        view = x if x.buffer == load.buffer else replace(y, shape=y.shape[::-1], stride=y.stride[::-1])
        width, rows = view.shape
        if view.buffer != load.buffer or view.offset != 0 or not same(view.stride[0], 1) or not same(view.stride[1], width):
            return None
        if not same(as_int(lift(width) * rows), numel(self.buffers[load.buffer].shape)) or not same(nest.numel, as_int(lift(width) * rows)):
            return None
        return number if simplify(lift(load.index) % width, nest.ranges) is lift(store.index) else None

    def place(self, nest: Nest, call: ExternCall, sums: str) -> int | None:
        """Where the two may run as one: after all they read, before all that read them."""
        need = max((w for b in call.reads for w in self.writers.get(b, ())), default=-1)
        users = [r for b in (sums, *call.writes) for r in self.readers.get(b, ())]
        first = min(users, default=max(self.tasks) + 1)
        return next((n for n in sorted((nest.number, call.number)) if need < n < first), None)

    def narrowed(self, name: str, dtype: DType) -> bool:
        """May the buffer be of this type instead: do only nests read it, and nobody outside?"""
        return name not in self.outputs and all(isinstance(self.tasks.get(r), Nest) for r in self.readers.get(name, ()))

    def narrow(self, name: str, dtype: DType) -> None:
        wide = self.buffers[name].dtype
        self.buffers[name] = replace(self.buffers[name], dtype=dtype)
        for r in self.readers.get(name, ()):
            t = self.tasks[r]
            assert isinstance(t, Nest)
            body = tuple(x for s in t.body for x in self._widened(s, name, dtype, wide))
            self.tasks[r] = replace(t, body=body)

    def _widened(self, s: ir.Stmt, name: str, dtype: DType, wide: DType) -> Iterator[ir.Stmt]:
        if isinstance(s, ir.Load) and s.buffer == name:
            short = self.program.names("v")
            yield replace(s, name=short, dtype=dtype)
            yield ir.Let(s.name, "cast", (short,), wide)
        else:
            yield s


# --- small questions -------------------------------------------------------------------------------------------------
def terms(nest: Nest, dtype: DType) -> list[ir.Load]:
    """The loads whose sum is all that ``nest`` stores, if it rounds to nothing coarser than ``dtype``; else none."""
    made = {s.name: s for s in nest.body if isinstance(s, ir.Let | ir.Load)}
    store = nest.body[-1]
    found: list[ir.Load] = []
    todo = [store.value] if isinstance(store, ir.Store) and store.mask is None else []
    used = 1
    while todo:
        v = todo.pop()
        s = made.get(v) if isinstance(v, str) else None
        used += 1
        if isinstance(s, ir.Load) and s.mask is None and s.dtype in TYPES:
            found.append(s)
        elif isinstance(s, ir.Let) and s.dtype in (dtype, float32) and s.fn in ("cast", "add"):
            todo += s.args
        else:
            return []
    return found if used == len(nest.body) else []


def plain(v: ArrayView, b: Buffer) -> bool:
    """Is the view all of the buffer, row by row?"""
    return v.offset == 0 and v.stride == contiguous(v.shape) and same(numel(v.shape), numel(b.shape))


def dense(index: ir.Int, axes: Iterable[Axis]) -> bool:
    """Do the axes walk a stretch of memory without a gap, each element once?"""
    found = linear(index, [a.symbol for a in axes])
    if found is None or found[1] is not lift(0):
        return False
    step: ir.Int = 1
    left = [(as_int(found[0].get(Symbol(a.name), 0)), a.extent) for a in axes]
    while left:
        fits = next((x for x in left if same(x[0], step)), None)
        if fits is None:
            return False
        left.remove(fits)
        step = as_int(lift(step) * fits[1])
    return True


def same(a: ir.Int, b: ir.Int) -> bool:
    return lift(a) is lift(b)


def reads(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.reads) if isinstance(t, Nest) else t.reads


def writes(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.writes) if isinstance(t, Nest) else t.writes
