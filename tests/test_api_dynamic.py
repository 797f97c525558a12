"""Training with symbolic sizes through the whole pipeline: one graph for all batch sizes, losses as eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn


class ConvNet(nn.Module):
    """Batch norm's running variance needs n / (n - 1), max pooling saves one item of a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        return self.out(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Attention(nn.Module):
    """The sequence length is symbolic."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)

    def forward(self, i: Any) -> Any:
        q, k, v = self.qkv(self.embed(i) + torch.arange(i.shape[1]).unsqueeze(-1) * 0.01).split(8, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(8), nn.Linear(8, 4))


def floats(*shape: int) -> Callable[[Any, int], Any]:
    return lambda rng, n: torch.tensor(rng.standard_normal((n, *shape)).astype(np.float32))


MODELS: dict[str, tuple[Any, Any]] = {
    "mlp": (mlp, floats(6)),
    "convnet": (ConvNet, floats(1, 8, 8)),
    "attention": (Attention, lambda rng, n: torch.tensor(rng.integers(0, 9, (3, n)))),
}


def train(model: nn.Module, forward: Any, make: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    rng = np.random.default_rng(0)
    torch.manual_seed(3)
    losses = []
    for n in (5, 7, 12, 9):
        out = forward(make(rng, n))
        loss = (out.flatten(0, -2).log_softmax(-1)[:, 1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(b.sum().item() for b in model.buffers())]


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", "inductor"])
@pytest.mark.parametrize("name", list(MODELS))
def test_one_graph_trains_all_sizes(name: str, backend: str) -> None:
    build, make = MODELS[name]
    inner = torch.compiler.lookup_backend(backend)
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return inner(gm, examples)

    torch.compiler.reset()
    outcomes = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = build()
        forward = torch.compile(model, backend=counting, dynamic=True, fullgraph=True) if compiled else model
        outcomes.append(train(model, forward, make))
    assert len(graphs) == 1
    np.testing.assert_allclose(outcomes[1], outcomes[0], rtol=3e-5, atol=1e-6)


SIZES_BESIDE_TENSORS: dict[str, Callable[[Any], Any]] = {
    "minus": lambda x: (x.shape[0] - 1) - x,
    "times": lambda x: x * x.shape[0] + x.shape[1] * x,
    "by": lambda x: x.shape[0] / (x.abs() + 1) + x.shape[1] // (x.abs() + 1) + x.shape[0] % (x.abs() + 1),
    "compared": lambda x: torch.where(torch.arange(x.shape[0]) < x.shape[0] - 2, 1.0, 0.0)[:, None] * x,
    "integers": lambda x: (x.shape[0] - torch.arange(x.shape[0]))[:, None] * x,
    "one number": lambda x: x.shape[0] - torch.tensor([1]) + x,
    "reflected": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "reflected twice": lambda x: F.pad(x[None, None], (1, 2, 2, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x[None], (3, 1), mode="replicate"),
    "circular": lambda x: F.pad(x[None], (1, 2), mode="circular"),
}


@pytest.mark.parametrize("name", SIZES_BESIDE_TENSORS)
def test_sizes_compute_with_tensors(name: str) -> None:
    """A size beside a tensor is a number beside a tensor, in the program and inside of the library."""
    fn = SIZES_BESIDE_TENSORS[name]
    torch.compiler.reset()
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((4, 5), (6, 3), (5, 7)):
            x = torch.linspace(-2, 3, shape[0] * shape[1]).reshape(shape)
            got, want = compiled(x), fn(x)
            assert got.dtype is want.dtype
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_no_elements_between_library_calls() -> None:
    """Temporaries without elements need no memory, but library calls look at them."""

    def f(x, w):
        return ((x.sin() @ w).relu() @ w.t()).sum(0), x[1:].flip(0), F.softmax(x, 0), x.sort(0)[0]

    compiled, w = torch.compile(f, dynamic=True), torch.ones(4, 2)
    for n in (2, 1, 0, 5, 0):
        x = torch.arange(4.0 * n).reshape(n, 4)
        for got, want in zip(compiled(x, w), f(x, w), strict=True):
            assert got.shape == want.shape and torch.allclose(got, want)


EMPTY_BATCHES = {
    "conv2d": (lambda x: F.conv2d(x, torch.ones(8, 2, 3, 3, requires_grad=True), groups=2), (0, 8, 4, 4)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 3, 3)), (0, 3, 8, 8)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (0, 4, 6, 6)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True)[0], (0, 4, 3, 3)),
    "group_norm": (lambda x: F.group_norm(x, 2), (0, 4, 6, 6)),
    "grid_sample": (lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=False), (0, 4, 2, 2)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (0, 4, 6, 6)),
    "tensordot": (lambda x: torch.tensordot(x, x, dims=([0, 2], [0, 2])), (4, 6, 4, 6)),
    "median": (lambda x: x.median(), ()),
    "diff": (lambda x: torch.diff(x, dim=0), (0, 4, 6, 6)),
    "var": (lambda x: x.var((0, 2)), (4, 6)),
}


@pytest.mark.parametrize("name", EMPTY_BATCHES)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_empty_batch(name: str, compiled: bool) -> None:
    fn, shape = EMPTY_BATCHES[name]
    x = torch.ones(0, 4, 6, 6, requires_grad=True)
    out = (torch.compile(fn) if compiled else fn)(x)
    assert out.shape == shape
    out.sum().backward()
    assert x.grad.shape == x.shape
