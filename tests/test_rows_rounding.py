"""What functions with steps and the signs of zeros show of how eager computes: compiled code shows the same.

Each case came out of random programs (``row_batches.py``); both machines and both modes of numerics give eager's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

from codegen_numba.build import build
from compiler.config import Config
from compiler.loop import compile_graph, interp
from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

WAYS = pytest.mark.parametrize("machine", ["interp", "numba"])
NUMERICS = pytest.mark.parametrize("numerics", ["fast", "strict"])


def tensor(values: Any, dtype: Any = dtypes.float32) -> Tensor:
    return Tensor._wrap(np.array(values).astype(dtype.np), cpu)


def compiled(fn: Callable[..., Any], inputs: tuple[Tensor, ...], machine: str, numerics: str) -> np.ndarray:
    config = Config().replace({"numerics": numerics})
    plan = compile_graph(trace(fn, *inputs), config)
    arrays = [t._data for t in inputs]
    (out,) = interp.run_plan(plan, arrays) if machine == "interp" else build(plan, config)(arrays)
    return out


def same_bits(fn: Callable[..., Any], *inputs: Tensor, machine: str, numerics: str) -> np.ndarray:
    want = fn(*inputs)._data
    got = compiled(fn, inputs, machine, numerics)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert got.tobytes() == want.tobytes(), (got, want)
    return want


@WAYS
@NUMERICS
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("row", ["floordiv", "mod", "fmod", "add", "sub", "maximum"])
def test_numbers_become_half_first(row: str, dtype: Any, machine: str, numerics: str) -> None:
    """0.1 is 0.09998 in float16 and 0.1001 in bfloat16: 4 // 0.1 tells them from float32's."""
    x = tensor([4.0, 3.0, -1.5, 0.125, 0.0999], dtype)
    same_bits(lambda x: getattr(ops, row)(x, 0.1), x, machine=machine, numerics=numerics)
    same_bits(lambda x: ops.floordiv(ops.maximum(x, 3.7), 0.1), x, machine=machine, numerics=numerics)


@WAYS
def test_integers_become_half_first(machine: str) -> None:
    i = tensor([503358659651, 263003241120, -70001], dtypes.int64)
    x = tensor([0.375, 0.625, 3.0], dtypes.bfloat16)
    same_bits(lambda i, x: ops.floordiv(i, x), i, x, machine=machine, numerics="fast")


@WAYS
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
def test_the_power_of_a_half_is_the_root(dtype: Any, machine: str) -> None:
    """As PyTorch has it (but in float16, for -inf): NaN of -inf, -0.0 of -0.0, where C's ``pow`` has inf and 0.0."""
    x = tensor([-np.inf, -0.0, np.inf, 4.0], dtype)
    want = ops.pow(x, 0.5)._data
    assert np.isnan(want[0]) and np.signbit(want[1]) and want[2:].tolist() == [np.inf, 2.0]
    got = compiled(lambda x: ops.pow(x, 0.5), (x,), machine, "fast")
    np.testing.assert_array_equal(got, want)
    assert np.signbit(got[1])


@WAYS
@NUMERICS
@pytest.mark.parametrize("shape, dims", [((), ()), ((1,), (0,)), ((3, 1), (1,)), ((3, 4), (0,)), ((3, 4), (1,)), ((1, 4, 1), (0, 2))])
def test_sums_start_from_positive_zero(shape: Any, dims: Any, machine: str, numerics: str) -> None:
    x = tensor(np.full(shape, -0.0))
    made = same_bits(lambda x: ops.sum(x, dim=dims, keepdim=True), x, machine=machine, numerics=numerics)
    assert not np.signbit(made).any()
    for d in dims:
        made = same_bits(lambda x, d=d: ops.cumsum(x, dim=d), x, machine=machine, numerics=numerics)
        assert not np.signbit(made).any()


@WAYS
@pytest.mark.parametrize("rows, columns", [(65, 5), (4, 3)])
def test_a_scan_of_columns_is_not_joined_row_by_row(rows: int, columns: int, machine: str) -> None:
    """Its loop over columns may not move inside of the scan, where one running value would serve them all."""
    x = tensor(np.arange(rows * columns).reshape(rows, columns) % 7, dtypes.int64)

    def fn(x: Tensor) -> Tensor:
        down = ops.cast(ops.cumsum(x, dim=0), dtype=dtypes.float32)
        return ops.cumsum(ops.view(down, shape=(rows * columns,)), dim=0)

    same_bits(fn, x, machine=machine, numerics="fast")


@WAYS
@pytest.mark.parametrize("shape", [(64, 40), (300, 70), (1 << 17,), (3, 64, 40)])
def test_a_large_scan_keeps_the_order_of_its_loops(shape: tuple[int, ...], machine: str) -> None:
    """A sum may go row by row, or in parts; a scan of columns may not."""
    x = tensor(np.arange(int(np.prod(shape))).reshape(shape) % 3 - 1, dtypes.float32)
    for d in range(len(shape)):
        same_bits(lambda x, d=d: ops.cumsum(ops.mul(x, 2.0), dim=d), x, machine=machine, numerics="fast")


@WAYS
def test_complex_numbers_are_computed_as_by_eager(machine: str) -> None:
    x = tensor([[3.75, 3.5], [-0.5, 2.0]])

    def fn(x: Tensor) -> Tensor:
        z = ops.view_as_complex(x)
        return ops.view_as_real(ops.add(ops.sin(z), z))

    same_bits(fn, x, machine=machine, numerics="strict")
