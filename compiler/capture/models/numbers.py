"""Numbers: the types of ``builtins``, the ``operator`` module on any values, ``math`` on symbolic sizes.

Stage: capture.  See ``registry``.  Read next: ``text``.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks, graphs
from compiler.capture.models import registry
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, classes, operators
from compiler.capture.values.base import FALSE, NONE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.drawn import DrawnValue
from compiler.capture.values.function import PartialValue
from compiler.capture.values.number import NumberValue
from compiler.capture.values.sequence import TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


# --- types of builtins ------------------------------------------------------------------------------------------------
@model(bool)
def bool_(tx: Tracer, *obj: Value) -> Value:
    return TRUE if obj and operators.truth(tx, obj[0]) else FALSE


@model(int)
def int_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if args and isinstance(args[0], SymIntValue):
        return args[0]
    if args and isinstance(args[0], TensorValue):
        return tensor_number(tx, args[0], "int")
    if len(args) == 1 and isinstance(args[0], DrawnValue):
        return args[0].as_int()
    return construct(tx, int, "__int__", args, kwargs)


@model(float)
def float_(tx: Tracer, *args: Value) -> Value:
    if args and isinstance(args[0], NumberValue) and args[0].kind is float:
        return args[0]
    if args and isinstance(args[0], SymIntValue):
        return ConstantValue(float(int(args[0].sym)))
    if args and isinstance(args[0], TensorValue):
        return tensor_number(tx, args[0], "float")
    return construct(tx, float, "__float__", args, {})


def tensor_number(tx: Tracer, t: TensorValue, what: str) -> Value:
    return tx.models.tensors.number(tx, t, what)


@model(complex)
def complex_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    return construct(tx, complex, "__complex__", args, kwargs)


def construct(tx: Tracer, kind: type, slot: str, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not args[0].is_const():
        for name in (slot, "__index__", "__trunc__"):
            if classes.lookup(tx, args[0].pytype(), name) is not None:
                return calls.call_special(tx, args[0], name, [])
    found = calls.fold(tx, kind, list(args), kwargs)
    if found is None:
        breaks.unsupported(breaks.OPERATION, f"{kind.__name__}({', '.join(a.describe() for a in args)})")
    return found


@model(abs)
def abs_(tx: Tracer, x: Value) -> Value:
    return operators.unary(tx, "abs", x)


@model(round)
def round_(tx: Tracer, x: Value, ndigits: Value = NONE) -> Value:
    if isinstance(x, TensorValue):
        return graphs.call_method(tx, "round", [x], {})
    if isinstance(x, SymIntValue):
        return x
    if x.is_const():
        return operators.now(tx, round, x.const(), ndigits.const())
    return calls.call_special(tx, x, "__round__", [] if ndigits is NONE else [ndigits])


@model(pow)
def pow_(tx: Tracer, base: Value, exp: Value, *mod: Value) -> Value:
    if mod and not (mod[0].is_const() and mod[0].const() is None):
        return operators.now(tx, pow, base.const(), exp.const(), mod[0].const())
    return operators.binary(tx, "**", base, exp)


@model(divmod)
def divmod_(tx: Tracer, a: Value, b: Value) -> Value:
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):  # they have no ``__divmod__``
        names = a.pytype().__name__, b.pytype().__name__
        tx.raise_(TypeError, f"unsupported operand type(s) for divmod(): '{names[0]}' and '{names[1]}'")
    if not (a.is_const() or isinstance(a, SymIntValue)):
        if classes.lookup(tx, a.pytype(), "__divmod__") is not None:
            return calls.call_special(tx, a, "__divmod__", [b])
    return TupleValue([operators.binary(tx, "//", a, b), operators.binary(tx, "%", a, b)])


# --- operator ---------------------------------------------------------------------------------------------------------
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

