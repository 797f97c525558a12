"""The small doors of ``tinytorch.compiler``: what a program says to its compiler.

Stage: capture.  In: functions, tensors, flags.  Out: the same, marked; capture reads the marks while tracing.
In eager code all of them do nothing or next to nothing.  Read next: ``models.doors`` (what they mean in a trace).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from compiler.capture.runtime import STATE


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """``fn`` runs eager, also when called from compiled code; with ``recursive=False`` what it calls may compile.

    Mirrors ``torch.compiler.disable``.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    original = getattr(fn, "_tt_door", (fn,))[0]

    @functools.wraps(original)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        if not recursive:
            return original(*args, **kwargs)
        with set_stance("force_eager"):
            return original(*args, **kwargs)

    disabled.__dict__.pop("_tt_door", None)
    disabled._tt_disabled = reason or "disabled"  # type: ignore[attr-defined]
    return disabled


def graph_break(msg: str = "") -> None:
    """End the graph here.  Mirrors ``torch._dynamo.graph_break``."""


def allow_in_graph(fn: Any) -> Any:
    """Make a call of ``fn`` one node instead of following it.  Mirrors ``torch.compiler.allow_in_graph``."""
    fn._tt_leaf = True
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Run ``fn`` while tracing and take its result for ever.  Mirrors ``torch.compiler.assume_constant_result``."""
    fn._tt_constant = True
    return fn


def nested_compile_region(fn: Any) -> Any:
    """A function that repeats, such as a transformer block's ``forward``: inside a graph its calls with equal structure and
    inputs of equal kind share one compilation.  It compiles faster and fuses nothing across its border.

    Mirrors ``torch.compiler.nested_compile_region``.
    """

    @functools.wraps(fn)
    def region(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    region._tt_region = True  # type: ignore[attr-defined]
    return region


def set_strict(flag: bool | None) -> bool | None:
    """Whether a break is an error from here on; the setting before.  Only a trace has one."""
    return None


class error_on_graph_break:  # noqa: N801 - PyTorch's name
    """Inside the block, or the decorated function, a break is an error (or, with False, is not).

    ``fullgraph=True`` goes before.  Mirrors ``torch._dynamo.error_on_graph_break``.
    """

    def __init__(self, error_on_graph_break: bool = True) -> None:
        self.flag = error_on_graph_break
        self.before: bool | None = None

    def __enter__(self) -> None:
        self.before = set_strict(self.flag)

    def __exit__(self, *exc: object) -> None:
        set_strict(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        flag = self.flag

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(flag):
                return fn(*args, **kwargs)

        return wrapped


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


STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class set_stance:  # noqa: N801 - PyTorch's name
    """What compiled functions do from now on; as a block or decorator, only inside.  Mirrors ``torch.compiler``.

    ``force_eager`` runs the originals.  ``eager_on_recompile`` uses what is compiled and compiles nothing.
    ``fail_on_recompile`` raises instead of compiling again.  ``eager_then_compile`` runs the first call eager.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise RuntimeError(f"invalid stance {stance!r}: one of {', '.join(STANCES)}")
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
