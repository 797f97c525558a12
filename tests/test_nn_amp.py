"""autocast and GradScaler, dropout's statistics, distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import distributions as D
from tinytorch import nn, optim


# --- autocast ---------------------------------------------------------------------------------------------------------
def test_autocast_lowers_products_and_keeps_sums_full() -> None:
    x, w, b = torch.randn(4, 6), torch.randn(5, 6), torch.randn(5)
    y = torch.tensor([0, 1, 2, 3])
    with torch.autocast("cpu"):
        out = F.linear(x, w, b)
        assert out.dtype is torch.bfloat16 and (x @ w.t()).dtype is torch.bfloat16
        assert torch.mm(x, w.t()).dtype is torch.bfloat16
        assert F.conv1d(torch.randn(1, 2, 5), torch.randn(3, 2, 2)).dtype is torch.bfloat16
        for full in (out.softmax(1), F.log_softmax(out, 1), F.layer_norm(out, (5,)), F.cross_entropy(out, y), F.mse_loss(out, out)):
            assert full.dtype is torch.float32
        assert F.relu(out).dtype is torch.bfloat16 and (out + x.sum()).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert F.linear(x, w).dtype is torch.float32
        with torch.autocast("cpu", torch.float16):
            assert F.linear(x, w).dtype is torch.float16
        assert (x.double() @ w.double().t()).dtype is torch.float64
        assert torch.amp.is_autocast_enabled("cpu") and not torch.amp.is_autocast_enabled("cuda")
    assert F.linear(x, w).dtype is torch.float32 and not torch.amp.is_autocast_enabled("cpu")
    with torch.autocast("cuda"):
        assert F.linear(x, w).dtype is torch.float32


def test_autocast_gradients_are_full_and_modes_survive_errors() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])

    @torch.autocast("cpu")
    def loss_of() -> Any:
        return F.cross_entropy(model(x), y)

    loss_of().backward()
    low = [p.grad.numpy().copy() for p in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p, g in zip(model.parameters(), low, strict=True):
        assert p.grad.dtype is torch.float32
        np.testing.assert_allclose(g, p.grad.numpy(), atol=0.02)
    with pytest.raises(RuntimeError), torch.autocast("cpu"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert not torch.amp.is_autocast_enabled("cpu")
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        torch.autocast("tpu")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_follows_autocast(backend: str) -> None:
    """Around the call it is guarded; inside it is part of the graph."""
    x, w = torch.randn(4, 4), torch.randn(4, 4)

    def inside(x: Any, w: Any) -> Any:
        with torch.autocast("cpu"):
            y = F.linear(x, w)
        return y, F.linear(x, w)

    around = torch.compile(lambda x, w: F.linear(x, w), backend=backend, fullgraph=True)
    kinds = []
    for enabled in (True, False, True):
        with torch.autocast("cpu", enabled=enabled):
            kinds.append(around(x, w).dtype)
    assert kinds == [torch.bfloat16, torch.float32, torch.bfloat16]
    low, full = torch.compile(inside, backend=backend, fullgraph=True)(x, w)
    assert low.dtype is torch.bfloat16 and full.dtype is torch.float32
    np.testing.assert_allclose(low.float().numpy(), inside(x, w)[0].float().numpy(), rtol=0.02, atol=0.05)
    assert not torch.amp.is_autocast_enabled("cpu")


# --- GradScaler -------------------------------------------------------------------------------------------------------
def test_scaler_leaves_out_infinite_steps_and_moves_the_scale() -> None:
    p = nn.Parameter(torch.ones(1))
    opt = optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(factor: float) -> None:
        opt.zero_grad()
        scaler.scale(p.sum() * factor).backward()
        scaler.step(opt)
        scaler.update()

    step(1.0)
    assert p.item() == pytest.approx(0.9) and scaler.get_scale() == 8
    step(math.inf)
    assert p.item() == pytest.approx(0.9) and scaler.get_scale() == 4
    step(1.0)
    step(1.0)
    assert p.item() == pytest.approx(0.7) and scaler.get_scale() == 8
    other = torch.amp.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8


def test_scaler_unscales_once_and_may_be_off() -> None:
    p = nn.Parameter(torch.ones(1))
    opt = optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(p.sum()).backward()
    assert p.grad.item() == 4
    scaler.unscale_(opt)
    assert p.grad.item() == 1
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(opt)
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert off.scale(p) is p and off.get_scale() == 1.0 and off.state_dict() == {}


# --- dropout ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    x = torch.ones(100, 100, requires_grad=True)
    y = F.dropout(x, p)
    kept = (y.detach() != 0).numpy()
    assert kept.mean() == pytest.approx(1 - p, abs=0.02)
    np.testing.assert_allclose(y.detach().numpy()[kept], 1 / (1 - p), rtol=1e-6)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy() != 0, kept)


def test_dropout_edges_and_channels() -> None:
    x = torch.ones(3, 4, 5)
    assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0) is x
    assert F.dropout(x, 1.0).sum().item() == 0
    channels = (F.dropout1d(x, 0.5) != 0).numpy()
    assert (channels.all(2) | ~channels.any(2)).all() and 0 < channels.mean() < 1
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)
    z = torch.randn(200, 200)
    a = F.alpha_dropout(z, 0.2, training=True)
    assert abs(a.mean().item()) < 0.02 and a.std().item() == pytest.approx(1, abs=0.03)
    torch.manual_seed(7)
    first = F.dropout(x, 0.5)
    torch.manual_seed(7)
    assert (F.dropout(x, 0.5) == first).all()


def test_gumbel_softmax_is_a_distribution() -> None:
    logits = torch.randn(50, 4, requires_grad=True)
    soft = F.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.sum(1).detach().numpy(), 1, rtol=1e-5)
    hard = F.gumbel_softmax(logits, hard=True)
    np.testing.assert_allclose(np.sort(hard.detach().numpy(), 1)[:, -1], 1, rtol=1e-5)
    (hard * torch.randn(50, 4)).sum().backward()
    assert logits.grad.abs().sum().item() > 0


# --- distributions ----------------------------------------------------------------------------------------------------
def test_categorical() -> None:
    probs = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
    d = D.Categorical(probs=probs)
    s = d.sample((4000,))
    assert s.shape == (4000, 2) and (s[:, 1] == 2).all()
    assert (s[:, 0] == 1).float().mean().item() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(d.log_prob(torch.tensor([1, 2])).numpy(), np.log([0.5, 1.0]), atol=1e-5)
    assert d.entropy()[0].item() == pytest.approx(1.5 * math.log(2), rel=1e-5)
    e = D.Categorical(logits=d.logits)
    assert D.kl_divergence(d, e).abs().sum().item() < 1e-5
    logits = torch.zeros(3, requires_grad=True)
    D.Categorical(logits=logits).log_prob(torch.tensor(1)).backward()
    np.testing.assert_allclose(logits.grad.numpy(), [-1 / 3, 2 / 3, -1 / 3], rtol=1e-5)
    with pytest.raises(ValueError, match="not both"):
        D.Categorical(probs=probs, logits=probs)
    with pytest.raises(ValueError, match="non-negative"):
        D.Categorical(probs=torch.tensor([-1.0, 2.0]))


def test_normal_and_independent() -> None:
    loc = torch.tensor([0.0, 2.0], requires_grad=True)
    d = D.Normal(loc, torch.tensor([1.0, 0.5]))
    s = d.rsample((5000,))
    np.testing.assert_allclose(s.mean(0).detach().numpy(), [0, 2], atol=0.05)
    np.testing.assert_allclose(s.std(0).detach().numpy(), [1, 0.5], atol=0.03)
    s.sum().backward()
    assert loc.grad.tolist() == [5000, 5000]
    assert not d.sample().requires_grad
    assert D.Normal(0.0, 1.0).log_prob(torch.tensor(0.0)).item() == pytest.approx(-0.5 * math.log(2 * math.pi))
    assert D.Normal(0.0, 1.0).cdf(torch.tensor(0.0)).item() == 0.5
    both = D.Independent(d, 1)
    value = torch.zeros(2)
    assert both.log_prob(value).item() == pytest.approx(d.log_prob(value).sum().item()) and both.event_shape == (2,)
    assert D.kl_divergence(D.Normal(0.0, 1.0), D.Normal(1.0, 2.0)).item() == pytest.approx(math.log(2) + 2 / 8 - 0.5, rel=1e-5)
    with pytest.raises(ValueError, match="scale to be positive"):
        D.Normal(0.0, -1.0)


def test_bernoulli_and_uniform() -> None:
    b = D.Bernoulli(probs=torch.tensor([0.2, 0.9]))
    np.testing.assert_allclose(b.sample((4000,)).mean(0).numpy(), [0.2, 0.9], atol=0.03)
    np.testing.assert_allclose(b.log_prob(torch.tensor([1.0, 0.0])).numpy(), np.log([0.2, 0.1]), rtol=1e-4)
    u = D.Uniform(torch.tensor(1.0), 3.0)
    s = u.sample((1000,))
    assert s.min().item() >= 1 and s.max().item() < 3 and u.log_prob(torch.tensor(4.0)).item() == -math.inf
    assert u.log_prob(torch.tensor(2.0)).item() == pytest.approx(-math.log(2))
