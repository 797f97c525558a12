"""Real objects into values.

Stage: capture.  In: an object and its source (``wrap``), an object from code or library (``known``), or a fresh result
of something run while tracing (``fresh``).  Out: a value; ``wrap`` also guards what the value shows at once: a type,
a constant, a tensor's shape.  Which sizes are symbolic is decided by ``Sizes``.  Read next: ``protocol``.
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import re
import weakref
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    GenericAlias,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import graphs
from compiler.capture.source import Source, escape, literal
from compiler.capture.values.array import ArrayValue
from compiler.capture.values.base import FALSE, NONE, NOT_IMPLEMENTED, TRUE, ConstantValue, Lazy, Value
from compiler.capture.values.function import (
    BoundMethod,
    BuiltinValue,
    ClassValue,
    ModuleValue,
    PartialValue,
    UserFunction,
)
from compiler.capture.values.iterator import ItemsIterator, OutsideIterator
from compiler.capture.values.mapping import DictValue, SetValue, real_key
from compiler.capture.values.number import NumberValue
from compiler.capture.values.objects import ModeValue, ObjectValue, OpaqueValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue
from compiler.fake import fake_like, fake_tensor
from compiler.sym.env import SymInt
from compiler.sym.expr import expr_of
from tinytorch import tape
from tinytorch.device import Device, cpu
from tinytorch.dtypes import DType, float64
from tinytorch.nn import module
from tinytorch.nn.parameter import Buffer, Parameter
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

C_FUNCTIONS = (
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, GetSetDescriptorType,
    MemberDescriptorType, type(dict.__dict__["fromkeys"]), np.ufunc, type(np.concatenate),
)  # fmt: skip
_NUMBERS = (int, float, complex, str, bytes)
_ONE_EACH: tuple[Any, ...] = (
    iter([]), iter(()), iter(""), iter({}), iter({}.items()), iter({}.values()), iter(range(0)), reversed([]),
)  # fmt: skip
_ITERATORS: tuple[type, ...] = tuple(type(x) for x in _ONE_EACH) + (enumerate, zip, map, filter, reversed, GeneratorType)


class Sizes:
    """Which sizes and integers are symbolic: all, none, or (``dynamic=None``) those seen to differ between calls."""

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        self.seen: dict[str, Any] = {}
        self.differing: set[tuple[str, int]] = set()
        self.pinned: set[str] = set()  # numbers that Python control flow needs

    def dims(self, where: str, t: Tensor) -> dict[int, tuple[int, int | float]]:
        """Dimensions of the tensor at ``where`` to make symbolic, with their ranges."""
        shape = tuple(t._data.shape)
        marks = getattr(t, "_dynamic_dims", None) or {}
        static = getattr(t, "_static_dims", None) or ()
        before = self.seen.get(where)
        if self.dynamic is None and isinstance(before, tuple) and len(before) == len(shape):
            self.differing |= {(where, d) for d in range(len(shape)) if before[d] != shape[d]}
        self.seen[where] = shape
        wanted: dict[int, tuple[int, int | float]] = {}
        for d, size in enumerate(shape):
            if size < 2 or d in static:
                continue
            if d in marks:
                wanted[d] = marks[d]
            elif self.dynamic or (self.dynamic is None and (where, d) in self.differing):
                wanted[d] = (2, float("inf"))
        return wanted

    def number(self, where: str, value: Any) -> bool:
        """Whether the number at ``where`` is symbolic."""
        if where in self.pinned:
            return False
        before = self.seen.get(where, value)
        if type(before) is type(value) and before != value and self.dynamic is None:
            self.differing.add((where, -1))
        self.seen[where] = value
        return bool(self.dynamic) or (where, -1) in self.differing


def is_definition(obj: Any) -> bool:
    """What modules define: functions, classes, modules."""
    return isinstance(obj, (FunctionType, type, ModuleType, functools.partial, *C_FUNCTIONS))


# --- values without a guard -------------------------------------------------------------------------------------------
def known(tx: Tracer, obj: Any) -> Value:
    """The value of an object that cannot change: constants of code, builtins, definitions of the library."""
    if obj is None:
        return NONE
    if obj is True:
        return TRUE
    if obj is False:
        return FALSE
    if obj is NotImplemented:
        return NOT_IMPLEMENTED
    kind = type(obj)
    if kind is FunctionType:
        met = tx.by_id.get(id(obj))
        if met is not None and met.source is not None and met.source.text in tx.namespace.objects:
            return met
        return _build(tx, obj, tx.namespace.source(obj))
    if kind in _CONSTANT_TYPES or isinstance(obj, _CONSTANT_BASES):
        return ConstantValue(obj)
    if kind is tuple:
        return TupleValue([known(tx, o) for o in obj])
    if kind is frozenset:
        items = {real_key(o): known(tx, o) for o in obj}
        return SetValue(items, frozenset, order=obj if obj == items.keys() else None)
    if isinstance(obj, type):
        return ClassValue(obj)
    if isinstance(obj, ModuleType):
        return ModuleValue(obj)
    if isinstance(obj, C_FUNCTIONS):
        return _c_function(tx, obj, tx.namespace.source(obj))
    return _build(tx, obj, tx.namespace.source(obj))


_CONSTANT_BASES = (enum.Enum, DType, Device, np.dtype, GenericAlias, UnionType)
_CONSTANT_TYPES = {
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), CodeType, range,
}  # fmt: skip


def fresh(tx: Tracer, obj: Any) -> Value:
    """The value of something new, made while tracing: no source, no guard."""
    kind = type(obj)
    if kind is int or kind is bool or obj is None or kind is str or kind is float:
        return ConstantValue(obj)
    if isinstance(obj, SymInt):
        return SymIntValue(obj)
    if isinstance(obj, Tensor):
        return tx.by_fake.get(id(obj)) or tx.new_tensor(obj, None)
    if isinstance(obj, tuple):
        return TupleValue([fresh(tx, o) for o in obj], kind)
    if kind is list:
        return ListValue([fresh(tx, o) for o in obj])
    if kind is dict:
        return DictValue({real_key(k): (fresh(tx, k), fresh(tx, v)) for k, v in obj.items()})
    if kind in (set, frozenset):
        made = {real_key(o): fresh(tx, o) for o in obj}
        return SetValue(made, kind, order=set(obj) if obj == made.keys() else None)
    if kind is slice:
        return SliceValue(fresh(tx, obj.start), fresh(tx, obj.stop), fresh(tx, obj.step))
    if kind is zip or kind is map or kind is enumerate or kind in _ITERATORS:
        return ItemsIterator([fresh(tx, o) for o in obj])
    if isinstance(obj, BaseException):
        return tx.new_exception(kind, [fresh(tx, a) for a in obj.args])
    if isinstance(obj, np.generic):
        return ConstantValue(obj)
    return known(tx, obj)


# --- values from outside ----------------------------------------------------------------------------------------------
def wrap(tx: Tracer, obj: Any, source: Source) -> Value:
    """The value of ``obj`` found at ``source``; installs the guards its kind needs at once."""
    met = tx.by_id.get(id(obj))
    if met is not None and met.source is not None:
        if met.source != source:
            tx.guard("ALIAS", "{0} is {1}", source, met.source)
        return met
    return _build(tx, obj, source)


def _build(tx: Tracer, obj: Any, source: Source) -> Value:
    builder = _BUILDERS.get(type(obj))
    if builder is not None:
        return builder(tx, obj, source)
    for kinds, build in _BY_BASE:
        if isinstance(obj, kinds):
            return build(tx, obj, source)
    return _object(tx, obj, source)


def _type_guard(tx: Tracer, obj: Any, source: Source) -> None:
    if source.text in tx.namespace.objects:
        return
    tx.guard("TYPE", "type({0}) is {1}", source, tx.namespace.source(type(obj)))


def _constant(tx: Tracer, obj: Any, source: Source) -> Value:
    """A number, a string: equal in type and value (and in sign of zero)."""
    if type(obj) is int and source.text not in tx.namespace.objects and tx.sizes.number(source.text, obj):
        symbol = tx.shape_env.create_integer(obj, source.text)
        if isinstance(symbol, SymInt):
            value = SymIntValue(symbol, source)
            tx.symbols[str(expr_of(symbol))] = (source, value)
            tx.guard("TYPE", "type({0}) is int", source)
            return value
    if type(obj) is float and source.text not in tx.namespace.objects and obj == obj:
        if tx.sizes.number(source.text, obj) and tx.sizes.dynamic is not False:
            return _float(tx, obj, source)
    kind = type(obj).__name__
    text = escape(literal(obj) or "")
    if isinstance(obj, float) and obj != obj:
        tx.guard("VALUE", "type({0}) is float and {0} != {0}", source)
    elif isinstance(obj, float) and obj == 0.0:
        copysign = tx.namespace.source(_sign_of, "sign_of")
        tx.guard("VALUE", f"type({{0}}) is float and {{0}} == 0.0 and {{1}}({{0}}) == {_sign_of(obj)}", source, copysign)
    else:
        tx.guard("VALUE", f"type({{0}}) is {kind} and {{0}} == {text}", source)
    return ConstantValue(obj, source)


def _float(tx: Tracer, obj: float, source: Source) -> Value:
    """A float that differs between calls: a 0-d input of the graph."""
    tx.guard("TYPE", "type({0}) is float", source)
    where = Source("{1}({0})", source, tx.namespace.source(scalar_tensor, "scalar"))
    tensor = tx.new_tensor(fake_tensor((), float64), None, where)
    tensor.example = tensor.fake
    return NumberValue(tensor, float, obj, frozenset({source.text}), source)


def scalar_tensor(x: float) -> Tensor:
    """A Python float as a 0-d tensor: as wide, and as weak in promotion."""
    return Tensor._wrap(np.array(x, np.float64), cpu)


def _sign_of(x: float) -> float:
    """1.0 or -1.0; tells -0.0 from 0.0."""
    return float(np.copysign(1.0, x))


def _singleton(tx: Tracer, obj: Any, source: Source) -> Value:
    tx.guard("VALUE", f"{{0}} is {obj!r}", source)
    return ConstantValue(obj, source)


def _identity(tx: Tracer, obj: Any, source: Source) -> Value:
    """An object that stands for itself: a dtype, an enum member."""
    if source.text not in tx.namespace.objects:
        tx.guard("IS", "{0} is {1}", source, tx.namespace.source(obj))
    return ConstantValue(obj, source)


def _equal(tx: Tracer, obj: Any, source: Source) -> Value:
    """An immutable object with a trustworthy ``==``: a device, a range."""
    tx.guard("VALUE", "type({0}) is {2} and {0} == {1}", source, tx.namespace.source(obj), tx.namespace.source(type(obj)))
    return ConstantValue(obj, source)


def _tuple(tx: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    _type_guard(tx, obj, source)
    tx.guard("LENGTH", f"len({{0}}) == {len(obj)}" if obj else "not {0}", source)
    items: list[Value] = [Lazy(o, source.item(i)) for i, o in enumerate(obj)]
    return tx.remember(obj, TupleValue(items, type(obj), source, obj))  # type: ignore[no-any-return]


def _list(tx: Tracer, obj: list[Any], source: Source) -> Value:
    _type_guard(tx, obj, source)

    def look() -> list[Value]:
        tx.guard("LENGTH", f"len({{0}}) == {len(obj)}" if obj else "not {0}", source)
        return [Lazy(o, source.item(i)) for i, o in enumerate(obj)]

    value = ListValue(None if type(obj) is list else look(), type(obj), source, obj, look)
    if isinstance(obj, collections.deque):
        value.maxlen = ConstantValue(obj.maxlen)
        if obj.maxlen is not None:
            tx.guard("VALUE", f"{{0}}.maxlen == {obj.maxlen}", source)
    return tx.remember(obj, value)  # type: ignore[no-any-return]


def _dict(tx: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    if not (type(obj) is dict and source.text.endswith(_REGISTRY_ENDINGS)):
        _type_guard(tx, obj, source)
    value = DictValue.wrap(obj, source)
    if isinstance(obj, collections.defaultdict):
        value.default_factory = Lazy(obj.default_factory, source.attr("default_factory"))
    return tx.remember(obj, value)  # type: ignore[no-any-return]


#: The dicts that every ``nn.Module`` makes for itself are dicts.
_REGISTRY_ENDINGS = tuple(f".__dict__[{name!r}]" for name in module._REGISTRIES)


def _set(tx: Tracer, obj: set[Any] | frozenset[Any], source: Source) -> Value:
    _type_guard(tx, obj, source)
    if all(literal(o) is not None for o in obj):
        tx.guard("VALUE", "{0} == {1}", source, tx.namespace.source(frozenset(obj), "set"))
        items: dict[Any, Value] = {o: ConstantValue(o) for o in obj}
    else:
        order = tx.namespace.source(_by_order, "elements")
        where = Source("{1}({0})", source, order)
        tx.guard("LENGTH", f"len({{0}}) == {len(obj)}", source)
        items = {real_key(o): Lazy(o, where.item(i)) for i, o in enumerate(obj)}
    return tx.remember(obj, SetValue(items, type(obj), source, obj))  # type: ignore[no-any-return]


def _by_order(s: Any) -> tuple[Any, ...]:
    return tuple(s)


def _function(tx: Tracer, obj: FunctionType, source: Source) -> Value:
    if source.text in tx.namespace.objects:
        pass
    elif graphs.is_graph_function(obj) or "_tt_constant" in obj.__dict__ or tx.models.get(obj) is not None:
        tx.guard("IS", "{0} is {1}", source, tx.namespace.source(obj))  # a node or a model is of this very function
    else:
        code, scope = tx.namespace.source(obj.__code__, "code_of_" + obj.__qualname__), tx.globals_source(obj.__globals__)
        tx.guard("CODE", "{0}.__code__ is {1} and {0}.__globals__ is {2}", source, code, scope)
    return tx.remember(obj, UserFunction.wrap(tx, obj, source))  # type: ignore[no-any-return]


def _method(tx: Tracer, obj: MethodType, source: Source) -> Value:
    _type_guard(tx, obj, source)
    func = wrap(tx, obj.__func__, source.attr("__func__"))
    return BoundMethod(func, Lazy(obj.__self__, source.attr("__self__")), source, obj)


def _c_function(tx: Tracer, obj: Any, source: Source) -> Value:
    owner = getattr(obj, "__self__", None)
    if source.text not in tx.namespace.objects:
        if owner is None or isinstance(owner, ModuleType | type):
            tx.guard("IS", "{0} is {1}" if owner is None or isinstance(owner, ModuleType) else "{0} == {1}", source,
                     tx.namespace.source(obj))  # fmt: skip
            return BuiltinValue(obj, source)
        _type_guard(tx, obj, source)
    if owner is not None and not isinstance(owner, ModuleType | type):
        descriptor = getattr(type(owner), obj.__name__, None)
        if isinstance(descriptor, C_FUNCTIONS):
            return BoundMethod(BuiltinValue(descriptor), Lazy(owner, source.attr("__self__")), source, obj)
    return BuiltinValue(obj, source)


def _class(tx: Tracer, obj: type, source: Source) -> Value:
    if source.text not in tx.namespace.objects:
        tx.guard("IS", "{0} is {1}", source, tx.namespace.source(obj))
    return ClassValue(obj, source)


def _module(tx: Tracer, obj: ModuleType, source: Source) -> Value:
    if source.text not in tx.namespace.objects:
        tx.guard("IS", "{0} is {1}", source, tx.namespace.source(obj))
    return ModuleValue(obj, source)


def _partial(tx: Tracer, obj: functools.partial[Any], source: Source) -> Value:
    _type_guard(tx, obj, source)
    args, kwargs = source.attr("args"), source.attr("keywords")
    tx.guard("LENGTH", f"len({{0}}) == {len(obj.args)}", args)
    if obj.keywords:
        keys = tuple(obj.keywords)
        tx.guard("KEYS", f"tuple({{0}}) == {escape(repr(keys))}", kwargs)
    else:
        tx.guard("KEYS", "not {0}", kwargs)
    return PartialValue(
        Lazy(obj.func, source.attr("func")),
        [Lazy(a, args.item(i)) for i, a in enumerate(obj.args)],
        {k: Lazy(v, kwargs.item(k)) for k, v in obj.keywords.items()},
        source,
    )


def _iterator(tx: Tracer, obj: Any, source: Source) -> Value:
    _type_guard(tx, obj, source)
    return tx.remember(obj, OutsideIterator(obj, source))  # type: ignore[no-any-return]


def _slice(tx: Tracer, obj: slice, source: Source) -> Value:
    _type_guard(tx, obj, source)
    return SliceValue(*[Lazy(getattr(obj, n), source.attr(n)) for n in ("start", "stop", "step")])


def _object(tx: Tracer, obj: Any, source: Source) -> Value:
    """An instance of a Python class; of a C class only what ``handlers`` know can be done with it."""
    _type_guard(tx, obj, source)
    is_python = bool(type(obj).__flags__ & _HEAP_TYPE) or type(obj) is SimpleNamespace
    value: Value = ObjectValue(type(obj), source, obj) if is_python else OpaqueValue(obj, source)
    return tx.remember(obj, value)  # type: ignore[no-any-return]


def _exception(tx: Tracer, obj: BaseException, source: Source) -> Value:
    _type_guard(tx, obj, source)
    value = ObjectValue(type(obj), source, obj)
    args = source.attr("args")
    tx.guard("LENGTH", f"len({{0}}) == {len(obj.args)}", args)
    value.slots["args"] = TupleValue([Lazy(a, args.item(i)) for i, a in enumerate(obj.args)])
    return tx.remember(obj, value)  # type: ignore[no-any-return]


_HEAP_TYPE = 1 << 9


def _lru_cache(tx: Tracer, obj: Any, source: Source) -> Value:
    """A cached function is the function: what it returns depends on its arguments only."""
    _type_guard(tx, obj, source)
    inner = wrap(tx, obj.__wrapped__, source.attr("__wrapped__"))
    if not isinstance(inner, UserFunction):
        return inner
    value = UserFunction.wrap(tx, obj.__wrapped__, source.attr("__wrapped__"))
    value.cached, value.source = inner, source
    return tx.remember(obj, value)  # type: ignore[no-any-return]


def _op(tx: Tracer, obj: Op, source: Source) -> Value:
    if source.text not in tx.namespace.objects:
        tx.guard("IS", "{0} is {1}", source, tx.namespace.source(obj, obj.name))
    return BuiltinValue(obj, source)


def _mode(tx: Tracer, obj: Any, source: Source) -> Value:
    return ModeValue(obj, tx.namespace.source(obj, "mode"))


# --- tensors ----------------------------------------------------------------------------------------------------------
def _tensor(tx: Tracer, obj: Tensor, source: Source) -> Value:
    """A tensor from outside: guarded in type, shape, strides, dtype, device and history; a graph input once used."""
    dims = tx.sizes.dims(source.text, obj)
    fake = fake_like(obj, tx.shape_env, source=source.text, dynamic=dims, storages=tx.storages)
    if obj._made_by()[0] is not None:
        fake._set_history(tape.Node(_INPUT, [], [], []), 0)
    value = tx.new_tensor(fake, None, source, obj)
    value.kind = type(obj)
    value.example = Tensor._wrap(fake._data, fake.device)
    value.example._requires_grad = fake._requires_grad
    if fake._node is not None:  # the backend is told that it is no leaf, and whether it is a view
        value.example._set_history(fake._node, 0)
        value.example._view_input = obj._base is not None  # type: ignore[attr-defined]
    shape = source.attr("_data").attr("shape")
    for d, size in enumerate(fake._data.shape):
        e = expr_of(size)
        if e is not None and str(e) not in tx.symbols:
            tx.symbols[str(e)] = (shape.item(d), value)
    tensor_guards(tx, value)
    return tx.remember(obj, value)  # type: ignore[no-any-return]


def _array(tx: Tracer, obj: Any, source: Source) -> Value:
    """A NumPy array from outside: its tensor is made by the check, over the same memory."""
    if type(obj) is not np.ndarray or obj.dtype.kind not in "biufc" or any(s < 0 for s in obj.strides):
        return _object(tx, obj, source)
    names = tx.namespace
    tx.guard("TYPE", "type({0}) is {1}", source, names.source(np.ndarray))
    tx.guard("TENSOR", f"{{0}}.shape == {obj.shape!r} and {{0}}.strides == {obj.strides!r}", source)
    tx.guard("TENSOR", "{0}.dtype == {1}", source, names.source(obj.dtype, obj.dtype.name))
    where = Source("{1}({0})", source, names.source(_over, "tensor_over"))
    real = _over(obj)
    tensor = tx.new_tensor(fake_like(real, storages=tx.storages), None, where, real)
    tensor.example = Tensor._wrap(tensor.fake._data, tensor.fake.device)
    return tx.remember(obj, ArrayValue(tensor, source, obj))  # type: ignore[no-any-return]


def _over(array: Any) -> Tensor:
    """A tensor over the array's memory."""
    return Tensor._wrap(array, cpu)


