"""The clean-up that every functional graph gets: fold numbers, simplify, merge equal nodes, put sums of slices side by side,
drop unused nodes.

Stage: aot, before the partition and after.  In: a functional graph of rows.  Out: the same graph, changed in place.
``PASSES`` is the list, in order; each is a function of the graph.  Read next: ``fold``, ``simplify``,
``cse``.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.graph import Graph, Node
from compiler.ir.module import GraphModule
from compiler.passes.cse import merge_equal
from compiler.passes.fold import fold
from compiler.passes.pieces import put_side_by_side
from compiler.passes.simplify import simplify


def drop_unused(graph: Graph) -> bool:
    return graph.eliminate_dead_code(Node.is_impure)


PASSES: tuple[Callable[[Graph], bool], ...] = (drop_unused, fold, simplify, merge_equal, put_side_by_side, drop_unused)


def tidy(module: GraphModule) -> GraphModule:
    for one in PASSES:
        one(module.graph)
    module.changed()
    return module
