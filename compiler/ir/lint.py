"""Structural invariants of a graph: those that hold whatever the targets mean.

Stage: ir.  In: a ``Graph``.  Out: nothing, or ``VerifyError`` that shows the lines around the offender.
Read next: ``verify``, which also checks types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compiler.errors import VerifyError

if TYPE_CHECKING:
    from compiler.ir.graph import Graph, Node


def lint(graph: Graph) -> None:
    """Check order, names, use lists and node kinds; ``Graph.lint``."""
    seen: dict[str, Node] = {}
    body_started = False
    nodes = list(graph.nodes)
    for i, node in enumerate(nodes):
        fail = failing(nodes, i)
        if node.graph is not graph:
            fail("belongs to another graph")
        if not node.name.isidentifier():
            fail(f"its name {node.name!r} is no identifier")
        if node.name in seen:
            fail(f"its name is taken by an earlier node {seen[node.name].format_node()}")
        for n in node.all_input_nodes:
            if seen.get(n.name) is not n:
                fail(f"it reads {n}, which is not defined before it")
            if node not in n.users:
                fail(f"{n}.users does not list it")
        for user in node.users:
            if node not in user.all_input_nodes or user._erased:
                fail(f"its user {user} does not read it")
        if node.op == "placeholder" and body_started:
            fail("placeholders come first")
        if node.op == "output" and i != len(nodes) - 1:
            fail("the output node is the last one")
        if (node.op in ("get_attr", "call_method")) and not isinstance(node.target, str):
            fail(f"the target of {node.op} is a name, got {node.target!r}")
        if node.op == "call_function" and not callable(node.target):
            fail(f"the target of call_function is callable, got {node.target!r}")
        body_started = body_started or node.op != "placeholder"
        seen[node.name] = node


def failing(nodes: list[Node], i: int) -> Callable[[str], Any]:
    """``fail(why)`` for node ``i``: raises with ten lines around it."""

    def fail(why: str) -> Any:
        lines = []
        for j in range(max(0, i - 5), min(len(nodes), i + 6)):
            mark = ">>>" if j == i else "   "
            lines.append(f"{mark} {nodes[j].format_node()}")
        raise VerifyError(f"node {nodes[i].name}: {why}\n" + "\n".join(lines))

    return fail
