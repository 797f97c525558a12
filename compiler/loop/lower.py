"""From a functional graph to loop nests: each value becomes a closure, each closure that must be stored a ``Nest``.

Stage: loop.  In: a ``GraphModule`` whose calls are op rows.  Out: a ``Program``: buffers, nests and extern calls in
order.  Pointwise rows and views only wrap closures; reductions, random states, scatters and what many read become
memory.  Nothing here decides what shares a kernel.  Read next: ``rules`` (index rows), ``nest``, ``fuse``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.ir.graph import Node
from compiler.loop import ir
from compiler.loop.emit import Emitter, Index, Names, V
from compiler.loop.interp import identity
from compiler.loop.ir import ArrayView, Buffer, Int
from compiler.loop.nest import Axis, Nest, split_for_division
from compiler.loop.value import Cost, Value, broadcast_index, contiguous, flat, register, view_place
from compiler.sym.expr import Symbol, as_int, expr_of, lift
from compiler.sym.ranges import Interval, extent
from tinytorch.dtypes import DType, float32
from tinytorch.ops import opdef
from tinytorch.ops.opdef import Meta, Op

#: A value read by several is recomputed by each if it costs no more than this, else stored.
CHEAP = Cost(ops=3, heavy=0, loads=1)
#: A closure larger than this is stored, which also bounds recursion.
LARGEST = Cost(ops=64, heavy=16, loads=24)
HEAVY = frozenset(
    "div floordiv mod fmod pow exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
    "acosh atanh erf philox".split()
)
SYMBOL_HINT = 64
#: A reader of less than one element in so many is no reason to store a value.
FEW = 4
Rule = Callable[["Lowering", Node, tuple[Any, ...], dict[str, Any]], Any]
#: name of a row -> how it becomes loops, for rows whose kind alone does not tell
RULES: dict[str, Rule] = {}


@dataclass
class ExternCall:
    """A row that runs as a library call on memory; ``number`` is its place in program order."""

    number: int
    step: ir.Extern

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(a.buffer for a in self.step.args if isinstance(a, ArrayView))

    @property
    def writes(self) -> frozenset[str]:
        return frozenset(v.buffer for v in self.step.outs)


@dataclass
class Program:
    """What lowering makes: memory and the tasks that fill it, in an order that respects their dependencies."""

    inputs: list[Buffer] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    fills: dict[str, Any] = field(default_factory=dict)
    tasks: list[Nest | ExternCall] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    names: Names = field(default_factory=Names)


def lower(gm: Any, config: Any) -> Program:
    """Lower every node of ``gm.graph``; NotImplementedError names a call that is no op row."""
    return Lowering(gm, config).run()


class Lowering:
    def __init__(self, gm: Any, config: Any) -> None:
        self.gm = gm
        self.fast = config.numerics == "fast"
        self.program = Program()
        self.names = self.program.names
        self.values: dict[Node, Any] = {}

    def run(self) -> Program:
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                self.output(node)
            else:
                raise NotImplementedError(f"cannot lower {node.op} {node.target}: aot lifts attributes to inputs")
        return self.program

    # --- the ends of the graph ---
    def placeholder(self, node: Node) -> None:
        val = node.meta["val"]
        e = expr_of(val)
        if e is not None or isinstance(val, int):
            self.values[node] = as_int(e) if e is not None else val
            self.learn_sizes((val,))
            return
        shape, stride = ints(val.shape), ints(val.stride())
        self.learn_sizes((*shape, *stride))
        buffer = Buffer(node.name, val.dtype, shape, stride, val.device.type)
        self.program.inputs.append(buffer)
        self.program.buffers[buffer.name] = buffer
        place = ArrayView(buffer.name, shape, stride)
        self.values[node] = Value(shape, val.dtype, place=place, device=buffer.device, fast=self.fast)

    def learn_sizes(self, xs: Iterable[Any]) -> None:
        for x in xs:
            e = expr_of(x)
            for s in sorted(e.free_symbols, key=str) if e is not None else ():
                if s.name not in self.program.sizes:
                    self.program.sizes.append(s.name)
                    self.program.ranges[s] = Interval(2)  # 0 and 1 always specialise

    def output(self, node: Node) -> None:
        results = node.args[0]
        for x in results if isinstance(results, tuple | list) else (results,):
            v = self.values[x] if isinstance(x, Node) else x
            self.program.outputs.append(self.result(x, v) if isinstance(v, Value) else v)

    def result(self, node: Node, value: Value) -> ArrayView:
        """Where the value lies, with eager's strides also along dimensions of size 1, where any would do."""
        place = self.memory(value)
        eager = ints(node.meta["val"].stride())
        ones = [isinstance(n, int) and n == 1 for n in place.shape]
        return replace(place, stride=tuple(e if one else s for e, s, one in zip(eager, place.stride, ones, strict=True)))

    # --- calls ---
    def call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        op = node.target
        args = tuple(self.argument(a) for a in node.args)
        params = {k: self.argument(v) for k, v in node.kwargs.items()}
        if not isinstance(op, Op):
            return self.arithmetic(node, args)
        rule = self.rule(op, args, node)
        out = rule(self, node, args, params)
        if isinstance(out, Value) and out.place is None and self.should_store(node, out):
            self.store(out, node)
        return out

    def argument(self, a: Any) -> Any:
        """Nodes as their values, symbolic ints as expressions."""
        if isinstance(a, Node):
            return self.values[a]
        if isinstance(a, tuple | list):
            return type(a)(self.argument(x) for x in a)
        e = expr_of(a)
        return a if e is None else as_int(e)

    def arithmetic(self, node: Node, args: tuple[Any, ...]) -> Any:
        """Python arithmetic on sizes that the graph still shows as nodes."""
        if any(isinstance(a, Value) for a in args) or expr_of(node.meta.get("val")) is None:
            raise NotImplementedError(f"cannot lower {node.format_node()}: its target is no op row")
        return as_int(lift(expr_of(node.meta["val"])))  # type: ignore[arg-type]

    def rule(self, op: Op, args: tuple[Any, ...], node: Node) -> Rule:
        complexes = any(isinstance(a, Value) and a.dtype.is_complex for a in args) or _is_complex(node.meta["val"])
        if op.name in RULES and not complexes:
            return RULES[op.name]
        if complexes and op.kind != "view":
            return extern
        if op.body is None:
            return extern
        return BY_KIND.get(op.kind, extern)

    # --- what becomes memory ---
    def should_store(self, node: Node, value: Value) -> bool:
        if value.base is not None or value.constant is not None:
            return False
        c, top = value.cost, LARGEST
        if c.ops > top.ops or c.heavy > top.heavy or c.loads > top.loads:
            return True
        readers = consumers(node)
        if any(r.op == "output" for r in readers):
            return True
        cheap = c.ops <= CHEAP.ops and c.heavy <= CHEAP.heavy and c.loads <= CHEAP.loads
        return sum(self.reads_much(r, value) for r in readers) > 1 and not cheap

    def reads_much(self, reader: Node, value: Value, depth: int = 8) -> bool:
        """Does it need most elements?  One that picks a few (gather) computes those again; what is computed from them
        element by element (a log-softmax, whose one use is the gather of a loss) is needed only as far as it is read."""
        val = reader.meta.get("val")
        target = reader.target
        if not isinstance(target, Op) or val is None or isinstance(val, tuple):
            return True
        if target.kind == "pointwise" and depth:
            users = consumers(reader)
            return any(u.op == "output" or self.reads_much(u, value, depth - 1) for u in users)
        return target.kind != "index" or hint(numel(ints(val.shape))) * FEW > hint(numel(value.shape))

    def memory(self, value: Value) -> ArrayView:
        """Where the value lies, after storing it (or, for a view that strides can show, its base) if need be."""
        if value.place is None and value.base is not None:
            base, map_index = value.base
            place = view_place(self.memory(base), map_index, value.shape, self.program.ranges)
            if place is not None:
                value.place = place
        if value.place is None:
            self.store(value)
        assert value.place is not None
        return value.place

    def allocate(self, shape: tuple[Int, ...], dtype: DType, device: str, stride: tuple[Int, ...] | None = None) -> ArrayView:
        """A new buffer, contiguous unless ``stride`` is given."""
        stride = contiguous(shape) if stride is None else stride
        name = self.names("buf")
        self.program.buffers[name] = Buffer(name, dtype, shape, stride, device)
        return ArrayView(name, shape, stride)

    def store(self, value: Value, node: Node | None = None) -> None:
        """Make a nest that computes every element of ``value`` into a new buffer."""
        stride = dense_strides(node.meta["val"], value.shape) if node is not None else None
        place = self.allocate(value.shape, value.dtype, value.device, stride)
        self.write(value, place)
        value.place = place

    def write(self, value: Value, place: ArrayView) -> None:
        """Compute every element of ``value`` into ``place``, loops ordered by its strides."""
        index, axes = self.axes(value.shape)
        order = sorted(axes, key=lambda a: _stride_rank(place, index, a))
        s = self.emitter(axes)
        element = value.at(s, index)
        s.store(place.buffer, flat(place, index), s.cast(element, value.dtype))
        self.nest(order, s, origin=value.origin, lines=value.lines)

    # --- making nests ---
    def axes(self, shape: tuple[Int, ...], kind: str = "map") -> tuple[Index, list[Axis]]:
        """An index over ``shape``, and its axes; dimensions of size 1 need none."""
        index: list[Int] = []
        axes: list[Axis] = []
        for n in shape:
            if isinstance(n, int) and n == 1:
                index.append(0)
            else:
                axes.append(Axis(self.names("x"), n, kind))
                index.append(axes[-1].symbol)
        return tuple(index), axes

    def emitter(self, axes: Iterable[Axis]) -> Emitter:
        return Emitter(self.names, {**self.program.ranges, **{a.symbol: extent(a.extent) for a in axes}})

    def nest(self, axes: Iterable[Axis], s: Emitter, **more: Any) -> Nest:
        nest = Nest(
            len(self.program.tasks), tuple(axes), tuple(s.stmts), sizes=self.program.ranges, **more
        )  # fmt: skip
        nest = split_for_division(nest, self.names)
        self.program.tasks.append(nest)
        return nest

    def value(self, node: Node, compute: Callable[[Emitter, Index], V], cost: Cost, sources: Iterable[Any] = ()) -> Value:
        """The value of ``node`` as a closure."""
        val = node.meta["val"]
        out = Value(ints(val.shape), val.dtype, compute, cost=cost, device=val.device.type, fast=self.fast)
        inlined = [v for v in sources if isinstance(v, Value) and v.place is None]
        out.origin = tuple(dict.fromkeys([n for v in inlined for n in v.origin] + [node.name]))
        out.lines = tuple(dict.fromkeys([x for v in inlined for x in v.lines] + user_lines(node)))
        return out


