"""Numbers that translated code draws, and how guards foresee them.

Stage: capture.  In and out: see ``base``.  Such a number has a name in translated code and a source in guards: the same
draws, made ahead on a generator that is then put back.  Read next: ``models.random_``, which makes them.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import breaks
from compiler.capture.source import Source, literal
from compiler.capture.values.base import ConstantValue, Value
from compiler.capture.values.number import NumberValue
from compiler.capture.values.tensor import TensorValue
from compiler.fake import fake_tensor
from tinytorch.device import cpu
from tinytorch.dtypes import float64, int64
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


class Foresight:
    """What the next draws will give."""

    def __init__(self) -> None:
        self.draws: list[tuple[Any, list[Any], dict[str, Any]]] = []

    def __call__(self) -> list[Any]:
        state = random.getstate()
        try:
            return [fn(*args, **kwargs) for fn, args, kwargs in self.draws]
        finally:
            random.setstate(state)


class DrawnValue(NumberValue):
    """``options``: how many numbers it can still be.  The 0-d tensor for the graph is made when a node wants it."""

    def __init__(self, tx: Tracer, name: str, foreseen: Source, kind: type, hint: Any, options: float) -> None:
        self.tx, self.name, self.foreseen = tx, name, foreseen
        self.kind, self.hint, self.options = kind, hint, options
        self.places = frozenset()
        self.source = Source(name)
        self._tensor: TensorValue | None = None

    @property
    def tensor(self) -> TensorValue:  # type: ignore[override]
        if self._tensor is None:
            name = self.tx.new_local("tensor", f"{self.tx.namespace.name(_TENSORS[self.kind])}({self.name})")
            fake = fake_tensor((), float64 if self.kind is float else int64)
            self._tensor = self.tx.new_tensor(fake, None, Source(name))
            self._tensor.example = fake
        return self._tensor

    def children(self) -> list[Value]:
        return []

    # --- where Python needs to know ---
    @staticmethod
    def decide(tx: Tracer, form: str, options: float, *parts: Source) -> None:
        """This trace is for calls in which ``form`` holds; a break if there may be more outcomes than entries."""
        if not tx.guards.has(form, parts):
            tx.outcomes *= options
            if tx.outcomes > tx.config.recompile_limit:
                breaks.unsupported(breaks.RANDOM_STATE, "a decision by random numbers that has many outcomes")
            tx.guard("DRAWN", form, *parts)

    def specialize(self) -> Any:
        self.decide(self.tx, f"{{0}} == {literal(self.hint)}", self.options, self.foreseen)
        self.fixed, self.options = True, 1
        return self.hint

    def const(self) -> Any:
        return self.specialize()

    def as_int(self) -> DrawnValue:
        at = self.tx.new_local("drawn", f"int({self.name})")
        return DrawnValue(self.tx, at, Source("int({0})", self.foreseen), int, int(self.hint), self.options)

    def truth(self) -> bool:
        self.decide(self.tx, f"bool({{0}}) is {bool(self.hint)}", min(2, self.options), self.foreseen)
        return bool(self.hint)


def is_known(v: Value) -> bool:
    """A number that Python has when translated code begins."""
    return isinstance(v, DrawnValue) or (isinstance(v, ConstantValue) and type(v.value) in (int, float, bool))


def compare(tx: Tracer, op: str, fn: Any, a: Value, b: Value) -> Value:
    """A comparison in which a drawn number takes part has two outcomes."""
    holds = bool(fn(_hint(a), _hint(b)))
    drawn = [v for v in (a, b) if isinstance(v, DrawnValue)]
    texts, parts = _forms(a, b, tuple(v.foreseen for v in drawn))
    options = min(2, math.prod(v.options for v in drawn))
    DrawnValue.decide(tx, f"({texts[0]} {op} {texts[1]}) is {holds}", options, *parts)
    return ConstantValue(holds)


def combine(tx: Tracer, op: str, fn: Any, a: Value, b: Value) -> Value | None:
    """Arithmetic in translated code; None if the graph is the better place, for it might raise."""
    if op not in ("+", "-", "*") and not (op in ("/", "//", "%") and isinstance(b, ConstantValue) and b.value):
        return None
    hint = fn(_hint(a), _hint(b))
    drawn = [v for v in (a, b) if isinstance(v, DrawnValue)]
    names, _ = _forms(a, b, tuple(Source(v.name) for v in drawn), named=True)
    texts, parts = _forms(a, b, tuple(v.foreseen for v in drawn))
    options = math.prod(v.options for v in drawn)
    at = tx.new_local("drawn", f"{names[0]} {op} {names[1]}")
    return DrawnValue(tx, at, Source(f"({texts[0]} {op} {texts[1]})", *parts), type(hint), hint, options)


def _hint(v: Value) -> Any:
    return v.hint if isinstance(v, DrawnValue) else v.const()


def _forms(a: Value, b: Value, parts: tuple[Source, ...], named: bool = False) -> tuple[list[str], tuple[Source, ...]]:
    """Texts of two operands: literals, and places (or names) for drawn numbers."""
    texts: list[str] = []
    n = 0
    for v in (a, b):
        if isinstance(v, DrawnValue):
            texts.append(v.name if named else f"{{{n}}}")
            n += 1
        else:
            texts.append(f"({literal(v.const())})")
    return texts, parts


def scalar(x: float) -> Tensor:
    return Tensor._wrap(np.array(x, np.float64), cpu)


def integer(x: int) -> Tensor:
    return Tensor._wrap(np.array(x, np.int64), cpu)


_TENSORS = {float: scalar, int: integer}
