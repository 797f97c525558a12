"""``id(x)``.

Stage: capture.  In and out: see ``base``.  Read next: ``keys``, which such numbers may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.capture.values.base import Value

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter


class IdValue(Value):
    """``id(of)``: a number that differs in every run, but can be compared and hashed."""

    def __init__(self, of: Value) -> None:
        self.of = of

    def pytype(self) -> type:
        return int

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, emit: Emitter) -> str:
        return f"id({emit.load(self.of)})"
