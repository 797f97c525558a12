"""Numbers that the graph computes: a Python float (or int) held as a 0-d tensor.

Stage: capture.  In and out: see ``base``.  A float argument that differs between calls (a learning rate) becomes such a
number, and so does ``x.item()`` if the settings allow.  Arithmetic on it is graph nodes; where Python needs to know it,
an argument is taken back as a constant and the trace starts again.  Read next: ``graphs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.source import literal
from compiler.capture.values.base import ConstantValue, Value
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.capture.tracer import Tracer


class SpecializeError(Exception):
    """The trace needs the numbers at these places as constants: start again, with a guard on their values.  Without places:
    an object has changed for real, so that another entry may fit."""

    def __init__(self, places: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(places)))
        self.places = places


class NumberValue(Value):
    """``tensor`` is 0-d, float64 or int64.  ``hint`` is the number now, if known; ``places`` are the arguments it
    comes from."""

    def __init__(
        self, tensor: TensorValue, kind: type, hint: Any, places: frozenset[str], source: Source | None = None
    ) -> None:
        self.tensor = tensor
        self.kind = kind
        self.hint = hint
        self.places = places
        self.source = source

    fixed = False  # whether it has been taken as a constant after all

    def pytype(self) -> type:
        return self.kind

    def const(self) -> Any:
        self.specialize()

    def is_true(self, tx: Tracer) -> bool:
        """``bool`` of an argument: only that is guarded."""
        if self.source is None:
            self.specialize()
        assert self.source is not None
        tx.guard("VALUE", f"bool({{0}}) is {bool(self.hint)}", self.source)
        return bool(self.hint)

    def is_const(self) -> bool:
        return False

    def specialize(self) -> Any:
        if self.places:
            raise SpecializeError(self.places)
        breaks.unsupported(breaks.SCALAR_OUTPUT, f"a {self.kind.__name__} that the graph computes, where Python needs it")

    def describe(self) -> str:
        return f"{self.kind.__name__} in the graph"

    def children(self) -> list[Value]:
        return [self.tensor]

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        return f"{emit.load(self.tensor)}.item()"


def compare(tx: Tracer, op: str, fn: Any, a: Value, b: Value) -> Value | None:
    """Of an argument as it came, with a constant or another: the outcome is guarded, not the number.  None for others."""
    texts: list[str | None] = []
    sources: list[Source] = []
    hints: list[Any] = []
    for v in (a, b):
        if type(v) is NumberValue and v.source is not None and not v.fixed:
            texts.append(f"{{{len(sources)}}}")
            sources.append(v.source)
            hints.append(v.hint)
        elif isinstance(v, ConstantValue) and type(v.value) in (int, float, bool):
            texts.append(literal(v.value))
            hints.append(v.value)
        else:
            return None
    holds = bool(fn(*hints))
    tx.guard("VALUE", f"({texts[0]} {op} {texts[1]}) is {holds}", *sources)
    return ConstantValue(holds)
