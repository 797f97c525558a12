"""What one loop over a row keeps for the next: also where only run time knows how long the row is."""

from __future__ import annotations

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


def test_a_length_known_beforehand_needs_one_body() -> None:
    text = " ".join(build(plan_of(softmax(1000)), Config()).kernels.values())
    assert text.count("exp(") == 1 and "else:" not in text
