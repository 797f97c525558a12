"""Real objects from outside into values.

Stage: capture.  In: an object and its source.  Out: a value, and the guards on what the value shows at once: a type, a
constant, a length; what lies inside waits (``Lazy``) until it is looked at.  One builder per kind of object, in two
tables at the end.  Read next: ``inputs`` (tensors), ``sourceless`` (values without a guard).
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import re
from collections.abc import Callable
from types import CodeType, FunctionType, GenericAlias, MethodType, ModuleType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import graphs, inputs
from compiler.capture.kinds import C_FUNCTIONS, ITERATORS
from compiler.capture.source import Source, escape, literal
from compiler.capture.values.base import ConstantValue, Lazy, Value
from compiler.capture.values.function import (
    BoundMethod,
    BuiltinValue,
    ClassValue,
    ModuleValue,
    PartialValue,
    UserFunction,
)
from compiler.capture.values.iterator import OutsideIterator
from compiler.capture.values.keys import real_key
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ModeValue, ObjectValue, OpaqueValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue
from compiler.sym.env import SymInt
from compiler.sym.expr import expr_of
from tinytorch import tape
from tinytorch.device import Device
from tinytorch.dtypes import DType
from tinytorch.nn import module
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

_NUMBERS = (int, float, complex, str, bytes)


def wrap(tx: Tracer, obj: Any, source: Source) -> Value:
    """The value of ``obj`` found at ``source``; installs the guards its kind needs at once."""
    met = tx.by_id.get(id(obj))
    if met is not None and met.source is not None:
        if met.source != source:
            tx.guard("ALIAS", "{0} is {1}", source, met.source)
        return met
    return build(tx, obj, source)


def build(tx: Tracer, obj: Any, source: Source) -> Value:
    """The value of an object that this trace has not met."""
    builder = _BUILDERS.get(type(obj))
    if builder is not None:
        return builder(tx, obj, source)
    for kinds, builder in _BY_BASE:
        if isinstance(obj, kinds):
            return builder(tx, obj, source)
    return _object(tx, obj, source)


def _type_guard(tx: Tracer, obj: Any, source: Source) -> None:
    if source.text in tx.namespace.objects:
        return
    tx.guard("TYPE", "type({0}) is {1}", source, tx.namespace.source(type(obj)))


def _constant(tx: Tracer, obj: Any, source: Source) -> Value:
    """A number, a string: equal in type and value (and in sign of zero)."""
    if type(obj) is int and source.text not in tx.namespace.objects and tx.sizes.number(source.text, obj, source.built):
        symbol = tx.shape_env.create_integer(obj, source.text)
        if isinstance(symbol, SymInt):
            value = SymIntValue(symbol, source)
            tx.symbols[str(expr_of(symbol))] = (source, value)
            tx.guard("TYPE", "type({0}) is int", source)
            return value
    if type(obj) is float and source.text not in tx.namespace.objects and obj == obj:
        if tx.sizes.number(source.text, obj, source.built) and tx.sizes.dynamic is not False:
            return inputs.float_input(tx, obj, source)
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


def c_function(tx: Tracer, obj: Any, source: Source) -> Value:
    """A function of C; of one that is bound to an object, the object waits apart."""
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


def _array(tx: Tracer, obj: Any, source: Source) -> Value:
    return inputs.array_input(tx, obj, source) if inputs.is_plain_array(obj) else _object(tx, obj, source)


Builder = Callable[["Tracer", Any, Source], Value]
_BUILDERS: dict[type, Builder] = {
    **dict.fromkeys(_NUMBERS, _constant),
    **dict.fromkeys((type(None), bool, type(Ellipsis), type(NotImplemented)), _singleton),
    **dict.fromkeys((list, collections.deque), _list),
    **dict.fromkeys((set, frozenset), _set),
    **dict.fromkeys(ITERATORS, _iterator),
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
    (Tensor, inputs.tensor_input),
    (type, _class),
    (ModuleType, _module),
    (C_FUNCTIONS, c_function),
    (tuple, _tuple),
    (list, _list),
    (dict, _dict),
    ((set, frozenset), _set),
]
