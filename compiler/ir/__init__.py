"""The graph IR.  Stage: between capture and loops.  Read next: ``graph``, ``meta``, ``printer``, ``interp``."""

from __future__ import annotations

from compiler.ir.graph import Graph, Node, map_nodes
from compiler.ir.interp import Interpreter
from compiler.ir.module import GraphModule
from compiler.ir.record import parse, record, same
from compiler.ir.rewrite import Pass, rule, run_passes
from compiler.ir.verify import verify

__all__ = [
    "Graph", "GraphModule", "Interpreter", "Node", "Pass", "map_nodes", "parse", "record", "rule", "run_passes", "same",
    "verify",
]  # fmt: skip
