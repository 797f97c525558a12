"""A product and the kernel behind it in turn, block by block: right for whatever follows, and only where pieces correspond."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

import tinytorch
from codegen_numba import blas, packed
from codegen_numba.build import build
from codegen_numba.schedule import Tune
from compiler.config import Config
from compiler.loop import compile_graph
from tinytorch.nn import functional as F

RNG = np.random.default_rng(5)
pytestmark = pytest.mark.skipif(blas.find() is None, reason="NumPy was built with a BLAS that hides its symbols")
M, N, K = 133, 64, 40


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(packed, "FEWEST", 1)
    monkeypatch.setattr(packed, "SMALL", 1)


def tensor(*shape: int) -> Any:
    return tinytorch.tensor(RNG.normal(size=shape).astype(np.float32))


def runs_in_turn(built: Any) -> int:
    """Records that are a product and a kernel."""
    return sum("," in name for name, _, _ in built.records)


def check(fn: Any, *tensors: Any, count: int = 1) -> None:
    """Block by block equals one after the other, and both equal eager."""
    plan = compile_graph(trace(fn, *tensors), Config())
    arrays = [t.numpy() for t in tensors]
    want = fn(*tensors)
    want = [w.numpy() for w in (want if isinstance(want, tuple) else (want,))]
    apart = build(plan, Config(), Tune(together=-1))
    assert runs_in_turn(apart) == 0
    first = apart([a.copy() for a in arrays], ())
    for block in (1, 3000, 1 << 20):
        built = build(plan, Config(), Tune(together=block))
        assert runs_in_turn(built) == count
        for got, other, right in zip(built([a.copy() for a in arrays], ()), first, want, strict=True):
            np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-5)  # BLAS has other sums for other numbers of rows
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4)


LAYERS = {
    "relu": lambda x, w, b: tinytorch.relu(x @ w + b),
    "gelu": lambda x, w, b: F.gelu(x @ w + b),
    "softmax": lambda x, w, b: tinytorch.softmax(x @ w + b, -1),
    "norm": lambda x, w, b: F.layer_norm(x @ w, (N,), b),
    "sums": lambda x, w, b: (x @ w + b).sum(-1),
    "both": lambda x, w, b: (lambda y: (y, tinytorch.sin(y + b)))(x @ w),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("columns", [N, N - 3])
def test_what_follows_row_by_row(kind, columns):
    """By tiles of our own, and by BLAS where a row does not fill vectors."""
    layer = LAYERS[kind] if kind != "norm" else (lambda x, w, b: F.layer_norm(x @ w, (columns,), b))
    check(layer, tensor(M, K), tensor(K, columns), tensor(columns))


def test_a_turned_weight_and_several_leading_dimensions():
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), tensor(7, 19, K), tensor(N, K), tensor(N))


def test_a_batch_of_products():
    check(lambda q, k: tinytorch.softmax(q @ k, -1), tensor(3, 5, 20, 8), tensor(3, 5, 8, 24))
    check(lambda q, k: (q @ k).sum((-1, -2)), tensor(15, 20, 8), tensor(15, 8, 24))


def test_a_convolution_image_by_image():
    check(lambda x, w, b: tinytorch.relu(F.conv2d(x, w, b, padding=1)), tensor(5, 3, 9, 8), tensor(4, 3, 3, 3), tensor(4))
    check(lambda x, w, b: tinytorch.relu(F.conv2d(x, w, b, stride=2)), tensor(5, 8, 9, 8), tensor(16, 8, 3, 3), tensor(16))
    check(lambda x, w: tinytorch.relu(F.conv2d(x, w, padding=1, groups=6)), tensor(5, 6, 9, 8), tensor(6, 1, 3, 3))


@pytest.mark.parametrize(
    "layer",
    [
        lambda x, w: tinytorch.softmax(x @ w, 0), lambda x, w: (x @ w) + (x @ w).T, lambda x, w: (x @ w).flip(0) * 2.0,
        lambda x, w: (x @ w).cumsum(0), lambda x, w: (x @ w).sum(),
    ],
)  # fmt: skip
def test_what_needs_other_rows_waits_for_all(layer):
    check(layer, tensor(N, K), tensor(K, N), count=0)


def test_an_index_that_is_checked_waits():
    def layer(x: Any, w: Any, i: Any) -> Any:
        return (x @ w) + w[i]

    x, w, i = tensor(M, K), tensor(K, N), tinytorch.tensor(RNG.integers(0, K, M))
    built = build(compile_graph(trace(layer, x, w, i), Config()), Config(), Tune(together=1))
    assert runs_in_turn(built) == 0
    np.testing.assert_allclose(built([t.numpy() for t in (x, w, i)], ())[0], layer(x, w, i).numpy(), rtol=1e-4, atol=1e-4)


def test_memory_is_not_taken_from_a_product_that_still_reads():
    """Layers of one width pass two blocks of memory to and fro."""

    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = tinytorch.tanh(x @ w) * 1.5
        return x

    check(layers, tensor(M, N), *(tensor(N, N) for _ in range(5)), count=5)


def test_whole_steps_are_eagers(monkeypatch):
    monkeypatch.setattr(sys.modules[build.__module__], "DEFAULT", Tune(together=1))

    def model() -> Any:
        tinytorch.manual_seed(1)
        return tinytorch.nn.Sequential(
            tinytorch.nn.Linear(K, N), tinytorch.nn.GELU(), tinytorch.nn.LayerNorm(N), tinytorch.nn.Linear(N, N), tinytorch.nn.Tanh()
        )

    x, grads = tensor(M, K), []
    for wrap in (lambda f: f, tinytorch.compile):
        net = model()
        wrap(lambda x, net=net: (net(x) ** 2).mean())(x).backward()
        grads.append([p.grad.numpy() for p in net.parameters()])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_factor_is_packed_in_pieces(monkeypatch, turned):
    """The same memory serves them all; the last one runs in turn with what follows."""
    monkeypatch.setattr(packed, "PIECES", 1)
    monkeypatch.setattr(packed, "TERMS", 16)
    x, w, b = tensor(M, K), tensor(N, K) if turned else tensor(K, N), tensor(N)
    fn = (lambda x, w, b: F.gelu(x @ w.T + b)) if turned else LAYERS["gelu"]
    plan = compile_graph(trace(fn, x, w, b), Config())
    built = build(plan, Config(), Tune(together=3000))
    names = [name for name, _, _ in built.records]
    if any("packed" in name for name in names):  # vectors wide enough
        assert sum(name == "pack" for name in names) == 3 and sum("packed" in name for name in names) == 3
    check(fn, x, w, b)