class _InputOp:
    """Stands for whatever made a non-leaf input."""

    name = "input"
    vjp = None


_INPUT: Any = _InputOp()


def tensor_guards(tx: Tracer, value: TensorValue) -> None:
    obj, fake, source = value.obj, value.fake, value.source
    assert obj is not None and source is not None
    data, fake_data = source.attr("_data"), fake._data
    names = tx.namespace
    tx.guard("TENSOR", "type({0}) is {1}", source, names.source(type(obj)))
    if type(obj) in (Parameter, Buffer) and fake_data.shape == obj._data.shape:
        _lasting_tensor_guards(tx, obj, source, data)
        return
    if all(isinstance(s, int) for s in fake_data.shape):
        tx.guard("TENSOR", f"{{0}}.shape == {tuple(fake_data.shape)!r}", data)
    else:
        tx.guard("TENSOR", f"len({{0}}.shape) == {len(fake_data.shape)}", data)
        for d, size in enumerate(fake_data.shape):
            if isinstance(size, int):
                tx.guard("TENSOR", f"{{0}}.shape[{d}] == {size}", data)
    if all(isinstance(s, int) for s in fake_data.strides):
        tx.guard("TENSOR", f"{{0}}.strides == {tuple(fake_data.strides)!r}", data)
    else:
        for d, stride in enumerate(fake_data.strides):
            form, parts = size_form(tx, str(expr_of(stride) if not isinstance(stride, int) else stride), 1)
            tx.guard("TENSOR", f"{{0}}.strides[{d}] == {form}", data, *parts)
    tx.guard("TENSOR", "({0}.dtype is {1} or {0}.dtype == {1})", data, names.source(obj._data.dtype, obj._data.dtype.name))
    tx.guard("TENSOR", "{0}.device is {1}", source, names.source(obj.device, str(obj.device)))
    wants = obj.requires_grad
    if not wants:  # a property that only views need
        tx.guard("TENSOR", "({0}._requires_grad if {0}._base is None else {0}.requires_grad) is False", source)
    elif obj._base is None:
        tx.guard("TENSOR", f"{{0}}._base is None and {{0}}._requires_grad is {wants}", source)
    else:
        tx.guard("TENSOR", f"{{0}}._base is not None and {{0}}.requires_grad is {wants}", source)
    if wants:
        tx.guard("TENSOR", "{0}._node is None" if obj._made_by()[0] is None else "{0}._node is not None", source)


