"""Python's own types where a tensor's type is asked for: ``dtype=bool``, ``x.to(float)``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F

TYPES = [(bool, torch.bool), (int, torch.int64), (float, torch.float64), (complex, torch.complex128)]
MAKERS = {
    "zeros": lambda d: torch.zeros(2, dtype=d),
    "ones": lambda d: torch.ones(2, dtype=d),
    "empty": lambda d: torch.empty(2, dtype=d),
    "full": lambda d: torch.full((2,), 1, dtype=d),
    "arange": lambda d: torch.arange(2, dtype=d),
    "eye": lambda d: torch.eye(2, dtype=d),
    "tensor": lambda d: torch.tensor([0, 1], dtype=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), dtype=d),
    "new_zeros": lambda d: torch.ones(2).new_zeros(2, dtype=d),
    "randint": lambda d: torch.randint(0, 2, (2,), dtype=d),
    "to": lambda d: torch.ones(2).to(d),
    "to, by name": lambda d: torch.ones(2).to(dtype=d),
    "type": lambda d: torch.ones(2).type(d),
    "sum": lambda d: torch.ones(2).sum(dtype=d),
    "cumsum": lambda d: torch.ones(2).cumsum(0, dtype=d),
}


@pytest.mark.parametrize("name", MAKERS)
def test_types_of_python_are_types(name: str) -> None:
    for python, own in TYPES:
        if python is bool and name in ("sum", "cumsum"):
            continue  # bools are summed as integers
        assert MAKERS[name](python).dtype is own is MAKERS[name](own).dtype
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"must be tinytorch.dtype, not str|invalid type|device type"):
        MAKERS[name]("float32")
    with pytest.raises(TypeError, match=r"must be tinytorch.dtype, not type"):
        MAKERS[name](np.float32)


def test_softmax_random_numbers_and_layers_take_float() -> None:
    x = torch.ones(2, 3)
    made = [F.softmax(x, 0, dtype=float), torch.log_softmax(x, 0, dtype=float), torch.rand(2, dtype=float), torch.nn.Linear(2, 2, dtype=float).weight]
    assert all(t.dtype is torch.float64 for t in made)


def test_they_are_captured() -> None:
    def f(x: Any) -> Any:
        mask = torch.ones(x.shape[0], dtype=bool)
        return x.to(float) * mask, torch.zeros(2, dtype=int), x.sum(dtype=float)

    x = torch.arange(3.0)
    for got, want in zip(torch.compile(f, fullgraph=True)(x), f(x), strict=True):
        assert got.dtype is want.dtype and got.tolist() == want.tolist()
