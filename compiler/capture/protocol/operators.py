"""Operators: arithmetic, comparison, truth, containers.

Stage: capture.  See ``protocol``.  Constants are computed now, tensors become nodes, everything else asks the slots of
its class in CPython's order.  Read next: ``iteration``.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import breaks, graphs
from compiler.capture.protocol import calls, classes
from compiler.capture.values import drawn, number
from compiler.capture.values.array import ArrayValue
from compiler.capture.values.base import ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.drawn import DrawnValue
from compiler.capture.values.function import BoundMethod, BuiltinValue, ClassValue
from compiler.capture.values.identity import IdValue
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.number import NumberValue
from compiler.capture.values.sequence import SequenceValue, SliceValue
from compiler.capture.values.tensor import SymIntValue, TensorValue
from tinytorch.tensor import Size

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

#: operator -> (function, in-place function, slot name)
BINARY: dict[str, tuple[Any, Any, str]] = {
    "+": (operator.add, operator.iadd, "add"),
    "-": (operator.sub, operator.isub, "sub"),
    "*": (operator.mul, operator.imul, "mul"),
    "/": (operator.truediv, operator.itruediv, "truediv"),
    "//": (operator.floordiv, operator.ifloordiv, "floordiv"),
    "%": (operator.mod, operator.imod, "mod"),
    "**": (operator.pow, operator.ipow, "pow"),
    "@": (operator.matmul, operator.imatmul, "matmul"),
    "&": (operator.and_, operator.iand, "and"),
    "|": (operator.or_, operator.ior, "or"),
    "^": (operator.xor, operator.ixor, "xor"),
    "<<": (operator.lshift, operator.ilshift, "lshift"),
    ">>": (operator.rshift, operator.irshift, "rshift"),
}
UNARY: dict[str, tuple[Any, str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
    "abs": (abs, "__abs__"),
}
#: comparison -> (function, slot, the slot of the mirrored comparison)
COMPARE: dict[str, tuple[Any, str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
_NUMBERS = (int, float, complex, type(None))
_COMPARISONS = frozenset(slot for _, slot, _ in COMPARE.values())
_PLAIN = (int, float, bool, complex, str, bytes, type(None), range)


def _is_plain(v: Value) -> bool:
    return isinstance(v, ConstantValue) and type(v.value) in _PLAIN


def _is_number(v: Value) -> bool:
    return isinstance(v, SymIntValue | NumberValue) or (isinstance(v, ConstantValue) and isinstance(v.value, int | float | complex))


def _is_numeric(v: Value) -> bool:
    """A known number, NumPy's scalars included."""
    return isinstance(v, ConstantValue) and isinstance(v.value, int | float | complex | np.generic)


def _with_array(a: Value, b: Value) -> bool:
    """One is an array, the other an array or a known number."""
    return (isinstance(a, ArrayValue) and (isinstance(b, ArrayValue) or _is_numeric(b))) or (
        isinstance(b, ArrayValue) and _is_numeric(a)
    )


def now(tx: Tracer, fn: Any, *args: Any) -> Value:
    """Run ``fn`` on known operands; its exception is the program's."""
    try:
        return tx.from_python(fn(*args))
    except Exception as e:
        tx.raise_native(e)


def _operand(v: Value) -> Any:
    return v.sym if isinstance(v, SymIntValue) else v.const()


# --- arithmetic -------------------------------------------------------------------------------------------------------
def binary(tx: Tracer, op: str, a: Value, b: Value, inplace: bool = False) -> Value:
    """``a op b``, or ``a op= b``."""
    a, b = realize(tx, a), realize(tx, b)
    fn, inplace_fn, name = BINARY[op]
    if _is_plain(a) and _is_plain(b):
        return now(tx, fn, a.const(), b.const())
    if _is_numeric(a) and _is_numeric(b) and not inplace:
        return now(tx, fn, a.const(), b.const())
    if _with_array(a, b) and not (inplace and isinstance(a, ArrayValue)) and op not in ("<<", ">>"):
        return tx.models.numpy_.binary(tx, fn, a, b)
    if isinstance(a, TensorValue) and (isinstance(b, TensorValue) or _is_number(b)):
        return graphs.call(tx, inplace_fn if inplace else fn, [a, b], {})
    if isinstance(b, TensorValue) and _is_number(a):
        return graphs.call(tx, fn, [a, b], {})
    if _is_number(a) and _is_number(b):
        if isinstance(a, NumberValue) or isinstance(b, NumberValue):
            found = drawn.combine(tx, op, fn, a, b) if drawn.is_known(a) and drawn.is_known(b) else None
            return found or graphs.call_number(tx, fn, [a, b])
        return now(tx, fn, _operand(a), _operand(b))
    if op == "|" and a.is_const() and b.is_const() and (isinstance(a, ClassValue) or isinstance(b, ClassValue)):
        return now(tx, fn, a.const(), b.const())
    return _by_slots(tx, op, name, a, b, inplace)


