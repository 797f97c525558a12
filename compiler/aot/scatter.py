"""Writes through views as functions: the block's next value from its last.

Stage: aot.  In: the node of a block's value, a chain of view rows, the node written there.  Out: a node.
A permutation or a reshape is undone; a slice is laid over what was there; whatever else a view may be, the places it
shows are found by looking at an iota through it.  Read next: ``trace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytorch import dtypes
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.ops.views import contiguous_strides, inverse, numel

if TYPE_CHECKING:
    from compiler.aot.trace import Chain, Tracer
    from compiler.ir.graph import Node


def put(tracer: Tracer, block: Node, chain: Chain, value: Node) -> Node:
    """``block`` with ``value`` in the place that ``chain`` shows."""
    if not chain:
        return laid_out(tracer, value, block.meta["val"]._data)
    if any(op.name in SHOW_TWICE for op, _ in chain):
        return laid_out(tracer, _through(tracer, block, chain, value), block.meta["val"]._data)
    seen = [block]
    for op, params in chain[:-1]:
        seen.append(look(tracer, op, seen[-1], params))
    for (op, params), before in zip(reversed(chain), reversed(seen), strict=True):
        value = RULES.get(op.name, _by_index)(tracer, op, before, value, params)
    return laid_out(tracer, value, block.meta["val"]._data)


def look(tracer: Tracer, op: Op, node: Node, params: dict[str, Any]) -> Node:
    """The view of a value; a value laid out otherwise than the memory it stands for is copied first."""
    if op.name == "view" and tuple(params["shape"]) == tuple(node.meta["val"]._data.shape):
        return node
    try:
        return tracer.emit(op, node, **params)
    except RuntimeError:
        if op.name != "view":
            raise
        return tracer.emit(op, tracer.emit(TABLE["contiguous"], node), **params)


def laid_out(tracer: Tracer, node: Node, like: Any) -> Node:
    """``node`` in memory as ``like`` lies, where that is dense; else as it is."""
    have = node.meta["val"]._data
    if have.strides == like.strides or have.shape != like.shape:
        return node
    order = tuple(sorted(range(len(like.shape)), key=lambda d: (-_number(like.strides[d]), d)))
    dense = contiguous_strides(tuple(like.shape[d] for d in order))
    if any(s != like.strides[d] // like.dtype.itemsize for s, d in zip(dense, order, strict=True)):
        return node
    node = tracer.emit(TABLE["permute"], node, dims=order)
    node = tracer.emit(TABLE["contiguous"], node)
    return tracer.emit(TABLE["permute"], node, dims=inverse(order))


def _number(size: Any) -> int:
    return int(size) if isinstance(size, int) else int(getattr(size, "hint", 1) or 1)


# --- one rule per view row: (the value before, the part's new value) to the new value -----------------------------------
def _permute(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
    return tracer.emit(op, value, dims=inverse(params["dims"]))


def _view(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
    return look(tracer, TABLE["view"], value, {"shape": tuple(before.meta["val"]._data.shape)})


def _reinterpret(back: str) -> Any:
    """Views that read elements as another type: undone by the opposite one."""

    def rule(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
        params = {"dtype": before.meta["val"].dtype} if back == "bitcast" else {}
        return tracer.emit(TABLE[back], value, **params)

    return rule


def _slice(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
    whole = before.meta["val"]._data.shape[params["dim"]]
    if params["start"] == 0 and params["stop"] == whole and params["step"] == 1:
        return value
    return tracer.emit(TABLE["slice_scatter"], before, value, **params)


def _select(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
    dim, index = params["dim"], params["index"]
    shape = value.meta["val"]._data.shape
    one = look(tracer, TABLE["view"], value, {"shape": (*shape[:dim], 1, *shape[dim:])})
    return _slice(tracer, op, before, one, {"dim": dim, "start": index, "stop": index + 1, "step": 1})


def _by_index(tracer: Tracer, op: Op, before: Node, value: Node, params: dict[str, Any]) -> Node:
    return _through(tracer, before, ((op, params),), value)


def _through(tracer: Tracer, before: Node, chain: Chain, value: Node) -> Node:
    """Any view: look at the numbers of the elements through it, and put the value where they say."""
    val = before.meta["val"]
    shape = tuple(val._data.shape)
    n = numel(shape)
    numbers = tracer.emit(TABLE["iota"], size=n, dtype=dtypes.int64, device=val.device)
    numbers = tracer.emit(TABLE["view"], numbers, shape=shape)
    numbers = tracer.replay(laid_out(tracer, numbers, val._data), chain)
    m = numel(tuple(value.meta["val"]._data.shape))
    flat = [look(tracer, TABLE["view"], x, {"shape": (k,)}) for x, k in ((before, n), (numbers, m), (value, m))]
    return look(tracer, TABLE["view"], tracer.emit(TABLE["scatter"], *flat, dim=0), {"shape": shape})


#: views in which one element may be seen in several places: undone step by step, these places would come apart
SHOW_TWICE = frozenset({"expand", "unfold", "as_strided"})

RULES = {
    "permute": _permute,
    "view": _view,
    "unsqueeze": _view,
    "squeeze": _view,
    "view_as_real": _reinterpret("view_as_complex"),
    "view_as_complex": _reinterpret("view_as_real"),
    "bitcast": _reinterpret("bitcast"),
    "slice": _slice,
    "select": _select,
}
