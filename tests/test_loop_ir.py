"""The loop IR by itself: written by hand, printed, re-executed, interpreted, verified."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from compiler.loop import build, interp, ir
from compiler.loop.printer import format_kernel, format_plan, parse_kernel, parse_plan
from compiler.loop.verify import LoopIRError, verify, verify_kernel
from tinytorch.dtypes import float32, int64


def softmax_kernel(rows, cols):
    @build.kernel
    def softmax(k):
        x = k.param("x", float32, (rows, cols), (cols, 1))
        out = k.param("out", float32, (rows, cols), (cols, 1))
        for i in k.map(rows):
            top = k.init("max", float32)
            for j in k.reduce(cols):
                k.update("max", top, k.load(x, cols * i + j))
            total = k.init("add", float32)
            for j in k.reduce(cols):
                k.update("add", total, k.exp(k.sub(k.load(x, cols * i + j), top)))
            for j in k.map(cols):
                e = k.exp(k.sub(k.load(x, cols * i + j), top))
                k.store(out, cols * i + j, k.div(e, total))

    return softmax


@pytest.mark.parametrize("order", ["forward", "backward", "shuffle"])
def test_softmax_by_hand(order):
    kernel = softmax_kernel(3, 5)
    verify_kernel(kernel)
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    out = np.empty_like(x)
    interp.run_kernel(kernel, [x, out], order=order)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-6)


def everything_kernel():
    @build.kernel
    def everything(k):
        k.about(("a", "b"), (("model.py", 3, "y = f(x)"),))
        n = k.size("s0")
        x = k.param("x", float32, (n, 4), (4, 1))
        at = k.param("at", int64, (n,), (1,))
        out = k.param("out", float32, (n,), (1,))
        hist = k.param("hist", float32, (4,), (1,))
        for i in k.map(n):
            p = k.load(at, i)
            ok = k.lt(p, 4)
            k.check(ok, "index out of range")
            v = k.load(x, 4 * i + p, mask=ok, other=-math.inf)
            k.store(hist, p, v, mode="add")
            best = k.init("argmax", float32, int64)
            for j in k.reduce(4):
                k.update("argmax", best, k.load(x, 4 * i + j), k.index(j))
            k.store(out, i, k.add(k.cast(best[1], dtype=float32), k.const(math.nan, dtype=float32)), mask=ok)

    return everything


def test_kernels_print_as_python_that_rebuilds_them():
    for kernel in (softmax_kernel(4, 7), everything_kernel()):
        text = format_kernel(kernel)
        assert parse_kernel(text) == kernel, text
        assert format_kernel(parse_kernel(text)) == text


def test_names_off_the_beaten_track_survive_printing():
    @build.kernel
    def odd(k):
        x = k.param("x", float32, (4,), (1,))
        y = k.param("y", float32, (4,), (1,))
        for i in k.map(4, name="row"):
            v = k.load(x, i, name="first")
            k.store(y, i, k.neg(v, name="second"))

    assert parse_kernel(format_kernel(odd)) == odd


def example_plan():
    a = ir.Buffer("a", float32, (3, 5), (5, 1))
    t = ir.Buffer("t", float32, (3, 5), (5, 1))
    r = ir.Buffer("r", float32, (3, 5), (5, 1))
    view = ir.ArrayView("r", (5, 3), (1, 5))
    steps = (
        ir.Alloc(t),
        ir.Run(0, ("a", "t")),
        ir.Alloc(r, fill=0.0),
        ir.Run(0, ("t", "r")),
        ir.Free("t"),
    )
    return ir.Plan((a,), (view,), (softmax_kernel(3, 5),), steps)


@pytest.mark.parametrize("name", ["softmax", "softmax_memory", "p", "max", "float32", "lambda"])
def test_buffers_may_be_named_like_anything_in_the_text(name):
    """A kernel is called after its operators, a saved value too."""
    plan = example_plan()
    (kernel,), (first, *_) = plan.kernels, plan.inputs
    steps = tuple(ir.Run(0, (name, "t")) if s == ir.Run(0, ("a", "t")) else s for s in plan.steps)
    odd = ir.Plan((dataclasses.replace(first, name=name),), plan.outputs, (kernel,), steps)
    assert kernel.name == "softmax" and parse_plan(format_plan(odd)) == odd


def test_plans_print_run_and_verify():
    plan = example_plan()
    verify(plan)
    text = format_plan(plan)
    assert parse_plan(text) == plan, text
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    (out,) = interp.run_plan(plan, [x])
    assert out.shape == (5, 3)
    np.testing.assert_allclose(out.sum(0), 1, rtol=1e-6)


def test_memory_of_negative_and_zero_strides():
    base = np.arange(12.0).reshape(3, 4)
    for array in (base[::-1], base[:, ::-1], base[::-1, ::2], np.broadcast_to(base[0], (2, 4)), base[:, :0]):
        m = interp.Memory(array)
        steps = [s // 8 for s in array.strides]
        for at in np.ndindex(*array.shape):
            assert m.flat[m.at(sum(i * s for i, s in zip(at, steps, strict=True)))] == array[at]


def broken(change):
    """The softmax kernel with its first statement rewritten."""
    kernel = softmax_kernel(3, 5)
    return dataclasses.replace(kernel, **change(kernel))


BREAKAGES = {
    "undefined name": lambda k: {"body": (ir.Let("z", "exp", ("nope",), float32), *k.body)},
    "defined twice": lambda k: {"body": (ir.Index("z", 1), ir.Index("z", 2), *k.body)},
    "out of bounds": lambda k: {"body": (ir.Load("z", "x", 15, float32), *k.body)},
    "wrong type": lambda k: {"body": (ir.Load("z", "x", 0, int64), *k.body)},
    "not in the vocabulary": lambda k: {"body": (ir.Let("z", "gelu", (1.0,), float32), *k.body)},
    "writes left out": lambda k: {"writes": frozenset()},
    "unknown buffer": lambda k: {"body": (ir.Load("z", "y", 0, float32), *k.body)},
    "update without init": lambda k: {"body": (ir.Update(("z",), "add", (1.0,)), *k.body)},
    "two ways to write": lambda k: {"body": (ir.Store("out", 0, 1.0, "add"), *k.body)},
    "mixed operands": lambda k: {
        "body": (ir.Index("z", 1), ir.Load("w", "x", 0, float32), ir.Let("q", "add", ("z", "w"), float32), *k.body)
    },
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_verifier_refuses(name):
    with pytest.raises(LoopIRError):
        verify_kernel(broken(BREAKAGES[name]))


@pytest.mark.parametrize(
    "steps",
    [
        (ir.Run(0, ("a", "t")),),
        (ir.Alloc(ir.Buffer("t", float32, (3, 5), (5, 1))), ir.Run(0, ("t", "a"))),
        (ir.Free("a"), ir.Free("a")),
        (ir.Alloc(ir.Buffer("t", float32, (3, 5), (5, 1)), reuse="a"),),
    ],
)
def test_the_verifier_refuses_host_programs(steps):
    plan = dataclasses.replace(example_plan(), steps=steps, outputs=())
    with pytest.raises(LoopIRError):
        verify(plan)


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_arg_reductions_prefer_nan_then_the_first(combine):
    extreme = np.argmax if combine == "argmax" else np.argmin
    for row in ([1, 3, 3, 0], [1, math.nan, 3, math.nan], [-math.inf] * 3, [math.inf] * 3):
        for start in ("forward", "backward"):
            acc = interp.identity(combine, (float32, int64))
            items = list(enumerate(np.array(row, np.float32)))
            for n, x in items if start == "forward" else reversed(items):
                acc = interp.join(combine, acc, (x, np.int64(n)))
            assert acc[1] == extreme(np.array(row, np.float32))


def test_welford_and_online_softmax():
    x = np.random.default_rng(1).normal(size=50).astype(np.float32)
    acc = interp.identity("welford", (float32,) * 3)
    soft = interp.identity("softmax", (float32,) * 2)
    for v in (np.float32(-math.inf), *x):
        soft = interp.join("softmax", soft, (v,))
    for v in x:
        acc = interp.join("welford", acc, (v,))
    np.testing.assert_allclose(acc[0], x.mean(), rtol=1e-4)
    np.testing.assert_allclose(acc[1] / acc[2], x.var(), rtol=1e-4)
    np.testing.assert_allclose(soft[1], np.exp(x - x.max()).sum(), rtol=1e-5)
