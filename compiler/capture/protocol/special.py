"""Kinds of value with attributes of their own: a table by kind, asked before the class.

Stage: capture.  See ``protocol``.  None from a row leaves the name to the ordinary lookup.  Read next: ``attributes``.
"""

from __future__ import annotations

import enum
import sys
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.kinds import C_FUNCTIONS
from compiler.capture.modes import read_mode
from compiler.capture.protocol.classes import bind, class_written, is_data_descriptor, lookup
from compiler.capture.protocol.instances import function_dict
from compiler.capture.values.array import ArrayValue
from compiler.capture.values.base import NONE, ConstantValue, Value, realize
from compiler.capture.values.function import (
    BoundMethod,
    BuiltinValue,
    CellValue,
    ClassValue,
    ModuleValue,
    PartialValue,
    UserFunction,
    tuple_or_none,
)
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import ModeValue, OpaqueValue, SuperValue
from compiler.capture.values.sequence import TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def _constant_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    """Attributes of constants are constants; methods are bound."""
    obj = value.const()
    raw = lookup(tx, type(obj), name)
    if raw is not None and isinstance(raw[1], FunctionType | classmethod | staticmethod):
        return None
    if raw is not None and isinstance(raw[1], C_FUNCTIONS) and not isinstance(raw[1], GetSetDescriptorType | MemberDescriptorType):
        return None
    if raw is not None and isinstance(raw[1], property) and not isinstance(obj, enum.Enum):
        return None
    try:
        return tx.from_python(getattr(obj, name))
    except AttributeError as e:
        tx.raise_native(e)


def _symint_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    if name in ("real", "numerator"):
        return value
    if name in ("imag", "denominator"):
        return ConstantValue(0 if name == "imag" else 1)
    return None


def _module_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, ModuleValue)
    scope = vars(value.module)
    written = tx.effects.globals.get((id(scope), name))
    if written is not None and written[1] is not None:
        return written[1]
    trusted = not tx.frames or tx.frames[-1].trusted
    if name in scope:
        return realize(tx, tx.module_entry(scope, name, trusted))
    try:
        found = getattr(value.module, name)
    except AttributeError as e:
        tx.raise_native(e)
    return tx.constant(found)


def _class_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    """``type.__getattribute__``: the metaclass's data descriptors, the class's own order, the metaclass."""
    assert isinstance(value, ClassValue)
    cls, meta = value.cls, type(value.cls)
    on_meta = lookup(tx, meta, name)
    if on_meta is not None and is_data_descriptor(on_meta[1]):
        model = tx.models.get(on_meta[1])
        if model is not None:
            return model(tx, value)
        if name == "__dict__":
            breaks.unsupported(breaks.ATTRIBUTE, f"{cls.__name__}.__dict__")
        if isinstance(on_meta[1], property):
            return bind(tx, on_meta[0], name, on_meta[1], value, meta)
        return tx.constant(getattr(cls, name))
    given = class_written(tx, cls, name)
    if given is not None:
        return given
    found = lookup(tx, cls, name)
    if found is not None:
        if isinstance(cls, enum.EnumMeta) and isinstance(getattr(cls, name, None), cls):
            return ConstantValue(getattr(cls, name))
        return bind(tx, found[0], name, found[1], None, cls)
    if on_meta is not None:
        return bind(tx, on_meta[0], name, on_meta[1], value, meta)
    if isinstance(cls, enum.EnumMeta) and name in cls.__members__:
        return ConstantValue(cls.__members__[name])
    tx.raise_(AttributeError, f"type object '{cls.__name__}' has no attribute '{name}'")


