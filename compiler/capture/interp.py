"""``CaptureInterp``: what runs the operations of a trace, on tensors without values.

Stage: capture.  In: a row's arguments as fakes.  Out: a fake, and a note of what the graph must not lose: writes, random
draws, checks of values.  Read next: ``graphs``, which makes nodes of what it ran.
"""

from __future__ import annotations

from typing import Any

from compiler.fake import FakeInterp
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor


class CaptureInterp(FakeInterp):
    """Runs operations on fakes and notices what a node has to say of them."""

    wrote: list[Tensor]
    drew: bool
    may_raise: str  # the operation that checks its operands' values
    late: bool  # and it does so on a GPU, which runs behind the host

    def __init__(self) -> None:
        super().__init__()
        self.drew_from: dict[Any, None] = {}  # generators, in the whole trace
        self.begin()

    def begin(self) -> None:
        self.wrote, self.drew, self.may_raise, self.late = [], False, "", False

    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if op.checks:
            self.may_raise = op.name
            self.late = self.late or any(isinstance(a, Tensor) and a.device.type != "cpu" for a in args)
        return super().run(op, args, params)

    def write(self, dst: Tensor, src: Tensor) -> None:
        self.wrote.append(dst)
        super().write(dst, src)

    def draw(self, generator: Any, numel: Any, device: Any) -> tuple[Tensor, Any]:
        self.drew = True
        self.drew_from[generator] = None
        return super().draw(generator, numel, device)
