"""What a compiled backward keeps and eager does not may be written to between forward and backward."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch import Tensor, loans


def cloned(x: Tensor, w: Tensor) -> Any:
    return (x.clone() @ w,)


def computed(x: Tensor, w: Tensor) -> Any:
    return ((x * 2 + 1) * w,)


def seen_through_a_view(x: Tensor, w: Tensor) -> Any:
    return (x.t().exp() * w,)


def result_that_is_not_kept(x: Tensor, w: Tensor) -> Any:
    y = w * 3 + x
    return y, (y * 2).exp()


def leaf(x: Tensor, w: Tensor) -> Any:
    """The weight itself is of no use to eager's backward, what is computed from it is."""
    return ((w * 2).exp() * x.abs(),)


PROGRAMS = [cloned, computed, seen_through_a_view, result_that_is_not_kept, leaf]


@torch.compile(backend="aot_eager")
def compiled_write(t: Tensor) -> None:
    t.mul_(0).add_(7)


def eager_write(t: Tensor) -> None:
    t.mul_(0).add_(7)


def write_to_view(t: Tensor) -> None:
    t[1:].fill_(5)
    t.view(-1)[0] = 3


@pytest.mark.parametrize("backend", ["aot_eager", "loops", "numba"])
@pytest.mark.parametrize("write", [eager_write, compiled_write, write_to_view])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_writes_before_backward_are_not_seen(fn: Callable[..., Any], write: Callable[..., Any], backend: str) -> None:
    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    found = []
    for call in (fn, compiled, compiled):
        x = torch.linspace(-1, 1, 9).reshape(3, 3)
        w = torch.linspace(0, 2, 9).reshape(3, 3).requires_grad_()
        outs = call(x, w)
        with torch.no_grad():
            write(x)
            if len(outs) > 1:
                write(outs[0])
            if fn is leaf:
                write(w)
        outs[-1].sum().backward()
        found.append([x, w.detach(), w.grad, *(o.detach() for o in outs)])
    for got in found[1:]:
        for a, b in zip(got, found[0], strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "numba"])
def test_what_eager_keeps_too_is_still_checked(backend: str) -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    def through_a_view(x: Tensor, w: Tensor) -> Tensor:
        return x.t() * w

    def power(x: Tensor, w: Tensor) -> Tensor:
        return (w * 2).exp() + x

    for fn, which in ((product, "x"), (through_a_view, "x"), (power, "")):
        for call in (fn, torch.compile(fn, backend=backend)):
            x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
            out = call(x, w)
            x.add_(1)
            if which:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    out.sum().backward()
            else:
                out.sum().backward()


def test_a_second_backward_and_a_second_write() -> None:
    compiled = torch.compile(computed, backend="aot_eager")
    x, w = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    (first,) = compiled(x, w)
    x.fill_(2)
    (second,) = compiled(x, w)
    x.fill_(9)
    first.sum().backward(retain_graph=True)
    x.fill_(10)
    first.sum().backward()
    second.sum().backward()
    assert w.grad is not None and w.grad[0, 0].item() == 3 + 3 + 5


def test_a_queue_of_keys_that_is_written_behind_a_break() -> None:
    """Momentum contrast: the queue is cloned for the product and gets the new keys before the backward."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Linear(3, 2)
            self.register_buffer("queue", torch.arange(8.0).reshape(2, 4).cos())
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)
            with torch.no_grad():
                k = self.q(x + 1)
            logits = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            with torch.no_grad():
                at = int(self.at)
                self.queue[:, at : at + 2] = k.T
                self.at[0] = (at + 2) % 4
            return logits

    torch.manual_seed(0)
    model = Model()
    start = {name: t.clone() for name, t in model.state_dict().items()}
    found = []
    for call in (model, torch.compile(model, backend="aot_eager")):
        model.load_state_dict(start)
        for step in range(3):
            model.zero_grad()
            call(torch.linspace(0, 1 + step, 6).reshape(2, 3)).square().sum().backward()
        found.append([model.q.weight.grad.clone(), model.queue.clone()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


def test_loans_hold_nothing_and_do_not_pile_up() -> None:
    compiled = torch.compile(computed, backend="loops")
    x, w = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    for _ in range(50):
        compiled(x, w)[0].sum().backward()
    gc.collect()
    storage = x._storage
    assert storage is not None and storage.loans is not None and len(storage.loans) <= 9
    x.add_(1)
    assert storage.loans is None


@pytest.mark.parametrize("backend", ["loops", "numba"])
@pytest.mark.parametrize("laid_out", [lambda t: t, lambda t: t.t().contiguous().t(), lambda t: torch.cat([t, t], 1)[:, ::2]])
def test_old_values_of_inputs_that_the_graph_writes_lie_as_the_inputs_did(laid_out: Callable[..., Any], backend: str) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x.exp() * w
        x.add_(1)
        return y

    found = []
    for call in (f, torch.compile(f, backend=backend, fullgraph=True)):
        x, w = laid_out(torch.linspace(-1, 1, 12).reshape(3, 4)), torch.ones(3, 4, requires_grad=True)
        call(x, w).sum().backward()
        found.append([x, w.grad])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


@pytest.mark.parametrize("array", [
    np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4).T, np.arange(12.0).reshape(3, 4)[:, ::2],
    np.broadcast_to(np.arange(4.0), (3, 4)), np.zeros((0, 3))[:, ::2], np.float32(3).reshape(()),
])  # fmt: skip
def test_a_copy_lies_as_the_array_does(array: Any) -> None:
    copy = loans.copied(array)
    assert copy.strides == array.strides and not np.shares_memory(copy, array)
    np.testing.assert_array_equal(copy, array)
