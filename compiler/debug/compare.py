"""Run a program so that two runs can be compared: same inputs, same random numbers, everything it did written down.

Stage: debug.  In: a function and arguments.  Out: ``Run``: results, gradients and inputs after the call, or the
exception; and the first difference of two runs in words.  Read next: ``bisect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinytorch.nn.module import Module
from tinytorch.rng import default_generator
from tinytorch.tensor import Tensor


@dataclass
class Run:
    """``values`` by name: ``result 0``, ``gradient of x``, ``input x after the call`` ..."""

    values: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None


def tensors_in(x: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested tuples, lists, dicts and modules, with a name for each."""
    if isinstance(x, Tensor):
        yield path, x
    elif isinstance(x, Module):
        yield from ((f"{path}.{n}", p) for n, p in x.named_parameters())
        yield from ((f"{path}.{n}", b) for n, b in x.named_buffers())
    elif isinstance(x, dict):
        for k, v in x.items():
            yield from tensors_in(v, f"{path}[{k!r}]")
    elif isinstance(x, tuple | list):
        for i, v in enumerate(x):
            yield from tensors_in(v, f"{path}[{i}]")


@contextmanager
def as_they_were(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put values, gradients and the random stream back after the block."""
    kept = [(t, t._data.copy(), t.grad) for t in tensors]
    state = default_generator.get_state()
    try:
        yield
    finally:
        for t, data, grad in kept:
            t._data[...] = data
            t.grad = grad
        default_generator.set_state(state)


def observe(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], module: Any = None) -> Run:
    """Call ``fn`` and run the backward of what it returns; the world is as before afterwards."""
    given = dict(tensors_in(args, "args")) | dict(tensors_in(kwargs, "kwargs")) | dict(tensors_in(module, "module"))
    run = Run()
    with as_they_were(given.values()):
        for t in given.values():
            t.grad = None
        try:
            out = fn(*args, **kwargs)
            results = dict(tensors_in(out, "result"))
            run.values |= {name: t.detach().numpy().copy() for name, t in results.items()}
            roots = [t for t in results.values() if t.requires_grad]
            if roots:
                sum_of(roots).backward()
            run.values |= {f"gradient of {n}": None if t.grad is None else t.grad.numpy().copy() for n, t in given.items()}
            run.values |= {f"{n} after the call": t.detach().numpy().copy() for n, t in given.items()}
        except Exception as e:
            run.error = e
    return run


def sum_of(roots: list[Tensor]) -> Any:
    """One number that depends on every element of every result, each with a weight of its own."""
    total: Any = 0.0
    for i, t in enumerate(roots):
        total = total + (t * (1.0 + 0.1 * i)).sum()
    return total


def difference(want: Run, got: Run, tolerance: float) -> str:
    """The first difference in words, or ""."""
    if (want.error is None) != (got.error is None):
        return f"raises {type(got.error).__name__}: {got.error}" if got.error else f"does not raise {want.error!r}"
    if want.error is not None:
        same = type(want.error) is type(got.error)
        return "" if same else f"raises {got.error!r} instead of {want.error!r}"
    for name, w in want.values.items():
        if name not in got.values:
            return f"{name} is missing"
        text = _differs(w, got.values[name], tolerance)
        if text:
            return f"{name} {text}"
    return ""


def _differs(w: Any, g: Any, tolerance: float) -> str:
    if (w is None) != (g is None):
        return f"is {'None' if g is None else 'there'}, in eager {'None' if w is None else 'there'}"
    if w is None:
        return ""
    if w.shape != g.shape or w.dtype != g.dtype:
        return f"is {g.dtype}{list(g.shape)}, in eager {w.dtype}{list(w.shape)}"
    close = np.isclose(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)
    if close.all():
        return ""
    where = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"differs at {list(where)}: {g[where]} instead of {w[where]} ({int((~close).sum())} of {close.size} elements)"
