"""Doors: the function that stands in for the user's, with the same signature.

Stage: capture (run time).  In: a function and its cache.  Out: a function whose own parameters are bound by CPython, and
which tries the guards of each entry in turn.  Defaults are read from the original at each call, so they need no guard of
their own.  Read next: ``runtime``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import keyword
import re
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from compiler.capture.guards import compile_text
from compiler.capture.runtime import STATE, CodeCache, finish
from tinytorch.nn.module import Module

_serial = itertools.count()
_MISSING: Any = object()


@functools.lru_cache(maxsize=4096)
def door_text(code: CodeType, defaults: int, keyword_defaults: tuple[str, ...]) -> str:
    """Source of ``make``, which gives the door of a function with this signature.

    Parameters keep their names, for callers may use them; so everything else has a name that nobody gives a parameter.
    """
    names = parameter_names(code)
    n, k = code.co_argcount, code.co_kwonlyargcount
    parts: list[str] = []
    fill: list[str] = []
    for i, name in enumerate(names[:n]):
        j = i - (n - defaults)
        parts.append(f"{name}=_tt_missing" if j >= 0 else name)
        if j >= 0:
            fill.append(f"if {name} is _tt_missing: {name} = _tt_fn.__defaults__[{j}]")
        if i + 1 == code.co_posonlyargcount:
            parts.append("/")
    rest = list(names[n + k :])
    if code.co_flags & inspect.CO_VARARGS:
        parts.append("*" + rest.pop(0))
    elif k:
        parts.append("*")
    for name in names[n : n + k]:
        parts.append(f"{name}=_tt_missing" if name in keyword_defaults else name)
        if name in keyword_defaults:
            fill.append(f"if {name} is _tt_missing: {name} = _tt_fn.__kwdefaults__[{name!r}]")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append("**" + rest.pop(0))
    given = ", ".join(("_tt_fn", *names))
    body = [
        *fill,
        f"if _tt_state.special: return _tt_cache.by_stance({given})",
        "_tt_check, _tt_run, _tt_tail = _tt_cache.first",
        f"_tt_carried = _tt_check({given})",
        "if _tt_carried is not None: return _tt_run(*_tt_carried)",
        f"return _tt_finish(_tt_cache.raw({given}))",
    ]
    lines = ["def make(_tt_fn, _tt_cache, _tt_state):", f"    def door({', '.join(parts)}):"]
    lines += [f"        {line}" for line in body] + ["    return door"]
    return "\n".join(lines) + "\n"


def parameter_names(code: CodeType) -> tuple[str, ...]:
    """All parameters in the order of ``co_varnames``; hidden ones of comprehensions get names."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return tuple(
        n if n.isidentifier() and not keyword.iskeyword(n) else f"arg_{i}" for i, n in enumerate(code.co_varnames[:count])
    )


def parameters(code: CodeType) -> tuple[str, ...]:
    """What guards call the parameters: their names, set apart from the names that guards use themselves."""
    names = parameter_names(code)
    taken = set(names)
    found = []
    for n in names:
        apart = n
        while _OURS.fullmatch(apart) or (apart != n and apart in taken):
            apart = "p_" + apart
        taken.add(apart)
        found.append(apart)
    return tuple(found)


_OURS = re.compile(r"F|v\d+|K_\w+")


def make_door(fn: FunctionType, cache: CodeCache) -> Any:
    """The stand-in for ``fn``."""
    text = door_text(fn.__code__, len(fn.__defaults__ or ()), tuple(fn.__kwdefaults__ or ()))
    names = {"_tt_missing": _MISSING, "_tt_finish": finish}
    make = compile_text(text, f"<door of {fn.__qualname__} #{next(_serial)}>", names, "make")
    door = make(fn, cache, STATE)
    functools.update_wrapper(door, fn)
    door._tt_door = (fn, cache)
    return door


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# --- calls out of translated code -------------------------------------------------------------------------------------
class Nested:
    """``nested(f)``: a user's function called at a break is a compile target itself."""

    def __init__(self, cache_for: Callable[[CodeType], CodeCache | None]) -> None:
        self.cache_for = cache_for

    def __call__(self, fn: Any) -> Any:
        kind = type(fn)
        if kind is FunctionType:
            return self._function(fn)
        if isinstance(fn, Module) and kind.__call__ is Module.__call__ and "_compiled_call_impl" not in fn.__dict__:
            return self._module(fn)
        if kind is MethodType and fn.__func__ is Module._call_impl:
            return self._module(fn.__self__)
        if kind is MethodType and type(fn.__func__) is FunctionType:
            inner = self._function(fn.__func__)
            return fn if inner is fn.__func__ else MethodType(inner, fn.__self__)
        call = getattr(kind, "__call__", None)  # noqa: B004 - the function of the class
        if type(call) is FunctionType and not isinstance(fn, type):
            inner = self._function(call)
            return fn if inner is call else MethodType(inner, fn)
        return fn

    def _module(self, module: Module) -> Any:
        """A module's call is its ``forward``, which is the target; its hooks run around that, natively."""
        forward = self(module.forward)
        if any(module.__dict__[hooks] for hooks in _HOOKS):
            return lambda *args, **kwargs: module._call_with_hooks(args, kwargs, forward)
        return forward

    def _function(self, fn: FunctionType) -> Any:
        if getattr(fn, "_tt_door", None) is not None or getattr(fn, "_tt_disabled", None) is not None:
            return fn
        cache = self.cache_for(fn.__code__)
        return fn if cache is None else make_door(fn, cache)
