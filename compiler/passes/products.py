"""A sum of narrow products is one product of longer operands.

Stage: loop, before lowering.  In: a functional graph.  Out: whether it changed.  The gradient of a weight that every step
of a recurrent net uses is a sum of as many products, each of a whole weight's size and only a batch deep: writing and
adding those costs more than the products do.  With the factors laid end to end, ``x1 y1 + x2 y2 + ...`` is
``[x1 x2 ...] [y1; y2; ...]``.  It rounds in another order, so only where not every rounding must be eager's; and
only where the factors are small beside the products, or the copies would cost what they save.  Read next: ``roots``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.fake import FakeInterp
from compiler.ir import meta
from compiler.ir.graph import Graph, Node
from compiler.passes.roots import is_call, kept
from tinytorch import dispatch, tape
from tinytorch.ops.opdef import TABLE

#: Fewer products are not worth two copies.
FEWEST = 4


def lay_end_to_end(graph: Graph) -> bool:
    changed = False
    results = kept(graph)
    inside: set[Node] = set()  # additions of a sum that was met at its last one
    for node in reversed(list(graph.nodes)):
        if not is_call(node, "add") or node in inside or not node.meta["val"].is_contiguous():
            continue
        products = _products(node, inside, results)
        if products is not None and len(products) >= FEWEST and _narrow(products):
            node.replace_all_uses_with(_longer(graph, node, products))
            changed = True
    return changed


def _products(node: Node, inside: set[Node], results: set[Node]) -> list[Node] | None:
    """The products of matrices that a tree of additions sums, in program order; None if it sums something else."""
    found: list[Node] = []
    todo: list[Any] = [node]
    within: set[Node] = set()
    while todo:
        x = todo.pop()
        own = x is node or (isinstance(x, Node) and len(x.users) == 1 and x not in results)
        if own and is_call(x, "add") and _like(x, node):
            within.add(x)
            todo += x.args
        elif own and is_call(x, "matmul") and _like(x, node) and all(len(_shape(a)) == 2 for a in x.args):
            found.append(x)
        else:
            return None
    inside |= within
    return found[::-1]


def _shape(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _like(x: Node, node: Node) -> bool:
    val, want = x.meta["val"], node.meta["val"]
    return tuple(val.shape) == tuple(want.shape) and val.dtype is want.dtype and val.dtype.is_floating_point


def _narrow(products: Sequence[Node]) -> bool:
    """Are a product's two factors, copied, less than the product, written and added?  Sizes that vary count as first seen."""
    for p in products:
        x, y = ([meta.hint(n) for n in _shape(a)] for a in p.args)
        if x[0] * x[1] + y[0] * y[1] > x[0] * y[1]:
            return False
    return True


def _longer(graph: Graph, node: Node, products: Sequence[Node]) -> Node:
    left, right = [p.args[0] for p in products], [p.args[1] for p in products]
    with graph.inserting_before(node), dispatch.use(FakeInterp()), tape.grad_mode(False):
        if all(is_call(x, "permute") and tuple(x.kwargs["dims"]) == (1, 0) for x in left):
            # turned factors lie end to end as they were before they were turned, row after row
            x = _call(graph, node, "permute", _call(graph, node, "cat", *(x.args[0] for x in left), dim=0), dims=(1, 0))
        else:
            x = _call(graph, node, "cat", *left, dim=1)
        new = _call(graph, node, "matmul", x, _call(graph, node, "cat", *right, dim=0))
    new.meta = dict(node.meta)
    return new


def _call(graph: Graph, like: Node, name: str, *args: Node, **params: Any) -> Node:
    new = graph.call_function(TABLE[name], args, params)
    new.meta = {**like.meta, "val": TABLE[name](*(a.meta["val"] for a in args), **params)}
    return new
