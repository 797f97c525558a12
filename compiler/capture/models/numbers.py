"""``math`` on symbolic sizes, and the ``operator`` module on any values.

Stage: capture.  See ``registry``.  Read next: ``tensors``.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

from compiler.capture.models import registry
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, operators
from compiler.capture.values.base import FALSE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import PartialValue
from compiler.capture.values.tensor import SymIntValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

_BINARY_NAMES = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "concat": "+",
}  # fmt: skip
_INPLACE_NAMES = {
    "iadd": "+", "isub": "-", "imul": "*", "itruediv": "/", "ifloordiv": "//", "imod": "%", "ipow": "**",
    "imatmul": "@", "iand": "&", "ior": "|", "ixor": "^", "ilshift": "<<", "irshift": ">>", "iconcat": "+",
}  # fmt: skip
_COMPARE_NAMES = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
_UNARY_NAMES = {"neg": "-", "pos": "+", "invert": "~", "inv": "~", "abs": "abs"}


def _register() -> None:
    for name, op in _BINARY_NAMES.items():
        model(getattr(operator, name))(lambda tx, a, b, op=op: operators.binary(tx, op, a, b))
    for name, op in _INPLACE_NAMES.items():
        model(getattr(operator, name))(lambda tx, a, b, op=op: operators.binary(tx, op, a, b, True))
    for name, op in _COMPARE_NAMES.items():
        model(getattr(operator, name))(lambda tx, a, b, op=op: operators.compare(tx, op, a, b))
    for name, op in _UNARY_NAMES.items():
        model(getattr(operator, name))(lambda tx, a, op=op: operators.unary(tx, op, a))


_register()


@model(operator.getitem)
def getitem(tx: Tracer, a: Value, b: Value) -> Value:
    return operators.getitem(tx, a, b)


@model(operator.setitem)
def setitem(tx: Tracer, a: Value, b: Value, c: Value) -> Value:
    operators.setitem(tx, a, b, c)
    return ConstantValue(None)


@model(operator.delitem)
def delitem(tx: Tracer, a: Value, b: Value) -> Value:
    operators.delitem(tx, a, b)
    return ConstantValue(None)


@model(operator.contains)
def contains(tx: Tracer, a: Value, b: Value) -> Value:
    return TRUE if operators.contains(tx, a, b) else FALSE


@model(operator.truth)
def truth(tx: Tracer, a: Value) -> Value:
    return TRUE if operators.truth(tx, a) else FALSE


@model(operator.not_)
def not_(tx: Tracer, a: Value) -> Value:
    return FALSE if operators.truth(tx, a) else TRUE


@model(operator.is_)
def is_(tx: Tracer, a: Value, b: Value) -> Value:
    return TRUE if operators.is_(tx, a, b) else FALSE


@model(operator.is_not)
def is_not(tx: Tracer, a: Value, b: Value) -> Value:
    return FALSE if operators.is_(tx, a, b) else TRUE


@model(operator.index)
def index(tx: Tracer, a: Value) -> Value:
    return a if isinstance(a, SymIntValue) else ConstantValue(operators.index_of(tx, a))


@model(operator.call if hasattr(operator, "call") else object())
def call(tx: Tracer, fn: Value, *args: Value, **kwargs: Value) -> Value:
    return calls.call(tx, fn, list(args), kwargs)


@model(functools.partial)
def partial(tx: Tracer, fn: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(fn, PartialValue):
        return PartialValue(fn.func, [*fn.args, *args], {**fn.kwargs, **kwargs})
    return PartialValue(fn, list(args), dict(kwargs))


# --- math on symbolic ints --------------------------------------------------------------------------------------------
def _symbolic(fn: Any) -> None:
    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        if any(isinstance(realize(tx, a), SymIntValue) for a in args) and fn in _EXACT:
            return operators.now(tx, fn, *[operators._operand(realize(tx, a)) for a in args])
        found = calls.fold(tx, fn, list(args), kwargs)
        if found is not None:
            return found
        registry.refuse(tx, fn, list(args))

    model(fn)(run)


_EXACT = {math.floor, math.ceil, math.trunc}
for _fn in (math.floor, math.ceil, math.trunc):
    _symbolic(_fn)

