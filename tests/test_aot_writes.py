"""What compiled programs write: results given by ``out=``, tensors given twice, parameters and state of a whole step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from compiler.aot.autograd import aot_autograd
from compiler.aot.joint import trace_joint
from compiler.ir.verify import verify
from compiler.partition import min_cut
from tinytorch import Tensor, nn, optim
from tinytorch.nn import functional as F


def checked(gm: Any, examples: Any) -> Any:
    verify(gm, functional=True, level=2)
    return gm


backend = aot_autograd(checked, partition_fn=lambda joint, n: min_cut(joint, n, 1.0))


def rand(*shape: int, seed: int = 0, requires_grad: bool = False) -> Tensor:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.tensor(data, requires_grad=requires_grad)


def both(fn: Any, make: Any) -> None:
    """Eager and compiled on inputs of their own: equal results, equal inputs after, equal versions, equal identities."""
    torch.compiler.reset()
    seen = []
    for run in (fn, torch.compile(fn, backend=backend, fullgraph=True)):
        args = make()
        results = run(*args)
        results = list(results) if isinstance(results, tuple) else [results]
        tensors = [*args, *results]
        seen.append(
            (
                [t.tolist() for t in tensors],
                [t._version for t in args],
                [[a is b for b in tensors] for a in tensors],
                [[np.shares_memory(a._data, b._data) for b in tensors] for a in tensors],
            )
        )
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, o: torch.add(x, 1.0, out=o),
        lambda x, o: torch.mul(x, x, out=o) + o,
        lambda x, o: torch.exp(x, out=o[:]),
        lambda x, o: torch.add(x, x.sum(), out=x),
        lambda x, o: (torch.sin(x, out=o), torch.cos(o, out=o)),
    ],
)
def test_results_given_by_out_are_written_in_place(fn: Any) -> None:
    both(fn, lambda: [rand(3), rand(3, seed=1)])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[1:3].fill_(2.0).sum() + x.sum(),
        lambda x: (x.__setitem__((slice(None), 0), 5.0), x * 2.0)[1],
        lambda x: (x.__setitem__((slice(0, 2), slice(None, None, 2)), x[2:4, ::2] * 3.0), x)[1],
        lambda x: (x.T.__setitem__(1, x[:3, 0]), x.t().clone())[1] if x.shape[0] == 3 else x.t().mul_(2.0),
        lambda x: x.view(-1)[4:].add_(x.reshape(-1)[:4].sum()),
    ],
)
def test_slices_are_assigned(fn: Any) -> None:
    both(fn, lambda: [rand(4, 3)])


@pytest.mark.filterwarnings("error")
def test_one_tensor_given_twice_is_one_tensor_and_guarded() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2.0)
        return x + y

    torch.compiler.reset()
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for again in range(2):
        a, b = torch.ones(3), torch.ones(3)
        assert compiled(a, b).tolist() == [3, 3, 3] and b.tolist() == [1, 1, 1], again
        assert compiled(a, a).tolist() == [8, 8, 8] and a.tolist() == [4, 4, 4] and a._version == 2


@pytest.mark.filterwarnings("error")
def test_a_gradient_of_a_tensor_given_twice_is_the_sum() -> None:
    x = rand(3, requires_grad=True)
    out = torch.compile(lambda x, y: (x * x.sin() + y.cos()).sum(), backend=backend, fullgraph=True)(x, x)
    (want,) = torch.autograd.grad((x * x.sin() + x.cos()).sum(), x)
    np.testing.assert_allclose(torch.autograd.grad(out, x)[0].numpy(), want.numpy(), rtol=1e-6)


def test_equal_calls_with_and_without_history_stay_apart() -> None:
    """Merged they may be computed once, but only one of the two results has a gradient, and only its path is followed."""
    x = rand(3, requires_grad=True)

    def f(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            free = (x * 2.0).exp()
        return [(x * 2.0).exp(), free, ((x * 2.0).exp() * (x.detach() * 2.0).exp()).sum()]

    a, free, c = backend(f, [x])(x)
    assert [t.requires_grad for t in (a, free, c)] == [True, False, True]
    assert not np.shares_memory(a._data, free._data)
    for i in (0, 2):
        got = torch.autograd.grad(backend(f, [x])(x)[i].sum(), x)[0]
        np.testing.assert_allclose(got.numpy(), torch.autograd.grad(f(x)[i].sum(), x)[0].numpy(), rtol=1e-5)


# --- the whole step ---------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("error")
def test_a_whole_step_is_one_functional_graph_that_updates_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    opt = optim.AdamW(model.parameters(), lr=0.01)
    graphs: list[Any] = []

    def forward_only(gm: Any, examples: Any) -> Any:
        graphs.append(checked(gm, examples))
        return gm

    def step(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    torch.compiler.reset()
    x, y = rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    step(x, y)  # gradients and state exist
    owned = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    memory, before = [id(t._data) for t in owned], [t.numpy().copy() for t in map(Tensor.detach, model.parameters())]
    compiled = torch.compile(step, backend=aot_autograd(forward_only), fullgraph=True)
    losses = [compiled(x, y).item() for _ in range(6)]
    assert losses[-1] < losses[0]
    assert len(graphs) == 1 and not [p for p in graphs[0].graph.placeholders if p.name.startswith("tangents")]
    assert [id(t._data) for t in owned] == memory
    assert all((a != b.detach().numpy()).any() for a, b in zip(before, model.parameters(), strict=True))
    written = graphs[0].meta["inplace"]
    assert len(set(written.values())) >= 4 * len(list(model.parameters()))  # each with its gradient and two moments


def test_a_joint_graph_of_a_write_has_its_value_as_a_result() -> None:
    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        x[0].add_(y)
        return [x.sum()]

    joint = trace_joint(f, [rand(3, 2), rand(2, seed=1)])
    assert [(m.primal, m.writes, m.tracked) for m in joint.mutations] == [(0, 1, False)]
    assert joint.forward_outputs == 2
    assert not [n for n in joint.module.graph.nodes if getattr(n.target, "name", "").endswith("_")]


# --- turned in place: t_, transpose_, squeeze_, unsqueeze_ ------------------------------------------------------------
def _turned(y: Tensor) -> Any:
    z = y.clone()
    early = z[0]
    z += y
    z.t_()
    late = z[0]
    late.mul_(2)
    z.unsqueeze_(0)
    return z, early, late, z.reshape(-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("through", ["aot_eager", "loops"])
def test_what_a_program_made_is_turned_in_place_in_the_graph(through: str, dynamic: bool) -> None:
    torch.compiler.reset()
    seen = []
    for fn in (_turned, torch.compile(_turned, backend=through, fullgraph=True, dynamic=dynamic)):
        y = rand(2, 3, requires_grad=True)
        out = fn(y)
        for n, t in enumerate(out):
            (t * t * torch.arange(float(t.numel())).reshape(t.shape)).sum().backward(retain_graph=n < 3)
        before = [t.tolist() for t in out]
        with torch.no_grad():
            out[0].mul_(3)
        seen.append([before, [t.tolist() for t in out], [tuple(t.shape) for t in out], [round(g, 4) for g in y.grad.reshape(-1).tolist()]])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("turn", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.transpose_(0, 1)])
def test_an_input_is_turned_outside_of_the_graph(turn: Any) -> None:
    """The caller sees it; PyTorch's graphs take it, ours end there."""

    def fn(x: Tensor) -> Tensor:
        y = x + 1
        turn(x)
        x.mul_(2)
        return y.sum() + x

    torch.compiler.reset()
    a, b = rand(2, 3), rand(2, 3)
    assert torch.compile(fn, backend=backend)(a).tolist() == fn(b).tolist()
    assert a.tolist() == b.tolist() and a.shape == b.shape
