"""Convolutions as phases: windows become columns in cache, a block of output rows at a time, and BLAS multiplies.

Stage: codegen_numba.  In: an ``Extern`` step that names ``conv``, ``conv_input`` or ``conv_weight``.  Out: ``Template``s.
One source serves all shapes, for sizes are arguments.  One-dimensional windows count as two-dimensional ones of height
one.  None for what is not covered (three dimensions, half precision, unusual layouts): the row's eager kernel runs.
Read next: ``blas``, ``matmul``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codegen_numba import blas
from codegen_numba.analysis import ceil_div, hint, known, product
from codegen_numba.compile import Source
from codegen_numba.matmul import Template
from compiler.loop.ir import ArrayView, Buffer, Extern, Int

#: Elements of a block of columns: a quarter of a megabyte of float32.
BLOCK = 65_536

SIZES = (
    "gemm", "groups", "ins", "outs", "height", "width", "high", "wide", "tall", "broad", "block", "s_0", "s_1", "p_0",
    "p_1", "d_0", "d_1",
)  # fmt: skip

#: Which columns of a row the window's place (a, b) meets, and the loops around.
WINDOWS = """\
for c in range(ins):
    for a in range(tall):
        for b in range(broad):
            low = least(greatest(quotient(greatest(p_1 - b * d_1, 0) + s_1 - 1, s_1), 0), wide)
            high_1 = greatest(least(quotient(greatest(width - 1 + p_1 - b * d_1 + s_1, 0), s_1), wide), low)
            for i in range(count):
                y = (first + i) * s_0 - p_0 + a * d_0
                at = here + ((c * tall + a) * broad + b) * length + i * wide
                place = image * {x}_0 + (group * ins + c) * {x}_1 + y * {x}_2 + (b * d_1 - p_1){step}
"""
FILL = """\
                if y < 0 or y >= height:
                    for j in range(wide):
                        work[at + j] = {t}(0.0)
                else:
                    for j in range(low):
                        work[at + j] = {t}(0.0)
                    for j in range(low, high_1):
                        work[at + j] = x[place + j{stride}]
                    for j in range(high_1, wide):
                        work[at + j] = {t}(0.0)
"""
ADD = """\
                if y >= 0 and y < height:
                    for j in range(low, high_1):
                        out[place + j{stride}] = out[place + j{stride}] + work[at + j]
"""

FORWARD = """\
def conv(x, w, out, work, {sizes}, start, stop, part):
    # units are blocks of output rows of one group of channels of one image
    depth = ins * tall * broad
    here = part * depth * block * wide
    blocks = quotient(high + block - 1, block)
    for unit in range(start, stop):
        first = remainder(unit, blocks) * block
        group = remainder(quotient(unit, blocks), groups)
        image = quotient(quotient(unit, blocks), groups)
        count = least(block, high - first)
        length = count * wide
{windows}\
        gemm_{t}(gemm, 111, 111, outs, length, depth, {t}(1.0), w, group * outs * w_0, w_0,
            work, here, length, {t}(0.0), out, image * out_0 + group * outs * out_1 + first * out_2, out_1)
"""

INPUT = """\
def conv_input(g, w, out, work, {sizes}, start, stop, part):
    # units are groups of channels of one image: columns of cotangents, each added where its window was
    depth = ins * tall * broad
    here = part * depth * block * wide
    for unit in range(start, stop):
        group = remainder(unit, groups)
        image = quotient(unit, groups)
        for c in range(ins):
            for y in range(height):
                place = image * out_0 + (group * ins + c) * out_1 + y * out_2
                for j in range(width):
                    out[place + j * out_3] = {t}(0.0)
        for first in range(0, high, block):
            count = least(block, high - first)
            length = count * wide
            gemm_{t}(gemm, 112, 111, depth, length, outs, {t}(1.0), w, group * outs * w_0, w_0,
                g, image * g_0 + group * outs * g_1 + first * g_2, g_1, {t}(0.0), work, here, length)
{windows}\
"""

WEIGHT = """\
def conv_weight(x, g, work, {sizes}, start, stop, part):
    # units are images; each part sums into a weight of its own, which lies behind its columns
    depth = ins * tall * broad
    here = part * depth * (block * wide + groups * outs)
    total = here + depth * block * wide
    for t in range(depth * groups * outs):
        work[total + t] = {t}(0.0)
    for image in range(start, stop):
        for group in range(groups):
            for first in range(0, high, block):
                count = least(block, high - first)
                length = count * wide
{windows}\
                gemm_{t}(gemm, 111, 112, outs, depth, length, {t}(1.0),
                    g, image * g_0 + group * outs * g_1 + first * g_2, g_1, work, here, length, {t}(1.0),
                    work, total + group * outs * depth, depth)
