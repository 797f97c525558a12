"""Graphs that are on two devices: what the CPU does before, what the GPU does, what the CPU does with its results.

Stage: backend.  In: a functional graph with copies between devices in it (``freqs.to(x.device)``, ``loss.cpu()``).  Out: parts
of one device each, to be compiled as any other graph, and the copies between them.  Small numbers of the CPU that a GPU
operation reads directly are an input of its part.  A graph that goes to and fro (GPU to CPU to GPU again) cannot be divided so,
and one with sizes that vary is not: they run one row after the other.  Read next: ``loops``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.aot.autograd import extract, on_arrays
from compiler.aot.runtime import Raw
from compiler.ir import meta
from compiler.ir.graph import Node
from compiler.ir.module import GraphModule
from compiler.passes.roots import is_call
from tinytorch.ops.opdef import TABLE
from tinytorch.tensor import Tensor


def mixed(module: GraphModule) -> bool:
    """Whether a graph copies something from one device to another."""
    return any(map(_crosses, module.graph.nodes))


def on_both(module: GraphModule, compile_part: Callable[[GraphModule], Raw]) -> Raw:
    """A function from arrays to arrays for a graph on two devices."""
    placeholders = module.graph.placeholders
    parts = None if meta.size_sources(module.graph) else _divided(module)
    if parts is None:
        rows = on_arrays(module, [p.meta["val"] for p in placeholders])
        rows.boxed_raw = True  # type: ignore[attr-defined]
        return rows
    outputs = list(module.graph.output_node.args[0])
    stages = [_Stage(module, nodes, outputs, compile_part) for nodes in parts]
    constants = {n: module.attributes[n.target]._data for n in module.graph.find_nodes(op="get_attr")}

    def run(arrays: list[Any]) -> Sequence[Any]:
        known: dict[Any, Any] = {**constants, **dict(zip(placeholders, arrays, strict=True))}
        for stage in stages:
            stage.run(known)
        return [known[o] if isinstance(o, Node) else o for o in outputs]

    run.boxed_raw = True  # type: ignore[attr-defined]
    return run


def _device(node: Node) -> str | None:
    """``cpu`` or ``cuda``; None for a number."""
    val = node.meta.get("val")
    first = val[0] if isinstance(val, tuple | list) and val else val
    return first.device.type if isinstance(first, Tensor) else None


def _crosses(node: Node) -> bool:
    """Whether it copies from one kind of device to the other."""
    return is_call(node, "to_device") and _device(node) != _device(node.args[0])


def _divided(module: GraphModule) -> list[list[Node]] | None:
    """The calls of the three parts, a copy to another device with the part that it leads to; None if it cannot be done."""
    at: dict[Node, int] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        if node.op in ("placeholder", "get_attr"):
            at[node] = 0
            continue
        begun = max((at[n] for n in node.all_input_nodes), default=0)
        if _device(node) == "cuda":
            if begun == 2:
                return None
            at[node] = 1
        else:
            behind = any(_device(n) == "cuda" for n in node.all_input_nodes)
            at[node] = 2 if behind or begun == 2 else begun if _device(node) is None else 0
    calls = [n for n in at if n.op not in ("placeholder", "get_attr")]
    return [[n for n in calls if at[n] == part] for part in range(3)]


class _Stage:
    """One part: the copies that lead into it, and its compiled graph."""

    def __init__(
        self, module: GraphModule, nodes: list[Node], outputs: list[Any], compile_part: Callable[[GraphModule], Raw]
    ) -> None:
        inside = set(nodes)
        self.copies = [n for n in nodes if _crosses(n)]
        body = [n for n in nodes if n not in self.copies]
        self.inputs: list[Node] = []
        self.given: list[Node] = []
        self.call: Raw | None = None
        if not body:
            return
        mine = set(body)
        self.inputs = list(dict.fromkeys(n for b in body for n in b.all_input_nodes if n not in mine and n.op != "get_attr"))
        self.given = [n for n in body if n in outputs or any(u not in inside for u in n.users)]
        part = extract(module, self.inputs, self.given, lambda n: n in mine or n.op == "get_attr" or n in self.inputs, "Part")
        self.call = compile_part(part)

    def run(self, known: dict[Any, Any]) -> None:
        """Add what this part computes to what is known of the graph."""
        for n in self.copies:
            source, device = n.args[0], n.kwargs["device"]
            known[n] = TABLE["to_device"].kernel(None, known[source], device=device)  # type: ignore[misc]
        if self.call is not None:
            found = self.call([known[n] for n in self.inputs])
            known.update(zip(self.given, found, strict=True))

