"""A sum of padded pieces that do not overlap is a concatenation.

Stage: aot.  In: a functional graph.  Out: whether it changed.  The gradient of many slices of one tensor is a sum of as
many full-sized tensors, nearly all zeros: n slices cost n * n.  Put side by side they cost n.  Each piece still has 0.0
added once, for that is what the sum did to it: it turns -0.0 into 0.0.  Where only sums and matrix products read the result,
which start from 0.0 themselves, nobody could tell; then a piece that a library call makes (attention's gradients of q, k and
v) can be written where it belongs right away (``loop.placing``), so there any number of pieces is worth it.
Read next: ``tidy``.
"""

from __future__ import annotations

import operator
from typing import Any

from compiler.fake import FakeInterp
from compiler.ir.graph import Graph, Node
from compiler.passes.roots import is_call, kept
from compiler.sym.expr import as_int, expr_of
from tinytorch import dispatch, tape
from tinytorch.ops.opdef import TABLE, Op

#: Fewer pieces are as well masked in one loop, where what reads them may join.
FEWEST = 4
#: Rows that join their elements to a 0.0, so that a -0.0 among those cannot be seen.
FROM_ZERO = ("sum", "matmul")


def put_side_by_side(graph: Graph) -> bool:
    changed = False
    results = kept(graph)
    inside: set[Node] = set()  # additions of a sum that was met at its last one
    for node in reversed(list(graph.nodes)):
        if not is_call(node, "add") or node in results or node in inside or not node.meta["val"].is_contiguous():
            continue
        pieces = _pieces(node, inside)
        if pieces is None or not _cover(pieces):
            continue
        unseen = _zeros_alike(node, results)
        if len(pieces) >= FEWEST or (unseen and any(_by_library(p.args[0]) for p in pieces)):
            _replace(graph, node, pieces, unseen)
            changed = True
    return changed


def _zeros_alike(node: Node, results: set[Node]) -> bool:
    """Do only sums and products read it (as another type, another view), to which -0.0 is 0.0?"""
    if node in results:
        return False
    for user in node.users:
        if not isinstance(user.target, Op):
            return False
        through = user.target.kind == "view" or user.target.name in ("contiguous", "cast")
        if user.target.name not in FROM_ZERO and not (through and _zeros_alike(user, results)):
            return False
    return True


def _by_library(x: Node) -> bool:
    """Does a library call make it, for nobody else?"""
    while isinstance(x.target, Op) and x.target.kind == "view" and len(x.users) == 1:
        x = x.args[0]
    made = x.args[0] if x.target is operator.getitem else x
    return len(x.users) == 1 and isinstance(made.target, Op) and made.target.kind in ("extern", "contract")


def _pieces(node: Node, inside: set[Node]) -> list[Node] | None:
    """The padded slices that a tree of additions sums, all along one dimension; None if it sums something else."""
    found: list[Node] = []
    todo: list[Any] = [node]
    within: set[Node] = set()
    while todo:
        x = todo.pop()
        if is_call(x, "slice_backward") and x.kwargs["step"] == 1:
            found.append(x)
        elif is_call(x, "add") and (x is node or len(x.users) == 1):
            within.add(x)
            todo += x.args
        else:
            return None
    inside |= within
    first = found[0]
    alike = all(
        p.kwargs["dim"] == first.kwargs["dim"] and _layout(p) == _layout(node) and _numbers(p) for p in found
    )
    return found if alike else None


def _layout(node: Node) -> Any:
    data = node.meta["val"]._data
    return tuple(data.shape), data.dtype, tuple(data.strides)


def _bounds(piece: Node) -> tuple[Any, ...]:
    """Where it starts and stops, and the size of the whole."""
    found = ((expr_of(x), x) for x in (piece.kwargs[k] for k in ("start", "stop", "size")))
    return tuple(x if e is None else as_int(e) for e, x in found)


def _numbers(piece: Node) -> bool:
    return all(isinstance(x, int) for x in _bounds(piece))


def _cover(pieces: list[Node]) -> bool:
    """Do they fill the dimension, each place once?"""
    at = 0
    for start, stop, _ in sorted(map(_bounds, pieces)):
        if start != at:
            return False
        at = stop
    return bool(at == _bounds(pieces[0])[2])


def _replace(graph: Graph, node: Node, pieces: list[Node], unseen: bool) -> None:
    """``unseen``: nobody can tell a -0.0 from the 0.0 that the sum makes of it."""
    ordered = sorted(pieces, key=_bounds)
    operands: list[Node] = []
    with graph.inserting_before(node):
        for p in ordered:
            x = p.args[0]
            val = x.meta["val"]
            if not unseen and (val.dtype.is_floating_point or val.dtype.is_complex):
                x = graph.call_function(TABLE["add"], (x, 0.0), {})
                with dispatch.use(FakeInterp()), tape.grad_mode(False):
                    x.meta = {**p.meta, "val": TABLE["add"](val, 0.0)}
            operands.append(x)
        new = graph.call_function(TABLE["cat"], tuple(operands), {"dim": pieces[0].kwargs["dim"]})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
