"""Python's random numbers: drawn when translated code runs, before the graph, in the program's order.

Stage: capture.  See ``registry``.  A drawn number is a number of the graph; what needs to know it (a choice, a shape, a
branch) is a break, and the draw happens natively.  The generator moves as in eager.  Read next: ``values.number``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import breaks, wrap
from compiler.capture.models.registry import model
from compiler.capture.source import Source
from compiler.capture.values.base import NotConstantError, Value
from compiler.capture.values.number import NumberValue
from compiler.fake import fake_tensor
from tinytorch.device import cpu
from tinytorch.dtypes import float64, int64
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def _draw(fn: Any, hint: float, kind: type = float) -> Any:
    """A model for a function of the global generator that gives a float, or an integer between integers."""

    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        try:
            given = [repr(kind(a.const())) for a in args] + [f"{k}={kind(v.const())!r}" for k, v in kwargs.items()]
        except NotConstantError:
            breaks.unsupported(breaks.RANDOM_STATE, f"random.{fn.__name__} of values that are not known")
        number = f"drawn_{len(tx.locals)}"
        tensor = f"{number}_tensor"
        tx.prologue += [
            f"{number} = {tx.namespace.name(fn, 'random_' + fn.__name__)}({', '.join(given)})",
            f"{tensor} = {tx.namespace.name(wrap.scalar_tensor, 'scalar') if kind is float else tx.namespace.name(_integer, 'integer')}({number})",
        ]
        tx.locals |= {number, tensor}
        value = tx.new_tensor(fake_tensor((), float64 if kind is float else int64), None, Source(tensor))
        value.example = value.fake
        return NumberValue(value, kind, hint, frozenset(), Source(number))

    return run


def _integer(x: int) -> Tensor:
    return Tensor._wrap(np.array(x, np.int64), cpu)


for _float in (random.random, random.uniform, random.gauss, random.normalvariate, random.expovariate, random.betavariate):
    model(_float)(_draw(_float, 0.5))
for _int in (random.randint, random.randrange):
    model(_int)(_draw(_int, 3, int))
