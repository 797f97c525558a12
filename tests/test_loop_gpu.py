"""What fusion does differently for a GPU: recompute rather than store, and keep rows side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

from compiler.config import Config
from compiler.loop import compile_graph
from compiler.loop.ir import Alloc, Loop, Plan
from tinytorch import ops
from tinytorch.device import Device
from tinytorch.tensor import Tensor

CUDA, CPU = Device("cuda", 0), Device("cpu")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")


def compiled(fn: Any, *shapes: tuple[int, ...], device: Device = CUDA, dtype: Any = np.float32) -> Plan:
    tensors = [Tensor._wrap(np.ones(s, dtype), device) for s in shapes]
    return compile_graph(trace(fn, *tensors), Config())


def stored(plan: Plan) -> int:
    """How many buffers the first kernel writes."""
    return len(plan.kernels[0].writes)


def through_a_product(x: Any, w: Any) -> Any:
    """The error function is wanted before and after a product."""
    e = ops.erf(ops.mul(x, 0.5))
    return ops.add(ops.mul(ops.matmul(ops.add(e, x), w), e), x)


def test_an_elementary_function_is_computed_again_on_a_gpu() -> None:
    shapes = (64, 32), (32, 32)
    assert stored(compiled(through_a_product, *shapes, device=CPU)) == 2  # the sum and the error function
    assert stored(compiled(through_a_product, *shapes)) == 1


def difference_twice(x: Any, w: Any) -> Any:
    """Rows less their means, before and after a product."""
    d = ops.sub(x, ops.div(ops.sum(x, dim=(1,), keepdim=True), 32.0))
    return ops.add(ops.matmul(ops.mul(d, d), w), d)


def test_a_difference_from_the_mean_is_taken_again() -> None:
    plan = compiled(difference_twice, (64, 32), (32, 32))
    made = {s.buffer.shape for s in plan.steps if isinstance(s, Alloc) and s.buffer.name in plan.steps[2].args}
    assert stored(plan) == 2 and made == {(64, 32), (64,)}  # the squares, and the means instead of the differences


def rows_and_batch(x: Any) -> Any:
    """A row kernel, and a sum of what it makes over the batch."""
    d = ops.div(x, ops.sum(x, dim=(2,), keepdim=True))
    return d, ops.sum(d, dim=(0,), keepdim=False)


def test_rows_stay_side_by_side() -> None:
    plan = compiled(rows_and_batch, (8, 16, 32))

    def points(body: Any) -> int:
        loops = [s for s in body if isinstance(s, Loop) and s.kind == "map"]
        return loops[0].extent * points(loops[0].body) if len(loops) == 1 and len(body) == 1 else 1

    assert max(points(k.body) for k in plan.kernels) >= 8 * 16
    rows = [k for k in plan.kernels if "sum" in k.name and any("div" in o for o in k.origin)]
    assert points(rows[0].body) == 8 * 16
