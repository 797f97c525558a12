"""``nested_compile_region``: calls of equal structure share one compilation, and mean what they meant."""

from __future__ import annotations

from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from tinytorch import nn
from tinytorch.nn import functional as F

region = torch.compiler.nested_compile_region


class Block(nn.Module):
    def __init__(self, dim: int, p: float = 0.0) -> None:
        super().__init__()
        self.norm, self.fc, self.p = nn.LayerNorm(dim), nn.Linear(dim, dim), p

    @region
    def forward(self, x: Any) -> Any:
        return x + F.dropout(F.gelu(self.fc(self.norm(x))), self.p, self.training)


class Stack(nn.Module):
    def __init__(self, dim: int = 4, layers: int = 5, p: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, dim)
        self.blocks = nn.ModuleList([Block(dim, p) for _ in range(layers)])
        self.head = nn.Linear(dim, 2)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


IDS = torch.tensor([[1, 2, 3]])


def told(model: nn.Module, fn: Any) -> Any:
    torch.manual_seed(1)
    model.zero_grad()
    out = fn(IDS)
    out.square().sum().backward()
    return out.detach(), [p.grad for p in model.parameters()], torch.rand(1)


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "numba"])
def test_a_model_of_equal_blocks(backend: str, p: float) -> None:
    torch.manual_seed(0)
    model = Stack(p=p)
    compiled = torch.compile(lambda ids: model(ids), backend=backend, fullgraph=True)
    expected = told(model, model)
    for _ in range(2):
        got = told(model, compiled)
        pairs = zip([got[0], *got[1], got[2]], [expected[0], *expected[1], expected[2]], strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def test_equal_blocks_are_compiled_once() -> None:
    model = Stack(layers=6)
    compiled = Counted(lambda ids: model(ids), fullgraph=True)
    compiled(IDS)
    assert len(compiled.graphs) == 3  # before, block, after
    assert len(compiled.entries) == 1
    assert compiled.entries[0].graph_module.meta["regions"] == {"calls": 6, "compiled": 3}


def test_other_shapes_and_kinds_are_compiled_apart() -> None:
    @region
    def scaled(x, w, k):
        return F.relu(x @ w) * k

    def f(x, a, b):
        return scaled(scaled(scaled(x, a, 2.0), a, 3.0), b, 2.0).sum() + scaled(x, a, 2.0).sum()

    a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    x = torch.randn(2, 4)
    compiled = Counted(f, fullgraph=True)
    expected = f(x, a, b)
    expected.backward()
    grads = a.grad, b.grad
    a.grad = b.grad = None
    got = compiled(x, a, b)
    got.backward()
    assert same(got, expected) and same((a.grad, b.grad), grads)
    meta = compiled.entries[0].graph_module.meta["regions"]
    assert meta["calls"] == 4 and 4 <= meta["compiled"] <= 5  # by factor, by weight's shape, by history of the input


@pytest.mark.parametrize("why", ["backward inside", "writes", "symbolic", "view"])
def test_what_cannot_be_cut_is_compiled_whole(why: str) -> None:
    w = torch.ones(3, requires_grad=True)
    state = torch.zeros(3)

    @region
    def step(x):
        if why == "writes":
            state.add_(1)
        y = x * w + state
        return y[..., 1:] if why == "view" else y

    def f(x):
        y = step(x)
        y = (step(y) if why != "view" else y * 2).sum()
        if why == "backward inside":
            y.backward()
        return y.detach()

    def run(fn):
        state.zero_()
        w.grad = None
        return [fn(torch.ones(n, 3)) for n in (2, 2)], state.clone(), w.grad

    compiled = Counted(f, fullgraph=True, dynamic=True if why == "symbolic" else None)
    assert same(run(compiled), run(f))
    assert all("regions" not in e.graph_module.meta for e in compiled.entries)


def test_eager_and_names_are_as_before() -> None:
    @region
    def named(x, *, k=2):
        """What it does."""
        return x * k

    assert same(named(torch.ones(2), k=3), torch.full((2,), 3.0))
    assert named.__name__ == "named" and named.__doc__ == "What it does."
