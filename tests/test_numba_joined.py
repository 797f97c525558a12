"""Words that stand for several: where they are written and where not, and what they compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba_helpers import plan_of, run_kernel, run_source

from codegen_numba.build import build
from codegen_numba.compile import Source
from compiler.config import Config
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import DType, bfloat16, float16, float32, float64


def sigmoid(dtype: DType, exponential: bool = False) -> Kernel:
    """``1 / (1 + exp(-x))``, and, if asked for, the exponential as well."""

    @kernel
    def text(k):
        x = k.param("x", dtype, (100,), (1,))
        outs = [k.param(f"out{n}", dtype, (100,), (1,)) for n in range(1 + exponential)]
        for i in k.map(100):
            e = k.exp(k.neg(k.load(x, i)))
            k.store(outs[0], i, k.div(1.0, k.add(1.0, e)))
            if exponential:
                k.store(outs[1], i, e)

    return text


def source_of(k: Kernel, **config: Any) -> str:
    return " ".join(build(plan_of(k), Config().replace(config)).kernels.values())


@pytest.mark.parametrize("dtype", [float32, float64])
def test_the_logistic_function_is_one_word(dtype: DType) -> None:
    assert "logistic(" in source_of(sigmoid(dtype)) and "exp(" not in source_of(sigmoid(dtype))
    assert "logistic(" not in source_of(sigmoid(dtype, exponential=True))
    assert "logistic(" not in source_of(sigmoid(dtype), numerics="strict")


@pytest.mark.parametrize(("t", "low", "ulps"), [("float32", -87.0, 2.5), ("float64", -708.0, 3.0)])
def test_logistic(t: str, low: float, ulps: float) -> None:
    """As near as the three functions it stands for."""
    source = Source("k", "def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = logistic(x[i])\n",
                    (("x", t), ("out", t)))  # fmt: skip
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(low, 40, 100_000), draw.normal(size=100_000) * 3]).astype(t)
    out = np.empty_like(x)
    run_source(source, [x, out], x.size)
    exact = 1 / (1 + np.exp(-x.astype(np.longdouble)))
    assert np.max(np.abs(out - exact) / np.spacing(exact.astype(t))) <= ulps
    edge = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4, -1e4, 1.1 * low], t)
    out = np.empty_like(edge)
    run_source(source, [edge, out], edge.size)
    np.testing.assert_array_equal(out[:7], np.array([np.nan, 1, 0, 0.5, 0.5, 1, 0], t))
    assert 0 <= out[7] < np.finfo(t).tiny


def error_function(dtype: DType, one: float = 1.0, again: bool = False) -> Kernel:
    """``1 + erf(x)``, and, if asked for, the error function as well."""

    @kernel
    def text(k):
        x = k.param("x", dtype, (100,), (1,))
        outs = [k.param(f"out{n}", dtype, (100,), (1,)) for n in range(1 + again)]
        for i in k.map(100):
            e = k.erf(k.load(x, i))
            k.store(outs[0], i, k.add(one, e))
            if again:
                k.store(outs[1], i, e)

    return text


@pytest.mark.parametrize("dtype", [float32, float64])
def test_one_and_an_error_function_are_one_word(dtype: DType) -> None:
    assert "erf_plus_one(" in source_of(error_function(dtype))
    assert "erf_plus_one(" not in source_of(error_function(dtype, again=True))
    assert "erf_plus_one(" not in source_of(error_function(dtype, one=2.0))
    assert "erf_plus_one(" not in source_of(error_function(dtype), numerics="strict")


@pytest.mark.parametrize("t", ["float32", "float64"])
def test_one_and_an_error_function(t: str) -> None:
    """Within 2 ulp from a half on, and nowhere farther off than a sum of rounded numbers."""
    source = Source("k", "def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = erf_plus_one(x[i])\n",
                    (("x", t), ("out", t)))  # fmt: skip
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(-6, 6, 50_000), draw.normal(size=50_000), draw.normal(size=1000) * 1e-20]).astype(t)
    out = np.empty_like(x)
    run_source(source, [x, out], x.size)
    exact = np.array([math.erfc(-v) for v in x.tolist()])
    ulps = np.abs(out - exact) / np.spacing(exact.astype(t))
    assert np.max(ulps[exact >= 0.5]) <= 2 and np.max(np.abs(out - exact)) <= np.finfo(t).eps * 1.5
    edge = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, -50.0], t)
    out = np.empty_like(edge)
    run_source(source, [edge, out], edge.size)
    np.testing.assert_array_equal(out, np.array([np.nan, 2, 0, 1, 1, 2, 0, 0], t))


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_what_is_rounded_is_not_rounded_again(dtype: DType) -> None:
    @kernel
    def twice(k):
        x = k.param("x", float32, (4096,), (1,))
        y = k.param("y", dtype, (4096,), (1,))
        out, same = (k.param(n, dtype, (4096,), (1,)) for n in ("out", "same"))
        for i in k.map(4096):
            once = k.load(x, i)
            for t in (dtype, float32, dtype):
                once = k.cast(once, dtype=t)
            k.store(out, i, once)
            k.store(same, i, k.load(y, i))

    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    x[:9] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3.39e38, 65519.0]
    y = np.arange(0, 65536, 16, dtype=np.uint16).view(dtype.np)
    out, same = run_kernel(twice, [x, y])
    with np.errstate(over="ignore"):
        want = x.astype(dtype.np)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(out.view(np.uint16)[finite], want.view(np.uint16)[finite])
    assert np.isnan(out[:2].astype(np.float32)).all()
    keep = ~np.isnan(y.astype(np.float32))
    np.testing.assert_array_equal(same.view(np.uint16)[keep], y.view(np.uint16)[keep])
    assert np.isnan(same[~keep].astype(np.float32)).all()
    text = source_of(twice)
    assert text.count("round_") == 1
