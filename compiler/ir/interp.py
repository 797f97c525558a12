"""The graph interpreter: what a graph means, in plain Python.

Stage: ir.  In: a ``GraphModule`` and arguments.  Out: what its output node says.  Every other way to run a graph
(generated code, fused kernels) is tested against this one.  Mirrors ``torch.fx.Interpreter``; subclass it and override
one method per node kind to compute something else: shapes, costs, a transformed graph.  Read next: ``verify``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.ir import meta
from compiler.ir.graph import Node, map_nodes
from compiler.ir.module import GraphModule


class Interpreter:
    """Runs a graph node by node; ``env`` holds the values, each dropped after its last use."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.env: dict[Node, Any] = {}
        self._sizes: dict[str, int] = {}
        self._late = meta.late_sources(module.graph)
        self._dies: dict[Node, list[Node]] = {}
        seen: set[Node] = set()
        for node in reversed(module.graph.nodes):
            self._dies[node] = [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)

    def run(self, *args: Any) -> Any:
        """The value of the output node; TypeError for a wrong number of arguments."""
        wanted = self.module.graph.placeholders
        needed = [p for p in wanted if not p.args]
        if not len(needed) <= len(args) <= len(wanted):
            raise TypeError(f"the graph takes {len(wanted)} arguments ({', '.join(map(str, wanted))}), got {len(args)}")
        self._sizes = meta.size_env(self.module.graph, args)
        self.env = {}
        left = iter(args)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self.placeholder(node, next(left, *node.args))
            elif node.op == "output":
                return self.output(node, *self.fetch(node)[0])
            else:
                value = self.env[node] = self.run_node(node)
                for name, dim in self._late.get(node, ()):
                    self._sizes[name] = value if dim is None else value.shape[dim]
                for dead in self._dies[node]:
                    del self.env[dead]
        return None

    def run_node(self, node: Node) -> Any:
        """One node; an error names the user's line."""
        args, kwargs = self.fetch(node)
        method: Callable[..., Any] = getattr(self, node.op)
        try:
            return method(node, args, kwargs)
        except Exception as e:
            where = meta.frame(node)
            from_line = f"\n{meta.frame_comment(where)}" if where else ""
            e.add_note(f"while running node {node}: {node.format_node()}{from_line}")
            raise

    def fetch(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The node's arguments with nodes replaced by values and symbolic sizes by numbers."""
        args, kwargs = map_nodes((node.args, node.kwargs), self.env.__getitem__)
        if not self._sizes:
            return args, kwargs
        return meta.evaluate_sizes(args, self._sizes), meta.evaluate_sizes(kwargs, self._sizes)

    # --- one method per node kind ---
    def placeholder(self, node: Node, value: Any) -> Any:
        return value

    def get_attr(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.module.attributes[node.target]

    def call_function(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return node.target(*args, **kwargs)

    def call_method(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        receiver, *rest = args
        return getattr(receiver, node.target)(*rest, **kwargs)

    def output(self, node: Node, value: Any) -> Any:
        return value
