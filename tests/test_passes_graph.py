"""Graph passes: each keeps every bit, type, stride and every piece of memory; what it must not touch, it does not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_helpers import trace

import tinytorch as torch
from compiler.ir import Interpreter, verify
from compiler.passes.cse import freeze, merge_equal
from compiler.passes.fold import fold
from compiler.passes.tidy import PASSES, drop_unused, tidy
from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

ODD = [0.0, -0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, 1e-42]


def odd(dtype: Any = dtypes.float32) -> Tensor:
    return Tensor._wrap(np.array(ODD).astype(dtype.np), cpu)


def names(module: Any) -> list[str]:
    return [n.target.name for n in module.graph.nodes if n.op == "call_function"]


def bits(t: Tensor) -> Any:
    """All there is to know; NaNs, whose bits mean nothing, made alike."""
    data = t._data
    if data.dtype.kind == "f":
        data = np.where(np.isnan(data), np.array(np.nan, data.dtype), data)
    return data.tobytes(), t.dtype, tuple(t.shape), t.stride()


def same_after(fn: Any, *args: Tensor, only: Any = None) -> list[str]:
    """Rows left after the passes (or one of them); the results' bits and strides are as before."""
    module = trace(fn, *args)
    before = [bits(t) for t in Interpreter(module).run(*args)]
    for one in PASSES if only is None else (only,):
        one(module.graph)
    drop_unused(module.graph)
    module.recompile()
    verify(module.graph)
    assert [bits(t) for t in Interpreter(module).run(*args)] == before
    return names(module)


def full(value: Any, *shape: int, dtype: Any = dtypes.float32) -> Tensor:
    return ops.full(shape=shape, value=value, dtype=dtype, device=cpu)


# --- algebra ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rewrite", "goes"),
    [
        (lambda x: ops.mul(x, 1.0), True),
        (lambda x: ops.mul(1.0, x), True),
        (lambda x: ops.div(x, 1.0), True),
        (lambda x: ops.div(1.0, x), False),
        (lambda x: ops.sub(x, 0.0), True),
        (lambda x: ops.sub(x, -0.0), False),  # -0.0 - -0.0 is 0.0
        (lambda x: ops.sub(0.0, x), False),
        (lambda x: ops.add(x, 0.0), False),  # -0.0 + 0.0 is 0.0
        (lambda x: ops.add(x, -0.0), True),
        (lambda x: ops.mul(x, 0.0), False),  # of infinity and NaN it is NaN
        (lambda x: ops.sub(x, x), False),
        (lambda x: ops.div(x, x), False),
        (lambda x: ops.neg(ops.neg(x)), True),
        (lambda x: ops.mul(x, full(1.0, 8)), True),
        (lambda x: ops.add(x, full(-0.0, 1)), True),
    ],
)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=str)
def test_algebra_keeps_every_bit(rewrite: Any, goes: bool, dtype: Any) -> None:
    left = same_after(lambda x: ops.exp(rewrite(x)), odd(dtype))
    promotes = dtype is dtypes.float16 and len(left) > 1 and "full" in left  # a float32 tensor of ones is no number
    assert (left == ["exp"]) == goes or promotes


def test_a_neutral_number_that_changes_the_type_stays() -> None:
    x = torch.tensor([1, 2, 3])
    assert "mul" in same_after(lambda x: ops.exp(ops.mul(x, 1.0)), x)


def test_a_neutral_number_that_changes_the_shape_stays() -> None:
    assert "mul" in same_after(lambda x: ops.exp(ops.mul(x, full(1.0, 2, 8))), odd())


def test_casts_that_lose_nothing_are_kept_unless_equal() -> None:
    assert same_after(lambda x: ops.exp(ops.cast(x, dtype=dtypes.float32)), odd()) == ["exp"]
    there_and_back = lambda x: ops.exp(ops.cast(ops.cast(x, dtype=dtypes.float16), dtype=dtypes.float32))  # noqa: E731
    assert same_after(there_and_back, odd()) == ["cast", "cast", "exp"]


