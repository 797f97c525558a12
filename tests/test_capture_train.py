"""Whole training steps in one graph: forward, backward, clipping, the optimizer."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler.backend import lookup_backend
from compiler.capture import entry
from compiler.errors import Unsupported
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
    assert len(compiled.entries) == (2 if name == "groups" else 1)  # gradients that nobody drops are added to


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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_old_gradients_are_neither_asked_for_nor_touched(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    a, b = (nn.Linear(4, 3).to(device) for _ in range(2))
    b.load_state_dict(a.state_dict())
    opt_a, opt_b = (optim.AdamW(m.parameters(), lr=0.1) for m in (a, b))

    def train(m: Any, opt: Any, x: Any) -> Any:
        opt.zero_grad()
        loss = (m(x) ** 2).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    x = torch.randn(5, 4).to(device)
    compiled = Counted(train, fullgraph=True)
    held: list[Any] = []
    for _ in range(3):
        assert torch.allclose(compiled(a, opt_a, x), train(b, opt_b, x))
        assert all(a.weight.grad is not g and same(g.cpu(), before) for g, before in held)
        held.append((a.weight.grad, a.weight.grad.cpu().clone()))
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.allclose(p, q) and torch.allclose(p.grad, q.grad)
            assert all(torch.allclose(opt_a.state[p][k], v) for k, v in opt_b.state[q].items())
    assert len(compiled.entries) == 1


def test_a_gradient_read_before_it_is_dropped_is_looked_at() -> None:
    w = torch.ones(3, requires_grad=True)

    def f(w, x):
        old, w.grad = w.grad, None
        (w * x).sum().backward()
        return old

    compiled = Counted(f, fullgraph=True)
    assert compiled(w, torch.ones(3)) is None
    first = w.grad
    assert compiled(w, torch.full((3,), 2.0)) is first and w.grad.tolist() == [2.0, 2.0, 2.0]
    assert len(compiled.entries) == 2


def test_parameters_without_a_gradient_get_no_state() -> None:
    used, unused = nn.Linear(4, 3), nn.Linear(4, 3)
    opt = optim.Adam([*used.parameters(), *unused.parameters()], lr=0.1)

    def f(x):
        opt.zero_grad()
        used(x).sum().backward()
        opt.step()

    compiled = Counted(f, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(2, 4))
    assert set(opt.state) == set(used.parameters()) and len(compiled.entries) == 1


def test_an_optimizer_that_makes_its_own_state() -> None:
    class Heavy(optim.Optimizer):
        def _update(self, group):
            for p in group["params"]:
                state = self.state[p]
                if "speed" not in state:
                    state["speed"] = torch.zeros_like(p)
                state["speed"].mul_(0.9).add_(p.grad)
                p.sub_(state["speed"], alpha=group["lr"])

    w, v = (torch.ones(3, requires_grad=True) for _ in range(2))
    opt_w, opt_v = Heavy([w], {"lr": 0.1}), Heavy([v], {"lr": 0.1})

    def f(w, opt, x):
        opt.zero_grad()
        (w * x).sum().backward()
        opt.step()

    compiled = Counted(f, fullgraph=True)
    for k in (1.0, 2.0, 3.0):
        compiled(w, opt_w, torch.full((3,), k))
        f(v, opt_v, torch.full((3,), k))
        assert torch.allclose(w, v)
    assert len(compiled.entries) == 2  # without state, and with it


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
    taken = [n for n in compiled.graphs[0].graph.nodes if getattr(n.target, "__name__", "") == "adam_"]
    assert len(taken) == len(list(a.parameters()))  # a node each, which the next stage opens


def test_a_lazy_module_learns_its_shape_before_the_trace() -> None:
    def told(compile_: Any) -> Any:
        torch.manual_seed(1)
        model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))
        fn = compile_(lambda x: model(x))
        out = [fn(torch.ones(2, 4)) for _ in range(2)]
        return out, torch.rand(1), [type(m).__name__ for m in model], list(model.state_dict())

    made: list[Counted] = []

    def compiled(fn: Any) -> Any:
        made.append(Counted(fn, fullgraph=True))
        return made[0]

    assert same(told(compiled), told(lambda fn: fn))
    assert len(made[0].entries) == 1 and not made[0].native()


# --- requires_grad set inside -----------------------------------------------------------------------------------------
def penalty(d: Any, real: Any) -> Any:
    """Of WGAN-GP: the gradient at a point between real and false."""
    mix = (real * 0.3 + 0.2).detach()
    mix.requires_grad_(True)
    (g,) = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


def own_gradient(d: Any, real: Any) -> Any:
    y = real * 2
    y.requires_grad = True
    d(y).square().sum().backward()
    return y.grad


def set_and_taken_back(d: Any, real: Any) -> Any:
    y = (real * 2).requires_grad_()
    z = d(y).sum()
    y.requires_grad_(False)
    return (y * 3).sum(), z


def set_as_it_is(d: Any, real: Any) -> Any:
    for p in d.parameters():
        p.requires_grad_(True)
    d.requires_grad_()
    real.requires_grad = False
    return d(real).sum()


def given_away(d: Any, real: Any) -> Any:
    y = (real * 2).requires_grad_()
    return y, d(y).square().sum()


def kept(d: Any, real: Any) -> Any:
    d.kept = torch.ones(6, 4, requires_grad=True)
    return (d(real * d.kept) ** 2).sum()


def frozen(d: Any, real: Any) -> Any:
    d[0].weight.requires_grad_(False)
    y = d(real).sum()
    d[0].weight.requires_grad_(True)
    return y


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("fn", "whole"),
    [(penalty, True), (own_gradient, True), (set_and_taken_back, True), (set_as_it_is, True), (given_away, False), (kept, False), (frozen, False)],
)
def test_requires_grad_is_set_inside(fn: Any, whole: bool, backend: str) -> None:
    """In the graph as long as the leaf stays there; an input's flag, and a leaf that leaves, end it."""
    seen = []
    for call in (fn, torch.compile(fn, backend=backend, fullgraph=whole)):
        d, (real, _) = model().eval(), batch()
        for p in d.parameters():
            p.grad = torch.zeros_like(p)
        out = call(d, real)
        out = out if isinstance(out, tuple) else (out,)
        for t in out:
            if t.requires_grad and t.grad_fn is not None:
                t.sum().backward()
        leaves = [*d.parameters(), *(t for t in out if t.is_leaf), *([d.kept] if fn is kept else [])]
        seen.append([[t.detach() for t in out], [t.requires_grad for t in out], [t.is_leaf for t in out], [t.grad for t in leaves]])
    assert same(*seen)
    if not whole:
        with pytest.raises(Unsupported, match="requires_grad"):
            torch.compile(fn, backend="eager", fullgraph=True)(model().eval(), batch()[0])


