"""Calls: inlining Python functions, binding arguments, making instances.

Stage: capture.  See ``protocol``.  A Python function becomes a ``Frame``; a function of the tensor library becomes a
node; a C function is looked up in ``capture.models``; a C function that only computes runs now, on constants.
Read next: ``operators``.
"""

from __future__ import annotations

import inspect
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_origin, is_typeddict

from compiler.capture import breaks, graphs
from compiler.capture.protocol import attributes, classes
from compiler.capture.values.base import ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.function import (
    BoundMethod,
    BuiltinValue,
    ClassValue,
    PartialValue,
    UserFunction,
)
from compiler.capture.values.generator import GeneratorValue
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ObjectValue, OpaqueValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def call(tx: Tracer, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``callee(*args, **kwargs)``."""
    callee = realize(tx, callee)
    if isinstance(callee, UserFunction):
        return _call_function(tx, callee, args, kwargs)
    if isinstance(callee, BoundMethod):
        model = None if callee.obj is None else tx.models.get(callee.obj)
        if model is not None:
            return model(tx, *[realize(tx, a) for a in args], **{k: realize(tx, v) for k, v in kwargs.items()})
        return _call_method(tx, callee, args, kwargs)
    if isinstance(callee, BuiltinValue):
        return _call_c(tx, callee.fn, args, kwargs)
    if isinstance(callee, ClassValue):
        return _construct(tx, callee, args, kwargs)
    if isinstance(callee, PartialValue):
        return call(tx, callee.func, [*callee.args, *args], {**callee.kwargs, **kwargs})
    found = classes.lookup(tx, callee.pytype(), "__call__")
    if found is not None:
        if isinstance(callee, OpaqueValue):
            breaks.unsupported(breaks.BUILTIN_CALL, callee.describe())
        method = classes.bind(tx, found[0], "__call__", found[1], callee, callee.pytype())
        return call(tx, method, args, kwargs)
    if isinstance(callee, ConstantValue) and callable(callee.value):
        return _call_c(tx, callee.value, args, kwargs)
    tx.raise_(TypeError, f"'{callee.pytype().__name__}' object is not callable")


def _call_function(tx: Tracer, fn: UserFunction, args: list[Value], kwargs: dict[str, Value]) -> Value:
    model = None if fn.obj is None else tx.models.get(fn.obj)
    if model is not None:
        return model(tx, *[realize(tx, a) for a in args], **{k: realize(tx, v) for k, v in kwargs.items()})
    if fn.obj is not None:
        if "_tt_door" in fn.obj.__dict__ and fn.source is not None:
            return call(tx, tx.wrap(fn.obj.__dict__["_tt_door"][0], fn.source.attr("_tt_door").item(0)), args, kwargs)
        if "_tt_constant" in fn.obj.__dict__:
            return constant_result(tx, fn, args, kwargs)
        if graphs.is_graph_function(fn.obj):
            if args and fn.name in tx.models.tensors.ALWAYS_METHODS and isinstance(realize(tx, args[0]), TensorValue):
                return cast("Value", tx.models.tensors.call_method(tx, fn, realize(tx, args[0]), args[1:], kwargs))
            return graphs.call(tx, fn.obj, args, kwargs)
        tx.check_callable(fn.obj)
        if "_tt_region" in fn.obj.__dict__:
            return _region(tx, fn, args, kwargs)
    return inline(tx, fn, args, kwargs)


def _region(tx: Tracer, fn: UserFunction, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call whose nodes are to be compiled once for all calls like it; of nested ones the outermost counts."""
    before = set(tx.graph.nodes)
    out = inline(tx, fn, args, kwargs)
    tx.regions += 1
    for node in tx.graph.nodes:
        if node not in before:
            node.meta["call_region"] = tx.regions
    return out


def constant_result(tx: Tracer, fn: UserFunction, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function whose result the program says never changes: run it now."""
    found = fold(tx, fn.obj, args, kwargs)
    if found is None:
        breaks.unsupported(breaks.OPERATION, f"{fn.qualname} is to be constant, but its arguments are not known")
    return found


def _call_method(tx: Tracer, method: BoundMethod, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func = realize(tx, method.func)
    if isinstance(func, UserFunction) and isinstance(realize(tx, method.owner), TensorValue):
        found: Value = tx.models.tensors.call_method(tx, func, realize(tx, method.owner), args, kwargs)
        return found
    return call(tx, func, [method.owner, *args], kwargs)


def _call_c(tx: Tracer, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A C function: by its model, or now if it only computes and everything is known."""
    if isinstance(fn, type):
        return _construct(tx, ClassValue(fn), args, kwargs)
    args = [realize(tx, a) for a in args]
    kwargs = {k: realize(tx, v) for k, v in kwargs.items()}
    model = tx.models.get(fn)
    if model is not None:
        return model(tx, *args, **kwargs)
    if graphs.is_graph_function(fn):
        return graphs.call(tx, fn, args, kwargs)
    if tx.models.is_pure(fn):
        folded = fold(tx, fn, args, kwargs)
        if folded is not None:
            return folded
    return tx.models.refuse(tx, fn, args)


def fold(tx: Tracer, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Run ``fn`` now; None if an argument is not known."""
    try:
        real_args = [constant_of(tx, a) for a in args]
        real_kwargs = {k: constant_of(tx, v) for k, v in kwargs.items()}
    except NotConstantError:
        return None
    try:
        return tx.from_python(fn(*real_args, **real_kwargs))
    except Exception as e:
        tx.raise_native(e)


def constant_of(tx: Tracer, value: Value) -> Any:
    """The constant behind a value, through containers; NotConstantError if something in it is not known."""
    value = realize(tx, value)
    if isinstance(value, ListValue | TupleValue):
        items = [constant_of(tx, v) for v in value.items]
        if isinstance(value, TupleValue):
            return tuple(items) if value.kind is tuple else tuple.__new__(value.kind, items)
        if value.kind is list:
            return items
    if isinstance(value, DictValue) and value.kind is dict:
        value.know_keys(tx)
        return {constant_of(tx, k): constant_of(tx, v) for k, v in value.entries.values()}
    if isinstance(value, SetValue):
        return value.kind(constant_of(tx, v) for v in value.in_order(tx))
    if isinstance(value, SliceValue):
        return slice(*[constant_of(tx, v) for v in value.parts])
    if isinstance(value, SymIntValue):
        return int(value.sym)
    if isinstance(value, ObjectValue) and isinstance(value.obj, int | float | str) and value.source is not None:
        if tx.is_trusted_module(value.cls.__module__):  # the library's own, such as a sentinel
            if value.source.text not in tx.namespace.objects:
                tx.guard("IS", "{0} is {1}", value.source, tx.namespace.source(value.obj))
            return value.obj
    return value.const()


# --- inlining ---------------------------------------------------------------------------------------------------------
def inline(tx: Tracer, fn: UserFunction, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Run a Python function in a frame of its own."""
    from compiler.capture.translate import Frame

    flags = fn.code.co_flags
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE):
        breaks.unsupported(breaks.OPCODE, f"{fn.qualname} is a coroutine")
    frame = Frame(tx, fn, bind_arguments(tx, fn, args, kwargs))
    if flags & inspect.CO_GENERATOR:
        return GeneratorValue(frame, (fn, args, kwargs))
    frame.run()
    assert frame.result is not None
    return frame.result


def bind_arguments(tx: Tracer, fn: UserFunction, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """Arguments to parameters, as CPython does it; its TypeErrors are the program's."""
    code = fn.code
    names = code.co_varnames
    count, kwonly = code.co_argcount, code.co_kwonlyargcount
    positional, keyword = names[:count], names[count : count + kwonly]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    rest = count + kwonly
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[rest]] = TupleValue(list(args[count:]))
        rest += 1
    elif len(args) > count:
        _too_many(tx, fn, len(args), count)
    extra: dict[str, Value] = {}
    by_name = set(positional[code.co_posonlyargcount :]) | set(keyword)
    for name, value in kwargs.items():
        if name not in by_name:
            extra[name] = value
        elif name in bound:
            tx.raise_(TypeError, f"{fn.qualname}() got multiple values for argument '{name}'")
        else:
            bound[name] = value
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[rest]] = DictValue({k: (ConstantValue(k), v) for k, v in extra.items()})
    elif extra:
        _unexpected(tx, fn, positional[: code.co_posonlyargcount], extra)
    for name, value in zip(positional[count - len(fn.defaults) :], fn.defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in fn.kwdefaults.items():
        bound.setdefault(name, value)
    _check_complete(tx, fn, positional, keyword, bound)
    return bound


def _too_many(tx: Tracer, fn: UserFunction, given: int, count: int) -> None:
    low = count - len(fn.defaults)
    takes = f"from {low} to {count}" if fn.defaults else f"{count}"
    plural = "" if count == 1 and not fn.defaults else "s"
    were = "was" if given == 1 else "were"
    tx.raise_(TypeError, f"{fn.qualname}() takes {takes} positional argument{plural} but {given} {were} given")


def _unexpected(tx: Tracer, fn: UserFunction, posonly: tuple[str, ...], extra: dict[str, Value]) -> None:
    wrong = [n for n in extra if n in posonly]
    if wrong:
        what = f"got some positional-only arguments passed as keyword arguments: '{', '.join(wrong)}'"
        tx.raise_(TypeError, f"{fn.qualname}() {what}")
    tx.raise_(TypeError, f"{fn.qualname}() got an unexpected keyword argument '{next(iter(extra))}'")


def _check_complete(
    tx: Tracer, fn: UserFunction, positional: tuple[str, ...], keyword: tuple[str, ...], bound: dict[str, Value]
) -> None:
    for names, what in ((positional, "positional"), (keyword, "keyword-only")):
        missing = [repr(n) for n in names if n not in bound]
        if missing:
            listed = missing[0] if len(missing) == 1 else (
                " and ".join(missing) if len(missing) == 2 else ", ".join(missing[:-1]) + ", and " + missing[-1]
            )
            plural = "" if len(missing) == 1 else "s"
            tx.raise_(TypeError, f"{fn.qualname}() missing {len(missing)} required {what} argument{plural}: {listed}")


# --- instances --------------------------------------------------------------------------------------------------------
def _construct(tx: Tracer, callee: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(...)``: the metaclass's call, else ``__new__`` then ``__init__``."""
    cls = callee.cls
    if is_typeddict(cls):
        cls, callee = dict, ClassValue(dict)
    model = tx.models.get(cls)
    if model is not None:
        return model(tx, *[realize(tx, a) for a in args], **{k: realize(tx, v) for k, v in kwargs.items()})
    meta_call = classes.lookup(tx, type(cls), "__call__")
    if meta_call is not None and isinstance(meta_call[1], FunctionType):
        meta_model = tx.models.get(meta_call[1])
        if meta_model is not None:
            return meta_model(tx, callee, *[realize(tx, a) for a in args], **kwargs)
        method = classes.bind(tx, meta_call[0], "__call__", meta_call[1], callee, type(cls))
        return call(tx, method, args, kwargs)
    return construct_plain(tx, callee, args, kwargs)


def construct_plain(tx: Tracer, callee: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``type.__call__``."""
    cls = callee.cls
    new = classes.lookup(tx, cls, "__new__")
    assert new is not None
    raw = new[1]
    if isinstance(raw, staticmethod | FunctionType):
        inner = raw.__func__ if isinstance(raw, staticmethod) else raw
        fn = classes.inner_function(tx, new[0], "__new__", raw) if isinstance(raw, staticmethod) else tx.constant(inner)
        made = call(tx, fn, [callee, *args], kwargs)
    else:
        model = tx.models.new(raw)
        if model is None:
            folded = fold(tx, cls, args, kwargs) if tx.models.is_pure(cls) else None
            if folded is not None:
                return folded
            tx.models.refuse(tx, cls, args)
        init = classes.lookup(tx, cls, "__init__")
        plain_init = init is None or init[1] is object.__init__
        if raw is object.__new__ and plain_init and (args or kwargs):
            tx.raise_(TypeError, f"{cls.__name__}() takes no arguments")
        made = model(tx, callee, *[realize(tx, a) for a in args], **{k: realize(tx, v) for k, v in kwargs.items()})
    made = realize(tx, made)
    if not issubclass(made.pytype(), cls):
        return made
    init = classes.lookup(tx, made.pytype(), "__init__")
    if init is not None and init[1] is not object.__init__:
        method = classes.bind(tx, init[0], "__init__", init[1], made, made.pytype())
        call(tx, method, args, kwargs)
    return made


# --- special methods --------------------------------------------------------------------------------------------------
def has_special(tx: Tracer, value: Value, name: str) -> bool:
    return classes.lookup(tx, realize(tx, value).pytype(), name) is not None


def special(tx: Tracer, value: Value, name: str) -> Value:
    """``type(value).name`` bound to ``value``, past the instance dict."""
    value = realize(tx, value)
    found = classes.lookup(tx, value.pytype(), name)
    if found is None:
        tx.raise_(AttributeError, f"'{value.pytype().__name__}' object has no attribute '{name}'")
    return classes.bind(tx, found[0], name, found[1], value, value.pytype())


def call_special(tx: Tracer, value: Value, name: str, args: list[Value]) -> Value:
    return call(tx, special(tx, value, name), args, {})


def call_method(tx: Tracer, value: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """``value.name(*args)``."""
    return call(tx, attributes.getattr_(tx, value, name), args, kwargs or {})


def isinstance_(tx: Tracer, value: Value, cls: Value) -> bool:
    """``isinstance``; a tuple or a union is any of its members."""
    cls, value = realize(tx, cls), realize(tx, value)
    if isinstance(cls, TupleValue):
        return any(isinstance_(tx, value, c) for c in cls.items)
    wanted = cls.const()
    union = get_origin(wanted) in (Union, UnionType) or isinstance(wanted, UnionType)
    if not union and not isinstance(wanted, type):
        tx.raise_(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    if union:
        return any(isinstance_(tx, value, tx.constant(c)) for c in wanted.__args__)
    check = classes.lookup(tx, type(wanted), "__instancecheck__")
    if check is not None and isinstance(check[1], FunctionType) and not tx.is_trusted_globals(check[1].__globals__):
        found = call_special(tx, cls, "__instancecheck__", [value])
        return bool(tx.protocol.truth(tx, found))
    obj = value.real()
    if obj is not None and not isinstance(value, ObjectValue):
        return isinstance(obj, wanted)
    return issubclass(value.pytype(), wanted)


__all__ = ["bind_arguments", "call", "call_method", "call_special", "constant_of", "construct_plain", "fold",
           "has_special", "inline", "isinstance_", "special"]  # fmt: skip
