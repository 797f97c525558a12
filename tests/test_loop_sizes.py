"""Symbolic sizes: one plan for a range of shapes."""

from __future__ import annotations

import numpy as np
import pytest
from loop_helpers import kernels, trace
from test_loop_kernels import cross_entropy_backward, gelu, integers, layer_norm, softmax, tensor

from compiler.config import Config
from compiler.fake import fake_like
from compiler.loop import compile_graph, interp, ir
from compiler.loop.host import launches
from compiler.loop.ir import walk
from compiler.loop.printer import format_plan, parse_plan
from compiler.loop.verify import verify
from compiler.sym.env import ShapeEnv
from compiler.sym.expr import Symbol
from tinytorch import ops


def compiled(fn, dynamic, *tensors):
    """A plan for ``fn`` with the dimensions ``dynamic[k]`` of tensor k symbolic."""
    env = ShapeEnv()
    fakes = [fake_like(t, env, dynamic=d) for t, d in zip(tensors, dynamic, strict=True)]
    plan = compile_graph(trace(fn, *tensors, fakes=fakes), Config())
    verify(plan)
    assert parse_plan(format_plan(plan)) == plan
    return plan


def agrees(plan, fn, *tensors):
    env = {}
    for b, t in zip(plan.inputs, tensors, strict=True):
        env |= {n.name: v for n, v in zip(b.shape, t.shape, strict=True) if isinstance(n, Symbol)}
    got = interp.run_plan(plan, [t._data for t in tensors], [env[s] for s in plan.sizes], order="shuffle")
    expected = fn(*tensors)
    for g, e in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g, e._data, rtol=1e-4, atol=1e-5)


CASES = {
    "softmax": (softmax, [(0, 1)], lambda n, m: (tensor(n, m),), 1),
    "gelu": (gelu, [(0, 1)], lambda n, m: (tensor(n, m),), 1),
    "transpose": (
        lambda x, y: ops.tanh(ops.add(x, ops.permute(y, dims=(1, 0)))),
        [(0, 1), (0, 1)],
        lambda n, m: (tensor(n, m), tensor(m, n)),
        1,
    ),
    "layer_norm": (
        lambda x, w, b: layer_norm(x, w, b, 8),
        [(0,), (), ()],
        lambda n, m: (tensor(n, 8), tensor(8), tensor(8)),
        1,
    ),
    "column sum": (lambda x: ops.sum(ops.mul(x, x), dim=(0,), keepdim=False), [(0,)], lambda n, m: (tensor(n, 8),), 1),
    "full sum": (lambda x: ops.sum(x, dim=(0, 1), keepdim=False), [(0, 1)], lambda n, m: (tensor(n, m),), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_one_plan_serves_many_shapes(name):
    fn, dynamic, make, count = CASES[name]
    plan = compiled(fn, dynamic, *make(5, 7))
    assert kernels(plan) == count and plan.sizes
    for n, m in ((5, 7), (2, 3), (9, 4)):
        agrees(plan, fn, *make(n, m))


def test_heads_need_no_division():
    def heads(x):
        b, t = x.shape[:2]
        y = ops.permute(ops.view(x, shape=(b, t, 4, 5)), dims=(0, 2, 1, 3))
        return ops.view(ops.contiguous(ops.exp(y)), shape=(b * 4, t * 5)), ops.view(ops.tanh(x), shape=(b * t, 20))

    plan = compiled(heads, [(0, 1)], tensor(2, 3, 20))
    agrees(plan, heads, tensor(4, 5, 20))
    for kernel in launches(plan):
        for s in walk(kernel.body):
            assert not isinstance(s, ir.Load | ir.Store) or not {"//", "%"} & set(str(s.index).split())


def test_cross_entropy_backward_selects_instead_of_scattering():
    plan = compiled(lambda x, t: cross_entropy_backward(x, t, 12, 10), [(), ()], tensor(12, 10), integers(10, 12))
    assert kernels(plan) == 1
    assert not any(s.mode == "add" for k in launches(plan) for s in walk(k.body) if isinstance(s, ir.Store))
