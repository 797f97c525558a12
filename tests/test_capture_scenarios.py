"""Scenarios: compiled and eager say the same and leave the same behind."""

from __future__ import annotations

import random
import warnings
from typing import Any

import capture_scenarios
import pytest
from capture_helpers import Counted, same
from capture_scenarios import SCENARIOS, flat

import tinytorch as torch
from tinytorch import nn


def told(fn: Any, compile_: Any) -> Any:
    capture_scenarios.LOG.clear()
    torch.manual_seed(0)
    random.seed(0)
    return flat(fn(compile_)), [str(entry) for entry in capture_scenarios.LOG]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    fn = SCENARIOS[name]
    expected = told(fn, lambda f: f)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tinytorch.compile")  # nothing falls back to eager
        got = told(fn, lambda f: Counted(f.__call__ if isinstance(f, nn.Module) else f))
    assert same(got, expected)