def _by_slots(tx: Tracer, op: str, name: str, a: Value, b: Value, inplace: bool) -> Value:
    shown = op + "=" if inplace else op
    if inplace:
        found = _try_slot(tx, a, f"__i{name}__", b)
        if found is not None:
            return found
    ta, tb = a.pytype(), b.pytype()
    forward = classes.lookup(tx, ta, f"__{name}__")
    reflected = classes.lookup(tx, tb, f"__r{name}__") if ta is not tb else None
    tries = [(a, f"__{name}__", b)] if forward else []
    if reflected:
        first = issubclass(tb, ta) and reflected != classes.lookup(tx, ta, f"__r{name}__")
        tries.insert(0 if first else len(tries), (b, f"__r{name}__", a))
    for owner, slot, other in tries:
        found = _try_slot(tx, owner, slot, other)
        if found is not None:
            return found
    names = f"'{ta.__name__}' and '{tb.__name__}'"
    if op == "+" and issubclass(ta, str | list | tuple) and not forward:
        tx.raise_(TypeError, f'can only concatenate {ta.__name__} (not "{tb.__name__}") to {ta.__name__}')
    tx.raise_(TypeError, f"unsupported operand type(s) for {'** or pow()' if op == '**' else shown}: {names}")


def _try_slot(tx: Tracer, owner: Value, slot: str, other: Value) -> Value | None:
    """The slot's answer; None if it is absent or says NotImplemented."""
    if classes.lookup(tx, owner.pytype(), slot) is None:
        return None
    if isinstance(owner, ConstantValue) and not other.is_const():
        if isinstance(owner.value, _NUMBERS) or (isinstance(owner.value, _PLAIN) and slot in _COMPARISONS):
            return None  # what a number says to a stranger
    found = calls.call_special(tx, owner, slot, [other])
    return None if _is_not_implemented(found) else found


def _is_not_implemented(v: Value) -> bool:
    return isinstance(v, ConstantValue) and v.value is NotImplemented


def unary(tx: Tracer, op: str, a: Value) -> Value:
    a = realize(tx, a)
    fn, slot = UNARY[op]
    if isinstance(a, TensorValue):
        return graphs.call(tx, fn, [a], {})
    if isinstance(a, NumberValue):
        return graphs.call_number(tx, fn, [a])
    if _is_number(a):
        return now(tx, fn, _operand(a))
    if classes.lookup(tx, a.pytype(), slot) is None:
        tx.raise_(TypeError, f"bad operand type for {'abs()' if op == 'abs' else 'unary ' + op}: '{a.pytype().__name__}'")
    return calls.call_special(tx, a, slot, [])


# --- comparison -------------------------------------------------------------------------------------------------------
def compare(tx: Tracer, op: str, a: Value, b: Value) -> Value:
    """``a op b``; the result need not be a bool."""
    a, b = realize(tx, a), realize(tx, b)
    fn, slot, mirrored = COMPARE[op]
    if _is_plain(a) and _is_plain(b):
        return now(tx, fn, a.const(), b.const())
    if _is_numeric(a) and _is_numeric(b):
        return now(tx, fn, a.const(), b.const())
    if _with_array(a, b):
        return tx.models.numpy_.binary(tx, fn, a, b)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        other = b if isinstance(a, TensorValue) else a
        if isinstance(other, TensorValue) or _is_number(other):
            return graphs.call(tx, fn, [a, b], {})
        if op in ("==", "!="):
            return ConstantValue((a is b) == (op == "=="))
    if isinstance(a, IdValue) and isinstance(b, IdValue) and op in ("==", "!="):
        return ConstantValue(is_(tx, a.of, b.of) == (op == "=="))
    if (isinstance(a, DrawnValue) or isinstance(b, DrawnValue)) and drawn.is_known(a) and drawn.is_known(b):
        return drawn.compare(tx, op, fn, a, b)
    if isinstance(a, NumberValue) or isinstance(b, NumberValue):
        found = number.compare(tx, op, fn, a, b)
        if found is not None:
            return found
    if _is_number(a) and _is_number(b):
        return now(tx, fn, _operand(a), _operand(b))
    ta, tb = a.pytype(), b.pytype()
    tries = [(a, slot, b), (b, mirrored, a)]
    if ta is not tb and issubclass(tb, ta) and classes.lookup(tx, tb, mirrored) != classes.lookup(tx, ta, mirrored):
        tries.reverse()
    for owner, name, other in tries:
        found = _try_slot(tx, owner, name, other)
        if found is not None:
            return found
    if op in ("==", "!="):
        return ConstantValue(is_(tx, a, b) == (op == "=="))
    tx.raise_(TypeError, f"'{op}' not supported between instances of '{ta.__name__}' and '{tb.__name__}'")


