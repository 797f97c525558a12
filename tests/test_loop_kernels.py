"""What shares a kernel: pinned counts for the standard cases, each compared with eager by the loop interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from loop_helpers import kernels, run, trace

from compiler.config import Config
from compiler.loop import compile_graph, interp, ir
from compiler.loop.host import launches
from compiler.loop.ir import walk
from compiler.loop.verify import verify
from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

RNG = np.random.default_rng(0)


def tensor(*shape, dtype=np.float32):
    return Tensor._wrap(RNG.normal(size=shape).astype(dtype), cpu)


def integers(high, *shape):
    return Tensor._wrap(RNG.integers(0, high, size=shape), cpu)


def mean(x, dim, count):
    return ops.div(ops.sum(x, dim=dim, keepdim=True), float(count))


def softmax(x, dim=1):
    e = ops.exp(ops.sub(x, ops.amax(x, dim=(dim,), keepdim=True)))
    return ops.div(e, ops.sum(e, dim=(dim,), keepdim=True))


def gelu(x):
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.erf(ops.mul(x, 2**-0.5)), 1.0))


def layer_norm(x, w, b, n):
    m = mean(x, (1,), n)
    d = ops.sub(x, m)
    rstd = ops.rsqrt(ops.add(mean(ops.mul(d, d), (1,), n), 1e-5))
    return ops.add(ops.mul(ops.mul(d, rstd), w), b), m, rstd


def layer_norm_backward(g, x, w, m, rstd, n):
    normal = ops.mul(ops.sub(x, m), rstd)
    gw = ops.mul(g, w)
    s = ops.add(mean(gw, (1,), n), ops.mul(normal, mean(ops.mul(gw, normal), (1,), n)))
    return (
        ops.mul(ops.sub(gw, s), rstd),
        ops.sum(ops.mul(g, normal), dim=(0,), keepdim=False),
        ops.sum(g, dim=(0,), keepdim=False),
    )


def log_softmax(x):
    d = ops.sub(x, ops.amax(x, dim=(1,), keepdim=True))
    return ops.sub(d, ops.log(ops.sum(ops.exp(d), dim=(1,), keepdim=True)))


def cross_entropy(x, target, rows):
    picked = ops.gather(log_softmax(x), ops.view(target, shape=(rows, 1)), dim=1)
    return ops.neg(ops.div(ops.sum(picked, dim=(0, 1), keepdim=False), float(rows)))


def cross_entropy_backward(x, target, rows, classes):
    zeros = ops.full(shape=(rows, classes), value=0.0, dtype=dtypes.float32)
    ones = ops.full(shape=(rows, 1), value=-1.0 / rows, dtype=dtypes.float32)
    g = ops.scatter_add(zeros, ops.view(target, shape=(rows, 1)), ones, dim=1)
    return ops.sub(g, ops.mul(ops.exp(log_softmax(x)), ops.sum(g, dim=(1,), keepdim=True)))


@pytest.mark.parametrize("shape", [(5, 7), (1, 9), (9, 1), (3, 1), (1, 1), (64, 33)])
def test_softmax_is_one_kernel(shape):
    assert kernels(run(softmax, tensor(*shape))) == 1


def test_gelu_chain_is_one_flat_loop():
    plan = run(lambda x, b: ops.mul(gelu(ops.add(x, b)), ops.sub(x, 1.0)), tensor(6, 5), tensor(6, 5))
    (kernel,) = plan.kernels
    (loop,) = kernel.body
    assert loop.extent == 30 and not any(isinstance(s, ir.Loop) for s in loop.body)


def test_layer_norm_is_one_kernel_each_way():
    rows, cols = 40, 16
    x, w, b, g = tensor(rows, cols), tensor(cols), tensor(cols), tensor(rows, cols)
    assert kernels(run(lambda *a: layer_norm(*a, cols), x, w, b)) == 1
    m, rstd = tensor(rows, 1), tensor(rows, 1)
    plan = run(lambda *a: layer_norm_backward(*a, cols), g, x, w, m, rstd, rtol=1e-4, atol=1e-4)
    assert kernels(plan) == 1


def test_cross_entropy():
    rows, classes = 12, 10
    x, t = tensor(rows, classes), integers(classes, rows)
    assert kernels(run(lambda x, t: cross_entropy(x, t, rows), x, t)) <= 2
    assert kernels(run(lambda x, t: cross_entropy_backward(x, t, rows, classes), x, t)) <= 2


def test_siblings_share_a_pass():
    plan = run(
        lambda x: (
            ops.sum(x, dim=(1,), keepdim=False),
            ops.sum(ops.mul(x, x), dim=(1,), keepdim=False),
            ops.amax(x, dim=(1,), keepdim=False),
        ),
        tensor(9, 11),
    )
    (kernel,) = plan.kernels
    assert sum(isinstance(s, ir.Load) for s in walk(kernel.body)) == 1


def test_column_sums_walk_memory_in_order():
    plan = run(lambda x: ops.sum(ops.mul(x, x), dim=(0,), keepdim=False), tensor(300, 20), rtol=1e-4)
    (kernel,) = plan.kernels
    outer = kernel.body[0]
    assert isinstance(outer, ir.Loop) and outer.extent == 300
    assert any(isinstance(s, ir.Store) and s.mode == "add" for s in walk(kernel.body))


def test_full_sum_of_much_has_parts_to_run_side_by_side():
    plan = run(lambda x: ops.sum(ops.sin(x), dim=(0, 1), keepdim=False), tensor(512, 128), rtol=1e-3, order="forward")
    assert kernels(plan) == 1 and plan.kernels[0].body[0].kind == "map"


def test_transposes_cost_nothing():
    plan = run(lambda x, y: ops.add(ops.permute(x, dims=(1, 0)), y), tensor(5, 7), tensor(7, 5))
    assert kernels(plan) == 1


def test_reshapes_become_strides():
    def heads(x):
        y = ops.permute(ops.view(x, shape=(2, 3, 4, 5)), dims=(0, 2, 1, 3))
        return ops.view(ops.contiguous(ops.exp(y)), shape=(8, 15)), ops.sum(y, dim=(3,), keepdim=False)

    plan = run(heads, tensor(2, 3, 20))
    for kernel in launches(plan):
        for s in walk(kernel.body):
            if isinstance(s, ir.Load | ir.Store):
                assert "//" not in str(s.index) and "%" not in str(s.index)


def test_matmul_reads_views_in_place():
    def f(x, w, b):
        return gelu(ops.add(ops.matmul(x, ops.permute(w, dims=(1, 0))), b))

    plan = run(f, tensor(4, 6), tensor(5, 6), tensor(5), rtol=1e-4, atol=1e-5)
    (call,) = [s for s in plan.steps if isinstance(s, ir.Extern)]
    assert call.args[1] == ir.ArrayView("arg1", (6, 5), (1, 6)) and kernels(plan) == 1


def test_dropout_draws_what_eager_draws():
    def f(x, state):
        keep = ops.ge(ops.uniform(state, shape=(7, 9), shift=3, dtype=dtypes.float32), 0.25)
        return ops.mul(ops.where(keep, x, 0.0), 1 / 0.75), keep

    assert kernels(run(f, tensor(7, 9), Tensor._wrap(np.array([5, 11]), cpu))) == 1


def test_adamw_of_many_parameters():
    shapes = [(8, 6), (6,), (5, 8), (6,), (8, 6), (5, 8)]

    def step(*tensors):
        out = []
        for n in range(len(shapes)):
            p, g, m, v = tensors[4 * n : 4 * n + 4]
            m = ops.add(ops.mul(m, 0.9), ops.mul(g, 0.1))
            v = ops.add(ops.mul(v, 0.999), ops.mul(ops.mul(g, g), 0.001))
            p = ops.mul(p, 1 - 0.01)
            out += [ops.sub(p, ops.div(ops.mul(m, 0.01), ops.add(ops.sqrt(v), 1e-8))), m, v]
        return tuple(out)

    args = [t for s in shapes for t in (tensor(*s), tensor(*s), tensor(*s), ops.square(tensor(*s)))]
    plan = run(step, *args)
    assert kernels(plan) == len(shapes) and len(plan.kernels) <= 2  # one with its length as a size, short loops apart


def test_equal_blocks_share_kernels():
    def block(x, w):
        return ops.add(x, ops.matmul(softmax(x), w))

    def net(x, *ws):
        for w in ws:
            x = block(x, w)
        return x

    counts = [
        len(run(net, tensor(5, 5), *[tensor(5, 5) for _ in range(n)], rtol=1e-3, atol=1e-4).kernels) for n in (4, 12)
    ]
    assert counts[0] == counts[1] <= 4  # the first reads an input, the last makes an output, the rest are alike


def test_a_value_read_in_two_kernels_is_stored_once():
    def f(x, w):
        h = gelu(x)
        return ops.matmul(h, w), ops.sum(h, dim=(0, 1), keepdim=False)

    plan = run(f, tensor(4, 6), tensor(6, 3), rtol=1e-4, atol=1e-5)
    assert sum(s.fn == "erf" for k in launches(plan) for s in walk(k.body) if isinstance(s, ir.Let)) == 1


def test_buffers_are_reused():
    def f(x, *ws):
        for w in ws:
            x = ops.matmul(gelu(x), w)
        return x

    plan = run(f, tensor(4, 4), *[tensor(4, 4) for _ in range(4)], rtol=1e-3, atol=1e-4)
    fresh = [s for s in plan.steps if isinstance(s, ir.Alloc) and s.reuse is None]
    assert len(fresh) == 3  # two that take turns, and the output


@pytest.mark.parametrize("bad", [-1, 10])
def test_indices_out_of_range_raise(bad):
    t = Tensor._wrap(np.array([[1], [bad], [2]]), cpu)
    with pytest.raises(IndexError):
        run(lambda x, t: ops.gather(x, t, dim=1), tensor(3, 10), t)


def test_scatter_add():
    def f(x, t, src):
        return ops.mul(ops.scatter_add(ops.exp(x), t, ops.neg(src), dim=0), 2.0)

    run(f, tensor(6, 4), integers(6, 9, 4), tensor(9, 4))


def test_slices_and_their_transpose():
    def f(x, y):
        part = ops.slice(x, dim=1, start=1, stop=8, step=3)
        back = ops.slice_backward(ops.mul(part, y), dim=1, size=9, start=1, stop=8, step=3)
        return ops.add(back, ops.select(x, dim=0, index=2))

    run(f, tensor(4, 9), tensor(4, 3))


def test_outputs_that_are_inputs_views_constants_and_nothing():
    def f(x):
        return x, ops.permute(x, dims=(1, 0)), ops.full(shape=(3,), value=2.5, dtype=dtypes.float32), None

    x = tensor(2, 3)
    plan = compile_graph(trace(f, x), Config())
    verify(plan)
    a, b, c, d = interp.run_plan(plan, [x._data])
    assert np.shares_memory(a, x._data) and (b == x._data.T).all() and (c == 2.5).all() and d is None


def compiled_in_place(fn, inplace, *tensors):
    gm = trace(fn, *tensors)
    gm.meta["inplace"] = inplace
    plan = compile_graph(gm, Config())
    verify(plan)
    copies = [t._data.copy() for t in tensors]
    expected = [o._data for o in fn(*tensors)]
    got = interp.run_plan(plan, copies, order="shuffle")
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-5)
    return plan, [g is copies[int(name[3:])] for g, name in ((got[k], v) for k, v in inplace.items())]


def test_an_update_lands_where_the_old_value_was():
    def sgd(p, g, m):
        m = ops.add(ops.mul(m, 0.9), g)
        return ops.sub(p, ops.mul(m, 0.1)), m

    plan, landed = compiled_in_place(sgd, {0: "arg0", 1: "arg2"}, tensor(6, 5), tensor(6, 5), tensor(6, 5))
    assert landed == [True, True] and len(plan.kernels[0].params) == 3


def test_a_row_kernel_may_overwrite_its_rows():
    _, landed = compiled_in_place(lambda x: (softmax(x),), {0: "arg0"}, tensor(6, 5))
    assert landed == [True]


def test_what_is_read_elsewhere_is_not_overwritten():
    x = tensor(5, 5)
    cases = [
        lambda x: (ops.add(x, ops.permute(x, dims=(1, 0))),),  # a later iteration reads what this one would write
        lambda x: (ops.sub(x, ops.expand(ops.select(x, dim=0, index=2), shape=(5, 5))),),
        lambda x: (ops.exp(x), ops.matmul(x, x)),  # read by another task later
        lambda x: (ops.exp(x), x),  # handed back as it was
    ]
    for n, f in enumerate(cases):
        assert compiled_in_place(f, {0: "arg0"}, x)[1] == [False], n


def test_temporaries_are_overwritten():
    def f(x, w):
        return ops.tanh(ops.matmul(ops.exp(ops.matmul(x, w)), w))

    plan = run(f, tensor(4, 4), tensor(4, 4), rtol=1e-4)
    assert sum(isinstance(s, ir.Alloc) for s in plan.steps) == 2
