"""What an object holds itself: its instance dict, its slots, and the properties that its C type gives it.

Stage: capture.  See ``protocol``.  Read next: ``classes``.
"""

from __future__ import annotations

import sys
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.values.base import FALSE, NONE, ConstantValue, Lazy, NotConstantError, Value, realize
from compiler.capture.values.function import UserFunction
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import ObjectValue, TracebackValue
from compiler.capture.values.sequence import SequenceValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def instance_dict(tx: Tracer, value: Value) -> DictValue | None:
    if isinstance(value, ObjectValue):
        return value.dict
    if isinstance(value, UserFunction):
        return function_dict(value)
    own = getattr(value, "attrs_dict", None)
    if own is None and isinstance(value, SequenceValue | DictValue) and value.pytype().__dictoffset__ != 0:
        return subclass_dict(value)
    return own


def subclass_dict(value: Any) -> DictValue:
    """The instance dict of a subclass of a builtin container."""
    real = getattr(value.real(), "__dict__", None)
    if real is not None and value.source is not None:
        value.attrs_dict = DictValue.wrap(real, value.source.attr("__dict__"))
    else:
        value.attrs_dict = DictValue()
    return value.attrs_dict  # type: ignore[no-any-return]


def function_dict(fn: UserFunction) -> DictValue:
    if fn.attrs is None:
        if fn.obj is not None and fn.source is not None:
            fn.attrs = DictValue.wrap(fn.obj.__dict__, fn.source.attr("__dict__"))
        else:
            fn.attrs = DictValue()
    return fn.attrs


def store_entry(tx: Tracer, own: DictValue, name: str, new: Value) -> None:
    own.has(tx, name)  # where the name stood before decides where it stands after
    tx.effects.touch(own)
    own.entries[name] = (ConstantValue(name), new)


def c_attribute(tx: Tracer, value: Value, name: str, raw: Any) -> Value:
    """A slot or C-level property of an instance."""
    model = tx.models.get(raw)
    if model is not None:
        return model(tx, value)
    if name == "__class__":
        return tx.constant(value.pytype())
    if name == "__dict__":
        own = instance_dict(tx, value)
        if own is not None:
            return own
    if isinstance(value, ObjectValue):
        if isinstance(raw, MemberDescriptorType) or value.is_exception():
            return _slot(tx, value, name)
    try:
        return tx.constant(getattr(value.const(), name))
    except NotConstantError:
        pass
    except AttributeError as e:
        tx.raise_native(e)
    breaks.unsupported(breaks.ATTRIBUTE, f"{value.describe()}.{name}")


def _slot(tx: Tracer, value: ObjectValue, name: str) -> Value:
    if name in value.slots:
        found = value.slots[name]
        if found is not None:
            return realize(tx, found)
    elif value.obj is not None and value.source is not None and hasattr(value.obj, name):
        value.slots[name] = Lazy(getattr(value.obj, name), value.source.attr(name))
        return realize(tx, value.slots[name] or NONE)
    if value.is_exception():
        if name == "__traceback__" and "__traceback__" not in value.slots:
            return TracebackValue()
        return FALSE if name == "__suppress_context__" else NONE
    tx.raise_(AttributeError, f"'{_slot_owner(value.cls)}' object has no attribute '{name}'")


def _slot_owner(cls: type) -> str:
    """How CPython names the class of an object with an empty slot."""
    if sys.version_info < (3, 13):
        return cls.__name__
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