def equal(tx: Tracer, a: Value, b: Value) -> bool:
    """``a is b or a == b``: what containers mean by equal."""
    a, b = realize(tx, a), realize(tx, b)
    return a is b or truth(tx, compare(tx, "==", a, b))


def is_(tx: Tracer, a: Value, b: Value) -> bool:
    """``a is b``, guarded where the answer could differ next time."""
    a, b = realize(tx, a), realize(tx, b)
    if a is b:
        return True
    if a.is_const() and b.is_const():
        x, y = a.const(), b.const()
        return x is y or (type(x) is type(y) and type(x) in _PLAIN and bool(x == y)) or _same_c(x, y)
    if a.is_const() or b.is_const() or isinstance(a, SymIntValue) or isinstance(b, SymIntValue):
        return False
    if isinstance(a, BoundMethod) and isinstance(b, BoundMethod):
        return False
    if a.source is None or b.source is None or a.real() is None:
        return False
    if a.real() is b.real():
        if a.source != b.source:
            tx.guard("ALIAS", "{0} is {1}", a.source, b.source)
        return True
    tx.guard("ALIAS", "{0} is not {1}", a.source, b.source)
    return False


def _same_c(x: Any, y: Any) -> bool:
    return callable(x) and callable(y) and x is y


# --- truth ------------------------------------------------------------------------------------------------------------
def truth(tx: Tracer, v: Value) -> bool:
    """``bool(v)``, decided now."""
    v = realize(tx, v)
    if isinstance(v, ConstantValue):
        return bool(v.value)
    if isinstance(v, TensorValue):
        breaks.unsupported(breaks.TENSOR_BRANCH, v.describe())
    if isinstance(v, SymIntValue):
        return bool(v.sym != 0)
    if isinstance(v, DrawnValue):
        return v.truth()
    if isinstance(v, NumberValue):
        return v.is_true(tx)
    if isinstance(v, DictValue):
        v.know_length(tx)
        return bool(v.entries)
    if isinstance(v, SequenceValue | SetValue) and not _has_python_bool(tx, v):
        return bool(v.items)
    if classes.lookup(tx, v.pytype(), "__bool__") is not None:
        found = realize(tx, calls.call_special(tx, v, "__bool__", []))
        if not (isinstance(found, ConstantValue) and isinstance(found.value, bool)):
            if isinstance(found, TensorValue):
                breaks.unsupported(breaks.TENSOR_BRANCH, found.describe())
            tx.raise_(TypeError, f"__bool__ should return bool, returned {found.pytype().__name__}")
        return found.value
    if classes.lookup(tx, v.pytype(), "__len__") is not None:
        return truth(tx, len_(tx, v))
    return True


def _has_python_bool(tx: Tracer, v: Value) -> bool:
    return v.pytype().__module__ != "builtins" and classes.lookup(tx, v.pytype(), "__bool__") is not None


# --- containers -------------------------------------------------------------------------------------------------------
def len_(tx: Tracer, v: Value) -> Value:
    v = realize(tx, v)
    if isinstance(v, ConstantValue) and type(v.value) in _PLAIN:
        return now(tx, len, v.value)
    if isinstance(v, TensorValue):
        return graphs.call_method(tx, "__len__", [v], {})
    found = classes.lookup(tx, v.pytype(), "__len__")
    if found is None:
        tx.raise_(TypeError, f"object of type '{v.pytype().__name__}' has no len()")
    return realize(tx, calls.call_special(tx, v, "__len__", []))


