"""Convolutions as matrix products that gather one operand while they run: implicit GEMM, no buffer of windows.

Stage: codegen.  In: a call of ``conv``, ``conv_input`` or ``conv_weight``.  Out: a ``gemm.Problem``.  All three are the
tile loop of ``gemm.cuh``; what differs is which numbers count rows, columns and depth:

    conv         rows: output channels    columns: images, output pixels    depth: input channels, taps
    conv_input   rows: input channels     columns: images, input pixels     depth: output channels, taps  (by remainders)
    conv_weight  rows: output channels    columns: input channels, taps     depth: images, output pixels

A tap is a place (r, s) of the window; groups are batches.  One-dimensional windows count as two-dimensional ones of
height one.  Read next: ``convolution.cuh``, ``convolution_input.cuh`` (the gathering operands), ``gemm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from codegen_cupy import gemm, gemm_schedules
from codegen_cupy.following import Coordinate, Following, stored
from codegen_cupy.gemm import Matrix, Problem
from codegen_cupy.host import Call, Step, View
from codegen_cupy.matmul import allow_tf32
from tinytorch.dtypes import DType, bfloat16, float16, float32


@dataclass(frozen=True)
class Gathering:
    """An operand that a struct of ``convolution.cuh`` finds; ``step``: elements from group to group."""

    buffer: str
    struct: str
    offset: int
    step: int
    deep: bool
    constants: str
    copied: bool = False  # in chunks of 16 bytes

    @property
    def buffers(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def effort(self) -> int:
        return 2 if self.copied else 24

    def types(self, side: str) -> str:
        return self.constants

    def made(self, side: str, names: tuple[str, ...]) -> str:
        at = " + ".join([names[0], *([str(self.offset)] if self.offset else []), f"z0 * {self.step}ll"])
        corner = "tile.row" if side == "A" else "tile.column"
        line, place = (corner, "first") if self.deep else ("first", corner)
        shape = f"{side}_LINES, {side}_LENGTH, {side}_DEEP"
        return f"{'Chunked' if self.copied else 'Gathered'}<{shape}, {self.struct}> from_{side}({self.struct}{{{at}}}, {line}, {place});"


@dataclass(frozen=True)
class Case:
    """One convolution with two spatial dimensions: ``y = conv(x, w)``, whichever of the three is sought."""

    x: View
    w: View
    y: View
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: DType
    aligned: bool = True

    @property
    def ins(self) -> int:
        return self.w.shape[1]

    @property
    def outs(self) -> int:
        return self.w.shape[0] // self.groups

    @property
    def taps(self) -> int:
        return self.w.shape[2] * self.w.shape[3]

    @property
    def constants(self) -> str:
        (images, _, height, width), (_, _, high, wide), (_, _, tall, broad) = self.x.shape, self.y.shape, self.w.shape
        pairs = [("STRIDE", self.stride), ("PAD", self.padding), ("DILATE", self.dilation)]
        steps = [(f"{n}_{what}", s) for n, v in (("X", self.x), ("Y", self.y)) for what, s in zip(("IMAGE", "CHANNEL", "ROW", "COLUMN"), v.stride, strict=True)]
        number = lambda named: ", ".join(f"{n} = {v}" for n, v in named)  # noqa: E731
        return "\n".join([
            f"constexpr int IMAGES = {images}, HEIGHT = {height}, WIDTH = {width}, HIGH = {high}, WIDE = {wide}, TALL = {tall}, BROAD = {broad};",
            f"constexpr int {number([(f'{n}_{d}', v) for n, pair in pairs for d, v in zip('YX', pair, strict=True)])};",
            f"constexpr long long {number(steps[:1] + steps[4:5])};",
            f"constexpr int {number(steps[1:4] + steps[5:])};",
            gemm._file("convolution.cuh"),
        ])  # fmt: skip

    # --- the three ---
    def forward(self, then: Following | None) -> Problem:
        depth = self.ins * self.taps
        weight = self._weight(self.w.buffer, depth)
        x = self._windows(False, self.constants)
        return self._pictures("conv", self.outs, depth, weight, x, self.y, then)

    def input(self, then: Following | None) -> Problem:
        """Windows that lie ``stride`` apart cover an input pixel or not: pixels of one remainder share their taps, and are a
        problem of their own, of stride one."""
        first, *others = (p for p, *_ in self.pieces(then))
        return replace(first, others=tuple(others))

    def pieces(self, then: Following | None) -> list[tuple[Problem, Remainder, Remainder]]:
        """The problem of each remainder along y and x, the longest first."""
        made = [(self._class(then, y, x), y, x) for y in self._classes(0) for x in self._classes(1)]
        return sorted(made, key=lambda m: -m[0].depth * m[0].columns)

    def _classes(self, d: int) -> list[Remainder]:
        return remainders(self.x.shape[2 + d], self.w.shape[2 + d], self.stride[d], self.padding[d], self.dilation[d])

    def _class(self, then: Following | None, y: Remainder, x: Remainder) -> Problem:
        (images, _, height, width), taps = self.x.shape, y.taps * x.taps
        struct = f"Turned<{self.ins}, {self.outs}>"
        constants = "\n".join([self.constants, y.constants("Y"), x.constants("X"), gemm._file("convolution_input.cuh")])
        weight = Gathering(self.w.buffer, struct, self.w.offset, self.outs * self.ins * self.taps, True, "")
        cover = Gathering(
            self.y.buffer, f"Covers<{self.outs}>", self.y.offset, self.outs * self.y.stride[1], False, constants, self.pointwise and self._even(self.y),
        )  # fmt: skip
        p = self._pictures("conv_input", self.ins, self.outs * taps, self._across() or weight, cover, self.x, then)
        if self.stride == (1, 1):
            return p
        pixels = y.count * x.count
        coordinates = (
            *p.coordinates[:3], Coordinate(f"(pixel / {x.count} * {y.step} + {y.first})", height, width),
            Coordinate(f"(pixel % {x.count} * {x.step} + {x.first})", width, 1),
        )  # fmt: skip
        numbers = f"const int image = column / {pixels}, pixel = column % {pixels};"
        return replace(p, columns=images * pixels, coordinates=coordinates, numbers=numbers, run=1, piece=True)

    def weight(self, then: Following | None) -> Problem:
        images, _, high, wide = self.y.shape
        columns = self.ins * self.taps
        y = Gathering(
            self.y.buffer, f"Pixels<{self.outs}>", self.y.offset, self.outs * self.y.stride[1], True, self.constants, self._even(self.y)
        )
        x = self._windows(True, "")
        coordinates = (Coordinate("z0", self.groups, self.outs * columns), Coordinate("row", self.outs, columns), Coordinate("column", columns, 1))
        return Problem(
            self.dtype, self.outs, columns, images * high * wide, y, x, then or self._stored(self.w), coordinates, columns, (self.groups,),
            self._tf32, "conv_weight", aligned=self.aligned,
        )  # fmt: skip

    def _pictures(self, name: str, rows: int, depth: int, a: Any, b: Any, out: View, then: Following | None) -> Problem:
        """The result has images of channels of pixels."""
        images, channels, high, wide = out.shape
        pixels = high * wide
        coordinates = (
            Coordinate("image", images, channels * pixels), Coordinate("z0", self.groups, rows * pixels),
            Coordinate("row", rows, pixels), Coordinate("pixel", pixels, 1),
        )  # fmt: skip
        numbers = f"const int image = column / {pixels}, pixel = column % {pixels};"
        return Problem(
            self.dtype, rows, images * pixels, depth, a, b, then or self._stored(out), coordinates, pixels, (self.groups,), self._tf32, name,
            numbers=numbers, aligned=self.aligned,
        )  # fmt: skip

    # --- operands ---
    @property
    def pointwise(self) -> bool:
        """Is a window one pixel, and each pixel in one window?"""
        return self.taps == 1 and self.stride == (1, 1) and self.padding == (0, 0)

    def _even(self, v: View) -> bool:
        """Do 16 bytes of pixels lie side by side, in one image, from an even place on?"""
        (images, channels, high, wide), per = v.shape, 16 // self.dtype.itemsize
        starts = (v.offset, v.stride[0] if images > 1 else 0, v.stride[1] if channels > 1 else 0)
        return self.aligned and flat(v) and not high * wide % per and not any(s % per for s in starts)

    def _windows(self, deep: bool, constants: str) -> Gathering:
        step, whole = self.ins * self.x.stride[1], self.pointwise and self._even(self.x)
        return Gathering(self.x.buffer, f"Windows<{self.ins}>", self.x.offset, step, deep, constants, whole)

    def _across(self) -> Matrix | None:
        """Weights of one tap, read across."""
        per = 16 // self.dtype.itemsize
        if self.taps > 1 or self.stride != (1, 1):
            return None
        even = self.aligned and not self.ins % per and not self.w.offset % per
        return Matrix(self.w.buffer, self.ins, self.outs, 1, self.ins, self.w.offset, (self.outs * self.ins,), copied=even)

    def _weight(self, buffer: str, depth: int) -> Matrix:
        whole = self.aligned and not depth % (16 // self.dtype.itemsize) and not self.w.offset % (16 // self.dtype.itemsize)
        return Matrix(buffer, self.outs, depth, depth, 1, self.w.offset, (self.outs * depth,), copied=whole)

    @property
    def _tf32(self) -> bool:
        return self.dtype is float32 and allow_tf32()

    def _stored(self, v: View) -> Following:
        return stored(v.buffer, self.dtype, v.shape, v.stride, v.offset)


@dataclass(frozen=True)
class Remainder:
    """Along one dimension, the input pixels ``first + step * i`` for i in ``range(count)``.  Of a window's elements only
    ``first_tap + jump * t`` for t in ``range(taps)`` ever lie on them, in the windows at ``i + begin - back * t``."""

    first: int
    step: int
    count: int
    first_tap: int
    jump: int
    taps: int
    begin: int
    back: int

    def constants(self, d: str) -> str:
        named = (("COUNT", self.count), ("FIRST_TAP", self.first_tap), ("JUMP", self.jump), ("LIVE", self.taps), ("BEGIN", self.begin), ("BACK", self.back))
        return f"constexpr int {', '.join(f'{n}_{d} = {v}' for n, v in named)};"


def remainders(size: int, window: int, stride: int, pad: int, dilate: int) -> list[Remainder]:
    """All pixels of a dimension, by what is left of their place when windows' starts are taken away."""
    common = gcd(stride, dilate)
    out = []
    for first in range(min(stride, size)):
        taps = [t for t in range(window) if (first + pad - t * dilate) % stride == 0]
        tap = taps[0] if taps else 0
        begin = (first + pad - tap * dilate) // stride
        out.append(Remainder(first, stride, -(-(size - first) // stride), tap, stride // common, len(taps), begin, dilate // common))
    return out


def case(call: Call, dtype: DType, *, aligned: bool) -> Case | None:
    """The convolution of a call; None for what is left to the row: three dimensions, other types, weights with gaps."""
    first, second = call.args[:2]
    (out,) = call.outs
    assert isinstance(first, View) and isinstance(second, View)
    x, w, y = {"conv": (first, second, out), "conv_input": (out, second, first), "conv_weight": (first, out, second)}[call.fn]
    if dtype not in (float32, float16, bfloat16) or len(x.shape) not in (3, 4) or 0 in (*x.shape, *w.shape, *y.shape):
        return None
    x, w, y = four(x), four(w), four(y)
    dense = (w.shape[1] * w.shape[2] * w.shape[3], w.shape[2] * w.shape[3], w.shape[3], 1)
    small = all(sum((n - 1) * s for n, s in zip(v.shape[1:], v.stride[1:], strict=True)) < 2**31 for v in (x, y))
    if any(n != 1 and s != d for n, s, d in zip(w.shape, w.stride, dense, strict=True)) or not small:
        return None
    if y.shape[0] * max(y.shape[2] * y.shape[3], x.shape[2] * x.shape[3]) >= 2**31:
        return None
    p = call.params
    pair = lambda v, d: (d,) * (2 - len(v)) + tuple(v)  # noqa: E731
    return Case(x, w, y, pair(p["stride"], 1), pair(p["padding"], 0), pair(p["dilation"], 1), p["groups"], dtype, aligned)


def four(v: View) -> View:
    """With a height of one, if it has none."""
    if len(v.shape) == 4:
        return v
    return View(v.buffer, (*v.shape[:2], 1, v.shape[2]), (*v.stride[:2], v.shape[2] * v.stride[2], v.stride[2]), v.offset)


def problem(call: Call, dtype: DType, then: Following | None = None, *, aligned: bool = True) -> Problem | None:
    c = case(call, dtype, aligned=aligned)
    if c is None:
        return None
    return {"conv": c.forward, "conv_input": c.input, "conv_weight": c.weight}[call.fn](then)


def as_matmul(call: Call, dtype: DType) -> Call | None:
    """Windows of one pixel make a convolution, and its input's gradient, a matrix product for each image."""
    c = case(call, dtype, aligned=False)
    if c is None or call.fn == "conv_weight" or not c.pointwise or c.groups > 1 or not (flat(c.x) and flat(c.y)):
        return None
    images, outs, ins = c.x.shape[0], c.outs, c.ins
    picture = lambda v: View(v.buffer, (*v.shape[:2], v.shape[2] * v.shape[3]), (*v.stride[:2], 1), v.offset)  # noqa: E731
    shape, stride, given, out = ((outs, ins), (ins, 1), c.x, c.y) if call.fn == "conv" else ((ins, outs), (1, ins), c.y, c.x)
    return Call("matmul", (View(c.w.buffer, (images, *shape), (0, *stride), c.w.offset), picture(given)), (picture(out),), {})


def flat(v: View) -> bool:
    """Do an image's pixels follow each other?"""
    return v.stride[3] == 1 and (v.shape[2] == 1 or v.stride[2] == v.shape[3])


def convolution_call(call: Call, types: Mapping[str, DType], aligned: bool) -> list[Step]:
    view = call.args[0]
    assert isinstance(view, View)
    p = problem(call, types[view.buffer], aligned=aligned)
    return gemm.launches(p, gemm_schedules.default_tiles(p)) if p else []


EXTERN_KERNELS = {name: convolution_call for name in ("conv", "conv_input", "conv_weight")}
