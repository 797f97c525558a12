"""What is printed: ``str``, ``repr``, ``format``.

Stage: capture.  See ``registry``.  Text of what is known is made now; that of a tensor ends the graph.
Read next: ``sequences``.
"""

from __future__ import annotations

from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.numbers import construct
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, classes, operators
from compiler.capture.values.base import ConstantValue, Value, realize
from compiler.capture.values.function import BoundMethod, UserFunction
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ObjectValue
from compiler.capture.values.sequence import ListValue, SequenceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

_EMPTY = ConstantValue("")


@model(str)
def str_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if not args:
        return ConstantValue("")
    if len(args) > 1 or kwargs:
        return construct(tx, str, "__str__", args, kwargs)
    return text(tx, args[0], str)


@model(repr)
def repr_(tx: Tracer, obj: Value) -> Value:
    return text(tx, obj, repr)


def text(tx: Tracer, obj: Value, how: Any) -> Value:
    """``str(obj)`` or ``repr(obj)``."""
    if isinstance(obj, TensorValue):
        breaks.unsupported(breaks.TENSOR_TEXT, obj.describe())
    if isinstance(obj, SymIntValue):
        return ConstantValue(how(int(obj.sym)))
    if isinstance(obj, ObjectValue):
        if obj.is_exception() and _is_c(classes.lookup(tx, obj.cls, f"__{how.__name__}__")):
            return exception_text(tx, obj, how)
        return calls.call_special(tx, obj, f"__{how.__name__}__", [])
    if obj.is_const():
        return operators.now(tx, how, obj.const())
    if isinstance(obj, SequenceValue | DictValue | SetValue):
        found = calls.fold(tx, how, [obj], {}) or _container_text(tx, obj)
        if found is not None:
            return found
    if isinstance(obj, UserFunction | BoundMethod):
        breaks.unsupported(breaks.BUILTIN_CALL, f"{how.__name__} of {obj.describe()}")
    return calls.call_special(tx, obj, f"__{how.__name__}__", [])


def _container_text(tx: Tracer, obj: Value) -> Value | None:
    """``repr`` of a plain container some element of which is not known: that of each element is asked for."""

    def shown(v: Value) -> str:
        return str(text(tx, realize(tx, v), repr).const())

    if isinstance(obj, ListValue) and obj.kind is list:
        return ConstantValue(f"[{', '.join(map(shown, obj.items))}]")
    if isinstance(obj, TupleValue) and obj.kind is tuple:
        return ConstantValue(f"({', '.join(map(shown, obj.items))}{',' if len(obj.items) == 1 else ''})")
    if isinstance(obj, DictValue) and obj.kind is dict:
        obj.know_keys(tx)
        return ConstantValue(f"{{{', '.join(f'{shown(k)}: {shown(v)}' for k, v in obj.entries.values())}}}")
    return None


def _is_c(found: tuple[type, Any] | None) -> bool:
    return found is not None and isinstance(found[1], WrapperDescriptorType)


def exception_text(tx: Tracer, obj: ObjectValue, how: Any) -> Value:
    args = obj.args().items
    if how is repr:
        shown = ", ".join(realize(tx, text(tx, realize(tx, a), repr)).const() for a in args)
        return ConstantValue(f"{obj.cls.__name__}({shown})")
    if issubclass(obj.cls, BaseExceptionGroup):
        message, parts = args
        count = len(tx.protocol.unpack(tx, parts))
        return ConstantValue(f"{text(tx, realize(tx, message), str).const()} ({count} sub-exception{'s' * (count != 1)})")
    if not args:
        return ConstantValue("")
    if len(args) == 1:
        return text(tx, realize(tx, args[0]), repr if issubclass(obj.cls, KeyError) else str)
    return text(tx, TupleValue(list(args)), repr)


@model(format)
def format_(tx: Tracer, obj: Value, spec: Value = _EMPTY) -> Value:
    return operators.format_(tx, obj, spec)


@model(str.join)
def join(tx: Tracer, sep: Value, parts: Value) -> Value:
    items = [realize(tx, v) for v in tx.protocol.unpack(tx, parts)]
    return operators.now(tx, str.join, sep.const(), [i.const() for i in items])


@model(str.format)
def str_format(tx: Tracer, template: Value, *args: Value, **kwargs: Value) -> Value:
    found = calls.fold(tx, str.format, [template, *args], kwargs)
    if found is None:
        breaks.unsupported(breaks.OPERATION, "str.format of values that are not known")
    return found


@model(print)
def print_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.SIDE_EFFECT_CALL, "print")
