"""What autograd users can see of a compiled function: gradients, Nones, hooks, second backward, second derivatives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from compiler.aot.autograd import aot_autograd
from compiler.aot.joint import trace, trace_joint
from compiler.errors import InvalidGradError
from compiler.ir.verify import verify
from compiler.partition import min_cut
from tinytorch import Tensor, nn
from tinytorch.nn import functional as F


def checked(gm: Any, examples: Any) -> Any:
    verify(gm, functional=True, level=2)
    return gm


BACKENDS = {
    "everything saved": aot_autograd(checked),
    "min cut": aot_autograd(checked, partition_fn=lambda joint, n: min_cut(joint, n, 1.0)),
    "nothing saved": aot_autograd(checked, partition_fn=lambda joint, n: min_cut(joint, n, 0.0)),
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


def rand(*shape: int, seed: int = 0, requires_grad: bool = False) -> Tensor:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.tensor(data, requires_grad=requires_grad)


def same(a: Any, b: Any, tol: float = 1e-6) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=tol, atol=tol)


class Functional:
    """A module as a function of its parameters and inputs, in the order in which ``leaves`` lists them."""

    def __init__(self, module: nn.Module, loss: Callable[..., Any]) -> None:
        self.module = module
        self.loss = loss
        self.owners = [(m, n) for m in module.modules() for n in m._parameters if m._parameters[n] is not None]
        self.leaves = [m._parameters[n] for m, n in self.owners]

    def __call__(self, *args: Any) -> list[Any]:
        count = len(self.leaves)
        try:
            for (m, n), value in zip(self.owners, args[:count], strict=True):
                m._parameters[n] = value
            return [self.loss(self.module, *args[count:])]
        finally:
            for (m, n), value in zip(self.owners, self.leaves, strict=True):
                m._parameters[n] = value


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(16), nn.Linear(16, 5))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# --- training ---------------------------------------------------------------------------------------------------------
def test_training_an_mlp_equals_eager(backend: Any) -> None:
    losses: dict[str, list[float]] = {}
    for way in ("eager", "compiled"):
        model = mlp()
        step = Functional(model, cross_entropy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = rand(8, 12), torch.tensor(np.arange(8) % 5)
        fn = step if way == "eager" else backend(step, [*step.leaves, x, y])
        torch.manual_seed(7)
        losses[way] = []
        for _ in range(4):
            (loss,) = fn(*step.leaves, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[way].append(loss.item())
        losses[way].append(torch.rand(1).item())  # the generator moved as far
    np.testing.assert_allclose(losses["compiled"], losses["eager"], rtol=2e-5)


def test_k17_an_unused_parameter_keeps_no_gradient(backend: Any) -> None:
    w, unused = rand(3, 3, requires_grad=True), rand(3, seed=1, requires_grad=True)
    (out,) = backend(lambda w, unused: [(w * 2).sum()], [w, unused])(w, unused)
    out.backward()
    assert unused.grad is None and w.grad is not None


def test_a_gradient_without_a_cotangent_is_none(backend: Any) -> None:
    a, b = rand(3, requires_grad=True), rand(3, seed=1, requires_grad=True)
    x, _ = backend(lambda a, b: [a.exp(), b.sin()], [a, b])(a, b)
    x.sum().backward()
    assert b.grad is None
    same(a.grad, a.exp())


def test_results_require_grad_as_in_eager(backend: Any) -> None:
    def f(a: Tensor, b: Tensor) -> list[Any]:
        with torch.no_grad():
            quiet = a * 2
        return [a * b, b * 2, quiet, (a > 0), a.detach() * 3]

    a, b = rand(3, requires_grad=True), rand(3)
    results = backend(f, [a, b])(a, b)
    assert [r.requires_grad for r in results] == [r.requires_grad for r in f(a, b)] == [True, False, False, False, False]
    assert results[0].grad_fn is not None and results[1].is_leaf


def test_under_no_grad_there_is_no_backward(backend: Any) -> None:
    w = rand(3, requires_grad=True)
    with torch.no_grad():
        (out,) = backend(lambda w: [w * 2], [w])(w)
    assert not out.requires_grad


def test_a_function_that_changes_grad_mode_and_raises_leaves_it_as_it_was() -> None:
    def f(x: Tensor) -> list[Any]:
        torch.set_grad_enabled(False)
        return [x.view(7)]

    with pytest.raises(RuntimeError, match="invalid for input of size"):
        trace_joint(f, [rand(3)])
    assert torch.is_grad_enabled()


# --- the backward pass ------------------------------------------------------------------------------------------------
def square_sum(x: Tensor, w: Tensor) -> list[Any]:
    return [((x @ w).tanh() ** 2).sum()]


def test_a_second_backward_needs_retain_graph(backend: Any) -> None:
    x, w = rand(4, 3), rand(3, 2, seed=1, requires_grad=True)
    fn = backend(square_sum, [x, w])
    (out,) = fn(x, w)
    out.backward(retain_graph=True)
    first = w.grad.numpy().copy()
    out.backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * first, rtol=1e-6)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_what_is_saved_is_freed_after_the_backward(backend: Any) -> None:
    x, w = rand(4, 3), rand(3, 2, seed=1, requires_grad=True)
    (out,) = backend(square_sum, [x, w])(x, w)
    kept = weakref.ref(out.grad_fn.whole)
    assert kept() is not None
    out.backward()
    gc.collect()
    assert kept() is None


def test_hooks_fire_on_inputs_and_results(backend: Any) -> None:
    x, w = rand(4, 3), rand(3, 2, seed=1, requires_grad=True)
    v = w * 1.0
    seen: list[str] = []
    v.register_hook(lambda g: seen.append("input"))
    (out,) = backend(lambda x, v: [(x @ v).exp()], [x, v])(x, v)
    out.register_hook(lambda g: (seen.append("result"), g * 2)[1])
    out.sum().backward()
    assert seen == ["result", "input"]
    same(w.grad, 2 * torch.autograd.grad((x @ w).exp().sum(), w)[0], 1e-5)


def test_two_gradients_of_equal_value_are_two_tensors(backend: Any) -> None:
    a, b = rand(3, requires_grad=True), rand(3, seed=1, requires_grad=True)
    (out,) = backend(lambda a, b: [a + b], [a, b])(a, b)
    g = torch.ones(3)
    out.backward(g)
    a.grad.mul_(5)
    assert b.grad.tolist() == [1, 1, 1] and g.tolist() == [1, 1, 1]
    a.grad = b.grad = None
    (out,) = backend(lambda a, b: [(a + b).exp().sum()], [a, b])(a, b)
    out.backward()
    a.grad.mul_(5)
    same(b.grad, (a + b).exp())


def test_writing_a_saved_tensor_makes_the_backward_raise() -> None:
    x = rand(3, requires_grad=True)
    y = x * 1.0
    (out,) = BACKENDS["min cut"](lambda y: [y.exp() * y], [y])(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_error_of_eagers_backward_comes_in_the_backward(backend: Any) -> None:
    def f(x: Tensor) -> list[Any]:
        y = x.exp()
        z = y * 2
        y.add_(1)
        return [z + y]

    x = rand(3, requires_grad=True)
    (out,) = backend(f, [x])(x)
    same(out, f(x)[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("grad", ["transposed", "expanded", "sliced"])
def test_cotangents_of_any_layout(backend: Any, grad: str) -> None:
    x = rand(4, 4, requires_grad=True)
    g = {"transposed": rand(4, 4, seed=2).t(), "expanded": torch.ones(1, 4).expand(4, 4), "sliced": rand(4, 8, seed=3)[:, ::2]}[grad]
    (out,) = backend(lambda x: [x.sin()], [x])(x)
    out.backward(g)
    same(x.grad, x.cos() * g)


# --- second derivatives -----------------------------------------------------------------------------------------------
def test_k16_double_backward(backend: Any) -> None:
    x = rand(5, requires_grad=True)
    (y,) = backend(lambda x: [(x**4).sum()], [x])(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    same(first, 4 * x**3, 1e-5)
    (second,) = torch.autograd.grad(first.sum(), x)
    same(second, 12 * x**2, 1e-5)


def test_third_derivatives_and_mixed_ones(backend: Any) -> None:
    x, w = rand(5, requires_grad=True), rand(5, seed=1, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> list[Any]:
        return [((x * w).sin() * x).sum()]

    def derivatives(fn: Any) -> list[Tensor]:
        (y,) = fn(x, w)
        gx, gw = torch.autograd.grad(y, [x, w], create_graph=True)
        (gxw,) = torch.autograd.grad(gx.sum(), w, create_graph=True)
        (gxwx,) = torch.autograd.grad(gxw.sum(), x)
        return [gx, gw, gxw, gxwx]

    for got, want in zip(derivatives(backend(f, [x, w])), derivatives(f), strict=True):
        same(got, want, 1e-5)


def test_double_backward_after_a_write_to_an_input_is_refused(backend: Any) -> None:
    def f(x: Tensor) -> list[Any]:
        y = x.exp()
        x.mul_(2)
        return [y]

    leaf = rand(3, requires_grad=True)
    x = leaf * 1.0
    (y,) = backend(f, [x])(x)
    with pytest.raises(InvalidGradError, match="in place"):
        torch.autograd.grad(y.sum(), leaf, create_graph=True)


# --- random numbers ---------------------------------------------------------------------------------------------------
def test_k21_two_dropouts_draw_what_eager_draws(backend: Any) -> None:
    def f(x: Tensor) -> list[Any]:
        return [F.dropout(x * 2, 0.5) + F.dropout(x.sin(), 0.25)]

    x = rand(64, requires_grad=True)
    fn = backend(f, [x])
    for way in (f, fn):
        torch.manual_seed(3)
        x.grad = None
        (out,) = way(x)
        out.backward(torch.ones(64), retain_graph=True)
        out.backward(torch.ones(64))
        if way is f:
            want = out.detach(), x.grad
        else:
            same(out, want[0])
            same(x.grad, want[1])
    torch.manual_seed(3)
    fn(x)
    after = torch.rand(4)
    torch.manual_seed(3)
    f(x)
    assert after.tolist() == torch.rand(4).tolist()


def test_a_dropout_mask_is_made_again_not_saved() -> None:
    x = rand(64, requires_grad=True)
    saved: list[Any] = []

    def partition(joint: Any, n: int) -> Any:
        fw, bw, report = min_cut(joint, n, 1.0)
        saved.extend(report.saved)
        return fw, bw

    torch.manual_seed(0)
    (out,) = aot_autograd(checked, partition_fn=partition)(lambda x: [F.dropout(x, 0.5).sum()], [x])(x)
    out.backward()
    assert sum(e.bytes for e in saved) == 0
    assert set(x.grad.tolist()) == {0.0, 2.0}


# --- inputs written in place ------------------------------------------------------------------------------------------
def test_an_input_written_under_grad_carries_the_history(backend: Any) -> None:
    def f(x: Tensor, w: Tensor) -> list[Any]:
        y = x * w
        x.mul_(w).add_(1)
        return [y]

    for way in ("eager", "compiled"):
        leaf, w = rand(3, requires_grad=True), rand(3, seed=1, requires_grad=True)
        x = leaf * 1.0
        (y,) = (f if way == "eager" else backend(f, [x, w]))(x, w)
        assert x.requires_grad and x._version == 2
        with pytest.raises(RuntimeError, match="inplace"):  # what mul saved was written
            (y + x).sum().backward()


def test_running_statistics_move_as_in_eager(backend: Any) -> None:
    def f(x: Tensor, mean: Tensor, w: Tensor) -> list[Any]:
        batch = x.mean(0)
        with torch.no_grad():
            mean.mul_(0.9).add_(batch, alpha=0.1)
        return [((x - batch) * w).sum()]

    got = {}
    for way in ("eager", "compiled"):
        x, mean, w = rand(8, 3), torch.zeros(3), rand(3, seed=1, requires_grad=True)
        fn = f if way == "eager" else backend(f, [x, mean, w])
        for _ in range(3):
            (out,) = fn(x, mean, w)
            out.backward()
        got[way] = mean.tolist(), w.grad.tolist(), mean._version
    np.testing.assert_allclose(got["compiled"][0], got["eager"][0], rtol=1e-6)
    np.testing.assert_allclose(got["compiled"][1], got["eager"][1], rtol=1e-5)
    assert got["compiled"][2] == got["eager"][2]


def test_an_input_overwritten_by_the_call_is_still_right_in_the_backward(backend: Any) -> None:
    """The cut may want the input's old value, which eager's own saved tensors do not hold."""

    def f(x: Tensor, w: Tensor) -> list[Any]:
        y = (x.sin() * w).sum()
        with torch.no_grad():
            x.zero_()
        return [y]

    x, w = rand(5), rand(5, seed=1, requires_grad=True)
    want = x.sin().tolist()
    (y,) = backend(f, [x, w])(x, w)
    y.backward()
    np.testing.assert_allclose(w.grad.tolist(), want, rtol=1e-6)
    assert x.tolist() == [0] * 5


# --- the graphs -------------------------------------------------------------------------------------------------------
def test_the_joint_graph_has_rows_only_and_prints_as_itself() -> None:
    model = mlp()
    step = Functional(model, cross_entropy)
    joint = trace_joint(step, [*step.leaves, rand(8, 12), torch.tensor(np.arange(8) % 5)])
    verify(joint.module, functional=True, level=2)
    names = [p.name for p in joint.module.graph.placeholders]
    assert names == [*(f"primals_{i}" for i in range(8)), "rng_state_0", "tangents_0"]
    assert joint.gradients.count(None) == 2 and joint.forward_outputs == 1


def test_trace_gives_the_functional_graph_of_a_function() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[1:].mul_(3)
        return y

    gm = trace(f, [rand(4)])
    assert [n.target.name for n in gm.graph.nodes if n.op == "call_function"] == ["slice", "mul", "slice_scatter"]
    x = rand(4)
    same(gm(x)[0], f(x))


def test_decompositions_open_rows() -> None:
    gm = trace(
        lambda x: torch.sigmoid(x),
        [rand(3)],
        decompositions={torch.ops.sigmoid: lambda x: torch.ops.reciprocal((-x).exp() + 1)},
    )
    assert "sigmoid" not in gm.code and "reciprocal" in gm.code


def test_nodes_know_the_users_line_also_those_of_the_backward() -> None:
    from compiler.ir.graph import Graph
    from compiler.ir.module import GraphModule

    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_method("sin", (x,))
    a.meta["stack"] = [("model.py", 3, "forward", "a = x.sin()")]
    b = graph.call_method("exp", (a,))
    b.meta["stack"] = [("model.py", 4, "forward", "b = a.exp()")]
    graph.output((b,))
    joint = trace_joint(GraphModule({}, graph), [rand(3, requires_grad=True)])
    lines = {n.name: n.stack[-1][1] for n in joint.module.graph.nodes if n.op == "call_function"}
    assert lines == {"sin": 3, "exp": 4, "mul": 4, "cos": 3, "mul_1": 3}


# --- donated memory ---------------------------------------------------------------------------------------------------
def test_saved_memory_is_reused_by_the_backward_unless_it_is_retained() -> None:
    from compiler.backends import loops
    from compiler.config import config
    from compiler.loop.ir import Alloc

    plans: list[Any] = []

    def build(plan: Any, config: Any) -> Any:
        plans.append(plan)
        return loops._interpret(plan, config)

    def f(x: Tensor, w: Tensor) -> list[Any]:
        return [((x @ w).exp() @ w).sin().sum()]

    x, w = rand(4, 4), rand(4, 4, seed=1, requires_grad=True)
    fn = loops.through_loops(lambda module: build, config)(f, [x, w])
    (out,) = fn(x, w)
    inputs = {b.name for b in plans[1].inputs}
    assert any(isinstance(s, Alloc) and s.reuse in inputs for s in plans[1].steps)
    out.backward(retain_graph=True)
    first, w.grad = w.grad, None
    out.backward()
    same(w.grad, first)
    (want,) = torch.autograd.grad(f(x, w)[0], w)
    same(first, want, 1e-5)


def test_an_absent_cotangent_of_symbolic_size_is_zeros_of_the_size_of_the_call() -> None:
    f = torch.compile(lambda x, w: (x * w, (x * w).exp()), backend="aot_eager", dynamic=True)
    w = rand(3, requires_grad=True)
    for n in (4, 6, 9):
        x = rand(n, 3, seed=n)
        w.grad = None
        f(x, w)[1].sum().backward()
        (want,) = torch.autograd.grad((x * w).exp().sum(), w)
        same(w.grad, want, 1e-5)


@pytest.mark.parametrize("through", ["aot_eager", "loops"])
@pytest.mark.parametrize("fn", [lambda x: x.sum(0), lambda x: x.t().reshape(-1), lambda x: (x * 2).reshape(-1)])
def test_a_backward_that_sees_no_size_of_its_result_is_given_them(fn: Any, through: str) -> None:
    f = torch.compile(fn, backend=through, dynamic=True)
    for n in (4, 6):
        x = rand(n, 3, requires_grad=True)
        f(x).square().sum().backward()
        (want,) = torch.autograd.grad(fn(x).square().sum(), x)
        same(x.grad, want, 1e-5)


@pytest.mark.parametrize(("backend", "sizes"), [("loops", (3, 4)), ("aot_eager", range(3, 8))])
def test_second_derivatives_of_other_sizes_and_cotangents(backend: str, sizes: Any) -> None:
    """Compiled for the first, and not to be used for the others: nothing guards what a backward is given."""

    def f(x: Tensor) -> Tensor:
        return x.tanh() * (x * x).sum(0)

    compiled = torch.compile(f, backend=backend, dynamic=True)
    for n in sizes:
        x = rand(n, 4, seed=n, requires_grad=True)
        for g in (rand(n, 4, seed=1), rand(4, n, seed=2).t(), torch.ones(1, 1).expand(n, 4), x):
            found = []
            for fn in (f, compiled):
                (gx,) = torch.autograd.grad(fn(x), x, g, create_graph=True)
                found.append((gx, *torch.autograd.grad(gx.sin().sum(), x)))
            for got, want in zip(found[1], found[0], strict=True):
                same(got, want, 1e-4)


def test_a_slice_written_costs_a_slice() -> None:
    """A key-value cache: the graph gives the new part, not the whole cache."""

    def f(cache: Tensor, k: Tensor) -> list[Any]:
        cache[:, 2:4] = k * 2
        cache[:, 2:4].add_(1)
        return [cache.sum()]

    outputs: list[Any] = []

    def compiler(gm: Any, examples: Any) -> Any:
        outputs.extend(n.meta["val"].shape for n in gm.graph.output_node.args[0])
        return gm

    cache, k = torch.zeros(3, 8), rand(3, 2)
    (total,) = aot_autograd(compiler)(f, [cache, k])(cache, k)
    want = torch.zeros(3, 8)
    same(total, f(want, k)[0])
    same(cache, want)
    assert cache._version == want._version and outputs == [(), (3, 2)]


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, error: str) -> Tensor:
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if ctx.error == "mine":
            raise ValueError("no gradient of this")
        return (g[7] if ctx.error == "index" else g.missing), None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("error", "kind"), [("mine", ValueError), ("index", IndexError), ("attribute", AttributeError)])
def test_an_error_of_the_programs_own_backward_comes_when_that_runs(error: str, kind: type[Exception]) -> None:
    def f(x: Tensor) -> Tensor:
        return (Refuses.apply(x, error) + 1).sum()  # type: ignore[no-untyped-call]

    x = rand(3, requires_grad=True)
    loss = torch.compile(f)(x)
    same(loss, f(x), 1e-6)
    with pytest.raises(kind):
        loss.backward()
    assert x.grad is None and torch.is_grad_enabled()


def test_an_error_of_a_hook_comes_when_it_runs() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: {}["key"])  # type: ignore[call-overload]
        return y.sum()

    loss = torch.compile(f)(rand(3, requires_grad=True))
    with pytest.raises(KeyError):
        loss.backward()
