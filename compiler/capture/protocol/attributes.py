"""Attribute access: descriptors, instance dicts, classes, modules.

Stage: capture.  See ``protocol``.  Lookup on a class reads the real class; what it relied on is guarded on that class,
once, not on each instance.  Read next: ``calls``.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.kinds import C_FUNCTIONS, is_definition
from compiler.capture.modes import read_mode, write_mode
from compiler.capture.source import Source
from compiler.capture.values.array import ArrayValue
from compiler.capture.values.base import (
    FALSE,
    NONE,
    TRUE,
    ConstantValue,
    Lazy,
    NotConstantError,
    Value,
    realize,
)
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
from compiler.capture.values.objects import (
    ModeValue,
    ObjectValue,
    Observed,
    OpaqueValue,
    SuperValue,
    TracebackValue,
)
from compiler.capture.values.sequence import SequenceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


#: Library classes whose methods programs do replace: these are trusted to be what they are only as long as they are.
_REPLACEABLE = ("tinytorch.nn", "tinytorch.optim")
_CLASS_METHOD = type(dict.__dict__["fromkeys"])
_TUPLE_GETTER = type(collections.namedtuple("_Example", "field").__dict__["field"])
_LRU_CACHE = type(functools.lru_cache(len))


# --- classes ----------------------------------------------------------------------------------------------------------
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


def _is_data_descriptor(raw: Any) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


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
        inner = _inner_function(tx, owner, name, raw)
        return BoundMethod(inner, instance if isinstance(instance, ClassValue) else tx.constant(cls))
    if kind is staticmethod:
        return _inner_function(tx, owner, name, raw)
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


def _inner_function(tx: Tracer, owner: type, name: str, raw: Any) -> Value:
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
    return tx.protocol.call(tx, _accessor(tx, owner, name, raw, "fget"), [instance], {})


def _accessor(tx: Tracer, owner: type, name: str, raw: property, which: str) -> Value:
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


def class_attribute_part(tx: Tracer, owner: type, name: str, part: Any, path: str) -> Value:
    return tx.wrap(part, class_dict(tx, owner).item(name).attr(path))


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
    special = _SPECIAL.get(type(value))
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
    if on_class is not None and _is_data_descriptor(on_class[1]):
        return bind(tx, on_class[0], name, on_class[1], value, cls)
    own = instance_dict(tx, value)
    if own is not None:
        got = own.get(tx, name)
        if got is not None:
            return got
    if on_class is not None:
        return bind(tx, on_class[0], name, on_class[1], value, cls)
    tx.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'")


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


# --- reading from special kinds ---------------------------------------------------------------------------------------
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
    if on_meta is not None and _is_data_descriptor(on_meta[1]):
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
        return getattr_(tx, value.func, name)
    return getattr_(tx, value.func, name) if isinstance(value.func, UserFunction) and not hasattr(object, name) else None


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


_SPECIAL: dict[type, Any] = {
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


def _set_class_attribute(tx: Tracer, cls: type, name: str, new: Value | None) -> None:
    """A plain value given to a plain class; methods, descriptors and special names change how things work: a break."""
    kind = None if new is None else realize(tx, new).pytype()
    plain = type(cls).__setattr__ is type.__setattr__ and not name.startswith("__") and not isinstance(cls, enum.EnumMeta)
    if kind is None or hasattr(kind, "__get__") or not plain or tx.is_trusted_module(cls.__module__):
        breaks.unsupported(breaks.OPERATION, f"assignment to attribute {name} of class {cls.__name__}")
    assert new is not None
    tx.effects.classes[cls, name] = new


def class_written(tx: Tracer, cls: type, name: str) -> Value | None:
    """What the trace has given to ``cls`` or a base of it as ``name``, if nothing nearer has that name."""
    for c in cls.__mro__ if tx.effects.classes else ():
        if (c, name) in tx.effects.classes:
            return realize(tx, tx.effects.classes[c, name])
        if name in c.__dict__:
            return None
    return None


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
    if found is not None and _is_data_descriptor(found[1]) and _set_through(tx, value, found, name, new):
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


def store_entry(tx: Tracer, own: DictValue, name: str, new: Value) -> None:
    own.has(tx, name)  # where the name stood before decides where it stands after
    tx.effects.touch(own)
    own.entries[name] = (ConstantValue(name), new)


def _set_through(tx: Tracer, value: Value, found: tuple[type, Any], name: str, new: Value | None) -> bool:
    """Store by a data descriptor; False if it is one of ours to ignore."""
    owner, raw = found
    if isinstance(raw, property):
        which, what = ("fset", "setter") if new is not None else ("fdel", "deleter")
        if getattr(raw, which) is None:
            tx.raise_(AttributeError, f"property '{name}' of '{owner.__name__}' object has no {what}")
        fn = _accessor(tx, owner, name, raw, which)
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


__all__ = ["bind", "c_attribute", "delattr_", "generic_delattr", "generic_getattr", "generic_setattr",
           "getattr_", "instance_dict", "lookup", "setattr_", "store_entry"]  # fmt: skip
