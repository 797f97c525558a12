"""Half a minute through the whole stack: if these fail, look here first."""

from __future__ import annotations

import numpy as np

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler import logs
from tinytorch import nn, optim


def test_eager_tensor_and_tape() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = (x @ x.t()).relu().sum()
    y.backward()
    assert y.item() == 5 + 11 + 11 + 25
    np.testing.assert_array_equal(x.grad.numpy(), [[8, 12], [8, 12]])


def test_a_function_compiles_and_equals_eager() -> None:
    def fn(x, y):
        return (x.sin() * y + 1).sum(1)

    x, y = torch.randn(5, 7), torch.randn(7)
    np.testing.assert_allclose(torch.compile(fn, fullgraph=True)(x, y).numpy(), fn(x, y).numpy(), rtol=1e-5)


def test_every_stage_speaks() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    with logs.collecting() as said:
        torch.compile(lambda x: model(x).sum())(torch.randn(4, 6)).backward()
    assert {"graph", "guards", "joint", "partition", "loops", "kernels"} <= {topic for topic, _, _ in said}


def test_a_model_trains_the_same_compiled() -> None:
    def train(wrap):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 3))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
        loss_of = wrap(lambda: F.cross_entropy(model(x), y))
        update = wrap(optimizer.step)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            update()
            losses.append(loss.item())
        return losses

    eager, compiled = train(lambda fn: fn), train(torch.compile)
    np.testing.assert_allclose(compiled, eager, rtol=1e-4)
    assert eager[-1] < eager[0]


def test_a_graph_break_keeps_the_program_right(capsys) -> None:
    def fn(x):
        x = x + 1
        print("in the middle")
        return x * 2

    out = torch.compile(fn)(torch.ones(3))
    assert capsys.readouterr().out == "in the middle\n"
    np.testing.assert_array_equal(out.numpy(), [4, 4, 4])
