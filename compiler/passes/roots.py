"""What passes ask of nodes: which row one calls, and which memory an output lies in, which they must not merge or bypass.

Stage: aot.  In: a functional graph.  Out: the nodes whose memory the caller gets.  Two results of a program are two
pieces of memory, also when their values are equal; so the nodes that make results stay distinct, from each other and
from inputs.  Read next: ``cse``.
"""

from __future__ import annotations

from typing import Any

from compiler.ir.graph import Graph, Node, nodes_in
from tinytorch.ops.opdef import Op


def is_call(x: Any, name: str) -> bool:
    """Is it a node that calls this row?"""
    return isinstance(x, Node) and isinstance(x.target, Op) and x.target.name == name


def root(node: Node) -> Node:
    """The node whose memory this one's value may lie in, looking through views."""
    while isinstance(node.target, Op) and (node.target.kind == "view" or node.target.name == "contiguous"):
        node = node.args[0]
    return node


def kept(graph: Graph) -> set[Node]:
    """The outputs and the nodes they are views of."""
    found: set[Node] = set()
    for out in nodes_in(graph.output_node.args):
        found.add(out)
        while isinstance(out.target, Op) and (out.target.kind == "view" or out.target.name == "contiguous"):
            out = out.args[0]
            found.add(out)
    return found
