"""Averages of weights, and modules as functions: against means taken by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn
from tinytorch.func import functional_call, grad, grad_and_value
from tinytorch.optim import swa_utils


def model() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def walk(average: Any, m: Any, steps: int = 4) -> list[Any]:
    """Shift the weights, average, and return what they were."""
    seen = []
    for k in range(steps):
        with torch.no_grad():
            for p in m.parameters():
                p.add_(k + 1.0)
            m[1].running_mean.add_(1.0)
        average.update_parameters(m)
        seen.append(m[0].weight.detach().clone().numpy())
    return seen


EMAS: list[dict[str, Any]] = [{"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.7)}, {"avg_fn": swa_utils.get_ema_avg_fn(0.7)}]
MEANS: list[dict[str, Any]] = [{}, {"avg_fn": swa_utils.get_swa_avg_fn()}, {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}]


@pytest.mark.parametrize("options", MEANS)
def test_the_mean_of_all(options: dict[str, Any]) -> None:
    m = model()
    average = swa_utils.AveragedModel(m, **options)
    seen = walk(average, m)
    np.testing.assert_allclose(average.module[0].weight.detach().numpy(), np.mean(seen, 0), rtol=1e-6)
    assert average.n_averaged == 4 and torch.equal(average.module[1].running_mean, m[1].running_mean)
    assert set(average.state_dict()) == {"n_averaged", *(f"module.{name}" for name in m.state_dict())}


@pytest.mark.parametrize("options", EMAS)
def test_an_exponential_mean(options: dict[str, Any]) -> None:
    m = model()
    average = swa_utils.AveragedModel(m, use_buffers=True, **options)
    seen = walk(average, m)
    want = seen[0]
    for w in seen[1:]:
        want = 0.7 * want + 0.3 * w
    np.testing.assert_allclose(average.module[0].weight.detach().numpy(), want, rtol=1e-5)
    assert average.module[1].running_mean[0].item() == pytest.approx(((1 * 0.7 + 2 * 0.3) * 0.7 + 3 * 0.3) * 0.7 + 4 * 0.3)


def test_statistics_are_computed_anew() -> None:
    m, batches = model().eval(), [torch.randn(8, 3) + k for k in range(3)]
    momentum = m[1].momentum
    swa_utils.update_bn([(b, None) for b in batches], m)
    want = torch.stack([m[0](b).mean(0) for b in batches]).mean(0)
    np.testing.assert_allclose(m[1].running_mean.numpy(), want.detach().numpy(), rtol=1e-5)
    assert not m.training and m[1].momentum == momentum


def test_a_module_is_called_with_other_tensors() -> None:
    m, x = model(), torch.randn(5, 3)
    other = {name: (p * 2).detach().requires_grad_() for name, p in m.named_parameters()}
    twice = copy.deepcopy(m)
    with torch.no_grad():
        for p in twice.parameters():
            p.mul_(2)
    out = functional_call(m, other, (x,))
    assert torch.allclose(out, twice(x)) and m[0].weight.grad is None
    out.sum().backward()
    assert other["0.weight"].grad is not None and m[0].weight.grad is None and isinstance(m[0].weight, nn.Parameter)
    partly = functional_call(m, {"2.bias": torch.zeros(2)}, x)
    assert partly.shape == (5, 2)
    with pytest.raises(RuntimeError, match="Missing key"):
        functional_call(m, {"2.bias": torch.zeros(2)}, x, strict=True)
    with pytest.raises(ValueError, match="multiple dictionaries"):
        functional_call(m, ({"2.bias": torch.zeros(2)}, {"2.bias": torch.zeros(2)}), x)


def test_tied_tensors_are_replaced_together() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    m, eye = Tied(), torch.eye(3)
    x = torch.randn(2, 3)
    assert torch.equal(functional_call(m, {"a.weight": eye}, x), x)
    assert not torch.equal(functional_call(m, {"a.weight": eye}, x, tie_weights=False), x)


def test_gradients_of_functions_of_trees() -> None:
    """The gradient of a dict of parameters is a dict, also of a module called with them; unused ones get zeros."""
    m = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    weights = {name: p.detach() for name, p in m.named_parameters()}
    x = torch.linspace(-1, 1, 6).reshape(2, 3)

    def loss(w: Any, pair: Any) -> Any:
        return (functional_call(m, w, (pair[0],)) * pair[1]).sum()

    found, (by_x, by_y) = grad(loss, argnums=(0, 1))({**weights, "0.unused": x}, (x, x[:, :2]))
    m(x).mul(x[:, :2]).sum().backward()
    assert list(found) == [*weights, "0.unused"] and not found.pop("0.unused").any()
    assert all(torch.allclose(g, p.grad) for g, p in zip(found.values(), m.parameters(), strict=True))
    assert by_x.shape == x.shape and torch.allclose(by_y, m(x)) and all(p.grad is not None for p in m.parameters())
    with pytest.raises(ValueError, match="Tensors"):
        grad(loss)({"a": 1.0}, (x, x))


def test_gradients_of_functions() -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])

    def cubes(x: Any, y: Any) -> Any:
        return (x**3 * y).sum()

    assert grad(cubes)(x, y).tolist() == [9, 60]
    assert [g.tolist() for g in grad(cubes, argnums=(0, 1))(x, y)] == [[9, 60], [1, 8]]
    g, value = grad_and_value(cubes)(x, y)
    assert value.item() == 43 and not g.requires_grad
    assert grad(lambda a: grad(lambda b: cubes(b, y))(a).sum())(x).tolist() == [18, 60]
    assert grad(lambda a: (cubes(a, y), "more"), has_aux=True)(x)[1] == "more"
    with pytest.raises(RuntimeError, match="scalar"):
        grad(lambda a: a * 2)(x)


def test_a_step_of_functions_trains() -> None:
    m, x, y = nn.Linear(3, 2), torch.randn(8, 3), torch.randint(0, 2, (8,))
    weights = {name: p.detach() for name, p in m.named_parameters()}
    losses = []
    for _ in range(10):
        g, loss = grad_and_value(lambda w: F.cross_entropy(x @ w.T, y))(weights["weight"])
        weights["weight"] = weights["weight"] - 0.5 * g
        losses.append(loss.item())
    assert losses[-1] < losses[0]
