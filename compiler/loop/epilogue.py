"""Work that a library product does on its way to memory: adding a bias or a matrix, then perhaps a GELU.

Stage: loop.  In: a lowered ``Program``.  Out: the same with such nests gone: the product's ``then`` names what it does to
its result before it rounds and stores it once, and further operands follow the factors.  ``interp.library_result`` defines the
meaning.  Only where no kernel reads the sum and nothing else does, as it adds for nothing what costs a product some percent:
before another library call, or at the end.  Products of graphics processors only (cublasLt; NumPy's would gain nothing),
and not where every rounding must be eager's.  Read next: ``fuse``, which would otherwise find a kernel for these nests.

    then=("bias",)   out[i, j] + bias[j]          then=("add",)    out[i, j] + c[i, j]          then=("gelu",)   gelu(out[i, j])

The library's GELU is the one by tanh, and its tanh is the hardware's, right to 11 bits: so for that formula only (never
for the exact one), and where a half type rounds its tanh as roughly in eager.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from compiler.loop import ir
from compiler.loop.interp import GELU
from compiler.loop.ir import ArrayView, Buffer
from compiler.loop.lower import ExternCall, Program, numel
from compiler.loop.nest import Axis, Nest
from compiler.loop.value import contiguous
from compiler.sym.expr import lift
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bfloat16, float16, float32

TYPES = (float32, bfloat16, float16)
#: Where a product may end in a GELU by tanh.
GELU_TYPES = (bfloat16, float16)
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
            if target.device == "cpu" or target.dtype not in TYPES or not nest.pointwise or self.for_kernels(target.name):
                continue
            if self.gelus(nest, target):
                self.activation(nest, target)
            else:
                self.addition(nest, target)
        self.program.tasks[:] = [self.tasks[n] for n in sorted(self.tasks)]

    def for_kernels(self, buffer: str) -> bool:
        """Do only nests read it, that stay nests?"""
        if buffer in self.outputs:
            return False
        readers = [self.tasks[r] for r in self.readers.get(buffer, ())]
        if len(readers) == 1 and isinstance(readers[0], Nest):
            target = self.buffers[readers[0].writes[0].buffer]
            if self.gelus(readers[0], target) and not self.for_kernels(target.name):
                return False
        return all(isinstance(r, Nest) for r in readers)

    def gelus(self, nest: Nest, target: Buffer) -> bool:
        """Is the nest the GELU, element by element, of what nobody else reads?"""
        load, store = gelu_of(nest), nest.body[-1]
        if load is None or not isinstance(store, ir.Store) or target.dtype not in GELU_TYPES or not same(load.index, store.index):
            return False
        return self.readers[load.buffer] == [nest.number] and load.buffer not in self.outputs and self.whole(load.buffer, target)

    def activation(self, nest: Nest, target: Buffer) -> None:
        """The product whose result ``nest`` reads ends in its GELU."""
        load = gelu_of(nest)
        call = self.product(load.buffer, target, after=True) if load is not None else None
        if call is None or len(self.writers[target.name]) > 1:
            return
        out = replace(call.step.outs[0], buffer=target.name)
        args = tuple(replace(out, buffer=a.buffer) if w == "add" else a for w, a in words_of(call.step))
        then = (*call.step.params.get("then", ()), "gelu")
        step = replace(call.step, args=args, outs=(out,), params={**call.step.params, "then": then})
        step = replace(step, origin=tuple(dict.fromkeys((*step.origin, *nest.origin))))
        del self.tasks[call.number]
        self.settle(call, nest.number, step)

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
            self.writers[cast.writes[0].buffer], self.readers[cast.writes[0].buffer] = [call.number], [nest.number]
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

    def product(self, buffer: str, target: Buffer, *, after: bool = False) -> ExternCall | None:
        """The product that fills ``buffer`` for one reader, in the type and size of ``target``; ``after``: it may add."""
        if buffer in self.outputs or len(self.readers.get(buffer, ())) != 1 or len(self.writers.get(buffer, ())) != 1:
            return None
        call = self.tasks.get(self.writers[buffer][0])
        if not isinstance(call, ExternCall) or call.step.fn != "matmul" or ("then" in call.step.params and not after):
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


def words_of(step: ir.Extern) -> list[tuple[str, Any]]:
    """The arguments of a product, each with the word of ``then`` that it is for; "" for the factors."""
    return list(zip(("", "", *step.params.get("then", ())), step.args, strict=True))


def plain(v: ArrayView, b: Buffer) -> bool:
    """Is the view all of the buffer, row by row?"""
    return v.offset == 0 and v.stride == contiguous(v.shape) and same(numel(v.shape), numel(b.shape))


def same(a: ir.Int, b: ir.Int) -> bool:
    return lift(a) is lift(b)


def reads(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.reads) if isinstance(t, Nest) else t.reads


def writes(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.writes) if isinstance(t, Nest) else t.writes


# --- a GELU by tanh --------------------------------------------------------------------------------------------------
def gelu_of(nest: Nest) -> ir.Load | None:
    """The load whose GELU by tanh is all that ``nest`` stores."""
    made = {s.name: s for s in nest.body if isinstance(s, ir.Let | ir.Load)}
    store = nest.body[-1]
    loads = [s for s in nest.body if isinstance(s, ir.Load)]
    if not any(isinstance(s, ir.Let) and s.fn == "tanh" for s in nest.body):
        return None
    if not isinstance(store, ir.Store) or store.mask or len(loads) != 1 or loads[0].mask or len(made) + 1 != len(nest.body):
        return None
    tree = Products(made, loads[0])
    half, found = tree.factors(store.value)
    rest = [f for f in found if f is not loads[0]]
    if len(found) != 2 or len(rest) != 1 or not near(half, 0.5):
        return None
    one, tanh = tree.terms(rest[0])
    if not near(one, 1.0) or len(tanh) != 1 or getattr(tanh[0], "fn", "") != "tanh":
        return None
    scale, found = tree.factors(tanh[0].args[0])  # type: ignore[union-attr]
    inner = tree.terms(found[0]) if len(found) == 1 else (0.0, [])
    cubes = [tree.factors(t.name) for t in inner[1] if t is not loads[0]]
    cube = len(cubes) == 1 and near(cubes[0][0], GELU[0]) and tree.power(cubes[0][1]) == 3
    return loads[0] if cube and near(scale, GELU[1]) and len(inner[1]) == 2 and not inner[0] else None


def near(x: float, y: float) -> bool:
    """Equal, as far as a half type can say."""
    return abs(x - y) <= abs(y) * 2.0**-8


class Products:
    """Sums and products in a nest, taken apart; casts between half types and float32 are looked through."""

    def __init__(self, made: dict[str, Any], leaf: ir.Load) -> None:
        self.made, self.leaf = made, leaf

    def source(self, v: Any) -> Any:
        s = self.made.get(v) if isinstance(v, str) else v
        while isinstance(s, ir.Let) and s.fn == "cast" and s.dtype in TYPES:
            s = self.made.get(s.args[0]) if isinstance(s.args[0], str) else s.args[0]
        return s

    def factors(self, v: Any, deep: int = 5) -> tuple[float, list[Any]]:
        """A number and the statements whose product the value is."""
        s = self.source(v)
        if not isinstance(s, ir.Let | ir.Load):
            return (float(s), []) if isinstance(s, int | float) else (math.nan, [])
        if not isinstance(s, ir.Let) or s.fn != "mul" or not deep:
            return 1.0, [s]
        (a, xs), (b, ys) = (self.factors(x, deep - 1) for x in s.args)
        return a * b, [*xs, *ys]

    def terms(self, s: Any) -> tuple[float, list[Any]]:
        """The same of a sum of two."""
        if not isinstance(s, ir.Let) or s.fn != "add":
            return math.nan, []
        parts = [self.source(a) for a in s.args]
        numbers = [float(p) for p in parts if isinstance(p, int | float)]
        return sum(numbers), [p for p in parts if not isinstance(p, int | float)]

    def power(self, factors: list[Any]) -> float:
        """Which power of the leaf their product is; NaN if it is none."""
        total = 0.0
        for f in factors:
            if f is self.leaf:
                total += 1
            elif isinstance(f, ir.Let) and f.fn == "pow" and self.source(f.args[0]) is self.leaf and isinstance(f.args[1], int | float):
                total += f.args[1]
            else:
                return math.nan
        return total
