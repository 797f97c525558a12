"""What fusion does differently for a GPU: recompute rather than store, and keep rows side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

from codegen_cupy import emulate, program
from codegen_cupy.emulated_machine import EmulatedMachine
from compiler.config import Config
from compiler.loop import compile_graph, interp
from compiler.loop.ir import Alloc, Loop, Plan, Run
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
    return ops.mul(ops.matmul(ops.mul(d, d), w), d)


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


def picked(x: Any, w: Any, index: Any) -> Any:
    """Softmax of rows that a product made, and one element of each row."""
    y = ops.matmul(x, w)
    d = ops.sub(y, ops.amax(y, dim=(1,), keepdim=True))
    e = ops.exp(d)
    total = ops.sum(e, dim=(1,), keepdim=True)
    return ops.div(e, total), ops.sub(ops.gather(d, index, dim=1), ops.log(total))


@pytest.mark.parametrize("device", [CUDA, CPU], ids=str)
def test_a_row_may_be_overwritten_after_one_of_its_elements_was_picked(device: Device) -> None:
    rng = np.random.default_rng(0)
    x, w = (Tensor._wrap(rng.standard_normal(s).astype(np.float32), device) for s in ((6, 8), (8, 40)))
    index = Tensor._wrap(rng.integers(0, 40, (6, 1)), device)
    plan = compile_graph(trace(picked, x, w, index), Config(verify=1))
    product = next(s for s in plan.steps if isinstance(s, Alloc)).buffer.name
    (run,) = (s for s in plan.steps if isinstance(s, Run))
    assert product in run.args and product in {v.buffer for v in plan.outputs if v is not None}
    want = [t._data for t in picked(x, w, index)]
    for got, w_ in zip(interp.run_plan(plan, [t._data for t in (x, w, index)]), want, strict=True):
        np.testing.assert_allclose(got, w_, rtol=1e-5)


@pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
@pytest.mark.parametrize("columns", [40, 640, 2500])
def test_no_thread_overwrites_what_another_has_yet_to_pick(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator's race check over the same program (as many rows as fill a block: idle teams repeat the last row, and
    what they read of it is thrown away)."""
    machine = EmulatedMachine()
    machine.check = True
    monkeypatch.setattr(program, "machine", lambda emulated: machine)
    rng = np.random.default_rng(0)
    x, w = (Tensor._wrap(rng.standard_normal(s).astype(np.float32), CUDA) for s in ((32, 8), (8, columns)))
    index = Tensor._wrap(rng.integers(0, columns, (32, 1)), CUDA)
    built = program.Program(compile_graph(trace(picked, x, w, index), Config()), Config(cuda_emulate=True))
    want = [t._data for t in picked(x, w, index)]
    for got, w_ in zip(built([t._data for t in (x, w, index)]), want, strict=True):
        np.testing.assert_allclose(got, w_, rtol=1e-4, atol=1e-7)
