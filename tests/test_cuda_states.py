"""Random states on CUDA are arguments of kernels, not memory: the CPU's bits, launched one by one, recorded, and tuned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from codegen_cupy import emulate, graphs, program
from codegen_cupy.host import Recipe
from tinytorch import rng
from tinytorch.device import Device

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
SEEDS = [0, 7, 2**63 + 5, 2**64 - 1]


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recipe]]:
    """What is prepared meanwhile."""
    made: list[Recipe] = []
    plain = program.launch.prepared

    def prepared(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        made.append(recipe)
        return plain(recipe, *args, **kwargs)

    monkeypatch.setattr(program.launch, "prepared", prepared)
    yield made


def twice(x: Any) -> Any:
    return F.dropout(F.dropout(x, 0.5).sin(), 0.3)


def rows(x: Any) -> Any:
    return F.dropout(x, 0.25).softmax(-1)


def many(x: Any) -> Any:
    for _ in range(4):
        x = F.dropout(x, 0.5).cumsum(0)
    return x


def attends(x: Any) -> Any:
    q = x.view(1, 2, 16, 8)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def run(fn: Callable[[Any], Any], device: str, seed: int, calls: int = 4) -> list[Any]:
    """Results and gradients of a few calls, and where the stream stands."""
    torch.manual_seed(seed)
    out = []
    for n in range(calls):
        x = torch.from_numpy(np.random.default_rng(n).standard_normal((16, 16), np.float32)).to(device).requires_grad_()
        y = fn(x)
        (y * y).sum().backward()
        out += [y.detach().cpu().numpy(), x.grad.cpu().numpy()]
    return [*out, torch.get_rng_state().numpy()]


def same(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        assert ((a == 0) == (b == 0)).all()
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", [twice, rows, many])
def test_the_cpu_s_bits_without_memory(fn: Callable[[Any], Any], recipes: list[Recipe]) -> None:
    for seed in SEEDS:
        same(run(torch.compile(fn), "cuda", seed), run(fn, "cpu", seed))
    drawing = [r for r in recipes if r.words]
    assert drawing and not any(r.uploads for r in recipes)
    assert any("const TwoWords" in s.source.text for r in drawing for s in r.launches)


def test_attention_gets_its_state_as_memory(recipes: list[Recipe]) -> None:
    same(run(torch.compile(attends), "cuda", 3), run(attends, "cpu", 3))
    assert any(r.uploads for r in recipes) and not any(r.words for r in recipes)


@pytest.mark.parametrize("fn", [twice, many])
def test_recorded_graphs_follow_the_stream(fn: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "FEWEST", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(run(torch.compile(fn, mode="reduce-overhead"), "cuda", 5, calls=7), run(fn, "cpu", 5, calls=7))


def test_tuned_kernels() -> None:
    same(run(torch.compile(rows, mode="max-autotune"), "cuda", 11), run(rows, "cpu", 11))


def test_under_the_race_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from codegen_cupy.machine import machine

    monkeypatch.setattr(machine(True), "check", True)
    same(run(torch.compile(twice), "cuda", 1, calls=2), run(twice, "cpu", 1, calls=2))


def test_second_derivatives() -> None:
    def second(fn: Callable[[Any], Any], device: str) -> Any:
        torch.manual_seed(2)
        x = torch.linspace(0, 1, 64).to(device).requires_grad_()
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), x)
        return h.cpu().numpy()

    np.testing.assert_allclose(second(torch.compile(twice), "cuda"), second(twice, "cpu"), rtol=1e-5, atol=1e-6)


def test_a_captured_step_draws_in_place() -> None:
    def step(x: Any) -> Any:
        y = twice(x)
        y.sum().backward()
        return y

    torch.manual_seed(9)
    x = torch.ones(64, device="cuda").requires_grad_()
    fn, got = torch.compile(step), []
    for _ in range(3):
        x.grad = None
        fn(x)
        got.append(x.grad.cpu().numpy())
    torch.manual_seed(9)
    for g in got:
        x = torch.ones(64).requires_grad_()
        twice(x).sum().backward()
        np.testing.assert_allclose(g, x.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_eager_states_stay_on_the_host() -> None:
    """Eager's kernel wants the two numbers on the host, so they need not travel there and back."""
    state, _ = rng.Generator().draw(8, Device("cuda:0"))
    assert isinstance(state._data, np.ndarray) and state.device.type == "cuda"
