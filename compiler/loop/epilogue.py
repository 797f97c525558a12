"""Work that a library product does on its way to memory: adding a bias or a matrix, then perhaps a GELU.

Stage: loop.  In: a lowered ``Program``.  Out: the same with such nests gone: the product's ``then`` names what it does to
its result before it rounds and stores it once, and further operands follow the factors.  ``interp.library_result`` defines the
meaning.  Only where no kernel reads the sum and nothing else does, as it adds for nothing what costs a product some percent:
before another library call, or at the end.  Products of graphics processors only (cublasLt; NumPy's would gain nothing),
and not where every rounding must be eager's.  Read next: ``fuse``, which would otherwise find a kernel for these nests.

    then=("bias",)   out[i, j] + bias[j]          then=("add",)    out[i, j] + c[i, j]
    then=("gelu",)   gelu(out[i, j])              then=("aux", "gelu")   the same, and out itself is a second result
    then=("dgelu",)  out[i, j] * gelu'(h[i, j])

The GELU is the one by tanh (never the exact one), and the library's is right to some 7e-6 of x: enough for half types only.
Its zeros have no sign, so only products and sums may read it; of bfloat16 numbers from 2**127 on it makes infinity.  Its slope is
NaN for bfloat16 numbers from 5.6e19 on, where eager's is 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer
from compiler.loop.nest import Axis, Nest
from compiler.loop.program import ExternCall, Program, Task, users, writes
from compiler.loop.sizes import numel
from compiler.loop.value import contiguous
from compiler.sym.expr import lift
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bfloat16, float16, float32
from tinytorch.ops.pointwise import GELU

TYPES = (float32, bfloat16, float16)
#: Where a product may end in a GELU by tanh; where it also keeps what that is of, or ends in the slope: nowhere, for a training
#: step gains nothing by it (GPT-2's MLP, H200, ms: bfloat16 0.756 without, 0.772 with; float16 0.766, 0.759; 1024 rows 0.22, 0.24).
GELU_TYPES: tuple[DType, ...] = (bfloat16, float16)
KEEPING_TYPES: tuple[DType, ...] = ()
SLOPE_TYPES: tuple[DType, ...] = ()
ADDED = ("bias", "add")


def joined(program: Program, config: Any) -> None:
    """Give products the nests that they can do."""
    if config.epilogue_fusion and config.numerics == "fast":
        Joiner(program).run()


class Joiner:
    def __init__(self, program: Program) -> None:
        self.program, self.buffers = program, program.buffers
        self.tasks: dict[int, Task] = {t.number: t for t in program.tasks}
        self.outputs = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
        self.writers, self.readers = users(program)

    def run(self) -> None:
        for nest in [t for t in self.program.tasks if isinstance(t, Nest)]:
            target = self.buffers[nest.writes[0].buffer]
            if target.device == "cpu" or target.dtype not in TYPES or not nest.pointwise or self.for_kernels(target.name):
                continue
            if self.activates(nest):
                self.activation(nest, target)
            elif target.dtype in SLOPE_TYPES and slope_of(nest) is not None:
                self.slope(nest, target)
            else:
                self.addition(nest, target)
        self.program.tasks[:] = [self.tasks[n] for n in sorted(self.tasks)]

    def for_kernels(self, buffer: str) -> bool:
        """Do only nests read it, that stay nests?"""
        if buffer in self.outputs:
            return False
        readers = [self.tasks[r] for r in self.readers.get(buffer, ())]
        if any(isinstance(r, Nest) and self.activates(r) and gelu_of(r) in r.body[:1] for r in readers):
            return False
        return all(isinstance(r, Nest) for r in readers)

    def activates(self, nest: Nest) -> bool:
        """Is the nest the GELU, element by element, of what a product may be asked for, for readers to whom zeros are alike?"""
        x, store = gelu_of(nest), nest.body[-1]
        target = self.buffers[nest.writes[0].buffer]
        if x is None or not isinstance(store, ir.Store) or target.dtype not in GELU_TYPES or not self.blind(target.name):
            return False
        if not isinstance(x, ir.Load):
            return True
        alone = self.readers[x.buffer] == [nest.number] and x.buffer not in self.outputs
        if not alone and target.dtype not in KEEPING_TYPES:
            return False
        others = {r for r in self.readers[x.buffer] if r != nest.number and isinstance(self.tasks[r], Nest)}
        apart = others <= self.behind(target.name)  # else one kernel may read its argument for all of them
        return same(x.index, store.index) and self.whole(x.buffer, target) and apart

    def behind(self, buffer: str) -> set[int]:
        """The tasks that need it, directly or not."""
        found: set[int] = set()
        todo = [buffer]
        while todo:
            for r in self.readers.get(todo.pop(), ()):
                if r not in found:
                    found.add(r)
                    todo += writes(self.tasks[r])
        return found

    def blind(self, buffer: str) -> bool:
        """Do only products and sums read it, and some product?"""
        readers = [self.tasks[r] for r in self.readers.get(buffer, ())]
        products = [r for r in readers if isinstance(r, ExternCall) and r.step.fn == "matmul"]
        rest = [r for r in readers if r not in products]
        return bool(products) and buffer not in self.outputs and all(isinstance(r, Nest) and sums(r) for r in rest)

    def activation(self, nest: Nest, target: Buffer) -> None:
        """The product whose result ``nest`` reads ends in its GELU; where others read that, it is a second result."""
        load = gelu_of(nest)
        if not isinstance(load, ir.Load):
            return self.sum_and_activation(nest, target)
        call = self.maker(load.buffer, target, after=True)
        if call is None or len(self.writers[target.name]) > 1:
            return
        before = call.step.outs[0]
        out = replace(before, buffer=target.name)
        alone = self.readers[load.buffer] == [nest.number] and load.buffer not in self.outputs
        args = tuple(replace(out, buffer=a.buffer) if w == "add" else a for w, a in words_of(call.step))
        then = (*call.step.params.get("then", ()), *(() if alone else ("aux",)), "gelu")
        params = {**call.step.params, "then": then}
        step = replace(call.step, args=args, outs=(out,) if alone else (out, before), params=params)
        step = replace(step, origin=tuple(dict.fromkeys((*step.origin, *nest.origin))))
        del self.tasks[nest.number]  # the product stays in its place: all that it needs is there
        self.settle(call, call.number, step)
        self.readers[load.buffer].remove(nest.number)

    def sum_and_activation(self, nest: Nest, target: Buffer) -> None:
        """The GELU of a sum that is nowhere else: if the product can do the sum, then the GELU too."""
        x, store = gelu_of(nest), nest.body[-1]
        assert isinstance(x, ir.Let) and isinstance(store, ir.Store)
        own = needed(nest, x.name)
        value = self.program.names("v")
        body = (*(s for s in nest.body[:-1] if s in own), ir.Let(value, "cast", (x.name,), target.dtype), replace(store, value=value))
        self.addition(replace(nest, body=body), target)
        made = self.tasks[nest.number]
        if isinstance(made, ExternCall):
            params = {**made.step.params, "then": (*made.step.params["then"], "gelu")}
            self.tasks[nest.number] = replace(made, step=replace(made.step, params=params))

    def slope(self, nest: Nest, target: Buffer) -> None:
        """``nest`` multiplies a product that nobody else reads by the slope of the GELU somewhere."""
        found, store = slope_of(nest), nest.body[-1]
        if found is None or not isinstance(store, ir.Store) or len(self.writers[target.name]) > 1 or not self.blind(target.name):
            return
        g, x = found
        call = self.product(g.buffer, target)
        if call is None or not all(same(v.index, store.index) and self.whole(v.buffer, target) for v in found):
            return
        out = replace(call.step.outs[0], buffer=target.name)
        args = (*call.step.args, replace(out, buffer=x.buffer))
        step = replace(call.step, args=args, outs=(out,), params={**call.step.params, "then": ("dgelu",)})
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

    def product(self, buffer: str, target: Buffer) -> ExternCall | None:
        """The product that fills ``buffer`` for one reader, in the type and size of ``target``."""
        alone = buffer not in self.outputs and len(self.readers.get(buffer, ())) == 1
        return self.maker(buffer, target) if alone else None

    def maker(self, buffer: str, target: Buffer, *, after: bool = False) -> ExternCall | None:
        """The product that fills ``buffer``, in the type and size of ``target``; ``after``: it may add something."""
        call = self.tasks.get(self.writers[buffer][0]) if len(self.writers.get(buffer, ())) == 1 else None
        if not isinstance(call, ExternCall) or call.step.fn != "matmul" or not {*call.step.params.get("then", ())} <= {*(ADDED if after else ())}:
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


# --- a GELU by tanh --------------------------------------------------------------------------------------------------
def gelu_of(nest: Nest) -> ir.Load | ir.Let | None:
    """What the GELU by tanh, which is all that ``nest`` stores, is of: the row, or written out by hand."""
    if not any(isinstance(s, ir.Let) and s.fn == "tanh" for s in nest.body) or not computes(nest):
        return None
    tree = Products(nest)
    half, found = tree.factors(nest.body[-1].value)  # type: ignore[union-attr]
    shares = [f for f in found if tree.terms(f)[0] == 1.0 and getattr(tree.terms(f)[1][0], "fn", "") == "tanh"]
    rest = [f for f in found if f not in shares]
    if len(shares) != 1 or len(rest) != 1 or not near(half, 0.5):
        return None
    x, (_, tanh) = rest[0], tree.terms(shares[0])
    tree.leaf = x
    scale, found = tree.factors(tanh[0].args[0])
    sums = [f for f in found if f is not x]
    if len(sums) != 1 or not near(scale, GELU[1]):
        return None
    number, terms = tree.terms(sums[0])
    if len(found) == 1 and not number and x in terms:  # x + c x^3
        return x if tree.powers([t for t in terms if t is not x]) == 3 else None
    return x if len(found) == 2 and near(number, 1.0) and tree.powers(terms) == 2 else None  # x (1 + c x^2)


def slope_of(nest: Nest) -> tuple[ir.Load, ir.Load] | None:
    """The two loads of a nest that is all one ``gelu_tanh_grad``: what comes in, and where the slope is taken."""
    loads = [s for s in nest.body if isinstance(s, ir.Load)]
    if len(nest.origin) != 1 or not re.fullmatch(r"gelu_tanh_grad(_\d+)?", nest.origin[0]) or len(loads) != 2 or not computes(nest):
        return None
    found = [f for f in Products(nest).factors(nest.body[-1].value)[1] if f in loads]  # type: ignore[union-attr]
    return (found[0], next(x for x in loads if x is not found[0])) if len(found) == 1 else None


def computes(nest: Nest) -> bool:
    """Does it store one value, made of loads, and do nothing else?"""
    store = nest.body[-1]
    values = [s for s in nest.body if isinstance(s, ir.Let) or isinstance(s, ir.Load) and not s.mask]
    return isinstance(store, ir.Store) and not store.mask and len(values) + 1 == len(nest.body)


def needed(nest: Nest, name: str) -> list[ir.Stmt]:
    """The statements that a value is made of."""
    made = {s.name: s for s in nest.body if isinstance(s, ir.Let | ir.Load)}
    found: list[ir.Stmt] = []
    todo: list[Any] = [name]
    while todo:
        s = made.get(todo.pop())
        if s is not None and s not in found:
            found.append(s)
            todo += s.args if isinstance(s, ir.Let) else ()
    return found


def sums(nest: Nest) -> bool:
    """Does the nest sum what it reads, perhaps as another type?"""
    made = [s for s in nest.body if not (isinstance(s, ir.Load) or isinstance(s, ir.Let) and s.fn == "cast")]
    return nest.init is not None and nest.init.combine == "add" and not made


def near(x: float, y: float) -> bool:
    """Equal, as far as a half type can say."""
    return abs(x - y) <= abs(y) * 2.0**-8


class Products:
    """Sums and products in a nest, taken apart; casts between half types and float32 are looked through."""

    def __init__(self, nest: Nest) -> None:
        self.made: dict[Any, Any] = {s.name: s for s in nest.body if isinstance(s, ir.Let | ir.Load)}
        self.leaf: Any = None

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

    def powers(self, terms: list[Any]) -> float:
        """Which power of the leaf the one term is, if its number is a GELU's; else NaN."""
        number, factors = self.factors(terms[0].name) if len(terms) == 1 else (math.nan, [])
        total = 0.0 if near(number, GELU[0]) else math.nan
        for f in factors:
            if f is self.leaf:
                total += 1
            elif isinstance(f, ir.Let) and f.fn == "pow" and self.source(f.args[0]) is self.leaf and isinstance(f.args[1], int | float):
                total += f.args[1]
            else:
                return math.nan
        return total
