"""Random programs by the CUDA codegen: fused = eager within the same bounds, on a GPU where there is one, else emulated.

Three dozen here; ``row_batches.py --machine cuda`` draws on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cuda_programs
import numpy as np
import pytest
from cuda_programs import other, varied
from loop_helpers import trace
from row_batches import check
from row_programs import rolled

from codegen_cupy import row_schedules, sources
from compiler.config import Config
from compiler.loop import compile_graph
from tinytorch.device import cpu, cuda_available
from tinytorch.dtypes import DType, bfloat16, float16, float32, int32
from tinytorch.ops import TABLE
from tinytorch.tensor import Tensor

pytestmark = pytest.mark.skipif(not cuda_programs.available(), reason="no GPU and no C++ compiler")


@pytest.fixture(autouse=True)
def _some_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cuda_available():
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")


HOWS: list[dict[str, Any]] = [
    dict(numerics="fast", tiny=True), dict(numerics="strict", graph=True), dict(numerics="strict", tiny=True, watch=True),
]  # fmt: skip


@pytest.mark.parametrize(("first", "how"), [(12 * n, how) for n, how in enumerate(HOWS)])
def test_many_programs_as_one_graph(first: int, how: dict[str, Any]) -> None:
    check([rolled(first + n) for n in range(12)], "cuda", **how)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_random_numbers_of_half_types_are_eagers(dtype: DType) -> None:
    """Also where they go on unstored, as a dropout mask's do."""
    state = Tensor._wrap(np.array([7, 11]), cpu)

    def fn(state: Tensor) -> Tensor:
        return TABLE["cast"](TABLE["uniform"](state, shape=(300,), shift=2, dtype=dtype), dtype=float32)

    plan = compile_graph(trace(fn, state), Config())
    (got,) = cuda_programs.Compiled(plan, "fast", vary=False, graph=False, check=False)([state._data])
    np.testing.assert_array_equal(got, fn(state)._data)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_integers_are_rounded_to_half_types_before_a_step_that_jumps(dtype: DType) -> None:
    whole = Tensor._wrap(np.array([32766, 4099, 7], np.int16), cpu)
    part = Tensor._wrap(np.array([7.0, 3.5, 2.5], np.float32), cpu)
    fn = lambda w, p: TABLE["fmod"](w, TABLE["cast"](p, dtype=dtype))  # noqa: E731
    plan = compile_graph(trace(fn, whole, part), Config())
    (got,) = cuda_programs.Compiled(plan, "fast", vary=False, graph=False, check=False)([whole._data, part._data])
    np.testing.assert_array_equal(got, fn(whole, part)._data)


def compiled(fn: Any, *arrays: np.ndarray) -> cuda_programs.Compiled:
    plan = compile_graph(trace(fn, *(Tensor._wrap(a, cpu) for a in arrays)), Config())
    return cuda_programs.Compiled(plan, "fast", vary=False, graph=False, check=False)


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fields of every schedule taken from here on."""
    first = sources.pick_schedule

    def to(**fields: Any) -> None:
        monkeypatch.setattr(sources, "pick_schedule", lambda *situation: replace(first(*situation), **fields))

    return to


def test_numbers_are_compared_as_they_are() -> None:
    """Also where both sides are known, and their truths are the same."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        three = TABLE["full"](shape=(8,), value=3, dtype=float32, device=cpu)
        bits, grown = TABLE["bitcast"](three, dtype=int32), TABLE["cumprod"](three, dim=0)
        return TABLE["sin"](TABLE["eq"](three, -1.25)), TABLE["lt"](three, 4), bits, grown

    x = np.ones(8, np.float32)
    equal, less, *_ = compiled(fn, x)([x])
    assert not equal.any() and less.all()


@pytest.mark.parametrize("blocks", [0, 3])
def test_blocks_that_share_a_row_go_on_to_their_next_one(blocks: int, change: Callable[..., None]) -> None:
    x = np.arange(16 * 70, dtype=np.int16).reshape(16, 70)
    fn = lambda x: TABLE["sum"](x, dim=(1,), keepdim=False)  # noqa: E731
    change(kind="row", split=2, blocks=blocks, chunks=0, prefetch=False, team=32, threads=32, vector=1)
    built = compiled(fn, x)
    np.testing.assert_array_equal(built([x])[0], x.sum(1))
    assert "last_to_arrive" in built.texts()


def test_a_mask_of_neighbours_is_asked_for_each(change: Callable[..., None]) -> None:
    """What a loop left for each of the neighbours of a vector masks a load of the next loop."""
    x = np.arange(15 * 2 * 8, dtype=np.int8).reshape(15, 2, 8)
    part = np.arange(56, dtype=np.int64).reshape(7, 8)

    def fn(x: Tensor, part: Tensor) -> Tensor:
        total = TABLE["sum"](x, dim=(1,), keepdim=False)
        return TABLE["slice_scatter"](total, part, dim=0, start=7, stop=14, step=1)

    change(vector=2)
    (got,) = compiled(fn, x, part)([x, part])
    want = x.sum(1)
    want[7:14] = part
    np.testing.assert_array_equal(got, want)


def test_other_schedules_are_taken_and_put_back() -> None:
    before = row_schedules.ONLINE, sources.pick_schedule
    with varied():
        assert sources.pick_schedule is other and row_schedules.ONLINE < 100
    assert (row_schedules.ONLINE, sources.pick_schedule) == before
