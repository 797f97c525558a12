"""Algebra that is exact: rewrites that keep every bit, NaN and -0.0 included, and every type and layout.

Stage: aot.  In: a functional graph.  Out: whether it changed.  ``RULES`` maps a row to a function from a node to the
node (or nothing) that can stand for it.  ``x + 0.0`` is not here: it turns -0.0 into 0.0.  Read next: ``tidy``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.ir.graph import Graph, Node
from compiler.passes.fold import number
from compiler.passes.roots import kept
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.ops.views import view_strides

Rule = Callable[[Graph, Node], "Node | None"]


def simplify(graph: Graph) -> bool:
    changed = False
    results = kept(graph)
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, Op):
            continue
        rule = RULES.get(node.target.name)
        if rule is None or node in results:
            continue
        new = rule(graph, node)
        if new is not None and new is not node and _same_layout(node, new):
            new.meta.setdefault("stack", node.meta.get("stack") or [])
            node.replace_all_uses_with(new)
            changed = True
    return changed


def _same_layout(a: Node, b: Node) -> bool:
    x, y = a.meta["val"]._data, b.meta["val"]._data
    return bool(x.shape == y.shape and x.dtype == y.dtype and x.strides == y.strides)


def _call(graph: Graph, before: Node, name: str, *args: Any, **params: Any) -> Node:
    """A new node right before ``before``, with that node's own value: it is to replace it."""
    with graph.inserting_before(before):
        node = graph.call_function(TABLE[name], args, params)
    node.meta = dict(before.meta)
    return node


def _target(x: Any) -> str:
    return x.target.name if isinstance(x, Node) and isinstance(x.target, Op) else ""


def _itself(graph: Graph, node: Node) -> Node:
    return node.args[0]  # type: ignore[no-any-return]


def _cast(graph: Graph, node: Node) -> Node | None:
    x = node.args[0]
    return x if x.meta["val"].dtype is node.kwargs["dtype"] else None


def _permute(graph: Graph, node: Node) -> Node | None:
    x, dims = node.args[0], node.kwargs["dims"]
    if _target(x) == "permute":
        inner = x.kwargs["dims"]
        dims, x = tuple(inner[d] for d in dims), x.args[0]
        if dims != tuple(range(len(dims))):
            return _call(graph, node, "permute", x, dims=dims)
    return x if dims == tuple(range(len(dims))) else None


def _view(graph: Graph, node: Node) -> Node | None:
    x, shape = node.args[0], node.kwargs["shape"]
    if tuple(x.meta["val"]._data.shape) == tuple(shape):
        return x  # type: ignore[no-any-return]
    if _target(x) == "view":
        first = x.args[0]
        if tuple(first.meta["val"]._data.shape) == tuple(shape):
            return first  # type: ignore[no-any-return]
        val = first.meta["val"]
        if view_strides(tuple(val._data.shape), val.stride(), tuple(shape)) is not None:
            return _call(graph, node, "view", first, shape=shape)
    return None


def _expand(graph: Graph, node: Node) -> Node | None:
    x, shape = node.args[0], node.kwargs["shape"]
    if tuple(x.meta["val"]._data.shape) == tuple(shape):
        return x  # type: ignore[no-any-return]
    return _call(graph, node, "expand", x.args[0], shape=shape) if _target(x) == "expand" else None


def _slice(graph: Graph, node: Node) -> Node | None:
    p = node.kwargs
    size = node.args[0].meta["val"]._data.shape[p["dim"]]
    whole = isinstance(p["start"], int) and p["start"] == 0 and p["step"] == 1 and _equal(p["stop"], size)
    return node.args[0] if whole else None


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _neutral(value: float, *, left: bool) -> Rule:
    """``x op value`` is x (and ``value op x`` where ``left``); the sign of a zero counts."""

    def rule(graph: Graph, node: Node) -> Node | None:
        x, y = node.args
        if isinstance(x, Node) and _is_number(y, value):
            return x
        return y if left and isinstance(y, Node) and _is_number(x, value) else None

    return rule


def _is_number(x: Any, value: float) -> bool:
    n = number(x)
    return n is not None and str(float(n)) == str(value)


def _conj(graph: Graph, node: Node) -> Node | None:
    x = node.args[0]
    return x if isinstance(x, Node) and not x.meta["val"].dtype.is_complex else None


def _neg(graph: Graph, node: Node) -> Node | None:
    x = node.args[0]
    return x.args[0] if _target(x) == "neg" else None


RULES: dict[str, Rule] = {
    "cast": _cast,
    "clone": _itself,
    "contiguous": _itself,
    "permute": _permute,
    "view": _view,
    "expand": _expand,
    "slice": _slice,
    "mul": _neutral(1.0, left=True),
    "div": _neutral(1.0, left=False),
    "sub": _neutral(0.0, left=False),
    "add": _neutral(-0.0, left=True),
    "neg": _neg,
    "conj": _conj,
}
