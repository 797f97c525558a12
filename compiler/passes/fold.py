"""Constant folding: a pointwise row of numbers is computed now, by eager's own kernel, so its bits are eager's.

Stage: aot.  In: a functional graph.  Out: whether it changed.  A value counts as a number if it is one everywhere:
``full``, and views of it.  The result is a ``full`` of the same shape.  Read next: ``simplify``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.passes.roots import kept
from tinytorch import dispatch
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor


def fold(graph: Graph) -> bool:
    """Fold what can be; results of the graph stay, since each is memory of its own that a ``full`` must still fill."""
    changed = False
    results = kept(graph)
    for node in graph.nodes:
        if node in results or not _is_pointwise(node):
            continue
        value = _value(node)
        if value is None:
            continue
        val = node.meta["val"]
        with graph.inserting_before(node):
            new = graph.call_function(
                TABLE["full"], (), {"shape": tuple(val.shape), "value": value, "dtype": val.dtype, "device": val.device}
            )
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        changed = True
    return changed


def _is_pointwise(node: Node) -> bool:
    """A pointwise call whose result lies in memory as a ``full`` would, of a real type."""
    if node.op != "call_function" or not isinstance(node.target, Op) or node.target.kind != "pointwise":
        return False
    val = node.meta["val"]
    if not isinstance(val, Tensor) or val.dtype.is_complex or not all(isinstance(n, int) for n in val.shape):
        return False
    return bool(val.is_contiguous())


def number(x: Any) -> Any:
    """The number that ``x`` is everywhere, or None."""
    if isinstance(x, bool | int | float):
        return x
    if not isinstance(x, Node) or not isinstance(x.target, Op):
        return None
    if x.target.kind == "view":
        return number(x.args[0])
    if x.target.name != "full":
        return None
    value = x.kwargs["value"]
    return value if isinstance(value, bool | int | float) else None


def _value(node: Node) -> Any:
    """What the row makes of its numbers; None if some operand is no number."""
    args: list[Any] = []
    for a in node.args:
        n = number(a)
        if n is None:
            return None
        args.append(n if not isinstance(a, Node) else Tensor._wrap(_one(n, a), a.meta["val"].device))
    if not any(isinstance(a, Tensor) for a in args):
        return None
    with dispatch.use(None), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = node.target(*args, **node.kwargs)._data  # type: ignore[operator]
    x = out.reshape(-1)[0]
    if out.dtype.kind == "b":
        return bool(x)
    if out.dtype.kind in "iu":
        return int(x)
    return float(x)


def _one(n: Any, like: Node) -> Any:
    """An array of one such number, of the rank that keeps promotion as it was."""
    val = like.meta["val"]
    return np.full((1,) * len(val.shape), n, val.dtype.np)
