"""Work that a library product does on its way to memory: adding a bias or a matrix.

Stage: loop.  In: a lowered ``Program``.  Out: the same with such nests gone: the product's ``then`` names what it does to
its result before it rounds and stores it once, and further operands follow the factors.  ``interp.library_result`` defines the
meaning.  Only where no kernel reads the sum and nothing else does, as it adds for nothing what costs a product some percent:
before another library call, or at the end.  Products of graphics processors only (cublasLt; NumPy's would gain nothing),
and not where every rounding must be eager's.  Read next: ``fuse``, which would otherwise find a kernel for these nests.

    then=("bias",)   out[i, j] + bias[j]          then=("add",)    out[i, j] + c[i, j]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer
from compiler.loop.lower import ExternCall, Program, numel
from compiler.loop.nest import Axis, Nest
from compiler.loop.value import contiguous
from compiler.sym.expr import lift
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bfloat16, float16, float32

TYPES = (float32, bfloat16, float16)
Task = Nest | ExternCall


def joined(program: Program, config: Any) -> None:
    """Give products the nests that they can do."""
    if config.epilogue_fusion and config.numerics == "fast":
        Joiner(program).run()


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

    def run(self) -> None:
        for nest in [t for t in self.program.tasks if isinstance(t, Nest)]:
            target = self.buffers[nest.writes[0].buffer]
            if target.device != "cpu" and target.dtype in TYPES and nest.pointwise and not self.for_kernels(target.name):
                self.addition(nest, target)
        self.program.tasks[:] = [self.tasks[n] for n in sorted(self.tasks)]

    def for_kernels(self, buffer: str) -> bool:
        """Do only nests read it?"""
        return buffer not in self.outputs and all(isinstance(self.tasks[r], Nest) for r in self.readers.get(buffer, ()))

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


def same(a: ir.Int, b: ir.Int) -> bool:
    return lift(a) is lift(b)


def reads(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.reads) if isinstance(t, Nest) else t.reads


def writes(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.writes) if isinstance(t, Nest) else t.writes