def _function_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, UserFunction)
    if name in ("__name__", "__qualname__", "__module__", "__doc__") and value.obj is not None and value.source is not None:
        if value.source.text not in tx.namespace.objects:  # two functions of one code may differ in these
            return tx.wrap(getattr(value.obj, name), value.source.attr(name))
    if name == "__name__":
        return ConstantValue(value.name)
    if name == "__qualname__":
        return ConstantValue(value.qualname)
    if name == "__code__":
        return ConstantValue(value.code)
    if name == "__defaults__":
        return tuple_or_none(value.defaults)
    if name == "__kwdefaults__":
        return DictValue({k: (ConstantValue(k), v) for k, v in value.kwdefaults.items()}) if value.kwdefaults else NONE
    if name == "__closure__":
        return tuple_or_none(list(value.closure))
    if name == "__dict__":
        return function_dict(value)
    if name in value.parts:
        return realize(tx, value.parts[name])
    if name == "__module__":
        return ConstantValue(value.globals.get("__name__"))
    if name == "__annotations__" and value.annotations is not None:
        return value.annotations
    if name in ("__annotations__", "__doc__", "__type_params__") and value.obj is not None:
        return tx.from_python(getattr(value.obj, name))
    if name == "__type_params__" and sys.version_info >= (3, 12):
        return TupleValue([])
    if name == "__annotations__":
        value.annotations = DictValue()
        return value.annotations
    if name == "__wrapped__" and value.cached is not None:
        return value.cached
    if name == "__doc__":
        return ConstantValue(value.doc)
    if name == "__globals__":
        return tx.wrap(value.globals, tx.globals_source(value.globals))
    return None


def _method_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, BoundMethod)
    if name == "__func__":
        return value.func
    if name == "__self__":
        return realize(tx, value.owner)
    if name in ("__name__", "__qualname__", "__doc__", "__module__", "__dict__", "__code__", "__wrapped__"):
        return tx.protocol.getattr_(tx, value.func, name)
    return tx.protocol.getattr_(tx, value.func, name) if isinstance(value.func, UserFunction) and not hasattr(object, name) else None


def _partial_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, PartialValue)
    if name == "func":
        return realize(tx, value.func)
    if name == "args":
        return TupleValue(list(value.args))
    if name == "keywords":
        return DictValue({k: (ConstantValue(k), v) for k, v in value.kwargs.items()})
    return None


def _super_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, SuperValue)
    if name == "__class__":
        return tx.constant(super)
    found = lookup(tx, value.owner_type, name, start=value.cls)
    if found is None:
        tx.raise_(AttributeError, f"'super' object has no attribute '{name}'")
    owner = realize(tx, value.owner)
    through_class = isinstance(owner, ClassValue) and issubclass(owner.cls, value.cls)
    if through_class and not isinstance(found[1], classmethod):
        return bind(tx, found[0], name, found[1], None, value.owner_type)
    return bind(tx, found[0], name, found[1], owner, value.owner_type)


def _mode_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, ModeValue)
    return read_mode(tx, value, name)


def _tensor_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, TensorValue)
    return tx.models.tensors.attribute(tx, value, name)


def _array_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, ArrayValue)
    return tx.models.numpy_.attribute(tx, value, name)


def _opaque_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    raw = lookup(tx, value.pytype(), name)
    if raw is not None and isinstance(raw[1], C_FUNCTIONS) and not isinstance(raw[1], GetSetDescriptorType):
        return None
    breaks.unsupported(breaks.ATTRIBUTE, f"{value.describe()}.{name}")


def _cell_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, CellValue)
    if name != "cell_contents":
        return None
    found = tx.read_cell(value)
    if found is None:
        tx.raise_(ValueError, "Cell is empty")
    return realize(tx, found)


def _builtin_attribute(tx: Tracer, value: Value, name: str) -> Value | None:
    assert isinstance(value, BuiltinValue)
    try:
        return tx.constant(getattr(value.fn, name))
    except AttributeError as e:
        tx.raise_native(e)


#: The kind of value -> its attributes.
SPECIAL: dict[type, Any] = {
    ConstantValue: _constant_attribute,
    SymIntValue: _symint_attribute,
    ModuleValue: _module_attribute,
    ClassValue: _class_attribute,
    UserFunction: _function_attribute,
    BoundMethod: _method_attribute,
    PartialValue: _partial_attribute,
    SuperValue: _super_attribute,
    ModeValue: _mode_attribute,
    TensorValue: _tensor_attribute,
    OpaqueValue: _opaque_attribute,
    ArrayValue: _array_attribute,
    CellValue: _cell_attribute,
    BuiltinValue: _builtin_attribute,
}
