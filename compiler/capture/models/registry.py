"""Models of C functions: what a call of one means on values.

Stage: capture.  In: a C function, method descriptor, slot wrapper or type.  Out: a Python function over values, found by
the very object it stands for.  A function that only computes needs no model: it runs while tracing, on constants.
Read next: ``builtins_``, ``sequences``, ``mappings``, ``objects_``, ``tensors``; ``polyfills`` (models in plain Python).
"""

from __future__ import annotations

import cmath
import datetime
import math
import operator
import re
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from compiler.capture import breaks
from compiler.capture.values.base import Value

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

Model = Callable[..., Any]
_MODELS: dict[Any, Model] = {}
_NEW: dict[Any, Model] = {}
_POLYFILLS: dict[Any, FunctionType] = {}
_RULES: list[Callable[[Any], Model | None]] = []


def model(*targets: Any) -> Callable[[Model], Model]:
    """``@model(list.append)``: the decorated function gets ``tx`` and the call's arguments as values."""

    def register(fn: Model) -> Model:
        for target in targets:
            _MODELS[target] = fn
        return fn

    return register


def new(*targets: Any) -> Callable[[Model], Model]:
    """``@new(list.__new__)``: makes an instance of the class given first."""

    def register(fn: Model) -> Model:
        for target in targets:
            _NEW[target] = fn
        return fn

    return register


def rule(fn: Callable[[Any], Model | None]) -> Callable[[Any], Model | None]:
    """A family of C functions recognised by their shape."""
    _RULES.append(fn)
    return fn


def polyfill(*targets: Any) -> Callable[[Any], Any]:
    """``@polyfill(sorted)``: the decorated Python function is inlined in place of the C one."""

    def register(fn: Any) -> Any:
        for target in targets:
            _POLYFILLS[target] = fn
        return fn

    return register


def get(target: Any) -> Model | None:
    """The model of ``target``, or None."""
    try:
        found = _MODELS.get(target)
        python = None if found is not None else _POLYFILLS.get(target)
    except TypeError:  # not hashable
        return None
    if found is not None:
        return found
    if python is not None:
        return _inlined(python)
    if getattr(target, "__name__", None) == "__new__" and isinstance(target, BuiltinFunctionType):
        return new_of(target)
    for family in _RULES:
        found = family(target)
        if found is not None:
            return found
    return None


def _inlined(python: FunctionType) -> Model:
    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return tx.protocol.inline(tx, tx.constant(python), list(args), kwargs)  # type: ignore[arg-type]

    return run


def new_of(raw: Any) -> Model | None:
    """The model of a C ``__new__``."""
    found = _NEW.get(raw)
    if found is None and issubclass(getattr(raw, "__self__", object), BaseException):
        return _NEW[BaseException.__new__]
    return found


_PURE_TYPES = (int, float, complex, bool, str, bytes, tuple, frozenset, range, type(None), slice)
#: Immutable types of C whose methods only compute, too.
_PURE_OBJECTS = (re.Pattern, re.Match, datetime.timedelta, datetime.date, datetime.time, np.dtype)
_PURE_BUILTINS = {
    abs, ascii, bin, chr, divmod, format, hash, hex, len, oct, ord, pow, repr, round, max, min, sum, sorted,
    int.from_bytes, str.maketrans, bytes.fromhex, float.fromhex, dict.fromkeys,
}  # fmt: skip
_PURE_MODULES = {math, cmath, operator}


def is_pure(fn: Any) -> bool:
    """Whether ``fn`` only computes: no state read, none changed, so that it may run while tracing."""
    if isinstance(fn, type):
        made = fn in _PURE_TYPES or fn in _PURE_OBJECTS or issubclass(fn, np.generic)
        return made or fn in (operator.itemgetter, operator.attrgetter)
    if isinstance(fn, MethodDescriptorType | WrapperDescriptorType | GetSetDescriptorType):
        return fn.__objclass__ in _PURE_TYPES or fn.__objclass__ in _PURE_OBJECTS
    if isinstance(fn, BuiltinFunctionType):
        if fn in _PURE_BUILTINS:
            return True
        owner = fn.__self__
        if isinstance(owner, ModuleType):
            return owner in _PURE_MODULES or owner.__name__ in ("_operator", "math", "cmath")
        return isinstance(owner, type) and owner in _PURE_TYPES
    return isinstance(fn, operator.itemgetter | operator.attrgetter)


_WORLD = {print, input, open, exec, eval, compile, breakpoint, __import__}


def refuse(tx: Tracer, fn: Any, args: list[Value]) -> NoReturn:
    """No model: say which kind of call it is."""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    module = getattr(fn, "__module__", None) or getattr(getattr(fn, "__objclass__", None), "__module__", "") or ""
    shown = f"{module}.{name}" if module and module != "builtins" else name
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    if module == "_warnings" or (isinstance(fn, Callable) and _hashable(fn) and fn in _WORLD):  # type: ignore[arg-type]
        breaks.unsupported(breaks.SIDE_EFFECT_CALL, shown)
    if module.startswith(("random", "_random", "numpy.random")) or "random" in str(type(owner).__module__):
        breaks.unsupported(breaks.RANDOM_STATE, shown)
    if isinstance(fn, np.ufunc) or module.startswith("numpy"):
        breaks.unsupported(breaks.NUMPY_CALL, shown)
    breaks.unsupported(breaks.BUILTIN_CALL, f"{shown}({', '.join(a.describe() for a in args)})")


def _hashable(fn: Any) -> bool:
    try:
        hash(fn)
    except TypeError:
        return False
    return True
