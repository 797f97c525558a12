"""Programs found again: the second time nothing is traced, everything is as eager has it, and nothing is found that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capture_helpers import same

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler import logs
from compiler.aot import autograd, kept
from compiler.config import config
from tinytorch import nn, optim
from tinytorch.nn.attention import SDPBackend, sdpa_kernel
from tinytorch.ops.opdef import TABLE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache=True, cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each joint trace."""
    seen: list[Any] = []
    real = autograd.trace_joint

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(autograd, "trace_joint", counted)
    return seen


def anew(fn: Callable[..., Any], *args: Any) -> Any:
    """The result of a first call."""
    torch.compiler.reset()
    return torch.compile(fn, fullgraph=True, dynamic=False)(*args)


def model() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 3))
    return net, optim.AdamW(net.parameters(), lr=0.01)


def step(net: Any, opt: Any, x: Any, y: Any) -> Any:
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    loss = F.cross_entropy(out.float(), y)
    loss.backward()
    opt.step()
    return loss.detach()


def test_a_training_step_is_found_again(traces: list[Any]) -> None:
    torch.manual_seed(5)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    runs = []
    for _ in range(2):
        net, opt = model()
        torch.manual_seed(1)
        losses = [anew(step, net, opt, x, y)]
        losses += [torch.compile(step, fullgraph=True, dynamic=False)(net, opt, x, y) for _ in range(2)]
        runs.append((losses, [p.detach() for p in net.parameters()], [p.grad for p in net.parameters()], torch.get_rng_state()))
    assert len(traces) == 1
    for a, b in zip(*runs, strict=True):
        assert all(same(s, t) for s, t in zip(a, b, strict=True))


def views(x: Any, y: Any) -> Any:
    x.mul_(2)
    z = x + y
    return x, y.T, z, z[1:], (z.sum(), x[0]), "text", 3


def in_place(x: Any, y: Any) -> Any:
    x[1:].add_(y[0])
    return None


def drawn(x: Any, y: Any) -> Any:
    return F.dropout(x, 0.5, True) + torch.rand(3, 3), torch.randn(2)


def no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        return (x @ y).softmax(-1).topk(2)


@pytest.mark.parametrize("fn", [views, in_place, drawn, no_grad])
def test_results_and_effects_are_those_of_eager(fn: Any, traces: list[Any]) -> None:
    def run(call: Any) -> Any:
        torch.manual_seed(3)
        x, y = torch.arange(9.0).reshape(3, 3), torch.ones(3, 3)
        out = call(x, y)
        flat = [t for o in (out or ()) for t in (o if isinstance(o, tuple) else (o,))]
        shared = [(np.shares_memory(a._data, b._data)) for a in (x, y, *flat) for b in flat if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]
        return [x, y, *flat, torch.get_rng_state()], shared, (x._version, y._version), [o is x for o in flat]

    expected = run(fn)
    for _ in range(2):
        got = run(lambda x, y: anew(fn, x, y))
        assert len(got[0]) == len(expected[0]) and got[1:] == expected[1:]
        for a, b in zip(got[0], expected[0], strict=True):
            assert same(a, b) and a.stride() == b.stride() if isinstance(a, torch.Tensor) else a == b
    assert len(traces) == 1


def test_a_backward_of_its_own_is_found_too(traces: list[Any]) -> None:
    def loss_of(w: Any, x: Any, b: Any) -> Any:
        h = F.dropout(torch.tanh(x @ w) + b, 0.3, True)
        return (h * h).sum(), h.T, b

    def run(call: Any) -> list[Any]:
        torch.manual_seed(2)
        w, x, b = torch.randn(4, 3, requires_grad=True), torch.randn(5, 4), torch.randn(3, requires_grad=True)
        first, turned, same_b = call(w, x, b)
        assert same_b is b and first.grad_fn is not None
        grads = torch.autograd.grad(first + turned.sum() ** 2, [w, b], create_graph=True)
        twice = torch.autograd.grad(grads[0].square().sum() + grads[1].sum(), [w, b])
        with torch.no_grad():
            w += 1
        (call(w, x, b)[1] ** 2).sum().backward()
        return [first, turned, *grads, *twice, w.grad, b.grad, torch.get_rng_state()]

    expected = run(loss_of)
    for found in (False, True):
        torch.compiler.reset()
        del traces[:]
        got = run(torch.compile(loss_of, fullgraph=True, dynamic=False))
        assert all(torch.allclose(g, e, rtol=1e-4, atol=1e-5) and g.stride() == e.stride() for g, e in zip(got, expected, strict=True))
        asked = [args[0] for args in traces]  # for the second derivative a kept program is traced after all
        assert len(asked) == 2, found
    before = len(traces)
    torch.compiler.reset()
    torch.manual_seed(2)
    w = torch.randn(4, 3, requires_grad=True)
    torch.compile(loss_of, fullgraph=True, dynamic=False)(w, torch.randn(5, 4), torch.randn(3, requires_grad=True))[0].backward()
    assert len(traces) == before and w.grad is not None