def test_views_of_views_collapse() -> None:
    x = torch.randn(2, 3, 4)
    turn = lambda x: ops.permute(ops.permute(x, dims=(2, 0, 1)), dims=(1, 2, 0))  # noqa: E731
    assert same_after(lambda x: ops.exp(turn(x)), x) == ["exp"]
    assert same_after(lambda x: ops.exp(ops.view(ops.view(x, shape=(6, 4)), shape=(24,))), x) == ["view", "exp"]
    whole = lambda x: ops.exp(ops.slice(x, dim=1, start=0, stop=3, step=1))  # noqa: E731
    assert same_after(whole, x) == ["exp"]
    assert same_after(lambda x: ops.exp(ops.slice(x, dim=1, start=0, stop=3, step=2)), x) == ["slice", "exp"]


# --- results are memory of their own ---------------------------------------------------------------------------------
def test_results_stay_two_pieces_of_memory() -> None:
    left = same_after(lambda x: (ops.exp(x), ops.exp(x)), odd())
    assert left == ["exp", "exp"]
    module = tidy(trace(lambda x: (ops.clone(x), ops.clone(x)), odd()))
    a, b = Interpreter(module).run(x := odd())
    assert not np.shares_memory(a._data, b._data) and not np.shares_memory(a._data, x._data)


def test_a_result_that_is_computed_twice_inside_is_computed_once() -> None:
    left = same_after(lambda x: (ops.exp(x), ops.sin(ops.exp(x))), odd())
    assert sorted(left) == ["exp", "sin"]


# --- equal calls -----------------------------------------------------------------------------------------------------
def test_equal_calls_merge() -> None:
    f = lambda x: ops.add(ops.exp(ops.mul(x, 2.0)), ops.sin(ops.mul(x, 2.0)))  # noqa: E731
    assert sorted(same_after(f, odd(), only=merge_equal)) == ["add", "exp", "mul", "sin"]


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ((1,), [1]), (float("nan"), 0.0)])
def test_arguments_that_only_look_equal(a: Any, b: Any) -> None:
    assert freeze(a) != freeze(b)
    assert freeze(a) == freeze(a)


def test_signed_zeros_do_not_merge() -> None:
    f = lambda x: ops.sub(ops.copysign(x, 0.0), ops.copysign(x, -0.0))  # noqa: E731
    assert names_count(same_after(f, odd(), only=merge_equal), "copysign") == 2


def names_count(left: list[str], name: str) -> int:
    return left.count(name)


# --- constants -------------------------------------------------------------------------------------------------------
def test_numbers_fold() -> None:
    f = lambda x: ops.add(x, ops.exp(ops.mul(full(0.1, 8), 3.0)))  # noqa: E731
    assert same_after(f, odd(), only=fold) == ["full", "add"]


def test_numbers_behind_views_fold() -> None:
    f = lambda x: ops.add(x, ops.sqrt(ops.expand(full(2.0, 1), shape=(8,))))  # noqa: E731
    assert "sqrt" not in same_after(f, odd())


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int32, dtypes.int64], ids=str)
def test_folded_integers_wrap(dtype: Any) -> None:
    end = int(np.iinfo(dtype.np).max)
    x = Tensor._wrap(np.arange(8).astype(dtype.np), cpu)
    f = lambda x: ops.add(x, ops.add(full(end, 8, dtype=dtype), full(2, 8, dtype=dtype)))  # noqa: E731
    assert same_after(f, x, only=fold).count("add") == 1


def test_results_are_not_folded_away() -> None:
    assert same_after(lambda x: (ops.exp(full(1.0, 8)), ops.neg(x)), odd(), only=fold) == ["full", "exp", "neg"]


# --- sums of padded slices -------------------------------------------------------------------------------------------
def padded(x: Tensor, bounds: list[int], dim: int = 0) -> list[Tensor]:
    """The pieces of ``x`` between ``bounds``, each in a field of zeros."""
    size = x.shape[dim]
    out = []
    for start, stop in itertools.pairwise(bounds):
        piece = ops.exp(ops.slice(x, dim=dim, start=start, stop=stop, step=1))
        piece = ops.sub(piece, piece) if start == 0 else ops.mul(piece, -0.0)
        out.append(ops.slice_backward(piece, dim=dim, size=size, start=start, stop=stop, step=1))
    return out