# --- rules by kind ---------------------------------------------------------------------------------------------------
def pointwise(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Call the row's body on the operands' elements, cast as the row's type rule says."""
    op: Op = node.target
    metas = [Meta(a.shape, a.dtype) if isinstance(a, Value) else a for a in args]
    out_dtype: DType = node.meta["val"].dtype
    types = operand_types(op, metas, out_dtype)
    rounds = op.types == "custom" or op.ufunc is not None or op.kernel is not None  # others eager computes in float32

    def compute(s: Emitter, index: Index) -> V:
        operands = [_operand(s, a, index, t, rounds, low.fast) for a, t in zip(args, types, strict=True)]
        return s.cast(op.body(s, *operands, **params), register(out_dtype, low.fast))

    cost = sum((a.cost for a in args if isinstance(a, Value)), body_cost(op, types, metas, params))
    return low.value(node, compute, cost, args)


def operand_types(op: Op, metas: list[Any], out: DType) -> list[DType | None]:
    """The type each operand is cast to; None leaves it as it is."""
    if op.types != "custom":
        return [opdef.compute_types(op, metas)[0]] * len(metas)
    if op.name == "where":
        return [None, out, out]
    return [None if isinstance(m, Meta) else out for m in metas]


def _operand(s: Emitter, a: Any, index: Index, dtype: DType | None, rounds: bool, fast: bool) -> V:
    """``a`` as ``dtype``, in its register.  Numbers and integers become a half type first, as in eager: 0.1 is another
    number there, and a floor or a remainder shows it."""
    if isinstance(a, Value):
        v = a.at(s, broadcast_index(index, a.shape))
    elif isinstance(a, bool | int | float):
        v = s.const(a, (dtype if rounds else dtype and register(dtype, fast)) or float32)
    else:
        v = s.index(a)
    if dtype is None:
        return v
    if rounds and v.dtype.kind in "iu" and v.dtype.itemsize > 1:
        v = s.cast(v, dtype)
    return s.cast(v, register(dtype, fast))


def body_cost(op: Op, types: list[DType | None], metas: list[Any], params: dict[str, Any]) -> Cost:
    """Statements of the row's body, counted by recording it once."""
    s = Emitter(Names(), {})
    operands = [
        V(f"o{n}", t or m.dtype) if isinstance(m, Meta) else V(m if isinstance(m, int | float) else 0, t or float32)
        for n, (t, m) in enumerate(zip(types, metas, strict=True))
    ]
    op.body(s, *operands, **params)
    lets = [x for x in s.stmts if isinstance(x, ir.Let)]
    return Cost(len(lets), sum(x.fn in HEAVY for x in lets))


def view(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Compose index maps; nothing is computed."""
    op: Op = node.target
    base: Value = args[0]
    val = node.meta["val"]

    def map_index(index: Index) -> Index:
        return tuple(op.body(index, base.shape, **params))

    out = Value(ints(val.shape), val.dtype, base=(base, map_index), device=base.device, fast=low.fast)
    out.origin, out.lines, out.constant = base.origin, base.lines, base.constant
    if base.place is not None:
        out.place = view_place(base.place, map_index, out.shape, low.program.ranges)
    return out


def accumulator_type(out: DType) -> DType:
    """Half types accumulate in float32; everything else in the type of the result."""
    return float32 if out.kind == "f" and out.itemsize == 2 else out


def reduction(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Join elements along ``dim``; half types in float32."""
    op: Op = node.target
    x: Value = args[0]
    val = node.meta["val"]
    dims = as_dims(params["dim"])
    if not isinstance(op.body, str) or ir.COMBINES.get(op.body) != 1:
        return extern(low, node, args, params)
    acc = accumulator_type(val.dtype)
    if all(isinstance(x.shape[d], int) and x.shape[d] == 1 for d in dims):  # one element each: nothing to join
        return unreduced(low, node, x, dims, acc)
    memory = reduced(low, node, x, dims, op.body, acc)
    return spread(low, node, memory, dims, params["keepdim"])


def as_dims(dim: Any) -> tuple[int, ...]:
    return (dim,) if isinstance(dim, int) else tuple(dim)


def reduced(low: Lowering, node: Node, x: Value, dims: tuple[int, ...], combine: str, acc: DType) -> Value:
    """Memory of the accumulator's type over the dimensions that are kept."""
    index, axes = low.axes(x.shape)
    s = low.emitter(axes)
    element = s.cast(x.at(s, index), acc)
    if acc.kind == "b":
        combine = {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(combine, combine)
    name = low.names("a")
    return reduction_nest(low, node, x, dims, (index, axes), s, ir.Init((name,), combine, (acc,)), (element,), 0)


def reduction_nest(
    low: Lowering, node: Node, x: Value, dims: tuple[int, ...], over: tuple[Index, list[Axis]], s: Emitter, init: ir.Init,
    values: tuple[V, ...], result: int,
) -> Value:  # fmt: skip
    """Kept loops outside, reduced loops inside; component ``result`` of the accumulator is stored."""
    index, axes = over
    kept = tuple(i for d, i in enumerate(index) if d not in dims)
    inner = {index[d] for d in dims}
    place = low.allocate(tuple(n for d, n in enumerate(x.shape) if d not in dims), init.dtypes[result], x.device)
    order = [a for a in axes if a.symbol not in inner]
    order += [Axis(a.name, a.extent, "reduce") for a in axes if a.symbol in inner]
    low.nest(
        order,
        s,
        init=init,
        update=ir.Update(init.names, init.combine, tuple(v.value for v in values)),
        post=(ir.Store(place.buffer, as_int(lift(flat(place, kept))), init.names[result]),),
        origin=tuple(dict.fromkeys([*(x.origin if x.place is None else ()), node.name])),
        lines=tuple(dict.fromkeys([*(x.lines if x.place is None else ()), *user_lines(node)])),
    )
    return Value(place.shape, init.dtypes[result], place=place, device=x.device, fast=low.fast)


def spread(low: Lowering, node: Node, memory: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    """The reduced memory as the row's result: cast, with the reduced dimensions back as ones if they are kept."""
    val = node.meta["val"]

    def drop(index: Index) -> Index:
        return tuple(i for d, i in enumerate(index) if d not in dims) if keepdim else index

    if memory.dtype is not val.dtype:
        return low.value(node, lambda s, index: s.cast(memory.at(s, drop(index)), register(val.dtype, low.fast)), Cost(1, 0, 1))
    shape = ints(val.shape)
    out = Value(shape, val.dtype, base=(memory, drop), device=memory.device, fast=low.fast)
    assert memory.place is not None
    out.place = view_place(memory.place, drop, shape, low.program.ranges)
    return out


def scan(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """A loop along ``dim`` that carries the running value and stores it in every iteration."""
    op: Op = node.target
    x: Value = args[0]
    val = node.meta["val"]
    acc = accumulator_type(val.dtype)
    if not x.shape or not isinstance(op.body, str) or ir.COMBINES.get(op.body) != 1:
        return extern(low, node, args, params)
    index, axes = low.axes(x.shape)
    s = low.emitter(axes)
    element = s.cast(x.at(s, index), acc)
    along = index[params["dim"]]
    if along == 0:  # a scan of one element
        return low.value(node, lambda s, i: s.cast(_joined(s, op, x.at(s, i), acc), register(val.dtype, low.fast)), x.cost, (x,))
    name = low.names("a")
    out = low.allocate(x.shape, val.dtype, x.device)
    last = low.emitter(axes)
    last.store(out.buffer, flat(out, index), last.cast(V(name, acc), val.dtype))
    order = [a for a in axes if a.symbol is not along] + [Axis(a.name, a.extent, "scan") for a in axes if a.symbol is along]
    low.nest(
        order, s, init=ir.Init((name,), op.body, (acc,)), update=ir.Update((name,), op.body, (element.value,)),
        post=tuple(last.stmts), origin=(*(x.origin if x.place is None else ()), node.name), lines=tuple(user_lines(node)),
    )  # fmt: skip
    return Value(x.shape, val.dtype, place=out, device=x.device, fast=low.fast)


def unreduced(low: Lowering, node: Node, x: Value, dims: tuple[int, ...], acc: DType) -> Value:
    """A reduction over dimensions of size 1: nothing is joined."""
    val = node.meta["val"]
    keep = len(ints(val.shape)) == len(x.shape)

    def compute(s: Emitter, index: Index) -> V:
        rest = iter(index)
        at = index if keep else tuple(0 if d in dims else next(rest) for d in range(len(x.shape)))
        return s.cast(_joined(s, node.target, x.at(s, at), acc), register(val.dtype, low.fast))

    return low.value(node, compute, x.cost + Cost(1), (x,))


def _joined(s: Emitter, op: Op, element: V, acc: DType) -> V:
    """An element by itself as an accumulator has it: a sum starts from 0.0, which -0.0 shows."""
    element = s.cast(element, acc)
    return s.add(element, s.const(0.0, acc)) if op.body == "add" and acc.kind == "f" else element


def random(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Element i is word i % 4 of counter offset + shift + i // 4, passed through the row's body."""
    op: Op = node.target
    state: Value = args[0]
    val = node.meta["val"]
    strides = contiguous(ints(val.shape))
    rest = {k: v for k, v in params.items() if k not in ("shape", "shift")}

    def compute(s: Emitter, index: Index) -> V:
        place = sum((lift(i) * st for i, st in zip(index, strides, strict=True)), lift(0))
        seed, offset = state.at(s, (0,)), state.at(s, (1,))
        counter = s.add(s.add(offset, s.index(params["shift"])), s.index(place // 4))
        word = s.philox(seed, counter, s.index(place % 4))
        return s.cast(op.body(s, word, **rest), register(val.dtype, low.fast))

    return low.value(node, compute, Cost(8, 10, 1))


def extern(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run the row's eager kernel on memory, into new buffers."""
    op: Op = node.target
    vals = node.meta["val"]
    many = isinstance(vals, tuple | list)
    places = tuple(low.memory(a) if isinstance(a, Value) else a for a in args)
    outs = []
    for v in vals if many else (vals,):
        shape = ints(v.shape)
        outs.append(low.allocate(shape, v.dtype, v.device.type, dense_strides(v, shape)))
    params = {k: v for k, v in params.items() if k != "device"}
    low.program.tasks.append(
        ExternCall(len(low.program.tasks), ir.Extern(op.name, places, tuple(outs), params, (node.name,)))
    )
    made = tuple(Value(o.shape, v.dtype, place=o, device=v.device.type, fast=low.fast) for o, v in zip(outs, vals if many else (vals,), strict=True))  # fmt: skip
    return made if many else made[0]


def relocated(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """An index row with a body moves elements as a view would, into memory of its own."""
    op: Op = node.target
    x: Value = args[0]
    return low.value(node, lambda s, index: x.at(s, tuple(op.body(index, x.shape, **params))), x.cost + Cost(1), (x,))


BY_KIND: dict[str, Rule] = {
    "pointwise": pointwise, "reduce": reduction, "scan": scan, "random": random, "view": view, "index": relocated,
}  # fmt: skip


# --- small questions -------------------------------------------------------------------------------------------------
def consumers(node: Node) -> set[Node]:
    """The nodes that compute with a value, looking through views and tuple items."""
    out: set[Node] = set()
    for user in node.users:
        target = user.target
        if user.op == "call_function" and isinstance(target, Op) and target.kind == "view":
            out |= consumers(user)
        else:
            out.add(user)
    return out


def numel(shape: tuple[Int, ...]) -> Int:
    n: Int = 1
    for s in shape:
        n = as_int(lift(n) * s)
    return n


def hint(n: Int) -> int:
    """A size as a number, for weighing only; unknown sizes count as 64."""
    return n if isinstance(n, int) else int(n.evaluate({s.name: SYMBOL_HINT for s in n.free_symbols}))


def ints(xs: Iterable[Any]) -> tuple[Int, ...]:
    return tuple(as_int(e) if (e := expr_of(x)) is not None else int(x) for x in xs)


def dense_strides(val: Any, shape: tuple[Int, ...]) -> tuple[Int, ...] | None:
    """Eager's strides if they are a permutation of contiguous ones; None means contiguous will do."""
    strides = ints(val.stride())
    real = [(s, n) for s, n in zip(strides, shape, strict=True) if not (isinstance(n, int) and n == 1)]
    step: Int = 1
    while real:
        found = next((x for x in real if lift(x[0]) is lift(step)), None)
        if found is None:
            return None
        real.remove(found)
        step = as_int(lift(step) * found[1])
    return strides


def _stride_rank(place: ArrayView, index: Index, axis: Axis) -> Any:
    """Sort key: larger strides first; symbolic strides count as large, earlier dimensions first."""
    position = index.index(axis.symbol)
    stride = place.stride[position]
    return (0, position) if not isinstance(stride, int) else (1, -stride, position)


def user_lines(node: Node) -> list[tuple[str, int, str]]:
    stack = node.meta.get("stack") or ()
    return [(f[0], f[1], f[3]) for f in tuple(stack)[-1:]]


def _is_complex(val: Any) -> bool:
    vals = val if isinstance(val, tuple | list) else (val,)
    return any(getattr(v, "dtype", None) is not None and v.dtype.is_complex for v in vals)


def fill_of(combine: str, dtype: DType) -> Any:
    """The identity of a combine as a plain number, for ``Alloc.fill``."""
    return identity(combine, (dtype,))[0].item()
