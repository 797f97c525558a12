"""Backends that run the captured graph as it is: what is wrong here is wrong in capture.

Stage: backend.  In: a captured graph.  Out: the graph itself, run by eager.  Read next: ``aot_eager``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.ir.module import GraphModule


def eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The captured graph, run node by node on the ordinary tape."""
    return gm


def eager_noexcept(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """As ``eager``; an exception inside the graph, which capture should have prevented, is marked as such."""

    def run(*args: Any) -> Any:
        try:
            return gm(*args)
        except Exception as e:
            raise AssertionError("the captured graph raised; capture should have seen that") from e

    return run