def shared(x: Any, a: Any, b: Any) -> None:
    ((a + b) * x).sum().backward()


def with_cotangent(x: Any, a: Any, b: Any) -> Any:
    (a + b).backward(x)
    return a.grad * 2


def of_an_intermediate(x: Any, a: Any, b: Any) -> Any:
    y = x * 2
    (y * a).sum().backward()
    a.grad.mul_(2)
    return y


def expanded(x: Any, a: Any, b: Any) -> None:
    a.sum().backward()
    b.mean().backward()


@pytest.mark.parametrize("fn", [shared, with_cotangent, of_an_intermediate, expanded])
def test_a_gradient_is_nobody_elses_memory(fn: Any) -> None:
    """What later calls add to it reaches no other gradient, no cotangent and no result."""
    found = []
    for f in (fn, torch.compile(fn)):
        x, a, b = torch.arange(4.0).reshape(2, 2), nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.full((2, 2), 2.0))
        results = [f(x, a, b) for _ in range(3)]
        nn.utils.clip_grad_norm_([p for p in (a, b) if p.grad is not None], 0.5)
        found.append([x, *results, a.grad, b.grad])
    for eager, compiled in zip(*found, strict=True):
        assert (eager is None) == (compiled is None) and (eager is None or torch.allclose(eager, compiled))


def test_compiled_training_keeps_no_model_alive() -> None:
    m, f = model(), torch.compile(lambda m, x: m(x).sum().backward())
    f(m, batch()[0])
    gone = weakref.ref(m)
    del m
    gc.collect()
    assert gone() is None


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise ValueError("mine")


def test_an_error_of_a_backward_is_new_each_time_and_names_its_line() -> None:
    f, x = torch.compile(lambda x: Refuses.apply(x).sum()), torch.ones(3, requires_grad=True)
    depths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="mine") as caught:
            f(x).backward()
        depths.append(len(caught.traceback))
        assert any('raise ValueError("mine")' in note for note in caught.value.__notes__)
    assert len(set(depths)) == 1


@pytest.mark.parametrize("name", ["t_", "squeeze_", "detach_"])
def test_a_method_taken_from_the_class_is_the_method(name: str) -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        getattr(torch.Tensor, name)(y)
        return y * 3

    x = torch.ones(1, 3, requires_grad=name == "detach_")
    eager, compiled = fn(x), torch.compile(fn)(x)
    assert eager.shape == compiled.shape and eager.requires_grad == compiled.requires_grad and torch.equal(eager, compiled)
