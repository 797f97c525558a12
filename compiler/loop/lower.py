"""From a functional graph to loop nests: each value becomes a closure, each closure that must be stored a ``Nest``.

Stage: loop.  In: a ``GraphModule`` whose calls are op rows.  Out: a ``Program``: buffers, nests and extern calls in
order.  Pointwise rows and views only wrap closures; reductions, random states, scatters and what many read become
memory.  How a row becomes loops is looked up in tables, which ``rules`` fills.  Nothing here decides what shares a
kernel.  Read next: ``pointwise``, ``reductions``, ``rules`` (the rows), ``nest``, ``fuse``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from compiler.ir.graph import Node
from compiler.loop import ir
from compiler.loop.emit import Emitter, Index, V
from compiler.loop.ir import ArrayView, Buffer, Int
from compiler.loop.nest import Axis, Nest, split_for_division
from compiler.loop.program import ExternCall, Program
from compiler.loop.sizes import dense_strides, hint, ints, numel
from compiler.loop.value import Cost, Value, contiguous, flat, view_place
from compiler.sym.expr import as_int, expr_of, lift
from compiler.sym.ranges import Interval, extent
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import Op

#: A value read by several is recomputed by each if it costs no more than this, else stored.
CHEAP = Cost(ops=3, heavy=0, loads=1)
#: A closure larger than this is stored, which also bounds recursion.
LARGEST = Cost(ops=64, heavy=16, loads=24)
#: A reader of less than one element in so many is no reason to store a value.
FEW = 4
Rule = Callable[["Lowering", Node, tuple[Any, ...], dict[str, Any]], Any]
#: name of a row -> how it becomes loops, for rows whose kind alone does not tell
RULES: dict[str, Rule] = {}
#: kind of a row -> how all others of that kind do
BY_KIND: dict[str, Rule] = {}


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