def _lasting_tensor_guards(tx: Tracer, obj: Tensor, source: Source, data: Source) -> None:
    """Parameters and buffers keep their array: the same array has the same shape, strides and type."""
    names = tx.namespace
    array = obj._data
    known = names.source(weakref.ref(array), "array") if isinstance(array, np.ndarray) else None
    full = f"{{0}}.shape == {tuple(array.shape)!r} and {{0}}.strides == {tuple(array.strides)!r} and {{0}}.dtype == {{1}}"
    dtype = names.source(array.dtype, array.dtype.name)
    if known is None:
        tx.guard("TENSOR", full, data, dtype)
    else:
        tx.guard("TENSOR", f"{{0}} is {{2}}() or {full}", data, dtype, known)
    tx.guard("TENSOR", "{0}.device is {1}", source, names.source(obj.device, str(obj.device)))
    tx.guard("TENSOR", f"{{0}}._requires_grad is {obj.requires_grad}", source)
    if type(obj) is Buffer and obj.requires_grad:
        tx.guard("TENSOR", "{0}._node is None", source)


def size_form(tx: Tracer, text: str, first: int) -> tuple[str, list[Source]]:
    """Text over symbol names as a guard's form over the sources of these symbols."""
    parts: list[Source] = []
    for name in sorted(tx.symbols, key=len, reverse=True):
        pieces = _split_name(text, name)
        if len(pieces) > 1:
            text = f"{{{first + len(parts)}}}".join(pieces)
            parts.append(tx.symbol_source(name))
    return text, parts


