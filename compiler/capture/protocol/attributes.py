"""Attribute access in CPython's order: ``value.name``, ``value.name = new``, ``del value.name``.

Stage: capture.  See ``protocol``.  Read next: ``calls``.
"""

from __future__ import annotations

import enum
import sys
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.modes import write_mode
from compiler.capture.protocol.classes import (
    accessor,
    bind,
    class_attribute,
    class_written,
    is_data_descriptor,
    lookup,
)
from compiler.capture.protocol.instances import instance_dict, store_entry
from compiler.capture.protocol.special import SPECIAL
from compiler.capture.values.base import NONE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import ClassValue, ModuleValue, UserFunction
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import ModeValue, ObjectValue, Observed, TracebackValue
from compiler.capture.values.sequence import TupleValue
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


# --- reading ----------------------------------------------------------------------------------------------------------
def getattr_(tx: Tracer, value: Value, name: str) -> Value:
    """``value.name``."""
    value = realize(tx, value)
    cls = value.pytype()
    custom = lookup(tx, cls, "__getattribute__")
    if custom is not None and isinstance(custom[1], FunctionType):
        method = bind(tx, custom[0], "__getattribute__", custom[1], value, cls)
        try:
            return tx.protocol.call(tx, method, [ConstantValue(name)], {})
        except Observed as e:
            if not _has_fallback(tx, value, e.value):
                raise
            return _fallback(tx, value, name)
    try:
        return generic_getattr(tx, value, name)
    except Observed as e:
        if not _has_fallback(tx, value, e.value):
            raise
    return _fallback(tx, value, name)


def _has_fallback(tx: Tracer, value: Value, exc: ObjectValue) -> bool:
    """``__getattr__`` is asked when all else raised AttributeError."""
    return issubclass(exc.cls, AttributeError) and lookup(tx, value.pytype(), "__getattr__") is not None


def _fallback(tx: Tracer, value: Value, name: str) -> Value:
    found = lookup(tx, value.pytype(), "__getattr__")
    assert found is not None
    method = bind(tx, found[0], "__getattr__", found[1], value, value.pytype())
    return tx.protocol.call(tx, method, [ConstantValue(name)], {})


def generic_getattr(tx: Tracer, value: Value, name: str) -> Value:
    """``object.__getattribute__``."""
    special = SPECIAL.get(type(value))
    if special is not None:
        found = special(tx, value, name)
        if found is not None:
            return found
    cls = value.pytype()
    given = class_written(tx, cls, name)
    if given is not None:
        own = instance_dict(tx, value)
        return given if own is None else own.get(tx, name) or given
    on_class = lookup(tx, cls, name)
    if on_class is not None and is_data_descriptor(on_class[1]):
        return bind(tx, on_class[0], name, on_class[1], value, cls)
    own = instance_dict(tx, value)
    if own is not None:
        got = own.get(tx, name)
        if got is not None:
            return got
    if on_class is not None:
        return bind(tx, on_class[0], name, on_class[1], value, cls)
    tx.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'")


# --- writing ----------------------------------------------------------------------------------------------------------
def setattr_(tx: Tracer, value: Value, name: str, new: Value) -> None:
    """``value.name = new``."""
    value = realize(tx, value)
    cls = value.pytype()
    custom = lookup(tx, cls, "__setattr__")
    if custom is not None and isinstance(custom[1], FunctionType):
        method = bind(tx, custom[0], "__setattr__", custom[1], value, cls)
        tx.protocol.call(tx, method, [ConstantValue(name), new], {})
        return
    generic_setattr(tx, value, name, new)


def generic_setattr(tx: Tracer, value: Value, name: str, new: Value | None) -> None:
    """``object.__setattr__``, or with None ``object.__delattr__``."""
    if isinstance(value, TensorValue):
        tx.models.tensors.set_attribute(tx, value, name, new)
        return
    if isinstance(value, ModeValue):
        write_mode(tx, value, name, new)
        return
    if isinstance(value, ModuleValue):
        _set_module_attribute(tx, value, name, new)
        return
    if isinstance(value, ClassValue):
        _set_class_attribute(tx, value.cls, name, new)
        return
    cls = value.pytype()
    found = lookup(tx, cls, name) if class_written(tx, cls, name) is None else None
    if found is not None and is_data_descriptor(found[1]) and _set_through(tx, value, found, name, new):
        return
    if isinstance(value, UserFunction) and name in ("__name__", "__qualname__", "__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__module__", "__type_params__"):
        if value.source is not None:
            breaks.unsupported(breaks.OPERATION, f"assignment to {name} of a function")
        _set_function_part(tx, value, name, new)
        return
    own = instance_dict(tx, value)
    if own is None:
        fixed = " and no __dict__ for setting new attributes" if new is not None and sys.version_info >= (3, 13) else ""
        tx.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'{fixed}")
    if new is None:
        if not own.has(tx, name):
            tx.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'")
        tx.effects.touch(own)
        del own.entries[name]
        return
    store_entry(tx, own, name, new)


