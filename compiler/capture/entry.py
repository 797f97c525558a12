"""The entrance: ``compile_function``, the caches, and the small doors of ``tinytorch.compiler``.

Stage: capture.  In: a callable and a backend ``(graph_module, example_inputs) -> callable``.  Out: a callable that checks
guards and runs translated code.  Caches are per code object: two closures of one ``def`` share them.
Read next: ``door`` (what is called), ``session`` (what happens on a miss).
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from compiler import logs
from compiler.capture import breaks
from compiler.capture.door import Nested, make_door, parameters
from compiler.capture.doors import (
    allow_in_graph,
    assume_constant_result,
    disable,
    error_on_graph_break,
    graph_break,
    mark_dynamic,
    mark_static,
    maybe_mark_dynamic,
    nested_compile_region,
    set_stance,
)
from compiler.capture.instrs import check_version
from compiler.capture.resume import resume_name
from compiler.capture.runtime import Captured, CodeCache, Options
from compiler.capture.session import Session
from compiler.config import Config
from compiler.config import config as default_config
from compiler.errors import Location, Unsupported

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
        made: Any = call
        return _door(made, options)
    return _door(fn, options)


def _door(fn: FunctionType, options: Options) -> Any:
    if hasattr(fn, "_tt_door"):
        fn = fn._tt_door[0]
    if fn.__code__.co_flags & _GENERATOR:
        return _left_alone(fn, options)
    return make_door(fn, cache_for(fn.__code__, options))


def _left_alone(fn: FunctionType, options: Options) -> FunctionType:
    """A generator or coroutine as it is, which is said; ``Unsupported`` under ``fullgraph``."""
    row, code = breaks.GENERATOR_TARGET, fn.__code__
    text = linecache.getline(code.co_filename, code.co_firstlineno)
    where = Location(code.co_filename, code.co_firstlineno, code.co_name, text)
    e = Unsupported(row.id, f"{row.name}: {fn.__qualname__}", row.hint, stack=[where])
    if options.fullgraph:
        raise e
    logs.counters["graph_breaks"][e.id] += 1
    if logs.enabled("graph_breaks"):
        logs.artifact("graph_breaks", fn.__name__, str(e), ".txt")
    return fn


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


def translate(cache: CodeCache, fn: FunctionType, values: tuple[Any, ...]) -> Captured | None:
    """One new entry of ``cache``; None if by then an old one fits."""

    def nested_cache(code: CodeType) -> CodeCache | None:
        return cache_for(code, cache.options) if is_target(code) else None

    def resume_cache(code: CodeType, line: int | None) -> CodeCache:
        return cache_for(code, cache.options, resume_name(code, line))

    return Session(cache, fn, values, Nested(nested_cache), resume_cache).capture()


def is_target(code: CodeType) -> bool:
    """Whether a function called at a break is worth compiling: a user's, or a layer's ``forward``."""
    if code.co_flags & _GENERATOR:
        return False
    path = code.co_filename
    if path.startswith("<"):
        return not path.startswith(("<frozen", "<door", "<guards", "<translated"))
    if "/tinytorch/" in path:
        return "/tinytorch/nn/" in path and code.co_name == "forward"
    return not path.startswith(_LIBRARY) and "/compiler/" not in path and "site-packages" not in path


_LIBRARY = tuple(p for p in {sys.prefix + "/lib", sys.base_prefix + "/lib"})


def reset() -> None:
    """Forget every entry, and what was learned about sizes."""
    for cache in _caches.values():
        cache.set_entries(())
        cache.run_only, cache.called = "", False
        cache.full.clear()
        cache.records.clear()
        cache.sizes.__init__(cache.options.dynamic)  # type: ignore[misc]


def captured(door: Any) -> list[Captured]:
    """The entries behind a compiled function, oldest first."""
    inner: Any = door.__func__ if isinstance(door, MethodType) else door
    return list(inner._tt_door[1].records)


def captured_with(backend: Callable[..., Any]) -> list[Captured]:
    """The entries of every cache that compiles with ``backend``: those of resume functions and nested calls too."""
    return [r for cache in list(_caches.values()) if cache.options.backend is backend for r in cache.records]


def all_captured() -> list[Captured]:
    """The entries of every cache, resume functions included."""
    return [r for cache in list(_caches.values()) for r in cache.records]


__all__ = [
    "Captured", "all_captured", "allow_in_graph", "assume_constant_result", "captured", "captured_with", "compile_function", "disable",
    "error_on_graph_break", "graph_break", "mark_dynamic", "mark_static", "maybe_mark_dynamic",
    "nested_compile_region", "reset", "set_stance",
]  # fmt: skip