def _split_name(text: str, name: str) -> list[str]:
    return re.split(rf"\b{re.escape(name)}\b", text)


Builder = Callable[["Tracer", Any, Source], Value]
_BUILDERS: dict[type, Builder] = {
    **dict.fromkeys(_NUMBERS, _constant),
    **dict.fromkeys((type(None), bool, type(Ellipsis), type(NotImplemented)), _singleton),
    **dict.fromkeys((list, collections.deque), _list),
    **dict.fromkeys((set, frozenset), _set),
    **dict.fromkeys(_ITERATORS, _iterator),
    tuple: _tuple,
    dict: _dict,
    range: _equal,
    slice: _slice,
    CodeType: _identity,
    FunctionType: _function,
    MethodType: _method,
    functools.partial: _partial,
    type(tape.mode): _mode,
    Op: _op,
    type(functools.lru_cache(len)): _lru_cache,
}
_BY_BASE: list[tuple[Any, Builder]] = [
    (BaseException, _exception),
    (enum.Enum, _identity),
    (DType, _identity),
    (Device, _equal),
    (np.dtype, _equal),
    (np.ndarray, _array),
    (np.generic, _equal),
    ((UnionType, GenericAlias), _equal),
    ((re.Pattern, re.Match), _identity),
    ((datetime.date, datetime.time, datetime.timedelta), _equal),
    (Tensor, _tensor),
    (type, _class),
    (ModuleType, _module),
    (C_FUNCTIONS, _c_function),
    (tuple, _tuple),
    (list, _list),
    (dict, _dict),
    ((set, frozenset), _set),
]
