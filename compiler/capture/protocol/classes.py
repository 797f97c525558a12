"""What a class gives its instances: the lookup in its order, and descriptors.

Stage: capture.  See ``protocol``.  Lookup reads the real class; what it relied on is guarded on that class, once, not on
each instance.  Read next: ``special``.
"""

from __future__ import annotations

import collections
import functools
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.kinds import C_FUNCTIONS, is_definition
from compiler.capture.protocol.instances import c_attribute, instance_dict, store_entry
from compiler.capture.source import Source
from compiler.capture.values.base import NONE, ConstantValue, Value, realize
from compiler.capture.values.function import BoundMethod, BuiltinValue, ClassValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


#: Library classes whose methods programs do replace: these are trusted to be what they are only as long as they are.
_REPLACEABLE = ("tinytorch.nn", "tinytorch.optim")
_CLASS_METHOD = type(dict.__dict__["fromkeys"])
_TUPLE_GETTER = type(collections.namedtuple("_Example", "field").__dict__["field"])
_LRU_CACHE = type(functools.lru_cache(len))


# --- looking up -------------------------------------------------------------------------------------------------------
def lookup(tx: Tracer, cls: type, name: str, start: type | None = None) -> tuple[type, Any] | None:
    """``name`` in the order of ``cls`` (after ``start`` for ``super()``): the class that has it, and the raw attribute."""
    if tx.effects.classes and class_written(tx, cls, name) is not None:
        breaks.unsupported(breaks.OPERATION, f"attribute {name}, which was given to class {cls.__name__} before")
    key = cls, name, start
    if key not in tx.looked_up:
        tx.looked_up[key] = _look_up(tx, cls, name, start)
    return tx.looked_up[key]


def _look_up(tx: Tracer, cls: type, name: str, start: type | None) -> tuple[type, Any] | None:
    order = cls.__mro__
    if start is not None:
        order = order[order.index(start) + 1 :]
    for c in order:
        if name in c.__dict__:
            return c, c.__dict__[name]
        guard_class(tx, c)
    return None


def class_written(tx: Tracer, cls: type, name: str) -> Value | None:
    """What the trace has given to ``cls`` or a base of it as ``name``, if nothing nearer has that name."""
    for c in cls.__mro__ if tx.effects.classes else ():
        if (c, name) in tx.effects.classes:
            return realize(tx, tx.effects.classes[c, name])
        if name in c.__dict__:
            return None
    return None


def guard_class(tx: Tracer, cls: type) -> None:
    """The trace relied on a class *not* having an attribute: it must not have grown."""
    if tx.is_trusted_module(cls.__module__) or cls.__module__ == "builtins":
        return
    tx.guard("CLASS", f"len({{0}}) == {len(cls.__dict__)}", class_dict(tx, cls))


def class_dict(tx: Tracer, cls: type) -> Source:
    return tx.namespace.source(cls).attr("__dict__")


def class_attribute(tx: Tracer, owner: type, name: str, raw: Any) -> Value:
    """The raw attribute of a class as a value."""
    if tx.is_trusted_module(owner.__module__) and is_definition(raw):
        return tx.constant(raw)
    return tx.wrap(raw, class_dict(tx, owner).item(name))


def class_attribute_part(tx: Tracer, owner: type, name: str, part: Any, path: str) -> Value:
    return tx.wrap(part, class_dict(tx, owner).item(name).attr(path))


def is_data_descriptor(raw: Any) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


# --- binding ----------------------------------------------------------------------------------------------------------
def bind(tx: Tracer, owner: type, name: str, raw: Any, instance: Value | None, cls: type) -> Value:
    """What the raw class attribute gives when reached through an instance (or, with None, through the class)."""
    kind = type(raw)
    if kind is FunctionType:
        fn = class_attribute(tx, owner, name, raw)
        if owner.__module__.startswith(_REPLACEABLE):
            where = tx.namespace.source(cls if getattr(cls, name, None) is raw else owner).attr(name)  # else by super()
            tx.guard("METHOD", "{0} is {1}", where, tx.namespace.source(raw, raw.__qualname__))
        return fn if instance is None else BoundMethod(fn, instance)
    if kind is classmethod:
        inner = inner_function(tx, owner, name, raw)
        return BoundMethod(inner, instance if isinstance(instance, ClassValue) else tx.constant(cls))
    if kind is staticmethod:
        return inner_function(tx, owner, name, raw)
    if kind is property:
        return _property(tx, owner, name, raw, instance)
    if kind is functools.cached_property and instance is not None:
        return _cached_property(tx, owner, name, raw, instance)
    if kind is _CLASS_METHOD:
        return tx.constant(raw.__get__(None, cls))
    if kind is _TUPLE_GETTER and instance is not None:
        return tx.protocol.getitem(tx, instance, ConstantValue(raw.__reduce__()[1][0]))
    if kind is _LRU_CACHE:
        fn = class_attribute(tx, owner, name, raw)
        return fn if instance is None else BoundMethod(realize(tx, fn), instance)
    if isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
        return BuiltinValue(raw) if instance is None else c_attribute(tx, instance, name, raw)
    if isinstance(raw, C_FUNCTIONS):
        return BuiltinValue(raw) if instance is None else BoundMethod(BuiltinValue(raw), instance)
    getter = lookup(tx, kind, "__get__")
    value = class_attribute(tx, owner, name, raw)
    if getter is None or isinstance(raw, type):
        return value
    if not isinstance(getter[1], FunctionType):
        breaks.unsupported(breaks.ATTRIBUTE, f"{name}: descriptor {kind.__name__}")
    args = [NONE if instance is None else instance, tx.constant(cls)]
    return tx.protocol.call(tx, bind(tx, getter[0], "__get__", getter[1], realize(tx, value), kind), args, {})


def inner_function(tx: Tracer, owner: type, name: str, raw: Any) -> Value:
    """The function inside a classmethod or staticmethod."""
    inner = raw.__func__
    if isinstance(inner, FunctionType):
        if tx.is_trusted_globals(inner.__globals__) and tx.is_trusted_module(owner.__module__):
            return tx.constant(inner)  # a decorator of ours around a function of the program's is the program's
        return tx.wrap(inner, class_dict(tx, owner).item(name).attr("__func__"))
    return tx.constant(inner)


def _property(tx: Tracer, owner: type, name: str, raw: property, instance: Value | None) -> Value:
    if instance is None:
        return class_attribute(tx, owner, name, raw)
    if raw.fget is None:
        tx.raise_(AttributeError, f"property '{name}' of '{owner.__name__}' object has no getter")
    return tx.protocol.call(tx, accessor(tx, owner, name, raw, "fget"), [instance], {})


def accessor(tx: Tracer, owner: type, name: str, raw: property, which: str) -> Value:
    fn = getattr(raw, which)
    if isinstance(fn, FunctionType) and not tx.is_trusted_globals(fn.__globals__):
        return tx.wrap(fn, class_dict(tx, owner).item(name).attr(which))
    return tx.constant(fn)


def _cached_property(tx: Tracer, owner: type, name: str, raw: Any, instance: Value) -> Value:
    fn = class_attribute_part(tx, owner, name, raw.func, "func")
    value = tx.protocol.call(tx, fn, [instance], {})
    stored = instance_dict(tx, instance)
    if stored is None:
        tx.raise_(TypeError, f"No '__dict__' attribute on {instance.pytype().__name__!r} instance to cache {name!r} property.")
    store_entry(tx, stored, name, value)
    return value