def chain(xs: list[Tensor]) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = ops.add(total, x)
    return total


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 2, 0, 3, 1]])
def test_pieces_that_fill_a_dimension_are_put_side_by_side(order: list[int]) -> None:
    def fn(x: Tensor) -> Any:
        pieces = padded(x, [0, 1, 3, 4, 6, 8])
        return ops.exp(chain([pieces[n] for n in order]))

    left = same_after(fn, odd())
    assert "slice_backward" not in left and left.count("cat") == 1


@pytest.mark.parametrize(
    "bounds", [[0, 2, 4, 6, 7], [1, 2, 4, 6, 8], [0, 4, 8]], ids=["short", "late", "few"]
)  # fmt: skip
def test_pieces_that_do_not_stay_a_sum(bounds: list[int]) -> None:
    assert "cat" not in same_after(lambda x: ops.exp(chain(padded(x, bounds))), odd())


def test_pieces_that_overlap_stay_a_sum() -> None:
    twice = lambda x: ops.exp(chain([*padded(x, [0, 2, 4, 6, 8]), padded(x, [3, 5])[0]]))  # noqa: E731
    assert "cat" not in same_after(twice, odd())


def test_a_partial_sum_that_others_read_stays() -> None:
    def fn(x: Tensor) -> Any:
        pieces = padded(x, [0, 2, 4, 6, 8])
        some = chain(pieces[:3])
        return ops.exp(ops.add(some, pieces[3])), ops.sin(some)

    assert "cat" not in same_after(fn, odd())


@pytest.mark.parametrize(("of", "joined"), [(lambda y: ops.matmul(y, y), True), (lambda y: ops.sum(y, dim=(0,), keepdim=False), True), (ops.neg, False)])
def test_few_pieces_of_a_library_where_zeros_look_alike(of: Any, joined: bool) -> None:
    """-0.0 + 0.0 is 0.0, which sums and products cannot tell from -0.0; and a library can write each piece in its place."""
    def fn(x: Tensor) -> Any:
        x = ops.view(x, shape=(4, 2))
        halves = [ops.slice(x, dim=0, start=n, stop=n + 2, step=1) for n in (0, 2)]
        pieces = [ops.matmul(x, ops.mul(half, -0.0)) for half in halves]
        return of(chain([ops.slice_backward(p, dim=1, size=4, start=n, stop=n + 2, step=1) for n, p in zip((0, 2), pieces, strict=True)]))

    left = same_after(fn, odd())
    assert ("cat" in left) is joined and ("slice_backward" in left) is not joined
    assert not joined or "add" not in left


def test_only_the_slices_of_a_longer_sum() -> None:
    f = lambda x: ops.add(ops.exp(chain(padded(x, [0, 2, 4, 6, 8]))), x)  # noqa: E731
    assert "cat" in same_after(f, odd())


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.5, 3.0, float("inf"), float("nan"), 1e-40, 2.0])
BINARY = st.sampled_from([ops.add, ops.sub, ops.mul, ops.div, ops.maximum, ops.minimum, ops.pow, ops.copysign, ops.mod])
UNARY = st.sampled_from([ops.neg, ops.exp, ops.abs, ops.sqrt, ops.sign, ops.reciprocal, ops.sigmoid])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(UNARY, BINARY, NUMBERS, st.booleans()), min_size=1, max_size=5), st.sampled_from(["float32", "float64", "float16"]))  # fmt: skip
def test_random_chains_of_numbers(steps: Any, dtype: str) -> None:
    """Chains that mix a tensor with numbers and tensors of numbers: all passes together keep every bit."""
    kind = dtypes.BY_NAME[dtype]

    def fn(x: Tensor) -> Any:
        constant = full(0.75, 8, dtype=kind)
        for unary, binary, n, swap in steps:
            constant = binary(constant, n) if swap else unary(constant)
            x = binary(x, constant) if swap else binary(constant, ops.mul(x, n))
        return x

    same_after(fn, odd(kind))
