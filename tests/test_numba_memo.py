"""What one loop over a row keeps for the next: also where only run time knows how long the row is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba_helpers import plan_of

from codegen_numba import memo
from codegen_numba.build import build
from compiler.config import Config
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from compiler.sym.expr import Symbol
from tinytorch.dtypes import float32


def softmax(cols: int | None) -> Kernel:
    """Rows of ``cols`` elements, or of as many as run time says."""
    n = cols or Symbol("n")

    @kernel
    def rows(k):
        size = k.size("n") if cols is None else n
        x, out = (k.param(name, float32, (3, size), (size, 1)) for name in ("x", "out"))
        for i in k.map(3):
            top = k.init("max", float32)
            for j in k.reduce(size):
                k.update("max", top, k.load(x, size * i + j))
            total = k.init("add", float32)
            for j in k.reduce(size):
                k.update("add", total, k.exp(k.sub(k.load(x, size * i + j), top)))
            for j in k.map(size):
                k.store(out, size * i + j, k.div(k.exp(k.sub(k.load(x, size * i + j), top)), total))

    return rows


@pytest.mark.parametrize("cols", [1, 33, 1000, memo.LONGEST, memo.LONGEST + 1])
def test_rows_of_any_length(cols: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, cols)).astype(np.float32)
    built = build(plan_of(softmax(None)), Config())
    (text,) = (t for name, t in built.kernels.items() if "exp(" in t)
    assert f"if n <= {memo.LONGEST}:" in text
    assert text.count("exp(") == 3  # one where the row is kept, two where it is too long
    (got,) = built([x], (cols,))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("cols", [1000, memo.ROOM // 2])
def test_of_a_chain_of_dear_values_only_the_last_is_kept(cols: int) -> None:
    """Also where a scratch row for each of them would not fit."""

    @kernel
    def rows(k):
        x, out = (k.param(name, float32, (3, cols), (cols, 1)) for name in ("x", "out"))
        for i in k.map(3):
            total = k.init("add", float32)
            for j in k.reduce(cols):
                k.update("add", total, k.sin(k.add(2.0, k.erf(k.exp(k.load(x, cols * i + j))))))
            for j in k.map(cols):
                k.store(out, cols * i + j, k.sub(k.sin(k.add(2.0, k.erf(k.exp(k.load(x, cols * i + j))))), total))

    built = build(plan_of(rows), Config())
    text = " ".join(built.kernels.values())
    assert text.count("= scratch_") == 1 and all(text.count(word) == 1 for word in ("sin(", "erf(", "exp("))
    x = np.random.default_rng(0).normal(size=(3, cols)).astype(np.float32)
    value = np.sin(2 + np.vectorize(math.erf)(np.exp(x.astype(np.float64))))
    np.testing.assert_allclose(built([x])[0], value - value.sum(1, keepdims=True), rtol=1e-5)


def test_a_length_known_beforehand_needs_one_body() -> None:
    text = " ".join(build(plan_of(softmax(1000)), Config()).kernels.values())
    assert text.count("exp(") == 1 and "else:" not in text