def contains(tx: Tracer, container: Value, element: Value) -> bool:
    """``element in container``."""
    container, element = realize(tx, container), realize(tx, element)
    if _is_plain(container) and element.is_const():
        return bool(now(tx, operator.contains, container.const(), element.const()).const())
    if isinstance(container, TensorValue):
        return truth(tx, graphs.call_method(tx, "__contains__", [container, element], {}))
    if classes.lookup(tx, container.pytype(), "__contains__") is not None:
        return truth(tx, calls.call_special(tx, container, "__contains__", [element]))
    it = tx.protocol.iter_(tx, container)
    while True:
        found = tx.protocol.next_(tx, it)
        if found is None:
            return False
        if equal(tx, found, element):
            return True


def index_of(tx: Tracer, v: Value) -> int:
    """``operator.index`` of a value, specialised if symbolic."""
    v = realize(tx, v)
    if isinstance(v, SymIntValue):
        return int(v.sym)
    if isinstance(v, TensorValue):
        breaks.unsupported(breaks.SCALAR_OUTPUT, "a tensor as an index of a Python sequence")
    try:
        return operator.index(v.const())
    except TypeError as e:
        tx.raise_native(e)
    except NotConstantError:
        if classes.lookup(tx, v.pytype(), "__index__") is None:
            tx.raise_(TypeError, f"'{v.pytype().__name__}' object cannot be interpreted as an integer")
        return index_of(tx, calls.call_special(tx, v, "__index__", []))


def slice_of(tx: Tracer, v: SliceValue) -> slice:
    parts = [realize(tx, p) for p in v.parts]
    return slice(*[None if isinstance(p, ConstantValue) and p.value is None else index_of(tx, p) for p in parts])


def getitem(tx: Tracer, container: Value, key: Value) -> Value:
    """``container[key]``."""
    container, key = realize(tx, container), realize(tx, key)
    if isinstance(container, TensorValue):
        return graphs.call(tx, operator.getitem, [container, key], {})
    if isinstance(container, SequenceValue) and container.kind in (list, tuple, Size):
        return realize(tx, tx.models.sequences.getitem(tx, container, key))
    if _is_plain(container):
        if key.is_const():
            return now(tx, operator.getitem, container.const(), key.const())
        if isinstance(key, SymIntValue):
            return now(tx, operator.getitem, container.const(), int(key.sym))
    if isinstance(container, ClassValue) and classes.lookup(tx, type(container.cls), "__getitem__") is None:
        if key.is_const():
            return now(tx, operator.getitem, container.cls, key.const())
    if classes.lookup(tx, container.pytype(), "__getitem__") is None:
        tx.raise_(TypeError, f"'{container.pytype().__name__}' object is not subscriptable")
    return realize(tx, calls.call_special(tx, container, "__getitem__", [key]))


def setitem(tx: Tracer, container: Value, key: Value, new: Value) -> None:
    """``container[key] = new``."""
    container, key = realize(tx, container), realize(tx, key)
    if isinstance(container, TensorValue):
        graphs.call(tx, operator.setitem, [container, key, new], {})
        return
    if classes.lookup(tx, container.pytype(), "__setitem__") is None:
        tx.raise_(TypeError, f"'{container.pytype().__name__}' object does not support item assignment")
    calls.call_special(tx, container, "__setitem__", [key, new])


def delitem(tx: Tracer, container: Value, key: Value) -> None:
    container, key = realize(tx, container), realize(tx, key)
    if classes.lookup(tx, container.pytype(), "__delitem__") is None:
        tx.raise_(TypeError, f"'{container.pytype().__name__}' object doesn't support item deletion")
    calls.call_special(tx, container, "__delitem__", [key])


# --- text -------------------------------------------------------------------------------------------------------------
def format_(tx: Tracer, value: Value, spec: Value) -> Value:
    """``format(value, spec)``."""
    value, spec = realize(tx, value), realize(tx, spec)
    if isinstance(value, TensorValue):
        breaks.unsupported(breaks.TENSOR_TEXT, value.describe())
    if isinstance(value, SymIntValue):
        return now(tx, format, int(value.sym), spec.const())
    if _is_plain(value) or (isinstance(value, ConstantValue) and not isinstance(value, BuiltinValue)):
        return now(tx, format, value.const(), spec.const())
    return calls.call_special(tx, value, "__format__", [spec])

