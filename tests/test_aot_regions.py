"""Parts of a program that say how their backward is made: ``autograd.Function`` and checkpointed blocks, compiled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from compiler.aot.autograd import aot_autograd
from compiler.backend import lookup_backend
from compiler.ir import meta
from compiler.ir.verify import verify
from compiler.partition import min_cut
from compiler.passes.roots import kept
from tinytorch import Tensor, nn
from tinytorch.autograd.function import once_differentiable
from tinytorch.nn import functional as F
from tinytorch.utils.checkpoint import checkpoint, checkpoint_sequential

BACKENDS = ("aot_eager", "aot_eager_decomp_partition")
FACTOR = 3.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def rand(*shape: int, seed: int = 0, requires_grad: bool = True) -> Tensor:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.tensor(data, requires_grad=requires_grad)


def gradients(fn: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    """The result and the gradient of each input that wants one."""
    torch.manual_seed(5)
    out = fn(*inputs)
    grads = torch.autograd.grad(out, [t for t in inputs if t.requires_grad], allow_unused=True)
    return [out, *grads]


def check(fn: Callable[..., Any], backend: str, *inputs: Tensor, fullgraph: bool = True) -> None:
    torch.compiler.reset()
    compiled = torch.compile(fn, backend=backend, fullgraph=fullgraph)
    for want, got in zip(gradients(fn, *inputs), gradients(compiled, *inputs), strict=True):
        assert (want is None) == (got is None)
        if want is not None:
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)


# --- autograd.Function ------------------------------------------------------------------------------------------------
class Cube(torch.autograd.Function):
    """Its gradient is wrong on purpose (a factor ``FACTOR`` of x, not 3x²), so that following forward would show."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return FACTOR * x * g


