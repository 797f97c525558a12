"""A graph that begins with gradients off, behind a break inside ``no_grad``, and goes on behind the end of the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinytorch as torch
from tinytorch import Tensor


@torch.compiler.disable
def act() -> None:
    """A break."""


@torch.no_grad()
def quiet(x: Tensor) -> Tensor:
    act()
    return x * 2


def product(x: Tensor, w: Tensor) -> Any:
    q = x @ w
    with torch.no_grad():
        act()
        k = x * 2
    return q * k, k


def in_a_loop(x: Tensor, w: Tensor) -> Any:
    q = x @ w
    with torch.no_grad():
        for _ in range(2):
            act()
    return q.sin()


def in_a_callee(x: Tensor, w: Tensor) -> Any:
    q = x @ w
    return q + quiet(x), quiet(q)


def nested(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        act()
        quiet_first = x @ w
        with torch.enable_grad():
            loud = x @ w
        quiet_again = loud * 2
    return quiet_first, loud, quiet_again, loud * 3


def views(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        act()
        inside = w.t()
    return inside, w.t(), w[0], x.t()


def writes(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    with torch.no_grad():
        act()
        z = y + 1
    y.mul_(w)
    z.add_(w)
    return y, z


def writes_inside(x: Tensor, w: Tensor) -> Any:
    y = x * w
    with torch.no_grad():
        act()
        y.mul_(3)
        w.add_(1)
    return y + w


def inference(x: Tensor, w: Tensor) -> Any:
    with torch.inference_mode():
        act()
        k = (x * 2).sum()
    return (x @ w) * 2, k * 1


def gradients_inside(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        act()
        scale = (x * 2).sum()
    (w @ x).sum().mul(scale).backward()
    return w.grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn", [product, in_a_loop, in_a_callee, nested, views, writes, writes_inside, inference, gradients_inside]
)
def test_what_follows_a_block_without_gradients_has_its_own(fn: Callable[..., Any], backend: str) -> None:
    torch.compiler.reset()

    def outcome(call: Callable[..., Any]) -> Any:
        found: list[Any] = []
        for _ in range(2):
            x, w = torch.arange(9.0).reshape(3, 3) / 10, (torch.arange(9.0).reshape(3, 3) / 7).requires_grad_()
            given = call(x, w)
            results = list(given) if isinstance(given, tuple) else [given]
            wanted = [r for r in results if r.requires_grad]
            if wanted:
                torch.autograd.backward([r.sum() for r in wanted])
            found.append([(r.requires_grad, r.is_leaf, r.detach()) for r in results] + [(0, 0, t) for t in (x, w.detach(), w.grad)])
        assert torch.is_grad_enabled()
        return found

    for want, got in zip(outcome(fn), outcome(torch.compile(fn, backend=backend)), strict=True):
        for (requires, leaf, value), (*modes, other) in zip(want, got, strict=True):
            assert modes == [requires, leaf]
            assert (value is None) == (other is None)
            if value is not None:
                torch.testing.assert_close(other, value)
