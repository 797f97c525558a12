"""Make a failing graph small: the fewest nodes, between the smallest inputs, that still fail.

Stage: debug.  In: a graph module, inputs, and a test that says whether it fails.  Out: a smaller one that still does, and
a file that shows it.  The two moves are those of delta debugging on a graph: end it earlier (an inner node becomes the
output), and begin it later (a node becomes an input, given the value it had).  Read next: ``bisect``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.ir.graph import Graph, Node
from compiler.ir.interp import Interpreter
from compiler.ir.module import GraphModule
from tinytorch import tape
from tinytorch.tensor import Tensor

Fails = Callable[[GraphModule, list[Any]], bool]


def minify(module: GraphModule, inputs: Sequence[Any], fails: Fails) -> tuple[GraphModule, list[Any]]:
    """The smallest module found for which ``fails(module, inputs)``.  ValueError if it does not fail to begin with."""
    gm, args = module.copy(), list(inputs)
    if not _fails(fails, gm, args):
        raise ValueError("the graph does not fail: nothing to make small")
    while True:
        for move in (_end_earlier, _begin_later):
            smaller = move(gm, args, fails)
            if smaller is not None:
                gm, args = smaller
                break
        else:
            return gm, args


def _calls(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op == "call_function"]


def _fails(fails: Fails, gm: GraphModule, args: list[Any]) -> bool:
    return bool(fails(gm, args))


def _end_earlier(gm: GraphModule, args: list[Any], fails: Fails) -> tuple[GraphModule, list[Any]] | None:
    """Return one node instead of all there is: the earliest that still fails."""
    for node in _calls(gm):
        if isinstance(node.meta.get("val"), tuple):
            continue
        candidate = _between(gm, args, {}, node)
        if len(_calls(candidate[0])) < len(_calls(gm)) and _fails(fails, *candidate):
            return candidate
    return None


def _begin_later(gm: GraphModule, args: list[Any], fails: Fails) -> tuple[GraphModule, list[Any]] | None:
    """Take a node's value as an input: the latest node for which that still fails."""
    values = _values(gm, args)
    outs = gm.graph.output_node.all_input_nodes
    for node in reversed(_calls(gm)):
        if node in outs or not isinstance(values.get(node), Tensor):
            continue
        candidate = _between(gm, args, {node: values[node]}, *outs)
        if len(_calls(candidate[0])) < len(_calls(gm)) and _fails(fails, *candidate):
            return candidate
    return None


class _Keeping(Interpreter):
    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[Node, Any] = {}

    def run_node(self, node: Node) -> Any:
        self.values[node] = super().run_node(node)
        return self.values[node]


def _values(gm: GraphModule, args: list[Any]) -> dict[Node, Any]:
    keeping = _Keeping(gm)
    with tape.grad_mode(False):
        keeping.run(*args)
    return keeping.values


def _between(gm: GraphModule, args: list[Any], given: dict[Node, Any], *outs: Node) -> tuple[GraphModule, list[Any]]:
    """The part of a graph that computes ``outs``, with ``given`` nodes as inputs; unused inputs are left out."""
    graph = Graph()
    mapped: dict[Node, Node] = {}
    values: list[Any] = []
    needed = _needed(outs, given)
    sources = [*zip(gm.graph.placeholders, args, strict=True), *given.items()]
    for node, value in sources:
        if node in needed:
            mapped[node] = graph.placeholder(node.name)
            mapped[node].meta = dict(node.meta)
            values.append(value)
    for node in gm.graph.nodes:
        if node in needed and node not in mapped and node.op != "output":
            mapped[node] = graph.node_copy(node, mapped.__getitem__)
    graph.output(tuple(mapped[n] for n in outs))
    return GraphModule(gm.attributes, graph, gm.class_name), values


def _needed(outs: Sequence[Node], given: dict[Node, Any]) -> set[Node]:
    found: set[Node] = set()
    stack = list(outs)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend([] if n in given else n.all_input_nodes)
    return found


def as_program(gm: GraphModule, inputs: Sequence[Any]) -> str:
    """A Python file that rebuilds the graph and its inputs."""
    lines = ["import numpy as np", "", "import tinytorch as torch", "from compiler.ir import GraphModule, parse", ""]
    lines += [f'graph = parse("""\n{gm.code}""")', "inputs = ["]
    for x in inputs:
        if isinstance(x, Tensor):
            a = x.detach().numpy()
            lines.append(f"    torch.tensor(np.array({a.tolist()!r}, np.{a.dtype.name}).reshape({a.shape})),")
        else:
            lines.append(f"    {x!r},")
    return "\n".join([*lines, "]", "print(GraphModule({}, graph)(*inputs))", ""])
