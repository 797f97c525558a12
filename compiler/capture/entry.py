"""The entrance: ``compile_function``, the caches, and the small doors of ``tinytorch.compiler``.

Stage: capture.  In: a callable and a backend ``(graph_module, example_inputs) -> callable``.  Out: a callable that checks
guards and runs translated code.  Caches are per code object: two closures of one ``def`` share them.
Read next: ``door`` (what is called), ``session`` (what happens on a miss).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

from compiler.capture.door import make_door, parameters
from compiler.capture.instrs import check_version
from compiler.capture.resume import resume_name
from compiler.capture.runtime import STATE, Captured, CodeCache, Nested, Options
from compiler.capture.session import Session
from compiler.config import Config
from compiler.config import config as default_config

_caches: dict[tuple[Any, ...], CodeCache] = {}
_alive: list[Any] = []


def compile_function(
    fn: Callable[..., Any],
    backend: Callable[..., Any],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    config: Config = default_config,
) -> Callable[..., Any]:
    """``fn`` compiled on its first call, and again for calls that its guards do not cover.

    ``backend(graph_module, example_inputs)`` gets a ``GraphModule`` whose nodes call public functions and Tensor methods,
    with fakes as examples, and returns a callable that gives the outputs as a tuple or list.  ``fullgraph``: a break
    raises ``Unsupported``.  The result has attribute ``_tt_door`` = (original function, its ``CodeCache``).
    """
    check_version()
    options = Options(backend, fullgraph, dynamic, config)
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return MethodType(_door(fn.__func__, options), fn.__self__)
    if not isinstance(fn, FunctionType):
        target = fn

        def call(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        functools.update_wrapper(call, fn, updated=())
        return _door(call, options)
    return _door(fn, options)


def _door(fn: FunctionType, options: Options) -> Any:
    if hasattr(fn, "_tt_door"):
        fn = fn._tt_door[0]
    if fn.__code__.co_flags & _GENERATOR:
        return fn
    return make_door(fn, cache_for(fn.__code__, options))


_GENERATOR = 0x20 | 0x80 | 0x100 | 0x200


def cache_for(code: CodeType, options: Options, label: str = "") -> CodeCache:
    """The cache of ``code`` under ``options``."""
    key = (id(code), options.key())
    found = _caches.get(key)
    if found is None:
        found = _caches[key] = CodeCache(code, parameters(code), options, translate)
        if label:
            found.name = label
        _alive.append(code)
    return found


def translate(cache: CodeCache, fn: FunctionType, values: tuple[Any, ...]) -> Captured:
    """One new entry of ``cache``."""

    def nested_cache(code: CodeType) -> CodeCache | None:
        return cache_for(code, cache.options) if is_target(code) else None

    def resume_cache(code: CodeType, line: int | None) -> CodeCache:
        return cache_for(code, cache.options, resume_name(code, line))

    return Session(cache, fn, values, Nested(nested_cache), resume_cache).capture()


def is_target(code: CodeType) -> bool:
    """Whether a function called at a break is worth compiling: a user's, or a layer's call."""
    if code.co_flags & _GENERATOR:
        return False
    path = code.co_filename
    if path.startswith("<"):
        return not path.startswith(("<frozen", "<door", "<guards", "<translated"))
    if "/tinytorch/" in path:
        return "/tinytorch/nn/" in path and "/functional/" not in path
    return not path.startswith(_LIBRARY) and "/compiler/" not in path and "site-packages" not in path


_LIBRARY = tuple(p for p in {sys.prefix + "/lib", sys.base_prefix + "/lib"})


def reset() -> None:
    """Forget every entry, and what was learned about sizes."""
    for cache in _caches.values():
        cache.entries, cache.run_only = (), ""
        cache.records.clear()
        cache.sizes.__init__(cache.options.dynamic)  # type: ignore[misc]


def captured(door: Any) -> list[Captured]:
    """The entries behind a compiled function, oldest first."""
    inner = door.__func__ if isinstance(door, MethodType) else door
    return list(inner._tt_door[1].records)


def all_captured() -> list[Captured]:
    """The entries of every cache, resume functions included."""
    return [r for cache in list(_caches.values()) for r in cache.records]


# --- the small doors --------------------------------------------------------------------------------------------------
def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """``fn`` runs eager, also when called from compiled code; with ``recursive=False`` what it calls may compile."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    original = getattr(fn, "_tt_door", (fn,))[0]

    @functools.wraps(original)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        if not recursive:
            return original(*args, **kwargs)
        before, STATE.special = STATE.special, True
        stance, STATE.stance = STATE.stance, "force_eager"
        try:
            return original(*args, **kwargs)
        finally:
            STATE.special, STATE.stance = before, stance

    disabled._tt_disabled = reason or "disabled"  # type: ignore[attr-defined]
    return disabled


def graph_break(msg: str = "") -> None:
    """End the graph here.  Does nothing in eager."""


def allow_in_graph(fn: Any) -> Any:
    """Make a call of ``fn`` one node instead of following it.  Mirrors ``torch.compiler.allow_in_graph``."""
    fn._tt_leaf = True
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Run ``fn`` while tracing and take its result for ever.  Mirrors ``torch.compiler.assume_constant_result``."""
    fn._tt_constant = True
    return fn


@contextmanager
def error_on_graph_break(flag: bool = True) -> Iterator[None]:
    """Whether a break inside is an error; read while tracing."""
    yield


def mark_dynamic(t: Any, index: int | list[int] | tuple[int, ...], *, min: int = 2, max: float = float("inf")) -> None:
    """Dimension ``index`` is symbolic from the first compile on.  Mirrors ``torch._dynamo.mark_dynamic``."""
    marks = dict(getattr(t, "_dynamic_dims", None) or {})
    for i in [index] if isinstance(index, int) else index:
        marks[i % t.ndim] = (min, max)
    t._dynamic_dims = marks


maybe_mark_dynamic = mark_dynamic


def mark_static(t: Any, index: int | list[int] | tuple[int, ...] | None = None) -> None:
    """Dimension ``index`` (all, if None) is never symbolic.  Mirrors ``torch._dynamo.mark_static``."""
    dims = range(t.ndim) if index is None else [index] if isinstance(index, int) else index
    t._static_dims = {*(getattr(t, "_static_dims", None) or ()), *(i % t.ndim for i in dims)}


_STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class set_stance:  # noqa: N801 - PyTorch's name
    """What compiled functions do from now on; as a block or decorator, only inside.  Mirrors ``torch.compiler``."""

    def __init__(self, stance: str = "default") -> None:
        if stance not in _STANCES:
            raise RuntimeError(f"invalid torch.compile stance {stance!r}: one of {', '.join(_STANCES)}")
        self.before = STATE.stance
        self.stance = stance
        self._set(stance)

    def _set(self, stance: str) -> None:
        STATE.stance, STATE.special = stance, stance != "default"

    def __enter__(self) -> None:
        self._set(self.stance)

    def __exit__(self, *exc: object) -> None:
        self._set(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        self._set(self.before)

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return fn(*args, **kwargs)

        return wrapped


__all__ = ["Captured", "all_captured", "allow_in_graph", "assume_constant_result", "captured",
           "compile_function", "disable", "error_on_graph_break", "graph_break", "mark_dynamic", "mark_static",
           "maybe_mark_dynamic", "reset", "set_stance"]  # fmt: skip
