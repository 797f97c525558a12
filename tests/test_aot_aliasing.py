"""Mutation and aliasing: random programs over views and in-place operations on inputs that share memory.

The oracle is eager: same values, same memory shared by the same tensors, same version counters, same strides, same
``requires_grad``, same gradients.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.aot.autograd import aot_autograd
from compiler.backends import loops
from compiler.config import config
from compiler.errors import InvalidGradError
from compiler.ir.verify import verify
from tinytorch import engine, ops, tape
from tinytorch.device import cpu
from tinytorch.ops.views import contiguous_strides
from tinytorch.tensor import Tensor


def checked(gm: Any, examples: Any) -> Any:
    verify(gm, functional=True, level=2)
    return gm


backend = aot_autograd(checked)
interpreted_loops = loops.through_loops(lambda module: loops._interpret, config)


def tensor(array: Any, requires_grad: bool = False) -> Tensor:
    t = Tensor._wrap(np.asarray(array, np.float32), cpu)
    t._requires_grad = requires_grad
    return t


# --- random programs --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """``kind`` applied to the value number ``of`` (modulo how many there are), with a few numbers to choose by."""

    kind: str
    of: int
    other: int
    a: int
    b: int


KINDS = ("slice", "select", "permute", "flat", "unsqueeze", "expand", "detach", "mul", "add", "scale_", "add_", "copy_", "clone", "turn_")
STEPS = st.builds(
    Step, st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 30), st.integers(0, 5), st.integers(0, 5)
)


@dataclass(frozen=True)
class Program:
    """Inputs are looks at one block of 12 elements (or blocks of their own), then steps, then which values to return."""

    looks: tuple[int, ...]
    shared: bool
    grad: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]


LOOKS: tuple[Any, ...] = (
    lambda b: b,
    lambda b: ops.slice(b, dim=0, start=0, stop=6, step=1),
    lambda b: ops.slice(b, dim=0, start=4, stop=12, step=1),
    lambda b: ops.view(b, shape=(3, 4)),
    lambda b: ops.slice(b, dim=0, start=0, stop=12, step=2),
    lambda b: ops.permute(ops.view(b, shape=(3, 4)), dims=(1, 0)),
    lambda b: ops.slice(ops.view(b, shape=(4, 3)), dim=1, start=1, stop=3, step=1),
)

PROGRAMS = st.builds(
    Program,
    st.lists(st.integers(0, len(LOOKS) - 1), min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.integers(0, 7),
    st.lists(STEPS, min_size=1, max_size=7).map(tuple),
    st.lists(st.integers(0, 30), min_size=1, max_size=4).map(tuple),
)


def run(program: Program, inputs: list[Tensor]) -> list[Tensor]:
    values = list(inputs)
    for step in program.steps:
        x, y = values[step.of % len(values)], values[step.other % len(values)]
        own = not any(x is t for t in inputs)
        values.append(apply(step, x, y) if step.kind != "turn_" or own else x)
    return [values[i % len(values)] for i in program.results]


def apply(step: Step, x: Tensor, y: Tensor) -> Tensor:
    shape = tuple(x.shape)
    kind = step.kind
    if kind in ("slice", "select", "unsqueeze") and not shape:
        kind = "mul"
    if kind == "slice":
        dim = step.a % len(shape)
        start = step.b % shape[dim] if shape[dim] else 0
        return ops.slice(x, dim=dim, start=start, stop=shape[dim], step=1 + step.a % 2)
    if kind == "select":
        dim = step.a % len(shape)
        return ops.select(x, dim=dim, index=step.b % shape[dim]) if shape[dim] else x
    if kind == "permute":
        return ops.permute(x, dims=tuple(reversed(range(len(shape)))))
    if kind == "flat":
        try:
            return ops.view(x, shape=(int(np.prod(shape)),))
        except RuntimeError:
            return x
    if kind == "unsqueeze":
        return ops.view(x, shape=(1, *shape)) if x.stride() == contiguous_strides(shape) else x
    if kind == "expand":
        return ops.expand(x, shape=(2, *shape))
    if kind == "detach":
        return x.detach()
    if kind == "clone":
        return ops.clone(x)
    if kind == "turn_":
        return x.transpose_(0, -1) if step.a % 2 and shape else x.unsqueeze_(0) if step.a < 3 else x.squeeze_()
    if kind in ("scale_", "add_", "copy_"):
        return in_place(step, kind, x, y)
    return ops.mul(x, 1.5) if kind == "mul" else ops.add(x, y) if fits(shape, tuple(y.shape)) else ops.add(x, 2.0)


def in_place(step: Step, kind: str, x: Tensor, y: Tensor) -> Tensor:
    if 0 in x.stride() or (tape.mode.grad and x.requires_grad and x._is_leaf_or_view_of_leaf()):
        return ops.mul(x, 0.5)  # eager refuses these
    if kind == "scale_":
        return x.mul_(0.5)
    if kind == "copy_" and tuple(y.shape) == tuple(x.shape):
        return x.copy_(y)
    return x.add_(y if kind == "add_" and y.shape == x.shape else float(step.b))


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False)) and len(a) >= len(b)


def make_inputs(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """(leaves, inputs).  Non-leaf inputs are products of leaves, so that eager lets them be written."""
    leaves: list[Tensor] = []
    inputs: list[Tensor] = []
    block = tensor(np.arange(12.0) + 1)
    for n, look in enumerate(program.looks):
        if not program.shared:
            wants = bool(program.grad & (1 << n))
            leaf = tensor(np.arange(12.0) * (n + 1) - 3, requires_grad=wants)
            leaves.append(leaf)
            block = ops.mul(leaf, 1.0) if wants else leaf
        inputs.append(LOOKS[look](block))
    return leaves, inputs


def observe(program: Program, leaves: list[Tensor], inputs: list[Tensor], results: list[Tensor]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    tensors = [*inputs, *results]
    seen["values"] = [t._data.tolist() for t in tensors]
    seen["shapes"] = [tuple(t.shape) for t in tensors]
    seen["strides"] = [t.stride() for t in inputs] + [
        tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) if 0 not in t.shape else () for t in results
    ]
    seen["requires_grad"] = [t.requires_grad for t in tensors]
    seen["versions"] = [t._version for t in inputs]
    seen["same object"] = [a is b for a, b in itertools.combinations(tensors, 2)]
    seen["same memory"] = [np.shares_memory(a._data, b._data) for a, b in itertools.combinations(tensors, 2)]
    seen["same storage"] = [
        a is b or (a._storage is not None and a._storage is b._storage) for a, b in itertools.combinations(tensors, 2)
    ]
    roots = [t for t in results if t.requires_grad]
    if roots:
        engine.backward(roots, [tensor(np.ones(t.shape) * (i + 1)) for i, t in enumerate(roots)])
    seen["grads"] = [None if t.grad is None else np.round(t.grad._data, 4).tolist() for t in leaves]
    return seen


def attempt(program: Program, through: Any = None) -> Any:
    leaves, inputs = make_inputs(program)
    try:
        fn = lambda *xs: run(program, list(xs))  # noqa: E731
        fn = fn if through is None else through(fn, inputs)
        results = list(fn(*inputs))
    except InvalidGradError:
        return "refused"
    except RuntimeError as e:
        return str(e)
    try:
        return observe(program, leaves, inputs, results)
    except RuntimeError as e:
        return "backward: " + str(e)[:40]


def check(program: Program, through: Any) -> None:
    want, got = attempt(program), attempt(program, through)
    if got == "refused":
        assert any(step.kind == "detach" for step in program.steps)
        return
    assert got == want


COUNT = int(os.environ.get("TT_ALIAS_PROGRAMS", "300"))  # 10000 for the long run


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_random_programs_alias_and_mutate_as_eager(program: Program) -> None:
    check(program, backend)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS)
def test_so_do_their_loops(program: Program) -> None:
    """Through lowering and memory planning, which may write results over dying inputs."""
    check(program, interpreted_loops)


# --- known cases ------------------------------------------------------------------------------------------------------
def test_k15_an_overlap_of_inputs_is_seen() -> None:
    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        x.mul_(2.0)
        return [ops.add(x, y)]

    base = tensor(np.ones(8))
    x, y = (ops.slice(base, dim=0, start=i, stop=i + 4, step=1) for i in (0, 2))
    (out,) = backend(f, [x, y])(x, y)
    assert out._data.tolist() == [4, 4, 3, 3]
    assert base._data.tolist() == [2, 2, 2, 2, 1, 1, 1, 1]
    assert base._version == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda x: ops.slice(ops.expand(x, shape=(4, 5)), dim=0, start=0, stop=4, step=2),
        lambda x: ops.permute(ops.expand(x, shape=(4, 5)), dims=(1, 0)),
        lambda x: ops.expand(ops.slice(x, dim=0, start=0, stop=1, step=1), shape=(3, 5)),
    ],
)
def test_k22_views_returned_keep_their_strides(look: Any) -> None:
    x = tensor(np.arange(5.0).reshape(1, 5))
    (out,) = backend(lambda x: [look(x)], [x])(x)
    want = look(x)
    assert out.stride() == want.stride() and np.shares_memory(out._data, x._data)
    (out,) = backend(lambda x: [look(ops.mul(x, 2.0))], [x])(x)
    assert out.stride() == look(ops.mul(x, 2.0)).stride()


def test_equal_results_are_two_tensors() -> None:
    x = tensor([1.0, 2.0])
    a, b = backend(lambda x: [ops.add(x, 1.0), ops.add(x, 1.0)], [x])(x)
    a.mul_(10.0)
    assert b._data.tolist() == [2, 3]


def test_copying_two_inputs_over_each_other_swaps_them() -> None:
    def swap(x: Tensor, y: Tensor) -> list[Tensor]:
        old = ops.clone(x)
        x.copy_(y)
        y.copy_(old)
        return []

    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    assert backend(swap, [x, y])(x, y) == []
    assert x._data.tolist() == [3, 4] and y._data.tolist() == [1, 2]
