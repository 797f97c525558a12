"""Python's random numbers: drawn when translated code runs, before the graph, in the program's order.

Stage: capture.  See ``registry``.  A drawn float is a number of the graph; what needs to know it (an integer, a choice, a
branch) is a break, and the draw happens natively.  The generator moves as in eager.  Read next: ``values.number``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks, wrap
from compiler.capture.models.registry import model
from compiler.capture.source import Source
from compiler.capture.values.base import NotConstantError, Value
from compiler.capture.values.number import NumberValue
from compiler.fake import fake_tensor
from tinytorch.dtypes import float64

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def _draw(fn: Any, hint: float) -> Any:
    """A model for a function of the global generator that gives a float."""

    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        try:
            given = [repr(float(a.const())) for a in args] + [f"{k}={float(v.const())!r}" for k, v in kwargs.items()]
        except NotConstantError:
            breaks.unsupported(breaks.RANDOM_STATE, f"random.{fn.__name__} of values that are not known")
        number = f"drawn_{len(tx.locals)}"
        tensor = f"{number}_tensor"
        tx.prologue += [
            f"{number} = {tx.namespace.name(fn, 'random_' + fn.__name__)}({', '.join(given)})",
            f"{tensor} = {tx.namespace.name(wrap.scalar_tensor, 'scalar')}({number})",
        ]
        tx.locals |= {number, tensor}
        value = tx.new_tensor(fake_tensor((), float64), None, Source(tensor))
        value.example = value.fake
        return NumberValue(value, float, hint, frozenset(), Source(number))

    return run


for _fn in (random.random, random.uniform, random.gauss, random.normalvariate, random.expovariate, random.betavariate):
    model(_fn)(_draw(_fn, 0.5))
