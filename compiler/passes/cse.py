"""Common subexpressions: equal calls on equal arguments become one node.

Stage: aot.  In: a functional graph.  Out: whether it changed.  Every row is a function, random ones too (of their state
and place in the stream), so equal calls have equal values.  Two *results* stay two nodes.  Read next: ``simplify``.
"""

from __future__ import annotations

import struct
from typing import Any

from compiler.ir.graph import Graph, Node
from compiler.passes.roots import kept
from tinytorch.ops.opdef import Op


def merge_equal(graph: Graph) -> bool:
    changed = False
    results = kept(graph)
    seen: dict[Any, Node] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        key = (node.op, node.target, freeze(node.args), freeze(node.kwargs))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if node in results:
            if first in results and not _is_view(node):
                continue
            results.add(first)
        if "recompute" not in node.meta:  # one of the two is outside of all checkpointed regions
            first.meta.pop("recompute", None)
        node.replace_all_uses_with(first)
        graph.erase_node(node)
        changed = True
    return changed


def _is_view(node: Node) -> bool:
    return isinstance(node.target, Op) and node.target.kind == "view"


def freeze(x: Any) -> Any:
    """A hashable that is equal only for arguments of equal meaning: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(x, Node):
        return x
    if isinstance(x, tuple | list):
        return (type(x).__name__, *(freeze(a) for a in x))
    if isinstance(x, dict):
        return tuple((k, freeze(v)) for k, v in x.items())
    if isinstance(x, slice):
        return ("slice", freeze(x.start), freeze(x.stop), freeze(x.step))
    if isinstance(x, float):
        return ("float", struct.pack("d", x))
    try:
        hash(x)
    except TypeError:
        return ("id", id(x))
    return (type(x).__name__, x)
