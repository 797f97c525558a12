"""Rows that make each element by itself: pointwise bodies, views, random numbers.

Stage: loop.  In: a node of such a row and its operands.  Out: a ``Value`` that wraps the operands' closures; no nest is
made here.  Read next: ``reductions``.
"""

from __future__ import annotations

from typing import Any

from compiler.ir.graph import Node
from compiler.loop import ir
from compiler.loop.emit import Emitter, Index, Names, V
from compiler.loop.lower import Lowering
from compiler.loop.sizes import ints
from compiler.loop.value import HEAVY, Cost, Value, broadcast_index, contiguous, register, view_place
from compiler.sym.expr import lift
from tinytorch.dtypes import DType, float32
from tinytorch.ops import opdef
from tinytorch.ops.opdef import Meta, Op


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


def relocated(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """An index row with a body moves elements as a view would, into memory of its own."""
    op: Op = node.target
    x: Value = args[0]
    return low.value(node, lambda s, index: x.at(s, tuple(op.body(index, x.shape, **params))), x.cost + Cost(1), (x,))


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
