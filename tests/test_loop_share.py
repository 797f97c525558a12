"""Kernels that differ in numbers only are one kernel: which do, what stays a number, and that nothing else changes."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from loop_helpers import run, trace

import tinytorch
from compiler.config import config
from compiler.loop import compile_graph, ir, share
from compiler.loop.build import kernel
from compiler.loop.verify import LoopIRError, instance, verify
from compiler.sym.expr import Symbol
from tinytorch import Tensor, ops
from tinytorch.dtypes import float32


def tensor(*shape: int) -> Tensor:
    return tinytorch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def copy_from(start: int, length: int, columns: int = 8) -> ir.Kernel:
    """A slice of a matrix, copied."""

    def copy(k):
        x = k.param("in0", float32, (64, columns), (columns, 1))
        out = k.param("out1", float32, (length,), (1,))
        for i in k.map(length):
            k.store(out, i, k.load(x, i + start))

    return kernel(copy)


def plan_of(*kernels: ir.Kernel) -> ir.Plan:
    """Each kernel once, from one input."""
    x = ir.Buffer("x", float32, (64, 8), (8, 1))
    steps: list[ir.Step] = []
    outs = []
    for n, k in enumerate(kernels):
        out = ir.Buffer(f"b{n}", float32, k.params[1].shape, k.params[1].stride)
        steps += [ir.Alloc(out), ir.Run(n, ("x", out.name))]
        outs.append(ir.ArrayView(out.name, out.shape, out.stride))
    return ir.Plan((x,), tuple(outs), kernels, tuple(steps))


def test_slices_are_one_kernel_with_a_start():
    before = plan_of(copy_from(0, 40), copy_from(40, 40), copy_from(120, 40))
    after = share.shared(before)
    (one,) = after.kernels
    assert len(one.sizes) == 1
    runs = [s for s in after.steps if isinstance(s, ir.Run)]
    for given, r in zip(before.kernels, runs, strict=True):
        assert instance(one, dict(r.sizes)).body == given.body
    verify(after)


def test_lengths_and_shapes_become_sizes():
    before = plan_of(copy_from(0, 40), copy_from(3, 200))
    after = share.shared(before)
    assert len(after.kernels) == 1
    assert after.kernels[0].params[1].shape != before.kernels[0].params[1].shape
    verify(after)


def test_equal_kernels_take_no_sizes():
    after = share.shared(plan_of(copy_from(5, 40), copy_from(5, 40)))
    assert len(after.kernels) == 1 and not after.kernels[0].sizes
    assert all(s.sizes == () for s in after.steps if isinstance(s, ir.Run))


@pytest.mark.parametrize("length", [2, share.SHORT])
def test_short_loops_keep_their_length(length):
    assert len(share.shared(plan_of(copy_from(0, length), copy_from(0, 100))).kernels) == 2


def test_unit_strides_stay_numbers():
    def strided(stride):
        def walk(k):
            x = k.param("in0", float32, (64, 8), (8, 1))
            out = k.param("out1", float32, (40,), (1,))
            for i in k.map(40):
                k.store(out, i, k.load(x, stride * i))

        return kernel(walk)

    assert len(share.shared(plan_of(strided(1), strided(2))).kernels) == 2
    assert len(share.shared(plan_of(strided(2), strided(4))).kernels) == 1


def test_reductions_keep_their_length():
    def total(n):
        def sum_(k):
            x = k.param("in0", float32, (64, 8), (8, 1))
            out = k.param("out1", float32, (1,), (1,))
            a = k.init("add", float32)
            for i in k.reduce(n):
                k.update("add", a, k.load(x, i))
            k.store(out, 0, a)

        return kernel(sum_)

    assert len(share.shared(plan_of(total(100), total(200))).kernels) == 2


def test_related_numbers_need_one_size():
    sizes = share._Sizes(set())
    assert sizes.of((7, 7, 7)) == 7
    n = sizes.of((128, 512, 384))
    assert isinstance(n, Symbol)
    assert sizes.of((130, 514, 386)) is n + 2
    assert sizes.of((384, 1536, 1152)) is n * 3
    assert sizes.of((0, 1, 0)) is not n and len(sizes.columns) == 2


def test_zeros_divide_nothing():
    sizes = share._Sizes(set())
    zero = sizes.of((0, 16))
    assert sizes.of((5, 6)) is not zero and len(sizes.columns) == 2


def test_a_launch_must_state_its_sizes():
    after = share.shared(plan_of(copy_from(0, 40), copy_from(40, 40)))
    bare = tuple(ir.Run(s.kernel, s.args) if isinstance(s, ir.Run) else s for s in after.steps)
    with pytest.raises(LoopIRError, match="launched with the sizes"):
        verify(ir.Plan(after.inputs, after.outputs, after.kernels, bare))


def test_sizes_out_of_bounds_are_found():
    after = share.shared(plan_of(copy_from(0, 40), copy_from(40, 40)))
    wrong = tuple(
        ir.Run(s.kernel, s.args, tuple((n, 1000) for n, _ in s.sizes)) if isinstance(s, ir.Run) else s
        for s in after.steps
    )
    with pytest.raises(LoopIRError, match="leaves"):
        verify(ir.Plan(after.inputs, after.outputs, after.kernels, wrong))


def test_time_steps_share_their_kernels():
    """An unrolled recurrence: every step reads its own slice, all by one kernel."""

    def steps(x, w):
        h = ops.select(x, dim=0, index=0)
        for t in range(1, 6):
            h = ops.tanh(ops.add(ops.matmul(h, w), ops.select(x, dim=0, index=t)))
        return h

    plan = run(steps, tensor(6, 4, 40), tensor(40, 40))
    assert len(plan.kernels) == 1
    assert sum(isinstance(s, ir.Run) for s in plan.steps) == 5


def test_updates_of_many_shapes_are_one_kernel():
    def update(*xs):
        return tuple(ops.sub(x, ops.mul(x, 0.1)) for x in xs)

    plan = run(update, tensor(50, 3), tensor(70), tensor(5, 6, 7))
    assert len(plan.kernels) == 1 and len(plan.kernels[0].sizes) == 1
    assert isinstance(plan.kernels[0].body[0], ir.Loop)


def test_numba_runs_shared_kernels():
    def update(*xs):
        return tuple(ops.sub(x, ops.mul(ops.exp(x), 0.1)) for x in xs)

    xs = [tensor(300, 300), tensor(70), tensor(5, 6, 7)]
    plan = compile_graph(trace(update, *xs), config)
    assert len(plan.kernels) == 1
    built = importlib.import_module("codegen_numba").build(plan, config)
    for got, x in zip(built([x._data for x in xs], ()), xs, strict=True):
        np.testing.assert_allclose(got, x._data - np.exp(x._data) * np.float32(0.1), rtol=1e-5, atol=1e-6)


def test_shared_kernels_with_private_copies():
    """Sums over rows of several matrices: the number of rows is a size, the copies that threads add into are not."""
    xs = [tensor(n, 64) for n in (9000, 20000)]
    plan = compile_graph(trace(lambda *xs: tuple(ops.sum(ops.square(x), dim=(0,), keepdim=False) for x in xs), *xs), config)
    assert len(plan.kernels) == 1 and plan.kernels[0].sizes
    with config.patch(threads=2):
        got = importlib.import_module("codegen_numba").build(plan, config)([x._data for x in xs], ())
    for g, x in zip(got, xs, strict=True):
        np.testing.assert_allclose(g, np.square(x._data.astype(np.float64)).sum(0), rtol=1e-5)