"""

JOIN = """\
def conv_weight_join(out, work, depth, w_row, columns, channels, parts, start, stop, part):
    # rows of the parts' weights, which lie one after the other
    each = depth * (columns + channels)
    for o in range(start, stop):
        for t in range(depth):
            out[o * w_row + t] = work[depth * (columns + o) + t]
        for p in range(1, parts):
            for t in range(depth):
                out[o * w_row + t] = out[o * w_row + t] + work[p * each + depth * (columns + o) + t]
"""


def forward(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    x, w = step.args
    (out,) = step.outs
    case = case_of(step, buffers, x, w, out)
    if case is None or not dense_rows(case.y) or not dense(case.w):
        return None
    block = case.block(case.channels)
    units = product((case.x.shape[0], case.groups, ceil_div(case.y.shape[2], block)))
    text = FORWARD.format(sizes=case.names("x", "w", "out"), t=case.t, windows=_indent(case.windows("x", FILL), 8))
    slots = (x, w, out, "scratch", *case.sizes(block, ("x", case.x), ("w", case.w), ("out", case.y)))
    made = case.template("conv", text, "xw", "out", slots, units, case.depth * block * case.y.shape[3], "x", "w", "out")
    return [replace(made, piece=product(case.y.shape[1:]))]


def backward_input(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    g, w = step.args
    (out,) = step.outs
    case = case_of(step, buffers, out, w, g)
    if case is None or not dense_rows(case.y) or not dense(case.w):
        return None
    block = case.block(case.channels)
    text = INPUT.format(sizes=case.names("g", "w", "out"), t=case.t, windows=_indent(case.windows("out", ADD), 12))
    slots = (g, w, out, "scratch", *case.sizes(block, ("g", case.y), ("w", case.w), ("out", case.x)))
    units = product((case.x.shape[0], case.groups))
    return [
        case.template(
            "conv_input", text, "gw", "out", slots, units, case.depth * block * case.y.shape[3], "g", "w", "out"
        )
    ]


def backward_weight(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    x, g = step.args
    (out,) = step.outs
    case = case_of(step, buffers, x, out, g)
    if case is None or not dense_rows(case.y) or not dense(case.w):
        return None
    block = case.block(case.channels)
    text = WEIGHT.format(sizes=case.names("x", "g"), t=case.t, windows=_indent(case.windows("x", FILL), 16))
    slots = (x, g, "scratch", *case.sizes(block, ("x", case.x), ("g", case.y)))
    columns = block * case.y.shape[3]
    room = case.depth * (columns + case.groups * case.channels)
    first = case.template("conv_weight", text, "xg", "", slots, case.x.shape[0], room, "x", "g")
    params = (("out", case.t), ("work", case.t), *((n, "size") for n in ("depth", "w_row", "columns", "channels", "parts")))
    join = Source("conv_weight_join", JOIN, params)
    total = case.groups * case.channels
    slots = (out, "scratch", case.depth, case.w.stride[0], columns, total, "parts")
    return [first, Template(join, slots, total, 0, 1, room * case.dtype.itemsize)]


class Case:
    """One convolution: its views as four-dimensional, its sizes."""

    def __init__(
        self, x: ArrayView, w: ArrayView, y: ArrayView, params: Mapping[str, Any], dtype: Any, gemm: int
    ) -> None:
        self.x, self.w, self.y = _four(x), _four(w), _four(y)
        ones = (1,) * (4 - len(x.shape))
        zeros = (0,) * (4 - len(x.shape))
        self.stride, self.dilation = ones + tuple(params["stride"]), ones + tuple(params["dilation"])
        self.padding = zeros + tuple(params["padding"])
        self.groups, self.dtype, self.t, self.gemm = params["groups"], dtype, dtype.name, gemm
        self.channels = _exact(self.w.shape[0], self.groups)
        self.depth = product(self.w.shape[1:])

    def fixed(self) -> bool:
        """Is it of float32, and are all of its sizes known?"""
        return self.t == "float32" and None not in [
            known(n) for v in (self.x, self.w, self.y) for n in (*v.shape, *v.stride)
        ]

    def block(self, channels: Int) -> int:
        row = max(1, hint(self.depth) * hint(self.y.shape[3]))
        rows = max(1, BLOCK // row)
        return min(rows, hint(self.y.shape[2])) if known(self.y.shape[2]) is not None else rows

    def sizes(self, block: int, *views: tuple[str, ArrayView]) -> list[Any]:
        (height, width), (high, wide), (tall, broad) = self.x.shape[2:], self.y.shape[2:], self.w.shape[2:]
        plain = [
            ("blas", self.gemm), self.groups, self.w.shape[1], self.channels, height, width, high, wide, tall, broad, block,
            *self.stride, *self.padding, *self.dilation,
        ]  # fmt: skip
        return [*plain, *(s for _, v in views for s in v.stride)]

    def names(self, *views: str) -> str:
        return ", ".join((*SIZES, *(f"{v}_{d}" for v in views for d in range(4))))

    def windows(self, x: str, inner: str) -> str:
        step = "" if self.x.stride[3] == 1 else f" * {x}_3"
        stride = step if self.stride[1] == 1 else f" * s_1{step}"
        return (WINDOWS + inner).format(x=x, t=self.t, step=step, stride=stride)

    def template(
        self, name: str, text: str, read: str, written: str, slots: Any, units: Int, room: Int, *views: str
    ) -> Template:
        params = [(n, self.t) for n in (*read, *([written] if written else []), "work")]
        params += [(n, "size") for n in self.names(*views).split(", ")]
        work = product((self.x.shape[0], self.w.shape[0], self.depth, *self.y.shape[2:]))
        return Template(Source(name, text, tuple(params)), tuple(slots), units, work, 1, room * self.dtype.itemsize)


def case_of(step: Extern, buffers: Mapping[str, Buffer], x: Any, w: Any, y: Any) -> Case | None:
    """The convolution of a step; None if it is not covered."""
    library = blas.find()
    if library is None or not all(isinstance(v, ArrayView) and len(v.shape) in (3, 4) for v in (x, w, y)):
        return None
    dtypes = {buffers[v.buffer].dtype for v in (x, w, y)}
    if len(dtypes) != 1 or next(iter(dtypes)).name not in ("float32", "float64"):
        return None
    if any(known(n) == 0 for v in (x, w, y) for n in v.shape):
        return None
    dtype = next(iter(dtypes))
    return Case(x, w, y, step.params, dtype, library.gemm(dtype))


def _four(v: ArrayView) -> ArrayView:
    """With a height of one, if it has none; one step of a dimension of one element goes over all that lies inside of it."""
    shape, strides = list(v.shape), list(v.stride)
    if len(shape) == 3:
        shape.insert(2, 1)
        strides.insert(2, 0)
    for d in reversed(range(4)):
        if known(shape[d]) == 1:
            strides[d] = product((shape[d + 1], strides[d + 1])) if d < 3 else 1
    return ArrayView(v.buffer, tuple(shape), tuple(strides), v.offset)


def dense_rows(v: ArrayView) -> bool:
    """Are the pixels of a channel one run of memory, and those of one behind those of another?"""
    return v.stride[3] == 1 and v.stride[2] == v.shape[3] and _apart(v.stride[1], product(v.shape[2:]))


def dense(w: ArrayView) -> bool:
    """Are the weights one run of memory, group by group?"""
    rows = w.stride[3] == 1 and w.stride[2] == w.shape[3] and w.stride[1] == product(w.shape[2:])
    return rows and _apart(w.stride[0], product(w.shape[1:]))


def _apart(step: Int, length: Int) -> bool:
    """BLAS takes no rows that lie over each other, such as an expanded tensor has."""
    s, n = known(step), known(length)
    return s != 0 if s is None or n is None else s >= n


def _exact(a: Int, b: int) -> Int:
    out = a // b
    value = known(out)
    return out if value is None else value


def _indent(text: str, depth: int) -> str:
    return "".join(" " * depth + line + "\n" for line in text.splitlines())
