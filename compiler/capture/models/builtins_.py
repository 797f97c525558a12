"""The functions and types of ``builtins``.

Stage: capture.  See ``registry``.  Read next: ``sequences``.
"""

from __future__ import annotations

import _thread
import builtins
import sys
from types import MethodType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks, graphs
from compiler.capture.models import iterators
from compiler.capture.models.registry import model
from compiler.capture.protocol import attributes, calls, operators
from compiler.capture.source import Source
from compiler.capture.values.base import FALSE, NONE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.drawn import DrawnValue
from compiler.capture.values.function import BoundMethod, BuiltinValue, ClassValue, PartialValue, UserFunction
from compiler.capture.values.identity import IdValue
from compiler.capture.values.iterator import (
    CallIterator,
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    ReversedIterator,
    ZipIterator,
)
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.number import NumberValue
from compiler.capture.values.objects import ObjectValue, Observed, SuperValue, TracebackValue
from compiler.capture.values.sequence import ListValue, RangeValue, SequenceValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


_ZERO, _EMPTY = ConstantValue(0), ConstantValue("")


def _bool(flag: bool) -> Value:
    return TRUE if flag else FALSE


# --- types and attributes ---------------------------------------------------------------------------------------------
@model(isinstance)
def isinstance_(tx: Tracer, obj: Value, cls: Value) -> Value:
    return _bool(calls.isinstance_(tx, obj, cls))


@model(issubclass)
def issubclass_(tx: Tracer, cls: Value, parent: Value) -> Value:
    if not isinstance(cls, ClassValue):
        tx.raise_(TypeError, "issubclass() arg 1 must be a class")
    wanted = calls.constant_of(tx, parent)
    return operators.now(tx, issubclass, cls.cls, wanted)


@model(type)
def type_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if len(args) != 1:
        breaks.unsupported(breaks.CLASS_BODY, "type(name, bases, dict)")
    return tx.constant(args[0].pytype())


@model(callable)
def callable_(tx: Tracer, obj: Value) -> Value:
    if isinstance(obj, UserFunction | BoundMethod | BuiltinValue | ClassValue | PartialValue):
        return TRUE
    return _bool(attributes.lookup(tx, obj.pytype(), "__call__") is not None)


@model(getattr)
def getattr_(tx: Tracer, obj: Value, name: Value, *default: Value) -> Value:
    try:
        return attributes.getattr_(tx, obj, name.const())
    except Observed as e:
        if default and issubclass(e.value.cls, AttributeError):
            return default[0]
        raise


@model(hasattr)
def hasattr_(tx: Tracer, obj: Value, name: Value) -> Value:
    try:
        attributes.getattr_(tx, obj, name.const())
    except Observed as e:
        if issubclass(e.value.cls, AttributeError):
            return FALSE
        raise
    return TRUE


@model(setattr)
def setattr_(tx: Tracer, obj: Value, name: Value, new: Value) -> Value:
    attributes.setattr_(tx, obj, name.const(), new)
    return NONE


@model(delattr)
def delattr_(tx: Tracer, obj: Value, name: Value) -> Value:
    attributes.delattr_(tx, obj, name.const())
    return NONE


@model(vars)
def vars_(tx: Tracer, *obj: Value) -> Value:
    if not obj:
        return locals_(tx)
    return attributes.getattr_(tx, obj[0], "__dict__")


@model(locals)
def locals_(tx: Tracer) -> Value:
    return DictValue({k: (ConstantValue(k), v) for k, v in tx.frames[-1].names_in_scope().items()})


@model(globals)
def globals_(tx: Tracer) -> Value:
    scope = tx.frames[-1].globals
    return tx.wrap(scope, tx.globals_source(scope))


@model(id)
def id_(tx: Tracer, obj: Value) -> Value:
    return IdValue(obj)


@model(hash)
def hash_(tx: Tracer, obj: Value) -> Value:
    if obj.is_const():
        return operators.now(tx, hash, obj.const())
    if isinstance(obj, TupleValue):
        return operators.now(tx, hash, calls.constant_of(tx, obj))
    found = attributes.lookup(tx, obj.pytype(), "__hash__")
    if found is not None and found[1] is not None and found[1] is not object.__hash__:
        return calls.call_special(tx, obj, "__hash__", [])
    breaks.unsupported(breaks.BUILTIN_CALL, f"hash of {obj.describe()}")


