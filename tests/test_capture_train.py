"""Whole training steps in one graph: forward, backward, clipping, the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler.backend import lookup_backend
from compiler.capture import entry
from tinytorch import nn, optim


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 3))


def batch() -> tuple[Any, Any]:
    torch.manual_seed(5)
    return torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def step(m: Any, opt: Any, x: Any, y: Any) -> Any:
    opt.zero_grad()
    loss = F.cross_entropy(m(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    opt.step()
    return loss


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "groups": lambda p: optim.AdamW([{"params": list(p)[:2], "lr": 0.1}]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_one_graph(name: str) -> None:
    x, y = batch()
    a, b = model(), model()
    opt_a, opt_b = OPTIMIZERS[name](a.parameters()), OPTIMIZERS[name](b.parameters())
    compiled = Counted(step, fullgraph=True)
    torch.manual_seed(1)
    expected = [step(b, opt_b, x, y).item() for _ in range(4)]
    torch.manual_seed(1)
    got = [compiled(a, opt_a, x, y).item() for _ in range(4)]
    assert got == pytest.approx(expected, rel=1e-5)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)
        assert (p.grad is None) == (q.grad is None)
    assert not compiled.native()
    assert len(compiled.entries) <= 2  # with and without gradients at the start


@pytest.mark.parametrize("backend", ["aot_eager", "loops"])
def test_a_training_step_through_the_stages(backend: str) -> None:
    x, y = batch()
    a, b = model(), model()
    opt_a, opt_b = (OPTIMIZERS["adamw"](m.parameters()) for m in (a, b))
    compiled = entry.compile_function(step, lookup_backend(backend), fullgraph=True)
    torch.manual_seed(1)
    expected = [step(b, opt_b, x, y).item() for _ in range(2)]
    torch.manual_seed(1)
    got = [compiled(a, opt_a, x, y).item() for _ in range(2)]
    assert got == pytest.approx(expected, rel=1e-4)


def test_forward_compiled_backward_on_the_eager_tape() -> None:
    x, y = batch()
    a, b = model(), model()
    compiled = Counted(lambda m, x: m(x), fullgraph=True)
    torch.manual_seed(1)
    F.cross_entropy(compiled(a, x), y).backward()
    torch.manual_seed(1)
    F.cross_entropy(b(x), y).backward()
    assert all(same(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_unused_parameters_keep_no_gradient() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    m = M()

    def f(m, x):
        m(x).sum().backward()

    Counted(f, fullgraph=True)(m, torch.ones(2, 4))
    assert m.used.weight.grad is not None
    assert m.unused.weight.grad is None


def test_gradients_accumulate_over_calls() -> None:
    w1, w2 = (torch.ones(3, requires_grad=True) for _ in range(2))

    def f(w, x):
        (w * x).sum().backward()

    compiled = Counted(f, fullgraph=True)
    for k in (1.0, 2.0, 3.0):
        x = torch.full((3,), k)
        compiled(w1, x)
        f(w2, x)
        assert same(w1.grad, w2.grad)
    held = w1.grad
    compiled(w1, torch.ones(3))
    assert w1.grad is held  # accumulated in place, as eager does


def test_autograd_grad_inside() -> None:
    def f(x):
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g, y

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    got = Counted(f, fullgraph=True)(x)
    assert got[0].tolist() == [3.0, 12.0]


def test_backward_through_an_outside_history_breaks() -> None:
    w = torch.ones(3, requires_grad=True)

    def f(h):
        (h * 2).sum().backward()
        return h

    compiled = Counted(f)
    compiled(w * 3)
    assert w.grad.tolist() == [6.0, 6.0, 6.0]
    assert compiled.breaks()


def test_learning_rate_schedules_do_not_recompile_for_ever() -> None:
    x, y = batch()
    m = model()
    opt = optim.SGD(m.parameters(), lr=0.5)
    sched = optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.9)
    compiled = Counted(step, fullgraph=True)
    for _ in range(6):
        compiled(m, opt, x, y)
        sched.step()
    assert len(compiled.entries) <= 3


def test_compiled_optimizer_step_alone() -> None:
    a, b = model(), model()
    x, y = batch()
    opt_a, opt_b = (optim.AdamW(m.parameters(), lr=0.01) for m in (a, b))
    compiled = Counted(opt_a.step, fullgraph=True)
    for m in (a, b):
        m.eval()
        F.cross_entropy(m(x), y).backward()
    for _ in range(3):
        compiled()
        opt_b.step()
    assert all(torch.allclose(p, q, rtol=1e-5) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert len(compiled.entries) == 1