def test_what_differs_is_not_found(traces: list[Any]) -> None:
    def attend(x: Any, y: Any) -> Any:
        return F.scaled_dot_product_attention(x, y, y) + 1.0

    x, y = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    anew(attend, x, y)
    anew(attend, x, y)
    assert len(traces) == 1
    for n, (a, b) in enumerate(
        [
            (torch.ones(2, 3, 5), torch.ones(2, 3, 5)),
            (x.double(), y.double()),
            (torch.ones(2, 4, 3).transpose(1, 2), y),
        ],
        2,
    ):
        anew(attend, a, b)
        anew(attend, a, b)
        assert len(traces) == n, (a.shape, a.dtype, a.stride())
    count = len(traces)
    contexts: list[Any] = [
        lambda: sdpa_kernel(SDPBackend.MATH), lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode,
        torch.no_grad, lambda: config.patch(numerics="strict"),
    ]  # fmt: skip
    for n, context in enumerate(contexts, count + 1):
        with context():
            anew(attend, x, y)
        assert len(traces) == n
    torch.set_default_dtype(torch.float64)
    try:
        anew(attend, x, y)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(traces) == count + len(contexts) + 1


def test_inputs_that_share_memory_are_others(traces: list[Any]) -> None:
    def shift(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    base = torch.zeros(6)
    anew(shift, torch.zeros(4), torch.zeros(4))
    assert same(anew(shift, base[:4], base[2:]), torch.tensor([2.0, 2.0, 0.0, 0.0]))
    assert same(anew(shift, base[:4], base[2:]), torch.tensor([4.0, 4.0, 0.0, 0.0]))
    assert same(anew(shift, torch.zeros(4), torch.zeros(4)), torch.zeros(4))


@torch.compiler.allow_in_graph
def foreign(x: Any) -> Any:
    return x * FACTOR


FACTOR = 2.0


def test_what_is_not_ours_is_traced_each_time(traces: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert same(anew(foreign, torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert same(anew(foreign, torch.ones(2)), torch.full((2,), 3.0))
    held = torch.ones(2)
    anew(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    assert same(anew(lambda x: x + torch.tensor([1.0, 3.0]), held), torch.tensor([2.0, 4.0]))
    row = TABLE["sin"]
    monkeypatch.setattr(kept, "OURS", ("elsewhere",))
    kept._function.cache_clear()
    with pytest.raises(kept._Unknown):
        kept._function(row)
    kept._function.cache_clear()


def test_a_plan_that_is_gone_or_harmed_is_made_again(traces: list[Any], folder: Path) -> None:
    def fn(x: Any) -> Any:
        return x.sin() + 1

    first = anew(fn, torch.ones(4))
    torch.compiler.reset()
    for kind in ("plan", "graph"):
        (path,) = folder.glob(f"{kind}-*")
        path.write_bytes(path.read_bytes()[:-3])
        kept.disk.get(kind, path.name.partition("-")[2])
        assert same(anew(fn, torch.ones(4)), first)
    assert traces


def test_who_listens_sees_all_stages(traces: list[Any]) -> None:
    def fn(x: Any) -> Any:
        return x.cos() * 2

    anew(fn, torch.ones(4))
    heard: list[str] = []
    with logs.listening(lambda topic, title, text: heard.append(topic)):
        anew(fn, torch.ones(4))
    assert {"joint", "loops"} <= set(heard) and len(traces) == 2


def test_found_programs_know_what_eager_keeps_and_where_gradients_begin(traces: list[Any]) -> None:
    def product(x: Any, w: Any) -> Any:
        return (x * 2).exp() * w + x * w

    def late(x: Any, w: Any) -> Any:
        with torch.no_grad():
            torch.compiler.graph_break()
            y = x * 2
        w.t()[0].sin()
        return y * w, w.view(4)

    found: list[int] = []
    for _ in range(2):
        torch.compiler.reset()
        for lends in (False, True):
            x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
            out = torch.compile((lambda x, w: (x * 2).exp() * w) if lends else product, dynamic=False)(x, w)
            x.add_(1)
            if lends:
                out.sum().backward()
                np.testing.assert_allclose(w.grad.numpy(), np.exp(2.0) * np.ones((2, 2)), rtol=1e-5)
            else:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    out.sum().backward()
        x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
        out, view = torch.compile(late, dynamic=False)(x, w)
        (out.sum() + view.sum()).backward()
        assert w.grad.tolist() == [[3, 3], [3, 3]] and not view.is_leaf
        found.append(len(traces))
    assert found[0] == found[1]


def test_the_log_of_the_cache_says_what_was_found_and_what_is_never_kept(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = torch.ones(3, 3), torch.ones(3, 3)
    logs.set_logs("cache")
    try:
        for _ in range(2):
            anew(no_grad, x, y)
        torch.compile(no_grad, dynamic=True)(torch.ones(4, 3), y)
    finally:
        logs.set_logs("")
    said = capsys.readouterr().err
    assert said.count("no trace, no lowering") == 1 and said.count("is traced each time: symbolic sizes") == 1
