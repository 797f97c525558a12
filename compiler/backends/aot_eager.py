"""Backends that run functional graphs by eager's rows: what is wrong here, and not in ``eager``, is wrong in aot.

Stage: backend.  In: a captured graph.  Out: a callable.  Read next: ``loops``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.aot.autograd import aot_autograd, save_everything
from compiler.config import Config
from compiler.config import config as settings
from compiler.ir.module import GraphModule
from compiler.ir.verify import verify
from compiler.partition import min_cut


def run_rows(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler of functional graphs that compiles nothing."""
    verify(gm, functional=True)
    return gm


def aot_eager(gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings) -> Callable[..., Any]:
    """Joint graph, functional, everything saved; no partitioner and no kernels."""
    return aot_autograd(run_rows, partition_fn=save_everything)(gm, example_inputs)


def aot_eager_decomp_partition(
    gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings
) -> Callable[..., Any]:
    """As ``aot_eager``, split by the min-cut partitioner."""

    def partition(joint: GraphModule, forward_outputs: int) -> tuple[Any, ...]:
        return min_cut(joint, forward_outputs, config.activation_memory_budget)

    return aot_autograd(run_rows, partition_fn=partition)(gm, example_inputs)