def _set_through(tx: Tracer, value: Value, found: tuple[type, Any], name: str, new: Value | None) -> bool:
    """Store by a data descriptor; False if it is one of ours to ignore."""
    owner, raw = found
    if isinstance(raw, property):
        which, what = ("fset", "setter") if new is not None else ("fdel", "deleter")
        if getattr(raw, which) is None:
            tx.raise_(AttributeError, f"property '{name}' of '{owner.__name__}' object has no {what}")
        fn = accessor(tx, owner, name, raw, which)
        tx.protocol.call(tx, fn, [value] if new is None else [value, new], {})
        return True
    if isinstance(raw, MemberDescriptorType) or (isinstance(value, ObjectValue) and value.is_exception()):
        if isinstance(value, ObjectValue):
            if name == "__traceback__" and isinstance(new, TracebackValue):
                return True
            tx.effects.touch(value)
            value.slots[name] = new
            if name == "__cause__" and value.is_exception():
                value.slots["__suppress_context__"] = TRUE
            return True
    setter = lookup(tx, type(raw), "__set__" if new is not None else "__delete__")
    if setter is not None and isinstance(setter[1], FunctionType):
        descriptor = realize(tx, class_attribute(tx, owner, name, raw))
        method = bind(tx, setter[0], setter[1].__name__, setter[1], descriptor, type(raw))
        tx.protocol.call(tx, method, [value] if new is None else [value, new], {})
        return True
    if isinstance(value, UserFunction):
        return False
    breaks.unsupported(breaks.ATTRIBUTE, f"assignment to {value.describe()}.{name}")


def _set_class_attribute(tx: Tracer, cls: type, name: str, new: Value | None) -> None:
    """A plain value given to a plain class; methods, descriptors and special names change how things work: a break."""
    kind = None if new is None else realize(tx, new).pytype()
    plain = type(cls).__setattr__ is type.__setattr__ and not name.startswith("__") and not isinstance(cls, enum.EnumMeta)
    if kind is None or hasattr(kind, "__get__") or not plain or tx.is_trusted_module(cls.__module__):
        breaks.unsupported(breaks.OPERATION, f"assignment to attribute {name} of class {cls.__name__}")
    assert new is not None
    tx.effects.classes[cls, name] = new


def _set_function_part(tx: Tracer, fn: UserFunction, name: str, new: Value | None) -> None:
    new = realize(tx, NONE if new is None else new)
    if name == "__name__":
        fn.name = new.const()
    elif name == "__qualname__":
        fn.qualname = new.const()
    elif name == "__defaults__":
        fn.defaults = list(new.items) if isinstance(new, TupleValue) else []
    elif name == "__annotations__":
        fn.annotations = new
    elif name in ("__doc__", "__module__", "__type_params__"):
        fn.parts[name] = new
    elif name == "__kwdefaults__" and isinstance(new, DictValue):
        fn.kwdefaults = {str(k): v for k, (_, v) in new.entries.items()}


def _set_module_attribute(tx: Tracer, value: ModuleValue, name: str, new: Value | None) -> None:
    scope = vars(value.module)
    tx.effects.globals[id(scope), name] = (tx.globals_source(scope), new)


def delattr_(tx: Tracer, value: Value, name: str) -> None:
    """``del value.name``."""
    value = realize(tx, value)
    cls = value.pytype()
    custom = lookup(tx, cls, "__delattr__")
    if custom is not None and isinstance(custom[1], FunctionType):
        tx.protocol.call(tx, bind(tx, custom[0], "__delattr__", custom[1], value, cls), [ConstantValue(name)], {})
        return
    generic_delattr(tx, value, name)


def generic_delattr(tx: Tracer, value: Value, name: str) -> None:
    generic_setattr(tx, value, name, None)
