"""What stands in for ufuncs that CuPy lacks, run here on NumPy under another name: it must give what NumPy gives."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from tinytorch import dtypes
from tinytorch.ops import cupy_gaps

#: an array module that is not NumPy, with NumPy's functions
OTHER: Any = types.SimpleNamespace(**{name: getattr(np, name) for name in dir(np)}, asnumpy=np.asarray)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 7.25, -3.5, 1e-30, 1e30])


@pytest.mark.parametrize("ufunc", ["maximum", "minimum", "logaddexp", "add"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 13])
def test_accumulation_by_doubling(ufunc: str, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 3))
    for axis in range(3):
        if x.shape[axis]:
            got = cupy_gaps.accumulate(OTHER, ufunc, x, axis)
            assert np.allclose(got, getattr(np, ufunc).accumulate(x, axis=axis))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("ufunc", ["maximum", "minimum"])
def test_extremes_of_numbers_are_exact(ufunc: str, name: str) -> None:
    """NaN wins, and nothing is rounded."""
    dtype = dtypes.BY_NAME[name].np
    with np.errstate(all="ignore"):
        special = np.concatenate([SPECIAL, [-1e-40, 1e-40, 3e38, -3e38, 1e-7, 5e-324]]).astype(dtype)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    got, want = x.copy(), x.copy()
    place = (np.arange(x.size),)
    cupy_gaps.update_at(OTHER, ufunc, got, place, y)
    with np.errstate(all="ignore"):
        getattr(np, ufunc).at(want, place, y)
        assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_division_of_floats(dtype: Any) -> None:
    x, y = np.meshgrid(SPECIAL.astype(dtype), SPECIAL.astype(dtype))
    with np.errstate(all="ignore"):
        for ours, theirs in ((cupy_gaps.floor_divide, np.floor_divide), (cupy_gaps.remainder, np.remainder)):
            got, want = ours(OTHER, x, y), theirs(x, y)
            assert np.array_equal(got, want, equal_nan=True)
            assert np.array_equal(np.signbit(got), np.signbit(want), equal_nan=True) or ours is cupy_gaps.floor_divide


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "float32", "int64", "bool"])
@pytest.mark.parametrize("ufunc", ["add", "maximum", "minimum", "multiply"])
def test_updates_at_equal_places(ufunc: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    start, values = (rng.integers(0, 4, n).astype(dtype) for n in (5, 9))
    place = (rng.integers(0, 5, 9),)
    got, want = start.copy(), start.copy()
    cupy_gaps.update_at(OTHER, ufunc, got, place, values)
    getattr(np, ufunc).at(want, place, values)
    assert np.array_equal(got, want)
