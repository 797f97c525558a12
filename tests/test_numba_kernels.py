"""Kernels by hand, each statement of the loop IR: machine code = interpreter, in one part and in many."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numba_helpers import TINY, interpret, plan_of, run_kernel

from codegen_numba.build import build
from codegen_numba.emit import Emitter
from codegen_numba.schedule import Tune, phases
from compiler.config import Config
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8

RNG = np.random.default_rng(5)
TUNES = pytest.mark.parametrize("tune", [None, TINY], ids=["tuned", "tiny"])


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def same(k: Kernel, arrays: list[np.ndarray], tune: Tune | None, rtol: float = 1e-5, **more: Any) -> list[np.ndarray]:
    got, want = run_kernel(k, arrays, tune=tune, **more), interpret(k, arrays, **more)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        wide = np.float64 if g.dtype.kind in "fV" else g.dtype
        np.testing.assert_allclose(g.astype(wide), w.astype(wide), rtol=rtol, atol=rtol)
    return got


def row_reduction(combine: str, rows: int, cols: int, dtype: Any = float32) -> Kernel:
    @kernel
    def reduce_rows(k):
        x = k.param("x", dtype, (rows, cols), (cols, 1))
        count = {"argmax": 2, "argmin": 2, "welford": 3, "softmax": 2}.get(combine, 1)
        kinds = [dtype, *([int64] if combine.startswith("arg") else [dtype] * (count - 1))]
        outs = [k.param(f"out{n}", d, (rows,), (1,)) for n, d in enumerate(kinds)]
        for i in k.map(rows):
            acc = k.init(combine, *kinds)
            for j in k.reduce(cols):
                v = k.load(x, cols * i + j)
                values = (v, k.index(j)) if combine.startswith("arg") else (v,)
                k.update(combine, acc, *values)
            for out, a in zip(outs, acc if isinstance(acc, tuple) else (acc,), strict=True):
                k.store(out, i, a)

    return reduce_rows


@TUNES
@pytest.mark.parametrize("cols", [1, 2, 31, 33, 1000, 2500])
@pytest.mark.parametrize("combine", ["add", "mul", "max", "min", "argmax", "argmin", "welford", "softmax"])
def test_row_reductions(combine, cols, tune):
    x = normal(7, cols)
    if combine == "mul":
        x = np.exp(x / 50).astype(np.float32)
    same(row_reduction(combine, 7, cols), [x], tune, rtol=1e-4)


@TUNES
@pytest.mark.parametrize("combine", ["max", "min", "argmax", "argmin", "softmax", "add"])
def test_special_values_in_reductions(combine, tune):
    x = normal(9, 77)
    x[1, 40], x[2, 5], x[3, 60], x[4] = np.nan, np.inf, -np.inf, -np.inf
    x[5, [10, 50]], x[6, [3, 70]], x[7] = np.nan, 9.0, 1.0
    same(row_reduction(combine, 9, 77), [x], tune)


@TUNES
@pytest.mark.parametrize("dtype", [float64, float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("combine", ["add", "max", "argmax", "welford", "softmax"])
def test_other_float_types(combine, dtype, tune):
    tolerance = {"float64": 1e-12, "float16": 5e-2, "bfloat16": 2e-1}[dtype.name]
    x = normal(5, 300).astype(dtype.np)
    got = run_kernel(row_reduction(combine, 5, 300, dtype), [x], tune=tune)
    want = interpret(row_reduction(combine, 5, 300, float64), [x.astype(np.float64)])
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=tolerance, atol=tolerance)


@TUNES
@pytest.mark.parametrize("dtype", [int32, int64, uint8, bool_], ids=lambda d: d.name)
@pytest.mark.parametrize("combine", ["add", "max", "min", "and", "or", "xor", "argmax"])
def test_integer_reductions(combine, dtype, tune):
    x = (RNG.integers(0, 2, (6, 130)) if dtype is bool_ else RNG.integers(0, 200, (6, 130))).astype(dtype.np)
    same(row_reduction(combine, 6, 130, dtype), [x], tune)


@pytest.mark.parametrize(("dtype", "limit"), [(float32, 4e-7), (float64, 3e-16)], ids=["float32", "float64"])
def test_sums_are_no_worse_than_pairwise(dtype, limit):
    """A running sum of these would be wrong in the third digit (float32)."""
    n = 3_000_000
    x = (RNG.random(n) + 0.1).astype(dtype.np)[None]
    got = run_kernel(row_reduction("add", 1, n, dtype), [x])[0][0]
    exact = np.sum(x.astype(np.longdouble))
    assert abs(got - exact) / exact < limit
    assert abs(got - exact) <= abs(np.sum(x[0]) - exact) + exact * np.finfo(dtype.np).eps


@TUNES
def test_infinities_survive_compensated_sums(tune):
    x = normal(2, 5000, dtype=np.float64)
    x[0, 100] = np.inf
    got = run_kernel(row_reduction("add", 2, 5000, float64), [x], tune=tune)[0]
    assert got[0] == np.inf and np.isfinite(got[1])


@TUNES
def test_a_reduction_over_two_axes(tune):
    @kernel
    def reduce_two(k):
        x = k.param("x", float32, (4, 9, 50), (450, 50, 1))
        out = k.param("out", float32, (4,), (1,))
        best = k.param("best", int64, (4,), (1,))
        for i in k.map(4):
            a = k.init("add", float32)
            m, at = k.init("argmax", float32, int64)
            for j in k.reduce(9):
                for l in k.reduce(50):
                    v = k.load(x, 450 * i + 50 * j + l)
                    k.update("add", a, v)
                    k.update("argmax", (m, at), v, k.index(50 * j + l))
            k.store(out, i, a)
            k.store(best, i, at)

    same(reduce_two, [normal(4, 9, 50)], tune)


@TUNES
@pytest.mark.parametrize("combine", ["add", "mul", "max", "softmax", "argmax"])
def test_scans(combine, tune):
    count = {"softmax": 2, "argmax": 2}.get(combine, 1)

    @kernel
    def scan_rows(k):
        x = k.param("x", float32, (5, 90), (90, 1))
        kinds = [float32, int64 if combine == "argmax" else float32][:count]
        outs = [k.param(f"out{n}", d, (5, 90), (90, 1)) for n, d in enumerate(kinds)]
        for i in k.map(5):
            acc = k.init(combine, *kinds)
            for j in k.scan(90):
                v = k.load(x, 90 * i + j)
                k.update(combine, acc, v, *([k.index(j)] if combine == "argmax" else []))
                for out, a in zip(outs, acc if count > 1 else (acc,), strict=True):
                    k.store(out, 90 * i + j, a)

    same(scan_rows, [normal(5, 90) + 0.5], tune)


@TUNES
@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [float32, float16, int32, bool_], ids=lambda d: d.name)
def test_combining_stores(mode, dtype, tune):
    """Many rows into one: private copies, joined."""

    @kernel
    def combine_rows(k):
        x = k.param("x", dtype, (40, 24), (24, 1))
        out = k.param("out", dtype, (24,), (1,))
        for i in k.map(40):
            for j in k.map(24):
                k.store(out, j, k.load(x, 24 * i + j), mode=mode)

    x = RNG.integers(0, 2, (40, 24)).astype(bool) if dtype is bool_ else (RNG.integers(1, 3, (40, 24))).astype(dtype.np)
    fill = {"add": 0, "mul": 1, "max": 0, "min": 2}[mode]
    same(combine_rows, [x], tune, rtol=1e-3, fills={"out": bool(fill) if dtype is bool_ else fill})


@TUNES
def test_scatter_add_with_equal_targets(tune):
    @kernel
    def scatter(k):
        at = k.param("at", int64, (200,), (1,))
        x = k.param("x", float32, (200, 8), (8, 1))
        out = k.param("out", float32, (10, 8), (8, 1))
        for i in k.map(200):
            t = k.load(at, i)
            ok = k.bit_and(k.ge(t, 0), k.lt(t, 10))
            k.check(ok, "index {} out of range", value=t)
            for j in k.map(8):
                k.store(out, 8 * t + j, k.load(x, 8 * i + j), mode="add")

    x = normal(200, 8)
    same(scatter, [RNG.integers(0, 10, 200), x], tune, fills={"out": 0.0})
    bad = RNG.integers(0, 10, 200)
    bad[77] = 12
    with pytest.raises(IndexError, match="index 12 out of range"):
        run_kernel(scatter, [bad, x], tune=tune, fills={"out": 0.0})


@TUNES
@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_gather_checks_bounds_before_it_reads(bad, tune):
    @kernel
    def gather(k):
        at = k.param("at", int64, (300,), (1,))
        table = k.param("table", float32, (50,), (1,))
        out = k.param("out", float32, (300,), (1,))
        for i in k.map(300):
            t = k.load(at, i)
            ok = k.bit_and(k.ge(t, 0), k.lt(t, 50))
            k.check(ok, "out of range")
            k.store(out, i, k.load(table, t))

    at = RNG.integers(0, 50, 300)
    built = build(plan_of(gather), Config(), tune)
    table = normal(50)
    assert np.array_equal(built([at, table], ())[0], table[at])
    at[123] = bad
    with pytest.raises(IndexError, match="out of range"):
        built([at, table], ())
    at[123] = 0
    assert np.array_equal(built([at, table], ())[0], table[at])  # an error leaves nothing behind


@TUNES
def test_masked_loads_do_not_touch_memory(tune):
    @kernel
    def pad(k):
        x = k.param("x", float32, (10,), (1,))
        out = k.param("out", float32, (1000,), (1,))
        for i in k.map(1000):
            at = k.index(i - 500)
            inside = k.bit_and(k.ge(at, 0), k.lt(at, 10))
            k.store(out, i, k.load(x, i - 500, mask=inside, other=-3.5))

    same(pad, [normal(10)], tune)


@TUNES
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (64, 100), (70, 1031)])
def test_one_kernel_serves_all_sizes(sizes, tune):
    @kernel
    def softmax(k):
        n, m = k.size("n"), k.size("m")
        x = k.param("x", float32, (n, m), (m, 1))
        out = k.param("out", float32, (n, m), (m, 1))
        total = k.param("total", float32, (m,), (1,))
        for i in k.map(n):
            top, s = k.init("softmax", float32, float32)
            for j in k.reduce(m):
                k.update("softmax", (top, s), k.load(x, m * i + j))
            for l in k.map(m):
                y = k.div(k.exp(k.sub(k.load(x, m * i + l), top)), s)
                k.store(out, m * i + l, y)
                k.store(total, l, y, mode="add")

    same(softmax, [normal(*sizes)], tune, rtol=1e-4, sizes=sizes, fills={"total": 0.0})


@TUNES
def test_an_extent_that_is_a_sum(tune):
    @kernel
    def shifted(k):
        n, m = k.size("n"), k.size("m")
        x = k.param("x", float32, (n, n * m + n), (n * m + n, 1))
        row = k.param("row", float32, (n * m + n,), (1,))
        out = k.param("out", float32, (n, n * m + n), (n * m + n, 1))
        for i in k.map(n):
            for j in k.map(n * m + n):
                k.store(out, (n * m + n) * i + j, k.add(k.load(x, (n * m + n) * i + j), k.load(row, j)))

    same(shifted, [normal(3, 18), normal(18)], tune, sizes=(3, 5))


@TUNES
def test_index_arithmetic(tune):
    """Quotients and remainders of axes, negative strides, minima."""

    @kernel
    def twist(k):
        x = k.param("x", float32, (60,), (1,))
        out = k.param("out", float32, (60,), (1,))
        for i in k.map(60):
            v = k.load(x, 59 - (i // 4 * 4 + (i + 3) % 4))
            k.store(out, i, k.add(v, k.cast(k.index(i // 7 - 3), dtype=float32)))

    same(twist, [normal(60)], tune)


@TUNES
def test_deep_nests_and_small_outer_loops(tune):
    @kernel
    def nest(k):
        x = k.param("x", float32, (2, 3, 5, 40), (600, 200, 40, 1))
        out = k.param("out", float32, (2, 3, 5, 40), (600, 200, 40, 1))
        low = k.param("low", float32, (2, 3, 5), (15, 5, 1))
        for a in k.map(2):
            for b in k.map(3):
                for c in k.map(5):
                    for d in k.map(40):
                        k.store(out, 600 * a + 200 * b + 40 * c + d, k.neg(k.load(x, 600 * a + 200 * b + 40 * c + d)))
        for a in k.map(2, "p"):
            for b in k.map(3, "q"):
                for c in k.map(5, "r"):
                    m = k.init("min", float32)
                    for d in k.reduce(40):
                        k.update("min", m, k.load(x, 600 * a + 200 * b + 40 * c + d))
                    k.store(low, 15 * a + 5 * b + c, m)

    same(nest, [normal(2, 3, 5, 40)], tune)


@TUNES
def test_empty_and_single(tune):
    for n in (0, 1):

        @kernel
        def copy(k, n=n):
            x = k.param("x", float32, (n,), (1,))
            out = k.param("out", float32, (n,), (1,))
            for i in k.map(n):
                k.store(out, i, k.load(x, i))

        same(copy, [normal(n)], tune)


@TUNES
@pytest.mark.parametrize("sizes", [(3, 0), (0, 5), (0, 0), (3, 5)], ids=str)
def test_rows_of_no_elements(sizes, tune):
    """Sizes that are 0 only when the kernel runs: loops of no iterations, and no division by their number."""

    @kernel
    def rows(k):
        n, m = k.size("n"), k.size("m")
        x = k.param("x", float32, (n, m), (m, 1))
        row = k.param("row", float32, (m,), (1,))
        out = k.param("out", float32, (n, m), (m, 1))
        across = k.param("across", float32, (m, n), (n, 1))
        for i in k.map(n):
            for j in k.map(m):
                k.store(out, m * i + j, k.add(k.load(x, m * i + j), k.load(row, j)))
        for i in k.map(n, "p"):
            for j in k.map(m, "q"):
                k.store(across, n * j + i, k.load(x, m * i + j))

    assert next(p.kind for p in phases(rows, 2, tune or Tune())) == "flat"
    same(rows, [normal(*sizes), normal(sizes[1])], tune, sizes=sizes)


@pytest.mark.parametrize("combine", ["add", "max", "softmax", "welford", "argmax"])
def test_reductions_become_vectors(combine):
    """Pinned: the inner loops of row reductions run on vectors."""
    from codegen_numba.compile import assembly

    k = row_reduction(combine, 64, 1024)
    (phase,) = phases(k, 2, Tune())
    source, _, _ = Emitter(k, phase, False, Tune()).source("k")
    text = assembly(source)
    vectors = len(re.findall(r"^\s+v(?:add|max|sub|fmadd\w*|cmp|mul|min|range|fixupimm)\w*p[sd]\s.*[xyz]mm", text, re.M))
    assert vectors >= 4, text


@TUNES
def test_heavy_loops_at_the_top_are_cut_into_phases(tune):
    """Reductions in blocks, their value used by later loops, a check inside, a store between."""

    @kernel
    def spread(k):
        n = k.size("n")
        x = k.param("x", float32, (n,), (1,))
        at = k.param("at", int64, (n,), (1,))
        out = k.param("out", float32, (n,), (1,))
        low = k.param("low", float32, (), ())
        place = k.param("place", int64, (), ())
        top = k.init("max", float32)
        for i in k.reduce(n):
            k.update("max", top, k.load(x, i))
        total = k.init("add", float32)
        best, where = k.init("argmin", float32, int64)
        for i in k.reduce(n):
            t = k.load(at, i)
            k.check(k.bit_and(k.ge(t, 0), k.lt(t, 3000)), "index {} is out of range", value=t)
            v = k.sub(k.load(x, i), top)
            k.update("add", total, k.exp(v))
            k.update("argmin", (best, where), v, t)
        k.store(low, 0, best)
        k.store(place, 0, where)
        for i in k.map(n):
            k.store(out, i, k.div(k.exp(k.sub(k.load(x, i), top)), total))

    x, at = normal(3000), np.arange(3000)
    same(spread, [x, at], tune, rtol=1e-4, sizes=(3000,))
    at[2999] = 3000
    with pytest.raises(IndexError, match="index 3000 is out of range"):
        run_kernel(spread, [x, at], sizes=(3000,), tune=tune)


@TUNES
@pytest.mark.parametrize("combine", ["add", "mul", "max", "argmax", "welford", "softmax"])
@pytest.mark.parametrize("kind", ["reduce", "scan"])
def test_loops_over_the_first_axis_run_in_strips(combine, kind, tune):
    count = {"argmax": 2, "welford": 3, "softmax": 2}.get(combine, 1)
    rows, cols = 40, 30

    @kernel
    def down(k):
        x = k.param("x", float32, (3, rows, cols), (rows * cols, cols, 1))
        kinds = [float32, int64 if combine == "argmax" else float32, float32][:count]
        outs = [k.param(f"out{n}", d, (3, cols), (cols, 1)) for n, d in enumerate(kinds)]
        trace = k.param("trace", float32, (3, rows, cols), (rows * cols, cols, 1))
        for b in k.map(3):
            for j in k.map(cols):
                first = k.load(x, rows * cols * b + j)
                acc = k.init(combine, *kinds)
                for i in getattr(k, kind)(rows):
                    v = k.add(k.load(x, rows * cols * b + cols * i + j), k.mul(first, 0.25))
                    k.update(combine, acc, v, *([k.index(i)] if combine == "argmax" else []))
                    if kind == "scan":
                        k.store(trace, rows * cols * b + cols * i + j, acc[0] if count > 1 else acc)
                for out, a in zip(outs, acc if count > 1 else (acc,), strict=True):
                    k.store(out, cols * b + j, a)
                if kind == "reduce":
                    for i in k.map(rows):
                        v = k.load(x, rows * cols * b + cols * i + j)
                        k.store(trace, rows * cols * b + cols * i + j, k.sub(v, acc[0] if count > 1 else acc))

    (phase,) = phases(down, 1, Tune())
    assert phase.kind == "strips"
    same(down, [normal(3, rows, cols) * 0.1 + 1], tune, rtol=1e-3)


@TUNES
@pytest.mark.parametrize("cols", [1, 3, 4, 700, 1031])
@pytest.mark.parametrize("offset", [0, 3])
def test_random_words_of_rows(cols, offset, tune):
    """In flat loops, rows and reductions; places that begin anywhere in a block of four."""

    @kernel
    def draw(k):
        state = k.param("state", int64, (2,), (1,))
        out = k.param("out", float32, (5, cols), (cols, 1))
        total = k.param("total", float32, (5,), (1,))
        seed, base = k.load(state, 0), k.load(state, 1)
        for i in k.map(5):
            a = k.init("add", float32)
            for j in k.reduce(cols):
                at = cols * i + j + offset
                word = k.philox(seed, k.add(base, k.index(at // 4)), k.index(at % 4))
                k.update("add", a, k.cast(k.shr(word, 8), dtype=float32))
            k.store(total, i, a)
            for j in k.map(cols):
                at = cols * i + j + offset
                word = k.philox(seed, k.add(base, k.index(at // 4)), k.index(at % 4))
                k.store(out, cols * i + j, k.cast(k.shr(word, 8), dtype=float32))

    same(draw, [np.array([12345, 67])], tune)
