"""Library calls that run as phases of our own: matrix products and attention, over layouts, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tinytorch
from codegen_numba import blas, depthwise, direct, placed, placed_weight, templates
from codegen_numba.build import build
from codegen_numba.schedule import Tune
from compiler.config import Config
from compiler.loop.build import plan
from compiler.loop.ir import Extern, Plan
from tinytorch.dtypes import DType, bool_, float16, float32, float64
from tinytorch.ops.opdef import TABLE

RNG = np.random.default_rng(2)
needs_blas = pytest.mark.skipif(blas.find() is None, reason="NumPy was built with a BLAS that hides its symbols")


def strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def extern_plan(fn: str, arrays: list[Any], outs: list[np.ndarray], dtypes: list[DType], **params: Any) -> Plan:
    """A plan of one library call; ``outs`` give shapes and layouts."""

    @plan
    def program(p: Any) -> None:
        given = iter(dtypes)
        views = []
        for n, a in enumerate(arrays):
            if a is None:
                views.append(None)
                continue
            b = p.input(f"x{n}", next(given), a.shape, strides(a))
            views.append(p.view(b, a.shape, strides(a)))
        made = [p.alloc(f"out{n}", next(given), o.shape, strides(o)) for n, o in enumerate(outs)]
        out_views = tuple(p.view(b, o.shape, strides(o)) for b, o in zip(made, outs, strict=True))
        p.extern(fn, *views, outs=out_views, **params)
        p.output(*out_views)

    return program


def is_template(program: Plan) -> bool:
    buffers = {b.name: b for b in program.inputs} | {s.buffer.name: s.buffer for s in program.steps if hasattr(s, "fill")}
    return all(templates.of(s, buffers) is not None for s in program.steps if isinstance(s, Extern))


def run(program: Plan, arrays: list[Any]) -> list[np.ndarray]:
    return build(program, Config())([a for a in arrays if a is not None], ())


def layouts(*shape: int) -> list[np.ndarray]:
    """A matrix contiguous, turned, cut out of a wider one, and stepped over (which BLAS cannot take)."""
    plain = RNG.normal(size=shape)
    turned = np.swapaxes(RNG.normal(size=(*shape[:-2], shape[-1], shape[-2])), -1, -2)
    cut = RNG.normal(size=(*shape[:-1], shape[-1] + 3))[..., : shape[-1]]
    stepped = RNG.normal(size=(*shape[:-1], shape[-1] * 2))[..., ::2]
    return [plain, turned, cut, stepped]


@needs_blas
@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("mnk", [(5, 7, 3), (1, 9, 4), (9, 1, 4), (6, 5, 1), (1, 1, 1), (130, 70, 33), (300, 260, 64)])
def test_products_of_every_layout(mnk, dtype):
    m, n, k = mnk
    for (i, a), (j, b), turn in itertools.product(enumerate(layouts(m, k)), enumerate(layouts(k, n)), (False, True)):
        a, b = ((x if x.flags.c_contiguous else _as(x, dtype)) for x in (a, b))
        a, b = _as(a, dtype), _as(b, dtype)
        out = np.empty((n, m), dtype.np).T if turn else np.empty((m, n), dtype.np)
        program = extern_plan("matmul", [a, b], [out], [dtype] * 3)
        ordinary = i != 3 and j != 3
        assert is_template(program) or not ordinary
        (got,) = run(program, [a, b])
        np.testing.assert_allclose(got, a @ b, rtol=1e-4 if dtype is float32 else 1e-11, atol=1e-4 if dtype is float32 else 1e-11)
        assert got.strides == out.strides or 1 in out.shape


def _as(x: np.ndarray, dtype: DType) -> np.ndarray:
    """``x`` in another type and the same layout."""
    flat = np.lib.stride_tricks.as_strided(x, (1 + sum((n - 1) * s for n, s in zip(x.shape, strides(x), strict=True)),), (x.itemsize,))
    made = flat.astype(dtype.np)
    return np.lib.stride_tricks.as_strided(made, x.shape, tuple(s * made.itemsize for s in strides(x)))


@needs_blas
@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5, 6), (4, 6, 7)), ((4, 5, 6), (6, 7)), ((5, 6), (4, 6, 7)), ((2, 3, 5, 6), (3, 6, 7)), ((2, 1, 5, 6), (1, 3, 6, 7)),
     ((2, 1, 1, 6), (2, 4, 6, 3)), ((64, 40, 32), (64, 32, 40))],
)  # fmt: skip
def test_batches_and_their_broadcasting(left, right):
    a, b = RNG.normal(size=left).astype(np.float32), RNG.normal(size=right).astype(np.float32)
    want = a @ b
    program = extern_plan("matmul", [a, b], [want], [float32] * 3)
    assert is_template(program)
    np.testing.assert_allclose(run(program, [a, b])[0], want, rtol=1e-4, atol=1e-4)


def test_half_precision_products_go_through_numpy():
    a, b = RNG.normal(size=(9, 5)).astype(np.float16), RNG.normal(size=(5, 6)).astype(np.float16)
    program = extern_plan("matmul", [a, b], [np.empty((9, 6), np.float16)], [float16] * 3)
    assert not is_template(program)
    np.testing.assert_allclose(run(program, [a, b])[0], a.astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=1e-2)


@needs_blas
def test_blas_keeps_its_number_of_threads():
    import ctypes

    library = blas.find()
    ask = ctypes.CFUNCTYPE(ctypes.c_int)(library.get_threads)
    before = ask()
    a = RNG.normal(size=(64, 64)).astype(np.float32)
    program = extern_plan("matmul", [a, a], [a], [float32] * 3)
    run(program, [a, a])
    assert ask() == before and not blas.STATE[[0, 8]].any()


@needs_blas
def test_blas_is_left_as_often_as_it_was_entered_when_an_index_is_out_of_range():
    product = tinytorch.compile(lambda x, i, w: x[i] @ w, fullgraph=True)
    x, w = tinytorch.ones(70, 70), tinytorch.ones(70, 70)
    for last in (69, 70, 69):
        try:
            product(x, tinytorch.full((70,), last), w)
        except IndexError:
            assert last == 70
        assert not blas.STATE[[0, 8]].any()


CASES = [
    (2, 4, 4, 65, 65, 16, 16, False), (2, 4, 4, 65, 65, 16, 16, True), (1, 4, 2, 70, 30, 8, 12, False), (2, 2, 1, 3, 9, 4, 4, False),
    (1, 1, 1, 1, 1, 8, 8, True), (1, 1, 1, 200, 700, 8, 8, False), (1, 6, 3, 40, 40, 8, 4, True),
]  # fmt: skip


@needs_blas
@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("masked", ["", "bool", "float", "row"])
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_backward(case, masked, dtype):
    b, h, hk, t, s, d, e, causal = case
    q, k, v = (_heads(b, n, x, y, dtype) for n, x, y in ((h, t, d), (hk, s, d), (hk, s, e)))
    mask = {
        "": None, "bool": RNG.random((b, 1, t, s)) < 0.7, "float": RNG.normal(size=(1, h, t, s)).astype(dtype.np),
        "row": RNG.random((b, 1, 1, s)) < 0.7,
    }[masked]  # fmt: skip
    if mask is not None:
        mask = np.broadcast_to(mask, (b, h, t, s))
    params = {"causal": causal, "scale": d**-0.5, "dropout": 0.0, "shift": 0}
    kinds = [dtype] * 3 + ([bool_ if mask.dtype == bool else dtype] if mask is not None else [])
    with np.errstate(all="ignore"):
        out, lse = TABLE["attention"].kernel(np, q, k, v, mask, None, **params)
    arrays = [q, k, v, mask, None]
    program = extern_plan("attention", arrays, [out, lse], [*kinds, dtype, dtype], **params)
    assert is_template(program)
    limits = {"rtol": 1e-4, "atol": 1e-4} if dtype is float32 else {"rtol": 1e-10, "atol": 1e-10}
    got = run(program, arrays)
    np.testing.assert_allclose(got[0], out, **limits)
    np.testing.assert_allclose(got[1], lse, **limits)

    g = RNG.normal(size=out.shape).astype(dtype.np)
    delta = (g * out).sum(-1)
    with np.errstate(all="ignore"):
        want = TABLE["attention_backward"].kernel(np, g, q, k, v, delta, lse, mask, None, **params)
    arrays = [g, q, k, v, delta, lse, mask, None]
    program = extern_plan("attention_backward", arrays, list(want), [dtype] * 3 + [dtype] * 3 + kinds[3:] + [dtype] * 3, **params)
    assert is_template(program)
    for x, y in zip(run(program, arrays), want, strict=True):
        np.testing.assert_allclose(x, y, **limits)


def _heads(b: int, h: int, t: int, d: int, dtype: DType) -> np.ndarray:
    """Heads side by side in a row, as a projection leaves them."""
    return RNG.normal(size=(b, t, h, d)).astype(dtype.np).transpose(0, 2, 1, 3)


CONVOLUTIONS = [
    ((2, 3, 8, 9), (4, 3, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((2, 4, 9, 7), (6, 2, 3, 2), {"stride": (2, 3), "padding": (0, 2), "dilation": (1, 1), "groups": 2}),
    ((1, 2, 12, 11), (2, 2, 3, 3), {"stride": (1, 1), "padding": (4, 0), "dilation": (2, 3), "groups": 1}),
    ((3, 4, 6, 6), (4, 1, 5, 5), {"stride": (1, 2), "padding": (2, 2), "dilation": (1, 1), "groups": 4}),
    ((2, 3, 5, 5), (7, 3, 1, 1), {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}),
    ((2, 3, 40), (5, 3, 4), {"stride": (2,), "padding": (3,), "dilation": (1,), "groups": 1}),
    ((2, 16, 64, 64), (8, 16, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((3, 20, 7, 10), (24, 5, 3, 2), {"stride": (1, 1), "padding": (1, 1), "dilation": (2, 1), "groups": 4}),
    ((2, 3, 300), (9, 3, 7), {"stride": (1,), "padding": (3,), "dilation": (1,), "groups": 1}),
    ((1, 1, 1, 1), (1, 1, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((3, 17, 11, 13), (33, 17, 3, 3), {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((2, 16, 10, 9), (19, 16, 1, 1), {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}),
    ((5, 10, 13, 12), (30, 5, 3, 4), {"stride": (2, 3), "padding": (3, 5), "dilation": (2, 2), "groups": 2}),
    ((2, 9, 14, 15), (16, 9, 3, 3), {"stride": (3, 2), "padding": (0, 2), "dilation": (2, 3), "groups": 1}),
    ((2, 12, 3, 2), (40, 12, 3, 2), {"stride": (4, 5), "padding": (2, 1), "dilation": (1, 1), "groups": 1}),
    ((7, 16, 4, 4), (24, 16, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}),
    ((2, 64, 6, 7), (32, 64, 1, 1), {"stride": (1, 1), "padding": (1, 2), "dilation": (1, 1), "groups": 1}),
    ((3, 5, 20, 17), (5, 1, 3, 3), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 5}),
    ((2, 6, 13, 15), (12, 1, 3, 4), {"stride": (2, 2), "padding": (1, 0), "dilation": (2, 1), "groups": 6}),
    ((2, 3, 9, 70), (3, 1, 7, 5), {"stride": (3, 2), "padding": (7, 5), "dilation": (1, 2), "groups": 3}),
    ((2, 3, 8, 9), (3, 1, 1, 2), {"stride": (2, 1), "padding": (2, 1), "dilation": (1, 1), "groups": 3}),
    ((2, 3, 90), (3, 1, 5), {"stride": (2,), "padding": (2,), "dilation": (1,), "groups": 3}),
]  # fmt: skip


@needs_blas
@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("way", ["own", "library"])
@pytest.mark.parametrize(("size", "kernel", "params"), CONVOLUTIONS)
def test_convolutions_and_their_transposes(size, kernel, params, dtype, way):
    x, w = RNG.normal(size=size).astype(dtype.np), RNG.normal(size=kernel).astype(dtype.np)
    y = TABLE["conv"].kernel(np, x, w, **params)
    g = RNG.normal(size=y.shape).astype(dtype.np)
    tolerance = 1e-3 if dtype is float32 else 1e-10
    for fn, arrays, more in (
        ("conv", [x, w], {}), ("conv_input", [g, w], {"size": size[2:]}), ("conv_weight", [x, g], {"kernel": kernel[2:]}),
    ):  # fmt: skip
        want = TABLE[fn].kernel(np, *arrays, **more, **params)
        program = extern_plan(fn, arrays, [np.ascontiguousarray(want)], [dtype] * 3, **more, **params)
        assert is_template(program)
        built = build(program, Config(), Tune(way=way))
        own = [name for name in built.kernels if name.startswith(("direct", "placed", "depthwise"))]
        assert bool(own) == (dtype is float32 and way == "own")
        np.testing.assert_allclose(built(arrays, ())[0], want, rtol=tolerance, atol=tolerance)


@needs_blas
@pytest.mark.parametrize(("size", "kernel", "params"), CONVOLUTIONS)
def test_convolutions_in_blocks(size, kernel, params, monkeypatch):
    """Some rows of an image at a time and some terms of a sum; and by channels in vectors also where these are few."""
    for module in (placed, placed_weight):
        monkeypatch.setattr(module, "BLOCK", 900)
        monkeypatch.setattr(module, "TERMS", 10)
    for module in (depthwise, direct):
        monkeypatch.setattr(module, "_suits", lambda *_: False)
    x, w = RNG.normal(size=size).astype(np.float32), RNG.normal(size=kernel).astype(np.float32)
    g = RNG.normal(size=TABLE["conv"].kernel(np, x, w, **params).shape).astype(np.float32)
    for fn, arrays, more in (
        ("conv", [x, w], {}), ("conv_input", [g, w], {"size": size[2:]}), ("conv_weight", [x, g], {"kernel": kernel[2:]}),
    ):  # fmt: skip
        want = TABLE[fn].kernel(np, *arrays, **more, **params)
        program = extern_plan(fn, arrays, [np.ascontiguousarray(want)], [float32] * 3, **more, **params)
        built = build(program, Config(), Tune(way="own"))
        assert any(name.startswith("placed") for name in built.kernels)
        np.testing.assert_allclose(built(arrays, ())[0], want, rtol=1e-3, atol=1e-3)


@needs_blas
@pytest.mark.parametrize("way", ["own", "library"])
@pytest.mark.parametrize(("outs", "groups"), [(16, 1), (4, 4), (20, 2)])
def test_gradient_of_a_weight_that_is_a_part_of_another(outs, groups, way):
    params = {"stride": (1, 2), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    x, g = (RNG.normal(size=s).astype(np.float32) for s in ((2, 4, 9, 8), (2, outs, 9, 4)))
    want = TABLE["conv_weight"].kernel(np, x, g, kernel=(3, 3), **params)
    out = np.empty((outs, 8 // groups, 3, 3), np.float32)[:, : 4 // groups]
    program = extern_plan("conv_weight", [x, g], [out], [float32] * 3, kernel=(3, 3), **params)
    (got,) = build(program, Config(), Tune(way=way))([x, g], ())
    assert got.strides == out.strides
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@needs_blas
@pytest.mark.parametrize("way", ["own", "library"])
def test_convolution_of_a_part_of_an_image(way):
    x = RNG.normal(size=(3, 6, 11, 14)).astype(np.float32)[1:, ::2, 2:9, 3:12]
    w = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
    params = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    want = TABLE["conv"].kernel(np, x, w, **params)
    built = build(extern_plan("conv", [x, w], [np.ascontiguousarray(want)], [float32] * 3, **params), Config(), Tune(way=way))
    np.testing.assert_allclose(built([x, w], ())[0], want, rtol=1e-4, atol=1e-4)


@needs_blas
def test_convolution_of_an_image_that_is_not_contiguous():
    x = RNG.normal(size=(2, 8, 9, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    w = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
    params = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    want = TABLE["conv"].kernel(np, x, w, **params)
    program = extern_plan("conv", [x, w], [np.ascontiguousarray(want)], [float32] * 3, **params)
    assert is_template(program)
    np.testing.assert_allclose(run(program, [x, w])[0], want, rtol=1e-4, atol=1e-4)
