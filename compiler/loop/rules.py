"""How index and creation rows become loops: indirect loads with checks, masked loads, combining stores.

Stage: loop.  In: a node of such a row.  Out: a ``Value``.  A row without a rule here, and whose kind tells nothing, runs
as a library call, so this file is about speed and fusion, never about coverage.  Read next: ``nest``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.ir.graph import Node

from compiler.loop.emit import Emitter, Index, V
from compiler.loop.ir import Int
from compiler.loop.lower import RULES, Lowering, Rule, extern, ints, user_lines
from compiler.loop.nest import Axis
from compiler.loop.value import Cost, Value, flat, register
from compiler.sym.expr import Symbol, as_int, lift
from tinytorch.dtypes import int64


def rule(name: str) -> Callable[[Rule], Rule]:
    def add(fn: Rule) -> Rule:
        RULES[name] = fn
        return fn

    return add


# --- from nothing ----------------------------------------------------------------------------------------------------
@rule("full")
def full(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    number = params["value"]
    out = low.value(node, lambda s, index: s.const(number, out.register), Cost())
    out.constant = number if isinstance(number, bool | int | float) else None
    if out.constant is None:  # a symbolic size as a value
        out.compute = lambda s, index: s.cast(s.index(number), out.register)
    return out


@rule("empty")
def empty(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    return full(low, node, args, {"value": 0})


@rule("iota")
def iota(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    return low.value(node, lambda s, index: s.cast(s.index(index[0]), node.meta["val"].dtype), Cost(1))


# --- slices written back ---------------------------------------------------------------------------------------------
@rule("slice_backward")
def slice_backward(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Zeros with ``g`` in the place of a slice: a masked load."""
    g: Value = args[0]
    dim, start, stop, step = (params[k] for k in ("dim", "start", "stop", "step"))

    def compute(s: Emitter, index: Index) -> V:
        i = index[dim]
        inside = s.between(i, start, stop)
        if step != 1:
            inside = s.both(inside, s.eq(s.index((lift(i) - start) % step), s.index(0)))
        with s.where_only(inside):
            at = as_int((lift(i) - start) // step)
            value = g.at(s, (*index[:dim], at, *index[dim + 1 :]))
        return s.where(inside, value, s.like(0, value))

    return low.value(node, compute, g.cost + Cost(4), args)


@rule("slice_scatter")
def slice_scatter(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """``src`` where the slice is, ``x`` elsewhere: two masked loads."""
    x, src = args
    dim, start, stop, step = (params[k] for k in ("dim", "start", "stop", "step"))

    def compute(s: Emitter, index: Index) -> V:
        i = index[dim]
        inside = s.between(i, start, stop)
        if step != 1:
            inside = s.both(inside, s.eq(s.index((lift(i) - start) % step), s.index(0)))
        with s.where_only(inside):
            at = as_int((lift(i) - start) // step)
            value = s.cast(src.at(s, (*index[:dim], at, *index[dim + 1 :])), x.register)
        return s.where(inside, value, x.at(s, index))

    return low.value(node, compute, x.cost + src.cost + Cost(4), args)


# --- gather and scatter ----------------------------------------------------------------------------------------------
def checked(s: Emitter, at: V, size: Int, what: str, *, wrap: bool) -> V:
    """An index from memory, wrapped if negative and ``wrap``, and checked against ``size``."""
    at = s.cast(at, int64)
    n = s.index(size)
    if wrap:
        at = s.where(s.lt(at, s.const(0, int64)), s.add(at, n), at)
    s.check(s.both(s.ge(at, s.const(0, int64)), s.lt(at, n)), f"{what}: index out of range")
    return at


def place_of(s: Emitter, at: V) -> Int:
    return as_int(s.as_index(at))


@rule("gather")
def gather(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    x, index_of, dim = args[0], args[1], params["dim"]
    low.memory(x) if x.cost.heavy and x.constant is None and x.place is None and x.base is None else None

    def compute(s: Emitter, index: Index) -> V:
        at = checked(s, index_of.at(s, index), x.shape[dim], "gather", wrap=False)
        return x.at(s, (*index[:dim], place_of(s, at), *index[dim + 1 :]))

    return low.value(node, compute, x.cost + index_of.cost + Cost(4), args)


@rule("scatter_add")
def scatter_add(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """A copy of ``x``, then combining stores of ``src`` wherever ``index`` says."""
    x, index_of, src = args
    dim = params["dim"]
    if x.dtype.itemsize == 2 or x.dtype.kind == "b":
        return extern(low, node, args, params)  # type: ignore[no-any-return]
    out = fresh_copy(low, node, x)
    index, axes = low.axes(index_of.shape)
    s = low.emitter(axes)
    at = checked(s, index_of.at(s, index), x.shape[dim], "scatter_add", wrap=False)
    value = s.cast(src.at(s, index), x.dtype)
    assert out.place is not None
    s.store(out.place.buffer, flat(out.place, (*index[:dim], place_of(s, at), *index[dim + 1 :])), value, mode="add")
    scatter_nest(low, node, axes, s, args, out)
    return out


def fresh_copy(low: Lowering, node: Node, x: Value) -> Value:
    """Memory of our own with the elements of ``x``, to scatter into."""
    place = low.allocate(x.shape, x.dtype, x.device)
    out = Value(x.shape, x.dtype, place=place, device=x.device, fast=low.fast, origin=(node.name,))
    if x.constant is not None:
        low.program.fills[place.buffer] = x.constant
    else:
        low.write(x, place)
    return out


def scatter_nest(low: Lowering, node: Node, axes: list[Axis], s: Emitter, args: tuple[Any, ...], out: Value) -> None:
    assert out.place is not None
    origins = [n for a in args if isinstance(a, Value) and a.place is None for n in a.origin]
    low.nest(
        axes,
        s,
        origin=tuple(dict.fromkeys([*origins, node.name])),
        lines=tuple(user_lines(node)),
        final=frozenset((out.place.buffer,)),
    )
