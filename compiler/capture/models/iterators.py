"""Methods of iterators and generators.

Stage: capture.  See ``registry``.  Read next: ``objects_``.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.kinds import ITERATORS
from compiler.capture.models.registry import model
from compiler.capture.values.base import NONE, Value
from compiler.capture.values.function import ClassValue
from compiler.capture.values.generator import GeneratorValue
from compiler.capture.values.objects import ObjectValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def step(tx: Tracer, it: Value) -> Value:
    """``it.__next__()``."""
    if isinstance(it, GeneratorValue):
        return _result(tx, it.resume(tx, NONE))
    found = tx.protocol.next_(tx, it)
    if found is None:
        tx.raise_value(tx.new_exception(StopIteration, []))
    return found


def itself(tx: Tracer, it: Value) -> Value:
    return it


_kind: Any
for _kind in dict.fromkeys((*ITERATORS, type(iter(set())), type(iter(lambda: 0, 0)), type(reversed([])))):
    model(_kind.__next__)(step)
    model(_kind.__iter__)(itself)


def _result(tx: Tracer, outcome: tuple[bool, Value]) -> Value:
    done, value = outcome
    if not done:
        return value
    args = [] if value.is_const() and value.const() is None else [value]
    tx.raise_value(tx.new_exception(StopIteration, args))


def _own(gen: Value, name: str) -> GeneratorValue:
    """A generator made in the trace; one from outside is stepped natively."""
    if not isinstance(gen, GeneratorValue):
        breaks.unsupported(breaks.OPAQUE_ITERATOR, f"generator.{name}")
    return gen


@model(GeneratorType.send)
def send(tx: Tracer, gen: Value, value: Value) -> Value:
    return _result(tx, _own(gen, "send").resume(tx, value))


@model(GeneratorType.throw)
def throw(tx: Tracer, gen: Value, exc: Value, *rest: Value) -> Value:
    if isinstance(exc, ClassValue):
        value = rest[0] if rest else NONE
        if isinstance(value, ObjectValue) and value.is_exception():
            exc = value
        else:
            exc = tx.protocol.call(tx, exc, [] if value is NONE else [value], {})
    assert isinstance(exc, ObjectValue)
    return _result(tx, _own(gen, "throw").throw(tx, exc))


@model(GeneratorType.close)
def close(tx: Tracer, gen: Value) -> Value:
    _own(gen, "close").close(tx)
    return NONE
