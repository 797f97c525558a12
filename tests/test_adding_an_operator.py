"""One row is all: an operator that no stage has heard of runs, differentiates and compiles on both codegens."""

from __future__ import annotations

import numpy as np
import pytest

import tinytorch as torch
from tinytorch.ops.opdef import TABLE
from tinytorch.ops.pointwise import mul, row


@pytest.fixture
def swirl():
    """sin(x) * exp(-x * x), as a row written here; gone from the table afterwards."""
    op = row(
        "swirl",
        lambda s, x: s.mul(s.sin(x), s.exp(s.neg(s.mul(x, x)))),
        lambda out, x: (lambda g: mul(g, torch.exp(-x * x) * (torch.cos(x) - 2 * x * torch.sin(x))),),
        types="float",
    )
    yield op
    del TABLE["swirl"]
    torch.compiler.reset()


def test_eager_and_its_derivatives(swirl):
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
    v = x.detach().numpy()
    np.testing.assert_allclose(swirl(x).detach().numpy(), np.sin(v) * np.exp(-v * v), rtol=1e-14)
    assert torch.autograd.gradcheck(swirl, (x,))
    assert torch.autograd.gradgradcheck(swirl, (x,))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiled_with_its_gradient(swirl, device, monkeypatch):
    if device == "cuda":
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")

    def f(x):
        return (torch.ops.swirl(x) * 2).sum()

    x = torch.linspace(-2, 2, 33).to(device).requires_grad_()
    want = f(x)
    want.backward()
    expected, x.grad = x.grad, None
    got = torch.compile(f, fullgraph=True)(x)
    got.backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(x.grad, expected)
