"""Every construct of the checklist is captured whole, and gives what eager gives, with every effect."""

from __future__ import annotations

import copy
from typing import Any

import capture_cases
import pytest
from capture_cases import CASES
from capture_helpers import Counted, same

import tinytorch as torch
from tinytorch import nn


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
    compiled = Counted(fn, fullgraph=True)
    torch.manual_seed(1)
    got = [compiled(x.clone()), compiled(x.clone())]
    assert same(got, expected), (got, expected)
    assert same(state(), after)
    assert not compiled.native()
    assert not compiled.breaks()
    assert len(compiled.entries) <= 2  # a count that changes may be symbolic the second time