class Split(torch.autograd.Function):
    """Two results, one without gradient; attributes, numbers, inputs without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: float) -> Any:
        ctx.scale = scale
        ctx.shape = y.shape
        out, kept = x * scale + y.sum(), (x > 0).float()
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(kept)
        return out, kept

    @staticmethod
    def backward(ctx: Any, g: Tensor, unused: Any) -> Any:
        (kept,) = ctx.saved_tensors
        return g * ctx.scale * kept, g.sum().expand(ctx.shape) if ctx.needs_input_grad[1] else None, None


class Outside(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2.0 * g * ctx.saved_tensors[0]


class ThroughNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.from_numpy(np.cos(ctx.saved_tensors[0].detach().numpy()))


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 7.0


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.saved_tensors[0] * g * FACTOR


FUNCTIONS = {
    "its own gradient": lambda x, y: (Cube.apply(x * 2.0) + y).sum(),
    "several results": lambda x, y: sum(t.sum() for t in Split.apply(x, y, 1.5)),
    "setup_context": lambda x, y: (Outside.apply(x) * y).mean(),
    "written in place": lambda x, y: (InPlace.apply(x * 1.0) * y).sum(),
    "one inside another": lambda x, y: Outside.apply(Cube.apply(x)).sum() + y.sum() * 0.5,
    "once differentiable": lambda x, y: (Once.apply(x) * y).sum(),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_its_own_backward_is_in_the_graph(name: str, backend: str) -> None:
    check(FUNCTIONS[name], backend, rand(3, 4), rand(3, 4, seed=1))
    check(FUNCTIONS[name], backend, rand(3, 4), rand(3, 4, seed=1, requires_grad=False))


def test_the_captured_graph_names_its_class() -> None:
    graphs: list[Any] = []
    torch.compiler.reset()
    torch.compile(lambda x: Cube.apply(x).sum(), backend=lambda gm, _: graphs.append(gm) or gm, fullgraph=True)(rand(4))
    assert "_Cube_apply(x)" in graphs[0].code
    verify(graphs[0], level=2)  # and the text makes the same graph again


def test_its_second_derivative_differentiates_its_backward(backend: str) -> None:
    def second(f: Callable[..., Any]) -> Any:
        x = rand(4)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    f = lambda x: Cube.apply(x).sum()  # noqa: E731
    np.testing.assert_allclose(second(torch.compile(f, backend=backend)).numpy(), second(f).numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_backward_that_needs_values_runs_natively(backend: str) -> None:
    check(lambda x: (ThroughNumpy.apply(x * 2.0) * 3.0).sum(), backend, rand(4), fullgraph=False)


@pytest.mark.filterwarnings("error")
def test_so_does_a_function_that_closes_over_tensors(backend: str) -> None:
    scale = rand(4, seed=3, requires_grad=False)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * scale

    torch.compiler.reset()
    fn = lambda x: (Scaled.apply(x) * 2.0).sum()  # noqa: E731
    compiled = torch.compile(fn, backend=backend)
    for _ in range(2):
        x = rand(4)
        assert [t.tolist() for t in gradients(compiled, x)] == [t.tolist() for t in gradients(fn, x)]
        scale.add_(1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cls", [Cube, Once])
def test_k18_a_backward_or_a_number_it_uses_may_be_replaced(
    cls: Any, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    fn = lambda x: cls.apply(x).sum()  # noqa: E731
    torch.compiler.reset()
    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    x = rand(4)

    def agree() -> list[float]:
        want, got = gradients(fn, x)[1].tolist(), gradients(compiled, x)[1].tolist()
        assert got == pytest.approx(want, rel=1e-5)
        return want

    first = agree()
    monkeypatch.setattr(f"{__name__}.FACTOR", 5.0)
    second = agree()
    monkeypatch.setattr(cls, "backward", staticmethod(lambda ctx, g: g))
    third = agree()
    monkeypatch.undo()
    assert agree() == first != second != third


# --- checkpointed blocks ----------------------------------------------------------------------------------------------
C = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == "segments":
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False).square().mean()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.mode == "blocks" else block(x)
        return x.square().mean()


def arrays(node: Any) -> Iterator[Any]:
    """The arrays that a compiled node keeps."""
    stack = [c.cell_contents for c in node.whole.__closure__]
    while stack:
        value = stack.pop()
        if isinstance(value, list | tuple):
            stack.extend(value)
        elif isinstance(value, np.ndarray):
            yield value


def saved_bytes(net: nn.Module, x: Tensor) -> int:
    torch.compiler.reset()
    out = torch.compile(net, backend="aot_eager_decomp_partition", fullgraph=True)(x)
    given = {id(t._data) for t in (x, *net.parameters())}
    return sum({id(a): a.nbytes for a in arrays(out.grad_fn) if id(a) not in given}.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["blocks", "segments"])
def test_a_checkpointed_block_keeps_no_more_than_its_inputs(mode: str) -> None:
    x = rand(16, C)
    plain = saved_bytes(Net("plain"), x)
    saved = saved_bytes(Net(mode), x)
    states = 4 * 16
    if mode == "blocks":  # the inputs of three blocks, and what the mean reads
        assert 4 * x.nbytes <= saved <= 4 * x.nbytes + states < plain / 3
    else:
        assert saved < 0.7 * plain


def peak(graph: Any) -> int:
    """The most bytes alive at once when a graph runs in order; views and results do not count."""
    results = kept(graph)
    last = {n: i for i, user in enumerate(graph.nodes) for n in user.all_input_nodes}
    dying: dict[int, int] = {}
    now = most = 0
    for i, n in enumerate(graph.nodes):
        if n.op == "call_function" and getattr(n.target, "kind", "view") != "view" and n not in results:
            size = meta.nbytes(n.meta["val"])
            now += size
            dying[last[n]] = dying.get(last[n], 0) + size
        most = max(most, now)
        now -= dying.get(i, 0)
    return most


@pytest.mark.filterwarnings("error")
def test_blocks_are_computed_again_one_at_a_time() -> None:
    peaks = []
    for count in (2, 8):
        net = Net("blocks")
        net.blocks = nn.Sequential(*[Block() for _ in range(count)])
        graphs: list[Any] = []

        def keep(gm: Any, examples: Any, into: list[Any] = graphs) -> Any:
            into.append(gm)
            return gm

        torch.compiler.reset()
        torch.compile(net, backend=aot_autograd(keep, partition_fn=min_cut), fullgraph=True)(rand(64, C))
        peaks.append(peak(graphs[1].graph))
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["blocks", "segments"])
def test_its_gradients_and_masks_are_eagers(mode: str, backend: str) -> None:
    net = Net(mode)
    torch.compiler.reset()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    results = []
    for f in (net, compiled):
        torch.manual_seed(3)
        net.zero_grad()
        loss = f(rand(16, C))
        loss.backward()
        results.append([loss.detach().numpy(), *(p.grad.numpy().copy() for p in net.parameters()), torch.rand(2).numpy()])
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_one_checkpoint_inside_another_is_the_outer_one() -> None:
    torch.compiler.reset()
    net = Net("plain")

    def pair(x: Tensor, i: int) -> Tensor:
        return checkpoint(net.blocks[i + 1], checkpoint(net.blocks[i], x))

    def nested(x: Tensor) -> Tensor:
        for i in (0, 2):
            x = checkpoint(pair, x, i)
        return x.square().mean()

    x = rand(16, C)
    out = torch.compile(nested, backend="aot_eager_decomp_partition", fullgraph=True)(x)
    given = {id(t._data) for t in (x, *net.parameters())}
    kept = {id(a): a.nbytes for a in arrays(out.grad_fn) if id(a) not in given and a.dtype == np.float32}
    assert sum(kept.values()) <= 2 * x.nbytes


@pytest.mark.filterwarnings("error")
def test_what_is_computed_outside_of_a_region_too_may_be_saved() -> None:
    w = rand(C, C, seed=1)

    def f(x: Tensor) -> Tensor:
        inside = checkpoint(lambda t: torch.tanh(t @ w), x)
        return (inside * torch.tanh(x @ w).sin()).sum()

    check(f, "aot_eager_decomp_partition", rand(16, C))
    torch.compiler.reset()
    out = torch.compile(f, backend="aot_eager_decomp_partition", fullgraph=True)(x := rand(16, C))
    assert [a.shape for a in arrays(out.grad_fn) if a is not x._data and a is not w._data] == [(16, C)]


@pytest.mark.filterwarnings("error")
def test_a_break_inside_a_region_runs_the_region_natively(capsys: pytest.CaptureFixture[str], backend: str) -> None:
    def noisy(t: Tensor, *, scale: float) -> Tensor:
        print("in the block")
        return torch.tanh(t * scale).exp()

    check(lambda x: checkpoint(noisy, x * 2.0, scale=3.0).sum(), backend, rand(5), fullgraph=False)
    assert capsys.readouterr().out.count("in the block") == 4  # twice in eager, twice in the compiled function


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("grad", [True, False])
def test_without_a_gradient_a_region_is_nothing_special(grad: bool) -> None:
    torch.compiler.reset()
    x = rand(4, requires_grad=False)
    compiled = torch.compile(lambda x: checkpoint(torch.tanh, x), backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(grad):
        out = compiled(x)
    assert not out.requires_grad and out.tolist() == torch.tanh(x).tolist()


# --- when saved values die --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("retain", [False, True])
def test_saved_values_are_freed_before_the_backward_goes_on_unless_retained(retain: bool, backend: str) -> None:
    """A node lets go of its values as soon as it has run, while the rest of the backward is still to come."""
    torch.compiler.reset()
    w = rand(4, 3, seed=1)
    x = rand(5, 4) * 1.0
    out = torch.compile(lambda x, w: torch.tanh(x @ w).exp().sum(), backend=backend, fullgraph=True)(x, w)
    held = [weakref.ref(a) for a in arrays(out.grad_fn) if a is not x._data and a is not w._data]
    seen: list[int] = []
    out.register_hook(lambda g: seen.append(sum(r() is not None for r in held)))
    x.register_hook(lambda g: (gc.collect(), seen.append(sum(r() is not None for r in held)))[1])
    out.backward(retain_graph=retain)
    assert held and seen[0] == len(held)
    assert seen[1] == (len(held) if retain else 0)


# --- sizes that vary, second derivatives, saved values that are written --------------------------------------------------
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: Cube.apply(x * 2.0).sum(),
        lambda x: sum(t.sum() for t in Split.apply(x, x.sin(), 1.5)),
        lambda x: checkpoint(lambda t: torch.tanh(t).exp(), x).sum(),
    ],
)
def test_sizes_may_vary(fn: Any, backend: str) -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any, **kw: Any) -> Any:
        graphs.append(gm)
        return lookup_backend(backend)(gm, examples, **kw)

    compiled = torch.compile(fn, backend=counting, fullgraph=True, dynamic=True)
    for n in (3, 5, 8):
        for want, got in zip(gradients(fn, rand(n, 2)), gradients(compiled, rand(n, 2)), strict=True):
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert len(graphs) == 1


@pytest.mark.filterwarnings("error")
def test_a_second_derivative_through_a_region(backend: str) -> None:
    def second(f: Callable[..., Any]) -> Any:
        x = rand(4)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    torch.compiler.reset()
    f = lambda x: checkpoint(lambda t: torch.tanh(t).exp(), x).sum()  # noqa: E731
    plain = lambda x: torch.tanh(x).exp().sum()  # noqa: E731
    got = second(torch.compile(f, backend=backend, fullgraph=True))
    np.testing.assert_allclose(got.numpy(), second(plain).numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_an_input_of_a_region_that_is_written_later_is_an_error_in_the_backward(backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda t: checkpoint(torch.sin, t), backend=backend, fullgraph=True)
    x = rand(4)
    h = x * 1.0
    out = compiled(h)
    h.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.filterwarnings("error")
def test_a_write_inside_a_region_happens_once(backend: str) -> None:
    """Running statistics move once, though the block runs again in the backward."""
    norm = nn.BatchNorm1d(3)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: checkpoint(lambda t: norm(t).exp(), x).sum(), backend=backend, fullgraph=True)
    compiled(rand(6, 3)).backward()
    other = nn.BatchNorm1d(3)
    other(rand(6, 3)).exp().sum().backward()
    np.testing.assert_allclose(norm.running_mean.numpy(), other.running_mean.numpy(), rtol=1e-6)
    assert int(norm.num_batches_tracked) == 1
    np.testing.assert_allclose(norm.weight.grad.numpy(), other.weight.grad.numpy(), rtol=1e-4, atol=1e-5)
