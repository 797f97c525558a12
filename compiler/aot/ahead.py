"""A forward that has made the gradients already, and when that was in vain.

Stage: aot (run time).  In: two compiled forwards of a scalar loss, with its gradients for a cotangent of one and without.
Out: ``Forward``, which runs one of them, and hands out the gradients when a backward comes whose cotangent is one.
The engine marks the cotangent that it makes for ``loss.backward()``, so that nothing has to be read from a device; a number
on the CPU is looked at.  Any other cotangent gets the backward.  Read next: ``runtime``, ``compiler.partition.ahead``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tinytorch.tensor import Tensor

Raw: TypeAlias = Callable[[list[Any]], Sequence[Any]]

PATIENCE = 8  # forwards in a row whose gradients nobody asked for


class Forward:
    """The forward of a loss.  It goes without gradients where they were made in vain: behind a backward with another
    cotangent (a scaled loss), or many calls without a backward, until a backward comes whose cotangent is one."""

    def __init__(self, ahead: Raw, plain: Callable[[], Raw]) -> None:
        self.ahead, self.plain = ahead, on_demand(plain)
        self.idle = 0

    def __call__(self, arrays: list[Any]) -> Sequence[Any]:
        if self.idle >= PATIENCE:
            return self.plain(arrays)
        self.idle += 1
        return self.ahead(arrays)

    def gradients(self, g: Tensor | None, made: Sequence[Any], retain_graph: bool) -> Sequence[Any] | None:
        """The gradients for a cotangent ``g``, if they have been made; copies, if a later backward wants them too."""
        if g is None or not is_one(g):
            self.idle = PATIENCE
            return None
        self.idle = 0
        if not made:
            return None
        return [a.copy(order="K") for a in made] if retain_graph else made


def is_one(g: Tensor) -> bool:
    """Whether a cotangent is known to be the number one."""
    return g._is_one or (g.device.type == "cpu" and isinstance(g._data, np.ndarray) and bool((g._data == 1).all()))


def on_demand(make: Callable[[], Raw]) -> Raw:
    """What ``make`` compiles, when it is first called."""
    made: list[Raw] = []

    def run(arrays: list[Any]) -> Sequence[Any]:
        if not made:
            made.append(make())
        return made[0](arrays)

    return run
