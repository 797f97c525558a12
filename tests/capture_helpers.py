"""What the capture tests share: deep comparison, and compiling with counts."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinytorch as torch
from compiler.backends.eager import eager
from compiler.capture import entry


def same(a: Any, b: Any) -> bool:
    """Deep equality; tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype is b.dtype
            and a.shape == b.shape
            and a.requires_grad == b.requires_grad
            and np.array_equal(_plain(a), _plain(b), equal_nan=a.dtype.is_floating_point)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, float) and a != a:
        return b != b
    return bool(a == b)


def differences(got: Any, expected: Any, where: str) -> list[str]:
    """A line for each innermost place at which the two are not the ``same``."""
    if same(got, expected):
        return []
    found: list[str] = []
    if type(got) is type(expected) and isinstance(got, list | tuple) and len(got) == len(expected):
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            found += differences(a, b, f"{where}[{i}]")
    elif type(got) is type(expected) is dict and list(got) == list(expected):
        for k in got:
            found += differences(got[k], expected[k], f"{where}[{k!r}]")
    return found or [f"{where}: got {got!r}, expected {expected!r}"]


def _plain(t: torch.Tensor) -> Any:
    """Values as an array; NumPy itself has no bfloat16."""
    t = t.detach()
    return (t.float() if t.dtype is torch.bfloat16 else t).numpy()


class Counted:
    """A compiled function with what happened to it."""

    def __init__(self, fn: Any, **options: Any) -> None:
        self.graphs: list[Any] = []

        def backend(gm: Any, examples: Any) -> Any:
            self.graphs.append(gm)
            return eager(gm, examples)

        self.call = entry.compile_function(fn, backend, **options)
        self.backend = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    @property
    def entries(self) -> list[entry.Captured]:
        """Entries of the function itself."""
        return entry.captured(self.call)

    def all_entries(self) -> list[entry.Captured]:
        """Entries of the function, of its resume functions, and of what it called at breaks."""
        return entry.captured_with(self.backend)

    def breaks(self) -> list[str]:
        return [b.id for r in self.all_entries() for b in r.breaks]

    def native(self) -> list[str]:
        return [r.native for r in self.all_entries() if r.native]

    def ops(self) -> int:
        """Calls in all graphs."""
        return sum(n.op.startswith("call") for gm in self.graphs for n in gm.graph.nodes)
