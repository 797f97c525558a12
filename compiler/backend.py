"""Backends: what turns a captured graph into a callable, found by name.

Stage: api.  In: a name or a callable.  Out: ``(graph_module, example_inputs) -> callable(*tensors) -> list``.
Names come from ``register_backend``, from this file's table, and from entry points of the group ``tinytorch.backends``.
Mirrors ``torch._dynamo.backends.registry``.  Read next: ``backends``, one file each.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeAlias

from compiler.config import Config
from compiler.errors import BackendError
from compiler.loop.ir import Plan

Backend: TypeAlias = "Callable[[Any, Sequence[Any]], Callable[..., Any]]"

GROUP = "tinytorch.backends"


class Codegen(Protocol):
    """What a package such as ``codegen_numba`` offers; found by name, through ``importlib``."""

    def build(self, plan: Plan, config: Config) -> Callable[[list[Any], tuple[int, ...]], list[Any]]:
        """Machine code for a plan: a function of the inputs' arrays and the values of ``plan.sizes``."""
        ...


@dataclass(frozen=True)
class _Entry:
    """A backend that is imported when it is first looked up: ``module:attribute``."""

    target: str | Backend
    tags: tuple[str, ...] = ()


_REGISTRY: dict[str, _Entry] = {
    "eager": _Entry("compiler.backends.eager:eager", ("debug",)),
    "eager_noexcept": _Entry("compiler.backends.eager:eager_noexcept", ("debug",)),
    "aot_eager": _Entry("compiler.backends.aot_eager:aot_eager", ("debug",)),
    "aot_eager_decomp_partition": _Entry("compiler.backends.aot_eager:aot_eager_decomp_partition", ("debug",)),
    "loops": _Entry("compiler.backends.loops:interpreted", ("debug",)),
    "numba": _Entry("compiler.backends.loops:numba"),
    "cupy": _Entry("compiler.backends.loops:cupy"),
    "inductor": _Entry("compiler.backends.loops:inductor"),
}


def register_backend(
    compiler_fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> Any:
    """Make a backend known by a name (its own if none is given); also a decorator.  Mirrors PyTorch's."""
    if compiler_fn is None:
        return lambda fn: register_backend(fn, name, tags)
    if not callable(compiler_fn):
        raise TypeError(f"a backend is a callable (graph_module, example_inputs) -> callable, got {compiler_fn!r}")
    known = name or getattr(compiler_fn, "__name__", None)
    if not known:
        raise ValueError("register_backend needs a name for a callable without one")
    _REGISTRY[known] = _Entry(compiler_fn, tuple(tags))
    return compiler_fn


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Names that ``compile(backend=...)`` takes, those for debugging left out unless ``exclude_tags`` is empty."""
    excluded = set(exclude_tags or ())
    names = {name for name, entry in _REGISTRY.items() if not excluded & set(entry.tags)}
    return sorted(names | set(_installed()))


def lookup_backend(backend: str | Backend) -> Backend:
    """The callable for a name; a callable is itself.  ValueError names what there is."""
    if not isinstance(backend, str):
        if not callable(backend):
            raise TypeError(f"backend is a name or a callable, got {backend!r}")
        return backend
    entry = _REGISTRY.get(backend)
    if entry is None:
        point = _installed().get(backend)
        if point is None:
            raise ValueError(_unknown(backend))
        entry = _REGISTRY[backend] = _Entry(point.load())
    if isinstance(entry.target, str):
        module, _, attribute = entry.target.partition(":")
        entry = _REGISTRY[backend] = _Entry(getattr(importlib.import_module(module), attribute), entry.tags)
    found: Backend = entry.target  # type: ignore[assignment]
    return found


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _unknown(name: str) -> str:
    names = list_backends(None)
    near = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no backend {name!r}.{hint} Backends are {', '.join(names)}."


def load_codegen(name: str) -> Codegen:
    """The package that builds kernels; BackendError says what is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise BackendError(f"the codegen package {name!r} cannot be imported: {e}") from e
