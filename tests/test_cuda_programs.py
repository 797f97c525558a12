"""Random programs by the CUDA codegen: fused = eager within the same bounds, on a GPU where there is one, else emulated.

Three dozen here; ``row_batches.py --machine cuda`` draws on.
"""

from __future__ import annotations

from typing import Any

import cuda_programs
import numpy as np
import pytest
from cuda_programs import other, varied
from loop_helpers import trace
from row_batches import check
from row_programs import rolled

from codegen_cupy import schedule, sources
from compiler.config import Config
from compiler.loop import compile_graph
from tinytorch.device import cpu, cuda_available
from tinytorch.dtypes import DType, bfloat16, float16, float32
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


def test_other_schedules_are_taken_and_put_back() -> None:
    before = schedule.ONLINE, sources.pick_schedule
    with varied():
        assert sources.pick_schedule is other and schedule.ONLINE < 100
    assert (schedule.ONLINE, sources.pick_schedule) == before
