"""Optimizers as objects: groups, state dicts, hooks, closures, tensor rates; schedules; clipping."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch import nn, optim

KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.Adamax, optim.RMSprop, optim.Adagrad, optim.Adadelta]


def problem() -> tuple[Any, Any]:
    """Parameters, and the distance from where they should be."""
    torch.manual_seed(3)
    ps = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
    return ps, lambda: sum(((p - 1) ** 2).sum() for p in ps)


def steps(opt: Any, loss: Any, n: int) -> float:
    for _ in range(n):
        opt.zero_grad()
        value = loss()
        value.backward()
        opt.step()
    return value.item()


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_comes_nearer(kind: Any) -> None:
    ps, loss = problem()
    start = loss().item()
    assert steps(kind(ps, lr=10.0 if kind is optim.Adadelta else 0.1), loss, 40) < 0.7 * start


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_continues_where_it_was(kind: Any) -> None:
    ps, loss = problem()
    opt = kind(ps, lr=0.05)
    steps(opt, loss, 3)
    saved, values = copy.deepcopy(opt.state_dict()), [p.detach().clone() for p in ps]
    steps(opt, loss, 3)
    again_ps, again_loss = problem()
    again = kind(again_ps, lr=0.7)
    with torch.no_grad():
        for p, v in zip(again_ps, values, strict=True):
            p.copy_(v)
    again.load_state_dict(saved)
    steps(again, again_loss, 3)
    for a, b in zip(ps, again_ps, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [k for k in KINDS if k is not optim.SGD])
def test_steps_are_counted_in_float32_and_any_count_is_taken(kind: Any, dtype: Any) -> None:
    """As in PyTorch 2.13, whose files hold 0-d float32 tensors, and those of older ones Python numbers."""
    p = nn.Parameter(torch.ones(3, dtype=dtype))
    opt = kind([p], lr=0.1)
    steps(opt, lambda: (p * p).sum(), 2)
    counts = {k: v for k, v in opt.state_dict()["state"][0].items() if k in ("step", "mu_product")}
    assert {(v.dtype, tuple(v.shape), v.device.type) for v in counts.values()} == {(torch.float32, (), "cpu")}
    assert counts["step"].item() == 2
    for as_saved in (lambda v: v, lambda v: v.double(), lambda v: v.item()):
        saved = copy.deepcopy(opt.state_dict())
        saved["state"][0] |= {k: as_saved(v) for k, v in counts.items()}
        q = nn.Parameter(p.detach().clone())
        again = kind([q], lr=0.1)
        again.load_state_dict(saved)
        found = again.state_dict()["state"][0]
        assert {k: (v.dtype, v.item()) for k, v in counts.items()} == {k: (found[k].dtype, found[k].item()) for k in counts}


def test_steps_are_counted_in_float64_where_that_is_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        opt = optim.Adagrad([nn.Parameter(torch.ones(3))])
    finally:
        torch.set_default_dtype(torch.float32)
    assert opt.state_dict()["state"][0]["step"].dtype is torch.float64


def test_groups_and_their_errors() -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    opt = optim.SGD([{"params": [a], "lr": 1.0}], lr=0.1, momentum=0.5)
    opt.add_param_group({"params": b})
    assert [g["lr"] for g in opt.param_groups] == [1.0, 0.1] and opt.param_groups[1]["momentum"] == 0.5
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": [a]})
    with pytest.raises(ValueError, match="non-leaf"):
        optim.SGD([a * 2])
    with pytest.raises(ValueError, match="empty parameter list"):
        optim.SGD([])
    with pytest.raises(TypeError, match="iterable of Tensors"):
        optim.SGD(a)
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        optim.Adam([a], lr=-1)
    with pytest.raises(ValueError, match="Invalid beta parameter at index 1"):
        optim.Adam([a], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="Nesterov"):
        optim.SGD([a], nesterov=True)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        opt.load_state_dict(optim.SGD([a]).state_dict())


def test_named_parameters_are_taken() -> None:
    opt = optim.AdamW(nn.Linear(2, 1).named_parameters())
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]


def test_parameters_without_gradient_are_left_alone() -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    opt = optim.AdamW([a, b], lr=0.1)
    a.grad = torch.ones(1)
    opt.step()
    assert b.item() == 1 and b not in opt.state and a.item() < 1


def test_closure_runs_with_gradients_and_its_loss_comes_back() -> None:
    ps, loss = problem()
    opt = optim.SGD(ps, lr=0.1)

    def closure() -> Any:
        opt.zero_grad()
        value = loss()
        value.backward()
        return value

    with torch.no_grad():
        first = opt.step(closure)
    assert loss().item() < first.item()


def test_step_hooks() -> None:
    ps, loss = problem()
    opt = optim.SGD(ps)
    seen: list[str] = []
    pre = opt.register_step_pre_hook(lambda o, args, kwargs: seen.append("pre"))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append("post"))
    steps(opt, loss, 1)
    pre.remove()
    steps(opt, loss, 1)
    assert seen == ["pre", "post", "post"]


def test_zero_grad_keeps_tensors_if_asked() -> None:
    p = nn.Parameter(torch.ones(2))
    opt = optim.SGD([p])
    p.grad = torch.ones(2)
    opt.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0]
    opt.zero_grad()
    assert p.grad is None


def test_a_tensor_rate_is_changed_in_place() -> None:
    p = nn.Parameter(torch.ones(1))
    rate = torch.tensor(0.5)
    opt = optim.SGD([p], lr=rate)
    schedule = optim.lr_scheduler.StepLR(opt, 1, 0.1)
    p.grad = torch.ones(1)
    opt.step()
    assert p.item() == 0.5
    schedule.step()
    assert opt.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.05)


def test_schedule_state_dict_round_trip() -> None:
    def make() -> Any:
        opt = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
        return opt, optim.lr_scheduler.CosineAnnealingLR(opt, 10)

    (opt, schedule), (opt2, schedule2) = make(), make()
    for _ in range(4):
        schedule.step()
    schedule2.load_state_dict(schedule.state_dict())
    opt2.param_groups[0]["lr"] = opt.param_groups[0]["lr"]
    schedule.step()
    schedule2.step()
    assert opt.param_groups[0]["lr"] == opt2.param_groups[0]["lr"] and schedule2.last_epoch == 5


def test_plateau_waits_then_lowers() -> None:
    opt = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5, min_lr=0.3)
    rates = []
    for metric in (1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9):
        schedule.step(metric)
        rates.append(opt.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3]


def test_clipping() -> None:
    ps = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    ps[0].grad, ps[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert nn.utils.clip_grad_norm_(ps, 1.0).item() == 5
    np.testing.assert_allclose(ps[0].grad.numpy(), [0.6, 0], rtol=1e-5)
    assert nn.utils.clip_grad_norm_(ps, 10.0).item() == pytest.approx(1, rel=1e-5)
    assert nn.utils.clip_grad_norm_(ps, 10.0, norm_type=math.inf).item() == pytest.approx(0.8, rel=1e-5)
    nn.utils.clip_grad_value_(ps, 0.5)
    np.testing.assert_allclose([ps[0].grad[0].item(), ps[1].grad.item()], [0.5, 0.5])
    ps[1].grad = torch.tensor([math.nan])
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)


def test_parameters_as_a_vector() -> None:
    m = nn.Linear(2, 3)
    v = nn.utils.parameters_to_vector(m.parameters())
    assert v.shape == (9,)
    nn.utils.vector_to_parameters(torch.arange(9.0), m.parameters())
    assert m.bias.tolist() == [6, 7, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_equal_eager_steps_in_one_graph(kind: Any) -> None:
    """The state exists before the first trace, so one graph serves all steps."""
    results = []
    for wrap in (lambda fn: fn, lambda fn: torch.compile(fn, fullgraph=True)):
        ps, loss = problem()
        opt = kind(ps, lr=0.1, weight_decay=0.01)
        update = wrap(opt.step)
        for _ in range(4):
            opt.zero_grad()
            loss().backward()
            update()
        results.append(np.concatenate([p.detach().numpy().ravel() for p in ps]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("calls", "settings", "losses", "end"),
    [
        (3, {"lr": 0.1, "max_iter": 4}, [152.385, 88.00270043651095, 50.684202621083884], -1.230544707176539),
        (4, {"lr": 0.3, "max_iter": 5, "history_size": 3}, [152.385, 21.805251512000844, 6.772629121215088], -0.5679547803502847),
        (2, {"lr": 1.0, "max_iter": 30}, [152.385, 0.08065794584732701], 1.0000015690861543),
    ],
)
def test_lbfgs_goes_where_pytorch_goes(calls: int, settings: Any, losses: list[float], end: float) -> None:
    """Losses before each call and the first coordinate after all, as PyTorch 2.13 gives them."""
    x = nn.Parameter(torch.tensor([-1.5, 2.0, 0.3], dtype=torch.float64))
    y = nn.Parameter(torch.tensor([[0.5, 0.1]], dtype=torch.float64))
    opt = optim.LBFGS([x, y], **settings)

    def closure() -> Any:
        opt.zero_grad()
        valley = ((1 - x[:-1]) ** 2).sum() + 10 * ((x[1:] - x[:-1] ** 2) ** 2).sum()
        loss = valley + ((y - x[:2]) ** 2).sum()
        loss.backward()
        return loss

    got = [opt.step(closure).item() for _ in range(calls)]
    np.testing.assert_allclose(got[: len(losses)], losses, rtol=1e-9)
    assert x[0].item() == pytest.approx(end, rel=1e-9)


@pytest.mark.parametrize("kind", [lambda ps: optim.SGD(ps, lr=0.1, momentum=0.5), lambda ps: optim.Adam(ps, lr=0.1)])
@pytest.mark.parametrize(
    "text", ["OneCycleLR(opt, [0.3, 0.1], total_steps=11, pct_start=0.5)", "CyclicLR(opt, [0, 0], [0.3, 0.1], 5, 5)"]
)
def test_momentum_is_lowest_where_the_rate_is_highest(kind: Any, text: str) -> None:
    a, b = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    opt = kind([{"params": [a]}, {"params": [b]}])
    schedule = eval(text, {"opt": opt, **vars(optim.lr_scheduler)})
    rates, momenta = [], []
    for _ in range(10):
        group = opt.param_groups[0]
        assert opt.param_groups[1]["lr"] <= group["lr"] / 3 + 1e-12
        rates.append(group["lr"])
        momenta.append(group["betas"][0] if "betas" in group else group["momentum"])
        opt.step()
        schedule.step()
    assert rates.index(max(rates)) == momenta.index(min(momenta)) > 0
    assert momenta[0] == max(momenta) > min(momenta) > 0.7
