"""The doors: ``compile`` and what stands around it.

Stage: api.  In: the user's functions and modules.  Out: callables that capture, compile and cache themselves.
Mirrors ``torch.compile`` and ``torch.compiler``.  Read next: ``backend``, ``capture.entry``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from compiler.backend import Backend, list_backends, lookup_backend, register_backend
from compiler.backends.modes import list_mode_options, list_options, settings
from compiler.capture import entry
from compiler.capture.entry import (
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
from compiler.config import config
from compiler.debug.explain import explain
from compiler.optimized_module import OptimizedModule
from tinytorch.nn.module import Module
from tinytorch.tracing import is_compiling

__all__ = [
    "OptimizedModule", "allow_in_graph", "assume_constant_result", "compile", "config", "disable",
    "error_on_graph_break", "explain", "graph_break", "is_compiling", "list_backends", "list_mode_options",
    "list_options", "lookup_backend", "mark_dynamic", "mark_static", "maybe_mark_dynamic", "nested_compile_region",
    "register_backend", "reset", "set_stance",
]  # fmt: skip

def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """A function or module that compiles itself when called.  Mirrors ``torch.compile``, also as a decorator.

    ``fullgraph``   a graph break is an error.
    ``dynamic``     True: sizes are symbolic from the start; False: never; None: a size that was seen to differ is.
    ``backend``     a name (``list_backends()``) or ``(graph_module, example_inputs) -> callable``.
    ``mode``        a bundle of settings (``list_mode_options()``); ``options``: settings by name.  Not both.
    ``disable``     give ``model`` back as it is.

    Nothing is compiled before the first call.  A module is wrapped; ``module.compile()`` compiles in place.
    """
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if disable or config.disable:
        return model
    if not callable(model):
        raise RuntimeError(f"compile() takes a function or a module, got {type(model).__name__}")
    found = lookup_backend(backend)
    changes = settings(mode, options) if takes_config(found) else {}
    chosen = configured(found, changes, mode, options)
    if isinstance(model, Module):
        again = functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options)
        return OptimizedModule(model, _compile_function(model.__call__, chosen, fullgraph, dynamic, changes), again)
    if isinstance(model, type):
        raise RuntimeError("compile() takes a function or an instance of a module, not a class")
    return _compile_function(model, chosen, fullgraph, dynamic, changes)


compile._tt_disabled = "compile inside compiled code"  # type: ignore[attr-defined]


def _compile_function(fn: Any, backend: Backend, fullgraph: bool, dynamic: bool | None, changes: dict[str, Any]) -> Any:
    return entry.compile_function(fn, backend, fullgraph=fullgraph, dynamic=dynamic, config=config.replace(changes))


def takes_config(backend: Backend) -> bool:
    """Whether a backend takes our settings; others get ``options`` as they are."""
    try:
        return "config" in inspect.signature(backend).parameters
    except (TypeError, ValueError):
        return False


_configured: dict[Any, Backend] = {}


def configured(
    found: Backend, changes: Mapping[str, Any], mode: str | None, options: Mapping[str, Any] | None
) -> Backend:
    """The backend with its settings bound: ours take a ``config``, others what the user gave.

    The same object for the same wishes: code caches tell backends apart by identity.
    """
    extra: dict[str, Any] = {}
    if takes_config(found):
        extra["config"] = tuple(sorted(changes.items()))
    else:
        if options is not None:
            extra["options"] = dict(options)
        if mode not in (None, "default"):
            extra["mode"] = mode
        if not extra:
            return found
    key = (found, repr(extra))
    if key not in _configured:
        _configured[key] = _bind(found, changes) if "config" in extra else functools.partial(found, **extra)
    return _configured[key]


def _bind(found: Backend, changes: Mapping[str, Any]) -> Backend:
    """Settings are read when the backend runs, so that ``config.patch`` around a call reaches it."""
    kept = dict(changes)
    return lambda gm, examples: found(gm, examples, config=config.replace(kept))  # type: ignore[call-arg]


def reset() -> None:
    """Forget all compiled code, guards and counts of this process; what is on disk stays.  Mirrors PyTorch's."""
    entry.reset()
