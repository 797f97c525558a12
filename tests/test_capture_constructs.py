"""Every construct of the checklist is captured whole, and gives what eager gives, with every effect."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tests.capture_cases as capture_cases
from tests.capture_cases import CASES

import tinytorch as torch
from compiler.backends.eager import eager
from compiler.capture import entry
from tinytorch import nn


def same(a: Any, b: Any) -> bool:
    """Deep equality; tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype is b.dtype
            and a.shape == b.shape
            and a.requires_grad == b.requires_grad
            and np.array_equal(a.detach().numpy(), b.detach().numpy(), equal_nan=a.dtype.is_floating_point)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float) and a != a:
        return b != b
    return bool(a == b)


def state() -> dict[str, Any]:
    return {k: copy.deepcopy(v.state_dict()) for k, v in vars(capture_cases).items() if isinstance(v, nn.Module)} | {
        "count": capture_cases.MODULE.count
    }


def restore(saved: dict[str, Any]) -> None:
    for k, v in vars(capture_cases).items():
        if isinstance(v, nn.Module):
            v.load_state_dict(saved[k])
    capture_cases.MODULE.count = saved["count"]


@pytest.mark.parametrize("name", CASES)
def test_construct(name: str) -> None:
    fn = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    saved = state()
    torch.manual_seed(1)
    expected = [fn(x.clone()), fn(x.clone())]
    after = state()
    restore(saved)
    compiled = entry.compile_function(fn, eager, fullgraph=True)
    torch.manual_seed(1)
    got = [compiled(x.clone()), compiled(x.clone())]
    assert same(got, expected), (got, expected)
    assert same(state(), after)
    records = entry.captured(compiled)
    assert not any(r.native or r.breaks for r in records), records[0].native
    assert len(records) <= 2  # a count that changes may be symbolic the second time
