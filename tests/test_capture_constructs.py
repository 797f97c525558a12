"""Every construct of the checklist is captured whole, or breaks with its reason, and gives what eager gives.

``docs/constructs.md`` is the table; the same tests run on every supported CPython.
"""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import capture_cases
import pytest
from capture_cases import CASES
from capture_helpers import Counted, same
from capture_more_cases import BREAKS, WHOLE

import tinytorch as torch
from tinytorch import nn


def seed() -> None:
    torch.manual_seed(1)
    random.seed(1)


def state() -> dict[str, Any]:
    return {k: copy.deepcopy(v.state_dict()) for k, v in vars(capture_cases).items() if isinstance(v, nn.Module)} | {
        "count": capture_cases.MODULE.count
    }


def restore(saved: dict[str, Any]) -> None:
    for k, v in vars(capture_cases).items():
        if isinstance(v, nn.Module):
            v.load_state_dict(saved[k])
    capture_cases.MODULE.count = saved["count"]


ALL = CASES | WHOLE


@pytest.mark.parametrize("name", ALL)
def test_construct(name: str) -> None:
    fn = ALL[name]
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    saved = state()
    seed()
    expected = [fn(x.clone()), fn(x.clone())]
    after = state()
    restore(saved)
    compiled = Counted(fn, fullgraph=True)
    seed()
    got = [compiled(x.clone()), compiled(x.clone())]
    assert same(got, expected), (got, expected)
    assert same(state(), after)
    assert not compiled.native()
    assert not compiled.breaks()
    assert len(compiled.entries) <= 2  # a count that changes may be symbolic the second time


@pytest.mark.parametrize("name", BREAKS)
def test_break(name: str) -> None:
    fn, id = BREAKS[name]
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    seed()
    expected = [fn(x.clone()), fn(x.clone())]
    compiled = Counted(fn)
    seed()
    assert same([compiled(x.clone()), compiled(x.clone())], expected)
    assert id in compiled.breaks()
    assert not compiled.native()


def test_cases_have_one_name() -> None:
    assert not CASES.keys() & WHOLE.keys() and not ALL.keys() & BREAKS.keys()


def test_the_page_is_current() -> None:
    root = Path(__file__).parent.parent
    run = subprocess.run(
        [sys.executable, root / "docs" / "make_constructs.py", "--check"], capture_output=True, text=True, cwd=root
    )
    assert run.returncode == 0, run.stdout + run.stderr
