"""Hooks around, on and inside compiled code fire as often, in the same order and with the same effect as in eager.

One order differs: results of one compiled call come from one node, so their hooks fire in the order of the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch import Tensor, nn

BACKENDS = ("aot_eager", "aot_eager_decomp_partition")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    torch.compiler.reset()
    return request.param


def rand(*shape: int, seed: int = 0) -> Tensor:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.tensor(data, requires_grad=True)


Log = list[tuple[str, Any]]


def noting(log: Log, name: str, factor: float = 1.0) -> Callable[[Tensor], Any]:
    def hook(g: Tensor) -> Any:
        log.append((name, np.round(g.numpy(), 4).tolist()))
        return g * factor if factor != 1.0 else None

    return hook


def body(model: nn.Module, x: Tensor) -> Tensor:
    return torch.tanh(model(x)).sum()


def on_leaves(log: Log, wrap: Any) -> Any:
    model, x = nn.Linear(3, 2), rand(4, 3)
    fill(model)
    model.weight.register_hook(noting(log, "weight", 0.5))
    model.bias.register_post_accumulate_grad_hook(lambda p: log.append(("accumulated", np.round(p.grad.numpy(), 4).tolist())))
    x.register_hook(noting(log, "x"))
    wrap(body)(model, x).backward()
    return [x.grad, model.weight.grad, model.bias.grad]


def on_inputs_with_history(log: Log, wrap: Any) -> Any:
    x = rand(4)
    h = x * 3.0
    h.register_hook(noting(log, "h", 2.0))
    h.retain_grad()
    wrap(lambda h: (h * h.sin()).sum())(h).backward()
    return [x.grad, h.grad]


def on_results(log: Log, wrap: Any) -> Any:
    """The log is sorted: see above."""
    x = rand(4)
    a, b = wrap(lambda x: (x.exp(), x.sin() * 2.0))(x)
    a.register_hook(noting(log, "a", 3.0))
    b.register_hook(noting(log, "b"))
    a.retain_grad()
    (a.sum() + (a * b).sum()).backward()
    log.sort()
    return [x.grad, a.grad]


def on_the_node(log: Log, wrap: Any) -> Any:
    """One compiled function is one node: its hooks see its results' cotangents and its inputs' gradients."""
    x = rand(4)
    out = wrap(lambda x: x.exp())(x)
    out.grad_fn.register_prehook(lambda gs: log.append(("before", gs[0].tolist())))
    out.grad_fn.register_hook(lambda gi, go: (log.append(("after", np.round(gi[0].numpy(), 4).tolist())), (gi[0] * 2.0,))[1])
    out.sum().backward()
    return [x.grad]


def inside(log: Log, wrap: Any) -> Any:
    """Registered by the compiled function itself: the graph ends there, and the hook is on a result of its first part."""
    x = rand(4)
    hook = noting(log, "inside", 4.0)

    def f(x: Tensor) -> Tensor:
        h = x.exp()
        h.register_hook(hook)
        return (h * x).sum()

    wrap(f)(x).backward()
    return [x.grad]


def removed(log: Log, wrap: Any) -> Any:
    x, f = rand(4), wrap(lambda x: x.exp().sum())
    handle = x.register_hook(noting(log, "x"))
    f(x).backward()
    handle.remove()
    f(x).backward()
    return [x.grad]


def of_modules(log: Log, wrap: Any) -> Any:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), rand(4, 3)
    fill(model)
    model[0].register_forward_hook(lambda m, a, out: out * 2.0)
    model[1].register_forward_pre_hook(lambda m, a: (a[0] + 1.0,))
    wrap(body)(model, x).backward()
    return [x.grad, model[0].weight.grad]


def fill(model: nn.Module) -> None:
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(rand(*p.shape, seed=n))


CASES = (on_leaves, on_inputs_with_history, on_results, on_the_node, inside, removed, of_modules)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_hooks_fire_as_in_eager(case: Any, backend: str) -> None:
    want_log: Log = []
    got_log: Log = []
    want = case(want_log, lambda f: f)
    got = case(got_log, lambda f: torch.compile(f, backend=backend))
    assert got_log == want_log and (want_log or case is of_modules)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)
