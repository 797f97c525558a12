"""Gradients that a step drops at its beginning are gone before its graph runs: their memory serves the new ones."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import tinytorch as torch
from compiler.backends.eager import eager


def parameter(seed: int = 0):
    return torch.nn.Parameter(torch.from_numpy(np.random.default_rng(seed).standard_normal(3).astype(np.float32)))


def watching(seen: list, look):
    """A backend that notes what ``look`` gives whenever a graph runs."""

    def backend(gm, examples, **more):
        run = eager(gm, examples)

        def graph(*args):
            seen.append(look())
            return run(*args)

        return graph

    return backend


@pytest.mark.parametrize("to_none", [True, False])
def test_old_gradients_are_freed_before_the_graph(to_none) -> None:
    p, seen, old = parameter(), [], [lambda: None]
    opt = torch.optim.SGD([p], lr=0.1)

    def step(x):
        opt.zero_grad(set_to_none=to_none)
        (p * x).sum().backward()
        opt.step()

    compiled = torch.compile(step, backend=watching(seen, lambda: old[0]() is None))
    for n in range(3):
        compiled(torch.full((3,), n + 1.0))
        np.testing.assert_array_equal(p.grad.numpy(), n + 1.0)
        old[0] = weakref.ref(p.grad)
    assert seen[1:] == [to_none] * 2


def test_a_gradient_that_is_read_stays_until_the_graph_has_it() -> None:
    p = parameter()

    def step(x):
        before = p.grad
        p.grad = None
        (p * x).sum().backward()
        return p.grad + before

    p.grad = torch.full((3,), 5.0)
    got = torch.compile(step, backend="eager")(torch.full((3,), 2.0))
    np.testing.assert_array_equal(got.numpy(), 7.0)


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_raises_leaves_the_gradients_that_eager_leaves(first) -> None:
    table = torch.nn.Parameter(torch.from_numpy(np.ones((4, 2), np.float32)))
    p = parameter()

    def step(ids):
        if first:
            p.grad = None
        loss = torch.nn.functional.embedding(ids, table).sum() * p.sum()
        p.grad = None
        loss.backward()
        return loss

    compiled = torch.compile(step)
    good, bad = torch.from_numpy(np.array([0, 3])), torch.from_numpy(np.array([0, 9]))
    for ids in (good, good):
        compiled(ids)
    kept = p.grad
    with pytest.raises(IndexError):
        compiled(bad)
    assert p.grad is (None if first else kept)
