"""``object``, exceptions, functions: what instances inherit from C.

Stage: capture.  See ``registry``.  Read next: ``tensors``.
"""

from __future__ import annotations

import contextvars
import enum
import functools
import sys
from types import FunctionType, SimpleNamespace, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, cast

from compiler.capture import breaks
from compiler.capture.models import text
from compiler.capture.models.registry import Model, model, new, rule
from compiler.capture.protocol import attributes, calls, instances, operators
from compiler.capture.source import Source
from compiler.capture.values.base import FALSE, NONE, NOT_IMPLEMENTED, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import ClassValue, UserFunction
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import ObjectValue
from compiler.capture.values.sequence import ListValue, TupleValue
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


# --- object -----------------------------------------------------------------------------------------------------------
@model(object)
def make_object(tx: Tracer) -> Value:
    return ObjectValue(object)


@new(object.__new__)
def new_object(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    if issubclass(cls.cls, Tensor):
        breaks.unsupported(breaks.NOT_IN_GRAPH, "a tensor made from raw memory")
    missing = getattr(cls.cls, "__abstractmethods__", None)
    if missing:
        names = ", ".join(repr(n) for n in sorted(missing))
        plural = "s" if len(missing) > 1 else ""
        if sys.version_info >= (3, 12):
            what = f"without an implementation for abstract method{plural} {names}"
        else:
            what = f"with abstract method{plural} {', '.join(sorted(missing))}"
        tx.raise_(TypeError, f"Can't instantiate abstract class {cls.cls.__name__} {what}")
    return ObjectValue(cls.cls)


@model(object.__init__)
def init_object(tx: Tracer, me: Value, *args: Value, **kwargs: Value) -> Value:
    return NONE


@model(object.__init_subclass__)
def init_subclass(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    return NONE


@model(object.__getattribute__)
def getattribute(tx: Tracer, me: Value, name: Value) -> Value:
    return attributes.generic_getattr(tx, me, name.const())


@model(object.__setattr__)
def setattribute(tx: Tracer, me: Value, name: Value, v: Value) -> Value:
    attributes.generic_setattr(tx, me, name.const(), v)
    return NONE


@model(object.__delattr__)
def delattribute(tx: Tracer, me: Value, name: Value) -> Value:
    attributes.generic_delattr(tx, me, name.const())
    return NONE


@model(object.__eq__)
def equal(tx: Tracer, me: Value, other: Value) -> Value:
    return TRUE if operators.is_(tx, me, other) else NOT_IMPLEMENTED


@model(object.__ne__)
def unequal(tx: Tracer, me: Value, other: Value) -> Value:
    found = realize(tx, calls.call_special(tx, me, "__eq__", [other]))
    if found.is_const() and found.const() is NotImplemented:
        return found
    return FALSE if operators.truth(tx, found) else TRUE


for _slot in ("__lt__", "__le__", "__gt__", "__ge__"):
    model(getattr(object, _slot))(lambda tx, me, other: NOT_IMPLEMENTED)


@model(object.__hash__)
def identity_hash(tx: Tracer, me: Value) -> Value:
    breaks.unsupported(breaks.BUILTIN_CALL, f"hash of {me.describe()}, which is its address")


@model(object.__str__)
def str_of(tx: Tracer, me: Value) -> Value:
    return calls.call_special(tx, me, "__repr__", [])


@model(object.__repr__)
def repr_of(tx: Tracer, me: Value) -> Value:
    breaks.unsupported(breaks.BUILTIN_CALL, f"repr of {me.describe()}, which shows its address")


@model(object.__format__)
def format_of(tx: Tracer, me: Value, spec: Value) -> Value:
    if spec.const():
        tx.raise_(TypeError, f"unsupported format string passed to {me.pytype().__name__}.__format__")
    return calls.call(tx, tx.constant(str), [me], {})


@model(type.__call__)
def type_call(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    return calls.construct_plain(tx, cls, list(args), kwargs)


@model(type.__instancecheck__)
def type_instancecheck(tx: Tracer, cls: ClassValue, obj: Value) -> Value:
    return TRUE if issubclass(obj.pytype(), cls.cls) else FALSE


@model(type.__subclasscheck__)
def type_subclasscheck(tx: Tracer, cls: ClassValue, other: ClassValue) -> Value:
    return TRUE if issubclass(other.cls, cls.cls) else FALSE


@model(type.__dict__["__dict__"])
def class_dict(tx: Tracer, cls: ClassValue) -> Value:
    entries: dict[Any, tuple[Value, Value]] = {}
    for k, raw in cls.cls.__dict__.items():
        entries[k] = (ConstantValue(k), tx.constant(raw))
    return DictValue(entries)


# --- enumerations -----------------------------------------------------------------------------------------------------
@model(enum.EnumMeta.__call__)
def enum_call(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    found = calls.fold(tx, cls.cls, list(args), dict(kwargs))
    if found is None:
        breaks.unsupported(breaks.OPERATION, f"{cls.cls.__name__}(...) of a value that is not known")
    return found


@model(enum.EnumMeta.__iter__)
def enum_iter(tx: Tracer, cls: ClassValue) -> Value:
    return tx.protocol.iter_(tx, TupleValue([ConstantValue(m) for m in cast("type[enum.Enum]", cls.cls)]))


@model(enum.EnumMeta.__getitem__)
def enum_getitem(tx: Tracer, cls: ClassValue, name: Value) -> Value:
    return operators.now(tx, lambda c, n: c[n], cls.cls, name.const())


@model(enum.EnumMeta.__len__)
def enum_len(tx: Tracer, cls: ClassValue) -> Value:
    return ConstantValue(len(cls.cls))  # type: ignore[arg-type]


@model(enum.EnumMeta.__contains__)
def enum_contains(tx: Tracer, cls: ClassValue, member: Value) -> Value:
    return operators.now(tx, lambda c, m: m in c, cls.cls, member.const())


@rule
def enum_method(target: Any) -> Model | None:
    """Methods of ``Enum`` and ``Flag`` themselves only compute."""
    if isinstance(target, FunctionType) and target.__module__ == "enum":

        def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
            found = calls.fold(tx, target, list(args), dict(kwargs))
            if found is None:
                return calls.inline(tx, UserFunction.wrap(tx, target, tx.namespace.source(target)), list(args), dict(kwargs))
            return found

        return run
    return None


# --- exceptions -------------------------------------------------------------------------------------------------------
@new(BaseException.__new__)
def new_exception(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    return tx.new_exception(cls.cls, list(args))


@rule
def exception_text(target: Any) -> Model | None:
    """Some builtin exceptions have their own ``__str__``."""
    owner = getattr(target, "__objclass__", None)
    if isinstance(target, WrapperDescriptorType) and isinstance(owner, type) and issubclass(owner, BaseException):
        how = {"__str__": str, "__repr__": repr}.get(target.__name__)
        if how is not None:
            return lambda tx, me: text.exception_text(tx, me, how)
    return None


@model(BaseExceptionGroup.__dict__["exceptions"])
def group_exceptions(tx: Tracer, me: ObjectValue) -> Value:
    return TupleValue(tx.protocol.unpack(tx, me.args().items[1]))


@model(BaseExceptionGroup.__dict__["message"])
def group_message(tx: Tracer, me: ObjectValue) -> Value:
    return realize(tx, me.args().items[0])


@rule
def exception_init(target: Any) -> Model | None:
    """Every builtin exception has its own ``__init__``."""
    owner = getattr(target, "__objclass__", None)
    if isinstance(target, WrapperDescriptorType) and target.__name__ == "__init__" and isinstance(owner, type):
        if issubclass(owner, BaseException):
            return _init_exception
    return None


def _init_exception(tx: Tracer, me: ObjectValue, *args: Value, **kwargs: Value) -> Value:
    tx.effects.touch(me)
    me.slots["args"] = TupleValue(list(args))
    for name, v in kwargs.items():
        me.slots[name] = v
    return NONE


@model(BaseException.__dict__["args"])
def exception_args(tx: Tracer, me: ObjectValue) -> Value:
    return me.args()


@model(StopIteration.__dict__["value"])
def stop_value(tx: Tracer, me: ObjectValue) -> Value:
    items = me.args().items
    return realize(tx, items[0]) if items else NONE


@model(BaseException.with_traceback)
def with_traceback(tx: Tracer, me: Value, tb: Value) -> Value:
    return me


@model(BaseException.add_note)
def add_note(tx: Tracer, me: ObjectValue, note: Value) -> Value:
    own = me.dict
    assert own is not None
    found = own.get(tx, "__notes__")
    if found is None:
        found = ListValue([])
        instances.store_entry(tx, own, "__notes__", found)
    assert isinstance(found, ListValue)
    found.items.append(note)
    return NONE


# --- functions by type ---------------------------------------------------------------------------------------------
_EXAMPLE: Any = functools.singledispatch(lambda x: x)
_BY_TYPE = _EXAMPLE.__code__


@rule
def dispatched(target: Any) -> Model | None:
    """``functools.singledispatch``: what it finds for a type now is guarded."""
    if not isinstance(target, FunctionType) or target.__code__ is not _BY_TYPE:
        return None
    dispatch: Any = target.dispatch  # type: ignore[attr-defined]

    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        if not args:
            tx.raise_(TypeError, f"{target.__name__} requires at least 1 positional argument")
        kind = args[0].pytype()
        where = Source("{0}({1})", tx.namespace.source(dispatch, "dispatch"), tx.namespace.source(kind))
        return calls.call(tx, tx.wrap(dispatch(kind), where), list(args), kwargs)

    return run


# --- simple objects ---------------------------------------------------------------------------------------------------
@model(SimpleNamespace)
def make_namespace(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = ObjectValue(SimpleNamespace)
    own = made.dict
    assert own is not None
    if args:
        own.entries.update(tx.protocol.mapping_entries(tx, args[0]))
    own.entries.update({k: (ConstantValue(k), v) for k, v in kwargs.items()})
    return made


# --- context variables ------------------------------------------------------------------------------------------------
@model(contextvars.ContextVar.get)
def context_get(tx: Tracer, variable: Value, default: Value = NONE) -> Value:
    """A variable that has a value here; setting one is a break, so the value is that of the call's begin."""
    real = variable.real()
    if not isinstance(real, contextvars.ContextVar) or variable.source is None:
        breaks.unsupported(breaks.OPERATION, "a context variable made inside")
    try:
        found = real.get()
    except LookupError:
        breaks.unsupported(breaks.OPERATION, "a context variable without a value")
    return tx.wrap(found, Source("{0}.get()", variable.source))
