"""Rows that join elements along dimensions: reductions and scans.

Stage: loop.  In: a node of such a row and its operand.  Out: a ``Value``: memory of the accumulator's type that a nest
fills, seen as the row's result.  What one combine does not describe runs as a library call.  Read next: ``rules``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.ir.graph import Node
from compiler.loop import ir
from compiler.loop.emit import Emitter, Index, V
from compiler.loop.lower import Lowering, extern, user_lines
from compiler.loop.nest import Axis
from compiler.loop.sizes import ints
from compiler.loop.value import Cost, Value, flat, register, view_place
from compiler.sym.expr import as_int, lift
from tinytorch.dtypes import DType, float32
from tinytorch.ops.opdef import Op


def accumulator_type(out: DType) -> DType:
    """Half types accumulate in float32; everything else in the type of the result."""
    return float32 if out.kind == "f" and out.itemsize == 2 else out


def as_dims(dim: Any) -> tuple[int, ...]:
    return (dim,) if isinstance(dim, int) else tuple(dim)


def reduction(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Join elements along ``dim``; half types in float32."""
    op: Op = node.target
    x: Value = args[0]
    val = node.meta["val"]
    dims = as_dims(params["dim"])
    if not isinstance(op.body, str) or ir.COMBINES.get(op.body) != 1:
        return extern(low, node, args, params)
    acc = accumulator_type(val.dtype)
    if _single(x, dims):
        return unreduced(low, node, x, dims, op.body, acc)
    memory = reduced(low, node, x, dims, op.body, acc)
    return spread(low, node, memory, dims, params["keepdim"])


def reduced(low: Lowering, node: Node, x: Value, dims: tuple[int, ...], combine: str, acc: DType) -> Value:
    """The accumulator's type over the dimensions that are kept: memory, unless there is nothing to join."""
    if _single(x, dims):
        shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
        return Value(shape, acc, _alone(x, dims, combine, acc), cost=x.cost + Cost(1), device=x.device, fast=low.fast)
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


def _single(x: Value, dims: tuple[int, ...]) -> bool:
    """One element each?"""
    return all(isinstance(x.shape[d], int) and x.shape[d] == 1 for d in dims)


def unreduced(low: Lowering, node: Node, x: Value, dims: tuple[int, ...], combine: str, acc: DType) -> Value:
    """A reduction over dimensions of size 1: nothing is joined."""
    val = node.meta["val"]
    keep = len(ints(val.shape)) == len(x.shape)
    alone = _alone(x, dims, combine, acc)

    def compute(s: Emitter, index: Index) -> V:
        kept = tuple(i for d, i in enumerate(index) if d not in dims) if keep else index
        return s.cast(alone(s, kept), register(val.dtype, low.fast))

    return low.value(node, compute, x.cost + Cost(1), (x,))


def _alone(x: Value, dims: tuple[int, ...], combine: str, acc: DType) -> Callable[[Emitter, Index], V]:
    """The single element at an index of the kept dimensions."""

    def compute(s: Emitter, kept: Index) -> V:
        rest = iter(kept)
        at = tuple(0 if d in dims else next(rest) for d in range(len(x.shape)))
        return _joined(s, combine, x.at(s, at), acc)

    return compute


def _joined(s: Emitter, combine: str, element: V, acc: DType) -> V:
    """An element by itself as an accumulator has it: a sum starts from 0.0, which -0.0 shows."""
    element = s.cast(element, acc)
    return s.add(element, s.const(0.0, acc)) if combine == "add" and acc.kind == "f" else element


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
        body = op.body
        return low.value(node, lambda s, i: s.cast(_joined(s, body, x.at(s, i), acc), register(val.dtype, low.fast)), x.cost, (x,))
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
