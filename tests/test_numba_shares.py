"""The division of a softmax by its row's sum: where it is a word of its own, and that it gives what a division gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba_helpers import plan_of, run_kernel, run_source

from codegen_numba.build import build
from codegen_numba.compile import Source
from compiler.config import Config
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import DType, float32, float64


def softmax(dtype: DType, top_of: str = "x", shift: float = 0.0, columns: int = 70, total: str = "exp") -> Kernel:
    """``exp(x - top) / sum(exp(x - top))`` with the maximum of ``top_of``, perhaps over fewer columns, or another sum."""

    @kernel
    def text(k):
        arrays = {n: k.param(n, dtype, (30, 70), (70, 1)) for n in ("x", "y")}
        out = k.param("out", dtype, (30, 70), (70, 1))
        for i in k.map(30):
            top = k.init("max", dtype)
            for j in k.reduce(columns):
                k.update("max", top, k.load(arrays[top_of], 70 * i + j))
            some = k.init("add", dtype)
            for j in k.reduce(70):
                e = k.exp(k.sub(k.load(arrays["x"], 70 * i + j), top))
                k.update("add", some, e if total == "exp" else k.mul(e, e))
            for j in k.map(70):
                e = k.exp(k.sub(k.add(k.load(arrays["x"], 70 * i + j), shift) if shift else k.load(arrays["x"], 70 * i + j), top))
                k.store(out, 70 * i + j, k.div(e, some))

    return text


def source_of(k: Kernel, **config: Any) -> str:
    return " ".join(build(plan_of(k), Config().replace(config)).kernels.values())


@pytest.mark.parametrize("dtype", [float32, float64])
def test_a_softmax_divides_once_a_row(dtype: DType) -> None:
    assert "share(" in source_of(softmax(dtype)) and " / " not in source_of(softmax(dtype))


@pytest.mark.parametrize(
    ("config", "other"),
    [({"numerics": "strict"}, {}), ({}, {"top_of": "y"}), ({}, {"shift": 1.0}), ({}, {"columns": 69}), ({}, {"total": "square"})],
)
def test_what_may_be_above_one_is_divided(config: dict[str, Any], other: dict[str, Any]) -> None:
    assert "share(" not in source_of(softmax(float32, **other), **config)


def test_rows_of_a_softmax() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(30, 70)).astype(np.float32) * 30
    x[0, 3], x[1, 4], x[2], x[3], x[4, 5] = np.nan, np.inf, -np.inf, 3e38, -np.inf
    (out,) = run_kernel(softmax(float32), [x, x])
    with np.errstate(invalid="ignore"):
        e = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
        want = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=2e-6, atol=3e-45)


@pytest.mark.parametrize("t", ["float32", "float64"])
def test_a_share_is_a_quotient(t: str) -> None:
    source = Source("k", "def k(x, total, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = share(x[i], total[i])\n",
                    (("x", t), ("total", t), ("out", t)))  # fmt: skip
    draw = np.random.default_rng(0)
    x, total = (draw.uniform(size=200_000) ** 9).astype(t), draw.uniform(1, 2, 200_000).astype(t)
    total[:100_000] *= 2.0 ** draw.integers(0, 30, 100_000)
    x[:3], total[:3] = (0.0, 1.0, np.nan), (1.0, 1.0, np.nan)
    out = np.empty_like(x)
    run_source(source, [x, total, out], x.size)
    large = ~(x < np.finfo(t).tiny * 2.0**30)
    np.testing.assert_array_equal(out[large], (x / total)[large])
    np.testing.assert_allclose(out, x / total, rtol=np.finfo(t).eps, atol=np.finfo(t).smallest_subnormal)
