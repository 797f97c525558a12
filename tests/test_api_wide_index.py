"""Elements beyond the two billionth: indices are 64 bits wide.  The memory is asked for, and hardly touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

FAR = 2**31


@pytest.fixture(scope="module")
def block() -> Any:
    try:
        data = np.zeros(FAR + 64, np.uint8)
    except MemoryError:
        pytest.skip("the address space is too small")
    data[FAR : FAR + 64] = np.arange(64)
    data[:4] = 7
    return data


def test_a_stride_past_two_billion_elements(block: Any) -> None:
    x = Tensor._wrap(block[::FAR], cpu)
    got = torch.compile(lambda x: x * 2 + 1, fullgraph=True)(x)
    assert got.tolist() == [15, 1]


def test_rows_that_far_apart(block: Any) -> None:
    x = Tensor._wrap(np.lib.stride_tricks.as_strided(block, (2, 40), (FAR, 1)), cpu)
    got = torch.compile(lambda x: (x.sum(1), (x + x.flip(0)).max()), fullgraph=True)(x)
    assert got[0].tolist() == [28, 780] and got[1].item() == 39


def test_an_index_from_memory(block: Any) -> None:
    x = Tensor._wrap(block, cpu)
    at = torch.tensor([FAR + 5, 1, FAR + 63])
    assert torch.compile(lambda x, at: x[at] + 1, fullgraph=True)(x, at).tolist() == [6, 8, 64]
    with pytest.raises(IndexError):
        torch.compile(lambda x, at: x[at] + 1, fullgraph=True)(x, at + 1)


def test_a_slice_that_starts_there(block: Any) -> None:
    x = Tensor._wrap(block, cpu)
    got = torch.compile(lambda x: x[FAR + 2 : FAR + 6] * 2, fullgraph=True)(x)
    assert got.tolist() == [4, 6, 8, 10]