@model(dir)
def dir_(tx: Tracer, *obj: Value) -> Value:
    if len(obj) != 1:
        breaks.unsupported(breaks.BUILTIN_CALL, "dir of the scope")
    own = attributes.instance_dict(tx, obj[0])
    kind = obj[0].pytype()
    if own is None or kind.__dir__ is not object.__dir__:
        breaks.unsupported(breaks.BUILTIN_CALL, f"dir of {obj[0].describe()}")
    own.know_keys(tx)
    for c in kind.__mro__:
        attributes.guard_class(tx, c)
    return tx.from_python(sorted({*own.entries, *dir(kind)}))


def _asked_again(fn: Any) -> Any:
    """A number of the interpreter or the thread: read now, and asked for again by the guards."""
    return lambda tx: tx.wrap(fn(), Source("{0}()", tx.namespace.source(fn)))


for _fn in (_thread.get_ident, sys.getrecursionlimit):
    model(_fn)(_asked_again(_fn))


@model(super)
def super_(tx: Tracer, *args: Value) -> Value:
    if len(args) == 2:
        cls, owner = args
    else:
        frame = tx.frames[-1]
        cell = frame.cells.get("__class__")
        first = frame.fn.code.co_varnames[0]
        found = frame.locals.get(first)
        if found is None and first in frame.cells:
            found = tx.read_cell(frame.cells[first])
        if cell is None or found is None:
            tx.raise_(RuntimeError, "super(): no arguments" if found is None else "super(): __class__ cell not found")
        contents = tx.read_cell(cell)
        assert contents is not None
        cls, owner = realize(tx, contents), realize(tx, found)
    if not isinstance(cls, ClassValue):
        tx.raise_(TypeError, "super() argument 1 must be a type")
    kind = owner.cls if isinstance(owner, ClassValue) and issubclass(owner.cls, cls.cls) else owner.pytype()
    if not issubclass(kind, cls.cls):
        tx.raise_(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return SuperValue(cls.cls, owner, kind)


@model(MethodType)
def make_method(tx: Tracer, fn: Value, owner: Value) -> Value:
    return BoundMethod(fn, owner)


@model(property, classmethod, staticmethod)
def descriptor(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.CLASS_BODY, "a descriptor made inside the function")


@model(sys.exc_info)
def exc_info(tx: Tracer) -> Value:
    exc = tx.handled
    return TupleValue([NONE, NONE, NONE] if exc is None else [tx.constant(exc.cls), exc, TracebackValue()])


@model(sys.exception)
def current_exception(tx: Tracer) -> Value:
    return tx.handled or NONE


# --- iteration --------------------------------------------------------------------------------------------------------
@model(iter)
def iter_(tx: Tracer, obj: Value, *sentinel: Value) -> Value:
    return CallIterator(obj, sentinel[0]) if sentinel else tx.protocol.iter_(tx, obj)


@model(next)
def next_(tx: Tracer, it: Value, *default: Value) -> Value:
    try:
        return iterators.step(tx, it)
    except Observed as e:
        if default and issubclass(e.value.cls, StopIteration):
            return default[0]
        raise


@model(len)
def len_(tx: Tracer, obj: Value) -> Value:
    return operators.len_(tx, obj)


@model(enumerate)
def enumerate_(tx: Tracer, iterable: Value, start: Value = _ZERO) -> Value:
    return EnumerateIterator(tx.protocol.iter_(tx, iterable), start)


@model(zip)
def zip_(tx: Tracer, *iterables: Value, strict: Value = FALSE) -> Value:
    return ZipIterator([tx.protocol.iter_(tx, i) for i in iterables], operators.truth(tx, strict))


@model(map)
def map_(tx: Tracer, fn: Value, *iterables: Value) -> Value:
    return MapIterator(fn, [tx.protocol.iter_(tx, i) for i in iterables])


@model(filter)
def filter_(tx: Tracer, fn: Value, iterable: Value) -> Value:
    return FilterIterator(fn, tx.protocol.iter_(tx, iterable))


@model(reversed)
def reversed_(tx: Tracer, obj: Value) -> Value:
    if isinstance(obj, SequenceValue):
        return ReversedIterator(obj)
    if isinstance(obj, ConstantValue):
        return tx.protocol.iter_(tx, tx.from_python(tuple(reversed(obj.value))))
    if attributes.lookup(tx, obj.pytype(), "__reversed__") is not None:
        return calls.call_special(tx, obj, "__reversed__", [])
    if attributes.lookup(tx, obj.pytype(), "__getitem__") is None:
        tx.raise_(TypeError, f"'{obj.pytype().__name__}' object is not reversible")
    return calls.call(tx, tx.polyfill("reversed_by_index"), [obj], {})


@model(range)
def range_(tx: Tracer, *args: Value) -> Value:
    parts: list[Value] = [ConstantValue(0), args[0], ConstantValue(1)] if len(args) == 1 else list(args)
    if len(parts) == 2:
        parts.append(ConstantValue(1))
    if any(isinstance(p, SymIntValue) for p in parts):
        return RangeValue(*parts)
    return operators.now(tx, range, *[operators.index_of(tx, p) for p in parts])


@model(slice)
def slice_(tx: Tracer, *args: Value) -> Value:
    parts: list[Value] = [NONE, args[0], NONE] if len(args) == 1 else list(args)
    return SliceValue(parts[0], parts[1], parts[2] if len(parts) == 3 else NONE)


# --- numbers ----------------------------------------------------------------------------------------------------------
@model(bool)
def bool_(tx: Tracer, *obj: Value) -> Value:
    return _bool(bool(obj) and operators.truth(tx, obj[0]))


@model(int)
def int_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if args and isinstance(args[0], SymIntValue):
        return args[0]
    if args and isinstance(args[0], TensorValue):
        return tensor_number(tx, args[0], "int")
    if len(args) == 1 and isinstance(args[0], DrawnValue):
        return args[0].as_int()
    return _number(tx, int, "__int__", args, kwargs)


@model(float)
def float_(tx: Tracer, *args: Value) -> Value:
    if args and isinstance(args[0], NumberValue) and args[0].kind is float:
        return args[0]
    if args and isinstance(args[0], SymIntValue):
        return ConstantValue(float(int(args[0].sym)))
    if args and isinstance(args[0], TensorValue):
        return tensor_number(tx, args[0], "float")
    return _number(tx, float, "__float__", args, {})


def tensor_number(tx: Tracer, t: TensorValue, what: str) -> Value:
    return tx.models.tensors.number(tx, t, what)


@model(complex)
def complex_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _number(tx, complex, "__complex__", args, kwargs)


def _number(tx: Tracer, kind: type, slot: str, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not args[0].is_const():
        for name in (slot, "__index__", "__trunc__"):
            if attributes.lookup(tx, args[0].pytype(), name) is not None:
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
        if attributes.lookup(tx, a.pytype(), "__divmod__") is not None:
            return calls.call_special(tx, a, "__divmod__", [b])
    return TupleValue([operators.binary(tx, "//", a, b), operators.binary(tx, "%", a, b)])


# --- text -------------------------------------------------------------------------------------------------------------
@model(str)
def str_(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if not args:
        return ConstantValue("")
    if len(args) > 1 or kwargs:
        return _number(tx, str, "__str__", args, kwargs)
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
        if obj.is_exception() and _is_c(attributes.lookup(tx, obj.cls, f"__{how.__name__}__")):
            return _exception_text(tx, obj, how)
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


def _exception_text(tx: Tracer, obj: ObjectValue, how: Any) -> Value:
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


@model(builtins.__build_class__)
def build_class(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.CLASS_BODY)


@model(tuple)
def tuple_(tx: Tracer, *iterable: Value) -> Value:
    if iterable and isinstance(iterable[0], TupleValue) and iterable[0].kind is tuple:
        return iterable[0]
    return TupleValue(tx.protocol.unpack(tx, iterable[0]) if iterable else [])


@model(list)
def list_(tx: Tracer, *iterable: Value) -> Value:
    return ListValue(tx.protocol.unpack(tx, iterable[0]) if iterable else [])
