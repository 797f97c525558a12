"""Whole plans through the host code that a GPU would run, on the emulated machine: memory, views, library calls,
symbolic sizes, alignment, checks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_cases import embedding, gelu, layer_norm, softmax
from loop_helpers import trace

from codegen_cupy import emulate
from codegen_cupy.program import Program, brought
from codegen_cupy.sources import sources
from compiler.config import Config
from compiler.loop import compile_graph, interp
from compiler.loop.build import KernelRecorder, PlanRecorder, kernel, plan
from compiler.loop.ir import Kernel, Plan
from tinytorch import eager
from tinytorch.device import cpu
from tinytorch.dtypes import float32, int64
from tinytorch.ops import TABLE
from tinytorch.tensor import Tensor

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
EMULATED = Config(cuda_emulate=True)


def one_kernel(k: Kernel) -> Plan:
    def one(p: PlanRecorder) -> None:
        p.kernels(k)
        args = [
            p.alloc(b.name, b.dtype, b.shape, b.stride) if b.name in k.writes else p.input(b.name, b.dtype, b.shape, b.stride)
            for b in k.params
        ]  # fmt: skip
        p.run(k, *args)
        p.output(*[p.view(b, b.shape, b.stride) for b in args if b.name in k.writes])

    return plan(one)


def random_inputs(p: Plan, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(b.shape).astype(b.dtype.np) if b.dtype.kind == "f" else rng.integers(0, 4, b.shape)
        for b in p.inputs
    ]


@pytest.mark.parametrize("k", [gelu(float32, 1000), softmax(float32, 6, 50), layer_norm(float32, 3, 64)], ids=lambda k: k.name)
def test_a_plan_gives_what_its_interpreter_gives(k: Kernel) -> None:
    p = one_kernel(k)
    x = random_inputs(p)
    for got, want in zip(Program(p, EMULATED)(x), interp.run_plan(p, x), strict=True):
        assert got.shape == want.shape and got.strides == want.strides
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def chain(n: int) -> Plan:
    """Three kernels over temporaries, one of which reuses memory, a library call, and outputs that are views."""

    def scale(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n, n), (n, 1))
        y = k.param("y", float32, (n, n), (n, 1))
        for i in k.map(n * n):
            k.store(y, i, k.mul(k.load(x, i), 2.0))

    def shift(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n, n), (n, 1))
        y = k.param("y", float32, (n, n), (n, 1))
        for i in k.map(n * n):
            k.store(y, i, k.add(k.load(x, i), 1.0))

    def chained(p: PlanRecorder) -> None:
        a, b = kernel(scale), kernel(shift)
        p.kernels(a, b)
        x = p.input("x", float32, (n, n), (n, 1))
        t = p.alloc("t", float32, (n, n), (n, 1))
        p.run(a, x, t)
        u = p.alloc("u", float32, (n, n), (n, 1))
        p.run(b, t, u)
        m = p.alloc("m", float32, (n, n), (n, 1))
        p.extern("matmul", p.view(t, (n, n), (n, 1)), p.view(u, (n, n), (1, n)), outs=[p.view(m, (n, n), (n, 1))])
        p.free(t)
        w = p.alloc("w", float32, (n, n), (n, 1), reuse=u)
        p.run(b, u, w)
        z = p.alloc("z", float32, (3,), (1,), fill=7.0)
        p.output(p.view(m, (n, n), (1, n)), p.view(w, (n - 1,), (n + 1,), 1), p.view(x, (n, n), (n, 1)), p.view(z, (3,), (1,)))

    return plan(chained)


def test_temporaries_reuse_library_calls_and_views() -> None:
    n = 17
    p = chain(n)
    x = np.random.default_rng(1).standard_normal((n, n)).astype(np.float32)
    m, w, same, z = Program(p, EMULATED)([x])
    np.testing.assert_allclose(m, ((x * 2) @ (x * 2 + 1).T).T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(w, np.diagonal(x * 2 + 2, 1), rtol=1e-6)
    assert same is x
    np.testing.assert_array_equal(z, [7, 7, 7])


def test_results_of_two_calls_do_not_share_memory() -> None:
    program = Program(one_kernel(gelu(float32, 256)), EMULATED)
    one = program([np.ones(256, np.float32)])[0]
    kept = one.copy()
    program([np.zeros(256, np.float32)])
    np.testing.assert_array_equal(one, kept)


def symbolic_row_sum() -> Plan:
    def row_sum(k: KernelRecorder) -> None:
        r, n = k.size("s0"), k.size("s1")
        x = k.param("x", float32, (r, n), (n, 1))
        y = k.param("y", float32, (r,), (1,))
        for i in k.map(r):
            a = k.init("add", float32)
            for j in k.reduce(n):
                k.update("add", a, k.load(x, i * n + j))
            k.store(y, i, a)

    def rows(p: PlanRecorder) -> None:
        r, n = p.size("s0"), p.size("s1")
        k = kernel(row_sum)
        p.kernels(k)
        x = p.input("x", float32, (r, n), (n, 1))
        y = p.alloc("y", float32, (r,), (1,))
        p.run(k, x, y)
        p.output(p.view(y, (r,), (1,)))

    return plan(rows)


@pytest.mark.parametrize("shape", [(5, 64), (3, 63), (2, 1000), (0, 8), (4, 0), (1, 70_000)])
def test_symbolic_sizes(shape: tuple[int, int]) -> None:
    program = Program(symbolic_row_sum(), EMULATED)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    (y,) = program([x], shape)
    np.testing.assert_allclose(y, x.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-3)


def test_sizes_that_need_no_new_text_share_the_kernel() -> None:
    program = Program(symbolic_row_sum(), EMULATED)
    texts = {program.recipe(s).launches[0].source.text for s in [(4, 80), (5, 112), (300, 96)]}
    assert len(texts) == 1


def test_inputs_off_the_vector_grid_take_the_scalar_kernel() -> None:
    program = Program(one_kernel(gelu(float32, 200_000)), EMULATED)
    room = np.random.default_rng(3).standard_normal(200_001).astype(np.float32)
    start = 1 if room.ctypes.data % 16 == 0 else 0
    x = room[start : start + 200_000]
    got = program([x])[0]
    want = program([x.copy()])[0]
    np.testing.assert_array_equal(got, want)
    vectors = ["load_pack" in program.recipe(aligned=a).launches[0].source.text for a in (True, False)]
    assert vectors == [True, False]


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_an_index_out_of_range_raises_and_touches_nothing(bad: int) -> None:
    program = Program(one_kernel(embedding(21, 50, 64)), EMULATED)
    ids = np.arange(21, dtype=np.int64)
    table = np.random.default_rng(4).standard_normal((50, 64)).astype(np.float32)
    np.testing.assert_array_equal(program([ids, table])[0], table[ids])
    ids[7] = bad
    with pytest.raises(IndexError, match=f"index {bad} is out of range in embedding"):
        program([ids, table])
    ids[7] = 3
    np.testing.assert_array_equal(program([ids, table])[0], table[ids])


def test_temporaries_without_elements_are_handed_to_library_calls() -> None:
    g, at, value = (Tensor._wrap(a, cpu) for a in (np.zeros((0, 4, 2)), np.array([1]), np.zeros((0, 1))))

    def fn(g: Tensor, at: Tensor, value: Tensor) -> Tensor:
        spread = TABLE["unfold_backward"](g, shape=(0, 5), dim=1, size=2, step=1)
        return TABLE["index_put"](spread, value, at, dim=1, accumulate=True)

    program = Program(compile_graph(trace(fn, g, at, value), Config()), EMULATED)
    assert program([t._data for t in (g, at, value)])[0].shape == (0, 5)


def test_large_buffers_get_64_bit_indices() -> None:
    def big(k: KernelRecorder) -> None:
        n = k.size("s0")
        x = k.param("x", float32, (n,), (1,))
        y = k.param("y", int64, (n,), (1,))
        for i in k.map(n):
            k.store(y, i, k.cast(k.load(x, i), dtype=int64))

    k = kernel(big)
    (small,), (large,) = (sources(k, {"s0": n}).sources for n in (1000, 3 * 2**30))
    assert "long long at" not in small.text and "long long at" in large.text
    assert (small.size_bytes, large.size_bytes) == (4, 8)



class Foreign:
    """An array of another library: NumPy's are not among its own."""

    def __init__(self, a: np.ndarray) -> None:
        self.a = a


def test_numbers_of_the_cpu_are_brought_to_the_gpu_and_random_states_are_not() -> None:
    """In a compiled call, and in eager beside a tensor of the GPU."""
    xp = SimpleNamespace(ndarray=Foreign, asarray=Foreign)
    there, number, state = Foreign(np.ones(3)), np.array(2.0), np.zeros(2, np.uint64)
    got = brought([there, number, state], {2}, xp)
    assert got[0] is there and got[2] is state and isinstance(got[1], Foreign) and got[1].a is number
    met = eager._met(xp, [there, number, 3.0, state])
    assert met[0] is there and isinstance(met[1], Foreign) and met[2] == 3.0 and met[3] is state
    arrays = [number]
    assert eager._met(np, arrays) is arrays
