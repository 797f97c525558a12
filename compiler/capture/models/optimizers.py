"""Optimizers: the state of a parameter is made before its first step is traced.

Stage: capture.  Without this the first trace would hold the making of the state, and the second step, which finds it
there, would be traced again.  See ``registry``.  Read next: ``tinytorch.optim.optimizer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.capture import breaks
from compiler.capture.models.registry import model
from compiler.capture.values.base import FALSE, NONE, Value
from tinytorch import dispatch
from tinytorch.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


@model(Optimizer.prepare)
def prepare(tx: Tracer, optimizer: Value, waiting: Value = FALSE) -> Value:
    """Run it now, on the real optimizer: what it makes is there at every later call."""
    real = optimizer.real()
    if not isinstance(real, Optimizer):
        breaks.unsupported(breaks.NOT_IN_GRAPH, "the first step of an optimizer made inside the compiled function")
    with dispatch.use(None):
        real.prepare(waiting=True)
    return NONE
