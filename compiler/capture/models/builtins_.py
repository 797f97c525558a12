"""The functions and types of ``builtins`` that ask what a thing is, take its attributes, or walk it.

Stage: capture.  See ``registry``.  Read next: ``numbers``, ``text``.
"""

from __future__ import annotations

import _thread
import builtins
import sys
from types import MethodType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models import iterators
from compiler.capture.models.registry import model
from compiler.capture.protocol import attributes, calls, classes, instances, operators
from compiler.capture.source import Source
from compiler.capture.values.base import FALSE, NONE, TRUE, ConstantValue, Value, realize
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
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import Observed, SuperValue, TracebackValue
from compiler.capture.values.sequence import ListValue, RangeValue, SequenceValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


_ZERO = ConstantValue(0)


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
    return _bool(classes.lookup(tx, obj.pytype(), "__call__") is not None)


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
    found = classes.lookup(tx, obj.pytype(), "__hash__")
    if found is not None and found[1] is not None and found[1] is not object.__hash__:
        return calls.call_special(tx, obj, "__hash__", [])
    breaks.unsupported(breaks.BUILTIN_CALL, f"hash of {obj.describe()}")


@model(dir)
def dir_(tx: Tracer, *obj: Value) -> Value:
    if len(obj) != 1:
        breaks.unsupported(breaks.BUILTIN_CALL, "dir of the scope")
    own = instances.instance_dict(tx, obj[0])
    kind = obj[0].pytype()
    if own is None or kind.__dir__ is not object.__dir__:
        breaks.unsupported(breaks.BUILTIN_CALL, f"dir of {obj[0].describe()}")
    own.know_keys(tx)
    for c in kind.__mro__:
        classes.guard_class(tx, c)
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


@model(builtins.__build_class__)
def build_class(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.CLASS_BODY)


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
    if classes.lookup(tx, obj.pytype(), "__reversed__") is not None:
        return calls.call_special(tx, obj, "__reversed__", [])
    if classes.lookup(tx, obj.pytype(), "__getitem__") is None:
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


@model(tuple)
def tuple_(tx: Tracer, *iterable: Value) -> Value:
    if iterable and isinstance(iterable[0], TupleValue) and iterable[0].kind is tuple:
        return iterable[0]
    return TupleValue(tx.protocol.unpack(tx, iterable[0]) if iterable else [])


@model(list)
def list_(tx: Tracer, *iterable: Value) -> Value:
    return ListValue(tx.protocol.unpack(tx, iterable[0]) if iterable else [])
