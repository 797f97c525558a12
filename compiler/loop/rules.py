"""The rules: one per kind of row, and how index and creation rows become loops: indirect loads, masks, combining stores.

Stage: loop.  In: a node of such a row.  Out: a ``Value``.  A row without a rule here, and whose kind tells nothing, runs
as a library call, so this file is about speed and fusion, never about coverage.  Read next: ``nest``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from compiler.ir.graph import Node
from compiler.loop import ir, pointwise, reductions
from compiler.loop.emit import Emitter, Index, V
from compiler.loop.ir import ArrayView, Int
from compiler.loop.lower import BY_KIND, RULES, Lowering, Rule, extern, user_lines
from compiler.loop.nest import Axis
from compiler.loop.reductions import accumulator_type, as_dims, reduced, reduction_nest, spread
from compiler.loop.sizes import dense_strides, ints
from compiler.loop.value import Cost, Value, broadcast_index, flat, register
from compiler.sym.expr import as_int, lift
from tinytorch.dtypes import int64, uint8
from tinytorch.ops.opdef import broadcast_shapes

BY_KIND.update({
    "pointwise": pointwise.pointwise, "view": pointwise.view, "index": pointwise.relocated, "random": pointwise.random,
    "reduce": reductions.reduction, "scan": reductions.scan,
})  # fmt: skip


def rule(name: str) -> Callable[[Rule], Rule]:
    def add(fn: Rule) -> Rule:
        RULES[name] = fn
        return fn

    return add


# --- from nothing ----------------------------------------------------------------------------------------------------
@rule("full")
def full(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    number = params["value"]
    out = low.value(node, lambda s, index: s.cast(s.const(number, out.dtype), out.register), Cost())
    out.constant = number if isinstance(number, bool | int | float) else None
    if out.constant is None:  # a symbolic size as a value
        out.compute = lambda s, index: s.cast(s.index(number), out.register)
    return out


@rule("empty")
def empty(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    return low.value(node, lambda s, index: s.like(0, V(0, node.meta["val"].dtype)), Cost())


@rule("iota")
def iota(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    return low.value(node, lambda s, index: s.cast(s.index(index[0]), node.meta["val"].dtype), Cost(1))


# --- slices written back ---------------------------------------------------------------------------------------------
@rule("slice_backward")
def slice_backward(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Zeros with ``g`` in the place of a slice: a masked load."""
    g: Value = args[0]
    dim, start, step = params["dim"], params["start"], params["step"]

    def compute(s: Emitter, index: Index) -> V:
        inside = in_slice(s, index[dim], params)
        with s.where_only(inside):
            at = as_int((lift(index[dim]) - start) // step)
            value = g.at(s, (*index[:dim], at, *index[dim + 1 :]))
        return s.let("where", (inside, value, s.like(0, value)))

    return low.value(node, compute, g.cost + Cost(4), args)


@rule("slice_scatter")
def slice_scatter(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """``src`` where the slice is, ``x`` elsewhere: two masked loads."""
    x, src = args
    dim, start, step = params["dim"], params["start"], params["step"]

    def compute(s: Emitter, index: Index) -> V:
        inside = in_slice(s, index[dim], params)
        with s.where_only(inside):
            at = as_int((lift(index[dim]) - start) // step)
            value = s.cast(src.at(s, (*index[:dim], at, *index[dim + 1 :])), x.register)
        return s.where(inside, value, x.at(s, index))

    return low.value(node, compute, x.cost + src.cost + Cost(4), args)


def in_slice(s: Emitter, i: Int, params: dict[str, Any]) -> V:
    """Is place ``i`` one that ``start:stop:step`` names?"""
    start, stop, step = params["start"], params["stop"], params["step"]
    inside = s.between(i, start, stop)
    return inside if step == 1 else s.both(inside, s.eq(s.index((lift(i) - start) % step), s.index(0)))


@rule("cat")
def cat(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Each piece is computed straight into its part of the result."""
    dim = params["dim"]
    val = node.meta["val"]
    shape = ints(val.shape)
    out = low.allocate(shape, val.dtype, val.device.type, dense_strides(val, shape))
    start: Int = 0
    for x in args:
        place = dataclasses.replace(out, shape=x.shape, offset=as_int(lift(start) * out.stride[dim]))
        piece = Value(x.shape, val.dtype, x.at, device=x.device, fast=low.fast, origin=(*x.origin, node.name))
        piece.lines = tuple(dict.fromkeys([*x.lines, *user_lines(node)]))
        if not (isinstance(x.shape[dim], int) and x.shape[dim] == 0):
            low.write(piece, place)
        start = start + x.shape[dim]
    return Value(shape, val.dtype, place=out, device=val.device.type, fast=low.fast)


@rule("as_strided")
def as_strided(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Another look at the same memory, which therefore must exist."""
    x: Value = args[0]
    place = low.memory(x)
    offset = as_int(lift(place.offset) + params["offset"])
    look = ArrayView(place.buffer, tuple(params["shape"]), tuple(params["stride"]), offset)
    return Value(look.shape, x.dtype, place=look, device=x.device, fast=low.fast)


# --- reductions with more than one accumulator -----------------------------------------------------------------------
def arg_extreme(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    x: Value = args[0]
    if not x.shape or (isinstance(x.shape[params["dim"]], int) and x.shape[params["dim"]] == 1):
        return low.value(node, lambda s, index: s.const(0, int64), Cost())
    dims = (params["dim"],)
    over = low.axes(x.shape)
    s = low.emitter(over[1])
    element = x.at(s, over[0])
    if element.dtype.kind == "b":
        element = s.cast(element, uint8)
    names = (low.names("a"), low.names("a"))
    init = ir.Init(names, node.target.body, (element.dtype, int64))
    where = s.index(over[0][dims[0]])
    memory = reduction_nest(low, node, x, dims, over, s, init, (element, where), 1)
    return spread(low, node, memory, dims, params["keepdim"])


RULES["argmax"] = RULES["argmin"] = arg_extreme


@rule("var")
def var(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Two passes, as eager: the mean, then the squares around it.  The row is in cache by then."""
    x: Value = args[0]
    val = node.meta["val"]
    dims = as_dims(params["dim"])
    acc = accumulator_type(val.dtype)
    if x.place is None and (x.cost.heavy or x.cost.loads > 1):
        low.memory(x)
    count: Int = 1
    for d in dims:
        count = as_int(lift(count) * x.shape[d])
    total = reduced(low, node, x, dims, "add", acc)

    def square(s: Emitter, index: Index) -> V:
        kept = tuple(i for d, i in enumerate(index) if d not in dims)
        mean = s.div(total.at(s, kept), s.cast(s.index(count), acc))
        away = s.sub(s.cast(x.at(s, index), acc), mean)
        return s.mul(away, away)

    squares = Value(x.shape, acc, square, cost=x.cost + Cost(4, 1, 1), device=x.device, fast=low.fast, origin=x.origin)
    around = reduced(low, node, squares, dims, "add", acc)

    def compute(s: Emitter, index: Index) -> V:
        kept = tuple(i for d, i in enumerate(index) if d not in dims) if params["keepdim"] else index
        n = s.cast(s.index(count), acc)
        left = s.maximum(s.sub(n, s.const(float(params["correction"]), acc)), s.const(0.0, acc))
        return s.cast(s.div(around.at(s, kept), left), register(val.dtype, low.fast))

    return low.value(node, compute, Cost(4, 1, 1))


# --- gather and scatter ----------------------------------------------------------------------------------------------
def checked(s: Emitter, at: V, size: Int, message: str, *, wrap: bool) -> V:
    """An index from memory, checked against ``size``; negative ones count from the end if ``wrap``."""
    at = s.cast(at, int64)
    n, zero = s.index(size), s.const(0, int64)
    low = s.neg(n) if wrap else zero
    if at.value in s.exprs:  # arange and the like: the ranges may tell
        e = s.exprs[str(at.value)]
        inside = s.between(e, 0, size)
        if inside.known and inside.value:
            return at
    s.check(s.both(s.ge(at, low), s.lt(at, n)), message, at)
    return s.where(s.lt(at, zero), s.add(at, n), at) if wrap else at


def out_of_bounds(dim: int, size: Int) -> str:
    """Eager's message."""
    return f"index {{}} is out of bounds for dimension {dim} with size {size}"


def place_of(s: Emitter, at: V) -> Int:
    return as_int(s.as_index(at))


@rule("gather")
def gather(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    x: Value = args[0]
    index_of: Value = args[1]
    dim = params["dim"]
    if not x.shape:
        return extern(low, node, args, params)  # type: ignore[no-any-return]
    message = out_of_bounds(dim, x.shape[dim])

    def compute(s: Emitter, index: Index) -> V:
        at = checked(s, index_of.at(s, index), x.shape[dim], message, wrap=False)
        return x.at(s, (*index[:dim], place_of(s, at), *index[dim + 1 :]))

    return low.value(node, compute, x.cost + index_of.cost + Cost(4), args)


@rule("scatter_add")
def scatter_add(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """A copy of ``x``, then combining stores of ``src`` wherever ``index`` says."""
    x, index_of, src = args
    dim = params["dim"]
    if one_each(x, index_of, dim):
        return put_one_each(low, node, args, dim, lambda s, old, new: s.add(old, new))
    if not addable(x) or not x.shape:
        return extern(low, node, args, params)  # type: ignore[no-any-return]
    out = fresh_copy(low, node, x)
    index, axes = low.axes(index_of.shape)
    s = low.emitter(axes)
    at = checked(s, index_of.at(s, index), x.shape[dim], out_of_bounds(dim, x.shape[dim]), wrap=False)
    store_at(s, out, (*index[:dim], place_of(s, at), *index[dim + 1 :]), src.at(s, index))
    scatter_nest(low, node, axes, s, args, out)
    return out


@rule("scatter")
def scatter(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Of several writes to one place the last must win, and loops have no last iteration: a library call."""
    if one_each(args[0], args[1], params["dim"]):
        return put_one_each(low, node, args, params["dim"], lambda s, old, new: new)
    return extern(low, node, args, params)


def one_each(x: Value, index_of: Value, dim: int) -> bool:
    """Does a scatter write exactly one element of every line along ``dim``?"""
    return bool(x.shape) and all(
        (isinstance(n, int) and n == 1) if d == dim else lift(n) is lift(m)
        for d, (n, m) in enumerate(zip(index_of.shape, x.shape, strict=True))
    )


def put_one_each(
    low: Lowering, node: Node, args: tuple[Any, ...], dim: int, put: Callable[[Emitter, V, V], V]
) -> Value:
    """A scatter turned round: every element asks whether it is the one that is written."""
    x, index_of, src = args

    def compute(s: Emitter, index: Index) -> V:
        line = (*index[:dim], 0, *index[dim + 1 :])
        at = checked(s, index_of.at(s, line), x.shape[dim], out_of_bounds(dim, x.shape[dim]), wrap=False)
        old = x.at(s, index)
        return s.where(s.eq(at, s.index(index[dim])), put(s, old, src.at(s, line)), old)

    return low.value(node, compute, x.cost + src.cost + Cost(5), args)


@rule("index_select")
def index_select(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    x: Value = args[0]
    index_of: Value = args[1]
    dim = params["dim"]
    rank = len(index_of.shape)

    def compute(s: Emitter, index: Index) -> V:
        at = checked(s, index_of.at(s, index[dim : dim + rank]), x.shape[dim], "index out of range in self", wrap=False)
        return x.at(s, (*index[:dim], place_of(s, at), *index[dim + rank :]))

    return low.value(node, compute, x.cost + index_of.cost + Cost(4), args)


@rule("index_add")
def index_add(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    x, index_of, src = args
    dim, rank = params["dim"], len(index_of.shape)
    if not addable(x):
        return extern(low, node, args, params)  # type: ignore[no-any-return]
    out = fresh_copy(low, node, x)
    index, axes = low.axes(src.shape)
    s = low.emitter(axes)
    at = checked(s, index_of.at(s, index[dim : dim + rank]), x.shape[dim], "index out of range in self", wrap=False)
    store_at(s, out, (*index[:dim], place_of(s, at), *index[dim + rank :]), src.at(s, index))
    scatter_nest(low, node, axes, s, args, out)
    return out


def places_at(s: Emitter, x: Value, indices: tuple[Value, ...], index: Index, dim: int) -> Index:
    """Where advanced indexing looks: the index tensors, broadcast together, take the place of their dimensions."""
    rank = max(len(i.shape) for i in indices)
    middle = index[dim : dim + rank]
    found = []
    for d, i in enumerate(indices, dim):
        at = checked(s, i.at(s, broadcast_index(middle, i.shape)), x.shape[d], out_of_bounds(d, x.shape[d]), wrap=True)
        found.append(place_of(s, at))
    return (*index[:dim], *found, *index[dim + rank :])


@rule("index")
def index(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    x, *indices = args
    cost = sum((i.cost for i in indices), x.cost + Cost(6 * len(indices)))
    return low.value(node, lambda s, at: x.at(s, places_at(s, x, tuple(indices), at, params["dim"])), cost, args)


@rule("index_put")
def index_put(low: Lowering, node: Node, args: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """Accumulating only: of plain writes to one place the last must win, and loops have no last iteration."""
    x, values, *indices = args
    dim = params["dim"]
    if not params["accumulate"] or not addable(x):
        return extern(low, node, args, params)  # type: ignore[no-any-return]
    middle = broadcast_shapes(*(i.shape for i in indices))
    out = fresh_copy(low, node, x)
    at, axes = low.axes((*x.shape[:dim], *map(as_int, middle), *x.shape[dim + len(indices) :]))
    s = low.emitter(axes)
    place = places_at(s, x, tuple(indices), at, dim)
    store_at(s, out, place, values.at(s, broadcast_index(at, values.shape)))
    scatter_nest(low, node, axes, s, args, out)
    return out


def addable(x: Value) -> bool:
    """Can a combining store add to it?  Half types round at every step and bools do not add."""
    return x.dtype.itemsize > 2 and not x.dtype.is_complex


def store_at(s: Emitter, out: Value, index: Index, value: V) -> None:
    assert out.place is not None
    s.store(out.place.buffer, flat(out.place, index), s.cast(value, out.dtype), mode="add")


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
