"""Convolutions that lay their image's channels last first: the rows' results on the emulated machine, and where that is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_cuda_gemm import PLAIN, TENSOR, TOLERANCE, TYPES, compare, convolution_case, needs_compiler, run

from codegen_cupy import channels_last, convolution, gemm, gemm_schedules
from codegen_cupy.gemm import Tiles
from codegen_cupy.host import Call, Memory, View
from tinytorch import dtypes

CHANNELS: list[tuple[str, tuple[int, int, int], tuple[int, ...], int, dict[str, Any], Tiles]] = [
    ("bfloat16", (2, 8, 16), (7, 9), 3, {"padding": 1}, Tiles(32, 64, 32, 1, 2, 3)),
    ("float16", (2, 16, 32), (10, 11), 3, {"padding": 2, "dilation": 2, "groups": 2}, TENSOR),
    ("bfloat16", (2, 24, 8), (9, 8), 3, {"stride": 2, "padding": 1}, Tiles(64, 64, 32, 2, 2, 2)),
    ("tf32", (2, 4, 8), (30,), 5, {"stride": 3, "padding": 2}, TENSOR),
    ("float32", (2, 8, 4), (8, 6), 2, {"stride": 2}, PLAIN),
    ("bfloat16", (2, 16, 24), (12, 5), 3, {"padding": 1}, Tiles(64, 128, 64, 4, 1, 3, grouped=True)),
    ("float16", (3, 8, 8), (5, 7), 1, {"stride": 2}, Tiles(64, 128, 64, 4, 1, 2, grouped=True)),
    ("bfloat16", (2, 16, 16), (5, 5), 1, {}, TENSOR),
    ("float16", (1, 8, 8), (11, 10), 3, {"stride": 4, "dilation": 2, "padding": 1}, TENSOR),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("fn", ["conv", "conv_input", "conv_weight"])
@pytest.mark.parametrize("number", range(len(CHANNELS)))
def test_convolutions_by_channels(number: int, fn: str) -> None:
    """The image laid with its channels last: windows at rims, groups, remainders, taps that nobody needs, odd counts of pixels."""
    kind, channels, size, window, params, tiles = CHANNELS[number]
    call, arrays, want = convolution_case(kind, channels, size, window, params, fn)
    p = channels_last.problem(call, dtypes.from_numpy(np.dtype(TYPES.get(kind, np.float32))))
    assert p is not None and p.b.copied and p.a.copied
    p = replace(p, tf32=kind == "tf32", others=tuple(replace(q, tf32=kind == "tf32") for q in p.others))
    if fn == "conv_weight" and number % 2:
        tiles = replace(tiles, parts=2)
    assert gemm.possible(p, tiles)
    run(gemm.launches(p, tiles), arrays, check=number % 2 == 0)
    compare(arrays["out"], want, TOLERANCE[kind])


@needs_compiler
@pytest.mark.parametrize("tiles", [Tiles(128, 128, 64, 8, 1, 4, parts=5, grouped=True), Tiles(64, 64, 32, 2, 2, 3, parts=11)])
@pytest.mark.parametrize("size", [(16, 16), (13, 14)])
def test_parts_behind_the_last_pixel_read_nothing(size: tuple[int, int], tiles: Tiles) -> None:
    """Strided, some parts without a step; pixels copied as they are, and laid out."""
    call, arrays, want = convolution_case("bfloat16", (3, 16, 16), size, 3, {"stride": 2, "padding": 1}, "conv_weight")
    p = channels_last.problem(call, dtypes.bfloat16)
    assert p is not None and gemm.possible(p, tiles) and -(-p.depth // tiles.k) <= tiles.parts - 2
    run(gemm.launches(p, tiles), arrays, check=True)
    compare(arrays["out"], want, TOLERANCE["bfloat16"])


def test_an_image_with_its_channels_last_is_read_as_it_lies() -> None:
    call, *_ = convolution_case("bfloat16", (2, 8, 8), (6, 6), 3, {"padding": 1}, "conv")
    x = View("a", (2, 8, 6, 6), (288, 1, 48, 8), 0)
    p = channels_last.problem(replace(call, args=(x, call.args[1])), dtypes.bfloat16)
    assert p is not None and p.b.buffers == ("a",) and [s.name for s in p.before if isinstance(s, Memory)] == ["out_b_by_taps"]


def test_layouts_pay_where_much_is_gathered() -> None:
    """Without measuring: for a network's large convolutions, not where two more launches take longer than the product."""
    def chosen(kind: str, channels: tuple[int, int, int], size: int, fn: str) -> bool:
        n, c, o = channels
        x, w, y = (View(name, s, (s[1] * s[2] * s[3], s[2] * s[3], s[3], 1), 0) for name, s in (("x", (n, c, size, size)), ("w", (o, c, 3, 3)), ("y", (n, o, size, size))))
        args, out = {"conv": ((x, w), y), "conv_input": ((y, w), x), "conv_weight": ((x, y), w)}[fn]
        call, dtype = Call(fn, args, (out,), {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}), dtypes.from_numpy(np.dtype(TYPES[kind]))
        p, q = convolution.problem(call, dtype), channels_last.problem(call, dtype)
        assert p is not None and q is not None and (q.rows, q.columns, q.depth) == (p.rows, p.columns, p.depth)
        return gemm_schedules.cheaper(p, q, grouped=True) is q

    for fn in ("conv", "conv_input", "conv_weight"):
        assert chosen("bfloat16", (32, 64, 64), 56, fn)
        assert not chosen("bfloat16", (2, 16, 16), 8, fn) and not chosen("float32", (32, 64, 64), 56, fn)


def test_wgmma_comes_first_where_fetches_decide() -> None:
    """As measured: 43 us where the same tiles took 49 by single warps, and 66 where they took 77."""
    x, w = View("x", (32, 64, 56, 56), (200704, 3136, 56, 1), 0), View("w", (64, 64, 3, 3), (576, 9, 3, 1), 0)
    params = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    for fn, args, out in (("conv", (x, w), "y"), ("conv_input", (x, w), "y"), ("conv_weight", (x, replace(x, buffer="g")), "w")):
        p = channels_last.problem(Call(fn, args, (replace(w if out == "w" else x, buffer=out),), params), dtypes.bfloat16)
        assert p is not None
        t = gemm_schedules.default_tiles(p, grouped=True)
        assert t.grouped and (t.m, t.n) == (64, 128) and not gemm_schedules.default_tiles(p).grouped


def test_what_is_not_read_by_channels() -> None:
    """Three channels; a window of 49 taps; pixels that can be copied as they are."""
    for channels, size, window in (((2, 3, 8), (8, 8), 3), ((2, 8, 8), (9, 9), 7), ((2, 8, 8), (8, 8), 1)):
        for fn in ("conv", "conv_weight"):
            call, *_ = convolution_case("bfloat16", channels, size, window, {}, fn)
            assert channels_last.problem(call, dtypes.bfloat16) is None
