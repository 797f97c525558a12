"""Programs that broke other tensor compilers, through the whole pipeline: same values, types, shapes, bits where said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn

BACKENDS = ["aot_eager_decomp_partition", "inductor"]


@pytest.fixture(params=BACKENDS)
def jit(request: pytest.FixtureRequest) -> Any:
    torch.compiler.reset()
    return lambda fn, **kw: torch.compile(fn, backend=request.param, **kw)


def bits(t: Any) -> Any:
    """Bytes; all NaNs count as the same."""
    a = t.detach().numpy()
    return np.where(a != a, np.asarray(math.nan, a.dtype), a).tobytes() if a.dtype.kind == "f" else a.tobytes()


def equal(a: Any, b: Any, *, exact: bool = True) -> None:
    assert a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
    if exact:
        assert bits(a) == bits(b), f"{a} is not {b}"
    else:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-6, atol=1e-6)


# --- integers and types -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k01_floor_division_of_floats(jit: Any, dtype: Any) -> None:
    a = torch.tensor([1, 0.5, 6, 1], dtype=dtype)
    b = torch.tensor([0.1, 0.1, 0.2, 1 / 3], dtype=dtype)
    want = [9, 4, 29, 2] if dtype is torch.float32 else [9, 4, 29, 3]
    assert jit(lambda a, b: a // b)(a, b).tolist() == want
    equal(jit(lambda a, b: a % b)(a, b), a % b)
    equal(jit(lambda a, b: (a // b) + 1)(a, b), (a // b) + 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int32])
def test_k02_integer_division_by_zero(jit: Any, dtype: Any) -> None:
    a, b = torch.tensor([0, 5], dtype=dtype), torch.tensor([0, 0], dtype=dtype)
    for f in (lambda a, b: a // b, lambda a, b: a % b):
        try:
            want = f(a, b)
        except (ZeroDivisionError, RuntimeError) as e:
            with pytest.raises(type(e)):
                jit(f)(a, b)
        else:
            equal(jit(f)(a, b), want)


def test_k03_values_are_not_indices(jit: Any) -> None:
    f = lambda t: torch.arange(9, dtype=torch.int64) * t  # noqa: E731
    assert jit(f)(torch.tensor([1_500_000_000])).tolist() == [i * 1_500_000_000 for i in range(9)]


def test_k04_k05_integers_wrap_in_their_own_width(jit: Any) -> None:
    x = torch.tensor([4], dtype=torch.uint8)
    assert jit(lambda x: torch.cos(x**5))(x).tolist() == [1.0]
    m = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert jit(lambda x: (x + x).to(torch.int64))(m).tolist() == [-2]
    equal(jit(lambda x: x * x)(m), m * m)
    equal(jit(lambda x: x - (-1))(m), m - (-1))


# --- NaN, zeros, subnormals -------------------------------------------------------------------------------------------
def test_k06_adding_zero_is_not_a_no_op(jit: Any) -> None:
    x = torch.tensor([-0.5, -0.1, -0.9])
    assert jit(lambda x: (torch.ceil(x) + torch.zeros(3)).reciprocal())(x).tolist() == [math.inf] * 3


@pytest.mark.parametrize("n", [1, 7, 16, 33])
def test_k07_signed_zeros_in_extremes(jit: Any, n: int) -> None:
    p, q = torch.full((n,), 0.0), torch.full((n,), -0.0)
    for f in (torch.minimum, torch.maximum):
        equal(jit(f)(p, q), f(p, q))
        equal(jit(f)(q, p), f(q, p))


@pytest.mark.parametrize("n", [1, 5, 8, 33, 1000])
def test_k08_nan_wins(jit: Any, n: int) -> None:
    for at in {0, n // 2, n - 1}:
        x = torch.arange(n).float()
        x[at] = math.nan
        for f in (lambda x: x.argmax(), lambda x: x.argmin()):
            assert jit(f)(x).item() == at
        for f in (lambda x: x.max(), lambda x: x.min(), lambda x, at=at: x.clamp(0, 1)[at], lambda x, at=at: torch.maximum(x, x * 0)[at]):
            assert math.isnan(jit(f)(x).item())


def test_k09_subnormals_stay(jit: Any) -> None:
    x = torch.tensor([0.1875 * 2.0**-124])
    before = (x * 0.5).tolist()
    assert jit(lambda x: x * 1.0 + 0)(x).tolist() == x.tolist() != [0]
    assert (x * 0.5).tolist() == before


def test_k10_half_precision_rounds_as_eager_in_strict_mode() -> None:
    torch.compiler.reset()
    rng = np.random.default_rng(0)
    x, y = (torch.tensor(rng.standard_normal(100).astype(np.float16)) for _ in range(2))
    f = lambda x, y: (x * 0.51) + y  # noqa: E731
    equal(torch.compile(f, options={"numerics": "strict"})(x, y), f(x, y))
    assert torch.compile(lambda x: x * torch.tensor(2.0, dtype=torch.float64))(x).dtype is torch.float16


# --- indexing, empty, 0-d, strided -------------------------------------------------------------------------------------
def test_k11_an_index_twice_is_written_once(jit: Any) -> None:
    def f(y: Any) -> Any:
        y[[0, 0]] += y[[0, 0]]
        return y

    assert jit(f)(torch.ones(3, 2)).tolist() == [[2, 2], [1, 1], [1, 1]]


@pytest.mark.parametrize("bad", [-2, 4, 9])
def test_k12_an_index_out_of_range_raises(jit: Any, bad: int) -> None:
    w, i = torch.rand(4, 3), torch.tensor([0, bad])
    cases = {
        "embedding": lambda w, i: F.embedding(i, w) + 1,
        "index_select": lambda w, i: torch.index_select(w, 0, i).exp(),
        "gather": lambda w, i: torch.gather(w, 0, i.view(2, 1)) * 2,
    }
    for f in cases.values():
        with pytest.raises(IndexError):
            f(w, i)
        with pytest.raises(IndexError):
            jit(f)(w, i)


def test_k13_reductions_of_0d_tensors(jit: Any) -> None:
    x = torch.tensor(3.0)
    cases: list[Any] = [
        lambda x: x.mean(0), lambda x: x.sum(-1), lambda x: x.cumsum(0), lambda x: x.flip(0), lambda x: x.max(0)[0],
        lambda x: x.softmax(0),
    ]  # fmt: skip
    for f in cases:
        equal(jit(f)(x), f(x))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 4)])
def test_k14_empty_tensors(jit: Any, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    for f in (lambda x: x.sum(1), lambda x: x.mean(1), lambda x: x.prod(1), lambda x: x.view(-1), lambda x: x.softmax(-1)):
        equal(jit(f)(x), f(x))
    if shape[1] == 0:
        for f in (lambda x: x.amax(1), lambda x: x.argmin(1)):
            with pytest.raises((IndexError, RuntimeError)):
                jit(f)(x)
    assert jit(torch.matmul)(torch.zeros(3, 0), torch.zeros(0, 4)).tolist() == [[0.0] * 4] * 3


def test_k22_strides_of_results(jit: Any) -> None:
    x = torch.arange(20.0).view(4, 5)
    cases: list[Any] = [
        lambda x: x[:1].expand(4, 5)[::2], lambda x: x.t() * 2, lambda x: (x[:, :1].expand(4, 5) + 1), lambda x: x.t()[1:],
        lambda x: x[::2] * x[::2], lambda x: (x.t() + 1).contiguous(), lambda x: x.flip(0).t(),
    ]  # fmt: skip
    for f in cases:
        equal(jit(f)(x), f(x))


# --- autograd and state -----------------------------------------------------------------------------------------------
def test_k16_second_derivatives_inside_and_outside(jit: Any) -> None:
    x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)

    def inside(x: Any) -> Any:
        (g,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        return g.sum()

    (second,) = torch.autograd.grad(jit(inside)(x), x)
    np.testing.assert_allclose(second.numpy(), 12 * x.detach().numpy() ** 2, rtol=1e-5)
    (first,) = torch.autograd.grad(jit(lambda x: (x**4).sum())(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second.numpy(), 12 * x.detach().numpy() ** 2, rtol=1e-5)


def test_k17_an_unused_layer_keeps_no_gradient(jit: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            self.unused(x)
            return self.used(x)

    net = Net()
    jit(net)(torch.rand(3, 2)).sum().backward()
    assert net.unused.weight.grad is None and net.used.weight.grad is not None


def test_k21_two_dropouts_and_two_backwards(jit: Any) -> None:
    f = lambda x: F.dropout(x, 0.5) * 2 + F.dropout(x.sin(), 0.3)  # noqa: E731
    outcomes = []
    for g in (f, jit(f)):
        torch.manual_seed(11)
        x = torch.linspace(-1, 1, 40).requires_grad_()
        out = g(x)
        out.backward(torch.ones(40), retain_graph=True)
        out.backward(torch.ones(40))
        outcomes.append((out, x.grad))
    for a, b in zip(*outcomes, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_k23_a_learning_rate_that_changes(jit: Any) -> None:
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return torch.compiler.lookup_backend("inductor")(gm, examples)

    torch.compiler.reset()
    f = torch.compile(lambda p, g, lr: p - lr * g, backend=counting)
    p, g = torch.ones(3), torch.ones(3)
    for i in range(20):
        lr = 0.1 / (i + 1)
        equal(f(p, g, lr), p - lr * g)
    assert len(graphs) <= 2


def test_k24_an_unused_input_may_change(jit: Any) -> None:
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return gm

    f = torch.compile(lambda x, unused: x + 1, backend=counting)
    for n in range(1, 6):
        f(torch.ones(2), torch.ones(n))
    assert len(graphs) == 1
