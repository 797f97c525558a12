"""Gradients of a scalar loss made in the forward: when, with which values, and who gets which memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from codegen_cupy import emulate
from compiler.aot import ahead
from compiler.config import config
from compiler.debug.explain import explain
from tinytorch.optim import SGD

ROWS, COLS = 320, 1024  # just over the least size
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not emulate.available(), reason="no C++ compiler"))
Loss = Callable[..., Any]


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda":
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    return str(request.param)


def data(device: str, dtype: Any = torch.float32, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((ROWS, COLS), np.float32)).to(dtype).to(device)
    return x.requires_grad_(), torch.from_numpy(rng.integers(0, COLS, ROWS)).to(device)


def cross_entropy(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y)


def smoothed(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y, label_smoothing=0.1)


def likelihood(x: Any, y: Any) -> Any:
    return F.nll_loss(torch.log_softmax(x * 2, -1), y, ignore_index=3)


def squares(x: Any, y: Any) -> Any:
    return F.mse_loss(x, x.detach().flip(0) * y[:, None])


def dropped(x: Any, y: Any) -> Any:
    return (F.dropout(x, 0.5).sigmoid() - 0.5).square().mean()


LOSSES = [cross_entropy, smoothed, likelihood, squares, dropped]


def gradient(fn: Loss, x: Any, y: Any, scale: float = 1.0, **how: Any) -> Any:
    torch.manual_seed(3)
    loss = fn(x, y)
    x.grad = None
    (loss if scale == 1.0 else loss * scale).backward(**how)
    return x.grad


def waits(fn: Loss, *args: Any, **options: Any) -> str:
    """What the partition says about the gradients."""
    with config.patch(options):
        report = explain(fn)(*args).stage("partition")
    return next((line for line in report.splitlines() if line.startswith("gradients in the")), "")


AHEAD = "gradients in the forward, for a cotangent of one"


# --- when -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fn", LOSSES)
def test_a_loss_that_streams_makes_its_gradients_in_the_forward(fn: Loss) -> None:
    assert waits(fn, *data("cpu")) == AHEAD


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, y: F.cross_entropy(x @ x.T, y % ROWS), "does more than stream memory: matmul"),
        (lambda x, y: F.cross_entropy(x[:9], y[:9]), "the gradients are 1.2 MiB, and eager keeps 36.1 KiB"),
        (lambda x, y: x.sum(), "only 0 B would be read twice"),
        (lambda x, y: x.sigmoid().cumsum(1).square().sum(), "cumsum"),
    ],
    ids=["product", "part", "constant", "scan"],
)
def test_others_wait_and_the_report_says_why(fn: Loss, why: str) -> None:
    assert why in waits(fn, *data("cpu"))


def test_nobody_is_asked_where_there_is_no_scalar_loss() -> None:
    x, y = data("cpu")
    assert waits(lambda x, y: (F.cross_entropy(x, y), x.sum()), x, y) == ""
    assert "only 36.1 KiB would be read twice" in waits(cross_entropy, x.detach()[:9].clone().requires_grad_(), y[:9])
    assert "not one scalar" in waits(lambda x, y: F.cross_entropy(x, y, reduction="none"), x, y)
    assert "memory is short" in waits(cross_entropy, x, y, activation_memory_budget=0.5)
    assert waits(cross_entropy, x, y, gradients_ahead=False) == ""
    assert waits(cross_entropy, x, y, deterministic=True) == ""


# --- values -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fn", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_backward_s(fn: Loss, dtype: Any, device: str) -> None:
    x, y = data(device, dtype)
    ours, plain = torch.compile(fn), torch.compile(fn, options={"gradients_ahead": False})
    for scale in (1.0, 0.5, 3.0, 1.0, 1.0):
        got, want, eager = (gradient(f, x, y, scale).float().cpu().numpy() for f in (ours, plain, fn))
        np.testing.assert_allclose(got, want, rtol=2e-6 if dtype is torch.float32 else 2**-7, atol=1e-10)
        near = {"rtol": 1e-4, "atol": 1e-8} if dtype is torch.float32 else {"rtol": 2**-5, "atol": 2**-5 * abs(eager).max()}
        np.testing.assert_allclose(got, eager, **near)


@pytest.mark.parametrize("numerics", ["strict", "fast"])
def test_against_doubles_and_the_plain_interpreter(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.partition.ahead.LEAST", 1)
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((3, 17), np.float32)).requires_grad_()
    y = torch.from_numpy(rng.integers(0, 17, 3))
    wide = gradient(cross_entropy, x.detach().double().requires_grad_(), y).numpy()
    for backend in ("loops", "inductor"):
        fn = torch.compile(cross_entropy, backend=backend, options={"numerics": numerics})
        for scale in (1.0, 3.0):
            np.testing.assert_allclose(gradient(fn, x, y, scale).numpy(), wide * scale, rtol=1e-5, atol=1e-8)


def test_symbolic_sizes(device: str) -> None:
    fn = torch.compile(cross_entropy, dynamic=True)
    for rows in (ROWS, 300, 280):
        x, y = data(device)
        x, y = x.detach()[:rows].contiguous().requires_grad_(), y[:rows]
        np.testing.assert_allclose(gradient(fn, x, y).cpu().numpy(), gradient(cross_entropy, x, y).cpu().numpy(), rtol=1e-4, atol=1e-8)


# --- memory -----------------------------------------------------------------------------------------------------------
def test_a_second_backward_gets_memory_of_its_own(device: str) -> None:
    x, y = data(device)
    loss = torch.compile(cross_entropy)(x, y)
    found = []
    for retain in (True, True, False):
        x.grad = None
        loss.backward(retain_graph=retain)
        found.append(x.grad)
    want = found[0].clone()
    found[0].zero_()
    found[1].mul_(2)
    assert torch.equal(found[2], want)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_gradients_add_up(device: str) -> None:
    x, y = data(device)
    fn = torch.compile(cross_entropy)
    one = gradient(fn, x, y).clone()
    first, second = fn(x, y), fn(x, y)
    second.backward()
    first.backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), (one * 3).cpu().numpy(), rtol=1e-6)


def test_a_gradient_that_is_an_input_or_another_result_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.partition.budget.refusal", lambda joint, cut: "")
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    @torch.compile
    def fn(x: Any, w: Any) -> Any:
        y = x * 2
        return (x * w).sum() + y.detach().sum() * 0, y.detach()

    loss, y = fn(x, w)
    loss.backward()
    assert torch.equal(x.grad, w) and torch.equal(w.grad, x)
    x.grad.zero_()
    w.grad.zero_()
    assert w.abs().sum() > 0 and x.abs().sum() > 0 and torch.equal(y, x * 2)


def test_equal_gradients_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.partition.budget.refusal", lambda joint, cut: "")
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    torch.compile(lambda a, b: (a + b).square().sum())(a, b).backward()
    want = 2 * (a + b).detach()
    a.grad.zero_()
    assert torch.equal(b.grad, want)


# --- who knows that a cotangent is one --------------------------------------------------------------------------------
def test_hooks_that_change_the_cotangent_are_heard(device: str) -> None:
    x, y = data(device)
    fn = torch.compile(cross_entropy)
    want = gradient(fn, x, y) * 2

    def in_place(g: Any) -> None:
        g.mul_(2)

    for hook in (lambda g: g * 2, in_place):
        loss = fn(x, y)
        loss.register_hook(hook)
        x.grad = None
        loss.backward()
        np.testing.assert_allclose(x.grad.cpu().numpy(), want.cpu().numpy(), rtol=1e-5, atol=1e-9)
    loss = fn(x, y)
    loss.grad_fn.register_prehook(lambda gs: in_place(gs[0]))
    x.grad = None
    loss.backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), want.cpu().numpy(), rtol=1e-5, atol=1e-9)


def test_given_cotangents(device: str) -> None:
    x, y = data(device)
    fn = torch.compile(cross_entropy)
    want = gradient(fn, x, y).cpu().numpy()
    for scale in (1.0, -2.0):
        got = gradient(fn, x, y, gradient=torch.tensor(scale, device=device))
        np.testing.assert_allclose(got.cpu().numpy(), want * scale, rtol=1e-5, atol=1e-9)
    (got,) = torch.autograd.grad(fn(x, y), x)
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-5, atol=1e-9)


def test_second_derivatives() -> None:
    x, y = data("cpu")

    def penalty(fn: Loss) -> Any:
        (g,) = torch.autograd.grad(fn(x, y), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        return h.numpy()

    np.testing.assert_allclose(penalty(torch.compile(cross_entropy)), penalty(cross_entropy), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_an_input_written_after_the_forward(scale: float) -> None:
    """Eager keeps exponentials, not the logits."""

    def late(fn: Loss) -> Any:
        x, y = data("cpu")
        z = x * 1
        loss = fn(z, y) * scale
        with torch.no_grad():
            z.mul_(2)
        loss.backward()
        return x.grad.numpy()

    np.testing.assert_allclose(late(torch.compile(cross_entropy)), late(cross_entropy), rtol=1e-4, atol=1e-8)


# --- in vain ----------------------------------------------------------------------------------------------------------
def counted() -> tuple[ahead.Forward, list[str]]:
    ran: list[str] = []
    return ahead.Forward(lambda a: ran.append("ahead") or ["gradient"], lambda: lambda a: ran.append("plain") or []), ran


def test_a_scaled_loss_goes_without_until_one_comes_unscaled() -> None:
    forward, ran = counted()
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert forward.gradients(one, forward([]), False) == ["gradient"]
    assert forward.gradients(two, forward([]), False) is None
    assert forward.gradients(two, forward([]), False) is None
    assert forward.gradients(one, forward([]), False) is None
    assert forward.gradients(one, forward([]), False) == ["gradient"]
    assert ran == ["ahead", "ahead", "plain", "plain", "ahead"]


def test_calls_without_a_backward_stop_making_gradients() -> None:
    forward, ran = counted()
    for _ in range(ahead.PATIENCE + 3):
        forward([])
    assert ran == ["ahead"] * ahead.PATIENCE + ["plain"] * 3


def test_a_training_step_is_eager_s(device: str) -> None:
    """Scaled every third time, so that all ways are taken."""

    def train(wrap: Callable[[Loss], Loss]) -> list[float]:
        x, y = data(device)
        fn, opt, losses = wrap(cross_entropy), SGD([x], lr=10.0), []
        for step in range(7):
            opt.zero_grad()
            loss = fn(x, y)
            (loss if step % 3 else loss / 4).backward()
            opt.step()
            losses.append(loss.item())
        return losses

    np.testing.assert_allclose(train(torch.compile), train(lambda f: f), rtol=1e-5)


@pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
def test_inside_of_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    x, y = data("cuda")
    fn = torch.compile(cross_entropy, mode="reduce-overhead")
    want = gradient(cross_entropy, x, y).cpu().numpy()
    held = []
    for _ in range(6):
        held.append(gradient(fn, x, y))
        assert all(np.allclose(g.cpu().numpy(), want, rtol=1e-4, atol=1e-8) for g in held)
