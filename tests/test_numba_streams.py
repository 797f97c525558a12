"""Loops over many streams: which statements may part, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

from codegen_numba import streams
from codegen_numba.build import build
from compiler.config import Config
from compiler.loop.host import compile_graph
from compiler.loop.ir import Check, Let, Load, Store
from compiler.sym.expr import Symbol
from tinytorch import ops
from tinytorch.device import cpu
from tinytorch.dtypes import float32
from tinytorch.tensor import Tensor

I = Symbol("i")  # noqa: E741


def copies(count: int, target: Any = lambda n: (f"out{n}", I)) -> tuple[Any, ...]:
    body: list[Any] = []
    for n in range(count):
        body += [Load(f"v{n}", f"in{n}", I, float32), Store(*target(n), f"v{n}")]
    return tuple(body)


def test_few_streams_stay_together() -> None:
    assert streams.apart(copies(6)) == [copies(6)]


def test_many_part_and_nothing_is_lost() -> None:
    body = copies(20)
    parts = streams.apart(body)
    assert len(parts) > 1 and sorted(map(str, (s for p in parts for s in p))) == sorted(map(str, body))
    assert all(len({s.buffer for s in p}) <= streams.MOST for p in parts)


def test_places_of_one_array_that_never_meet_part() -> None:
    assert len(streams.apart(copies(20, lambda n: ("out", I + 4096 * n)))) > 1


@pytest.mark.parametrize(
    "target",
    [lambda n: ("out", I), lambda n: ("out", I * (n + 1)), lambda n: (f"in{(n + 1) % 20}", I)],
    ids=["one place", "places that may meet", "written and read"],
)
def test_statements_whose_order_matters_stay(target: Any) -> None:
    body = copies(20, target)
    assert streams.apart(body) == [body]


def test_a_value_that_all_use_keeps_them_together() -> None:
    body = [Load("x", "in", I, float32)]
    for n in range(20):
        body += [Let(f"v{n}", "exp", ("x",), float32), Store(f"out{n}", I, f"v{n}")]
    assert streams.apart(tuple(body)) == [tuple(body)]


def test_a_check_leaves_the_whole_iteration() -> None:
    body = (Let("ok", "lt", (1.0, 2.0), float32), Check("ok", "no"), *copies(20))
    assert streams.apart(body) == [body]


def test_a_concatenation_of_many() -> None:
    """Cut out and put in another order, with sums beside: the kernel that made this needful."""
    xs = [Tensor._wrap(np.random.default_rng(n).normal(size=(16, 70)).astype(np.float32), cpu) for n in range(24)]
    fn = lambda *a: (ops.cat(*a, dim=0), ops.cat(*(ops.mul(x, 2.0) for x in reversed(a)), dim=0))  # noqa: E731
    built = build(compile_graph(trace(fn, *xs), Config()), Config())
    both, turned = built([x._data for x in xs])
    np.testing.assert_array_equal(both, np.concatenate([x._data for x in xs]))
    np.testing.assert_array_equal(turned, np.concatenate([2 * x._data for x in reversed(xs)]))
