"""Convolutions without columns: tiles of channels x pixels in registers, whose summed rows are windows of a padded image.

Stage: codegen_numba.  In: an ``Extern`` step that names ``conv`` or ``conv_input``, of stride one.  Out: a ``Template``.
A block of rows of an image is copied between zeros, and then every place of the window is the same rows some elements
on: ``gathered`` multiplies weights by these rows, as a product does by rows of a matrix.  What lies over the end of a row
is computed too, and left out when results are copied to where they belong.  ``convolution`` writes each element as
often as windows meet it, for BLAS.  The gradient of the input is the convolution with the window turned round.
Right where channels are few: ``placed``, which has channels in vectors, computes nothing over the end, but must turn over
what it summed.  Read next: ``placed``, ``convolution``, ``product``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codegen_numba import convolution
from codegen_numba.analysis import ceil_div, hint, product
from codegen_numba.compile import Source
from codegen_numba.convolution import Case
from codegen_numba.matmul import Template
from codegen_numba.product import lanes, rows
from compiler.loop.ir import ArrayView, Buffer, Extern, Int

#: Elements that a block of rows and its results may have, and terms summed before they are added to the rest.
BLOCK, TERMS = 49_152, 256
#: Channels of results (of a group) from which tiles are full enough; up to so many, and up to so many terms of the sum, tiles
#: of pixels by channels lose less than BLAS does, or than what has to be turned over.
FEWEST, FEW, SHALLOW = 6, 8, 64

SIZES = (
    "groups", "deep", "many", "height", "width", "high", "wide", "tall", "broad", "block", "room", "p_0", "p_1", "d_0", "d_1",
    "w_row", "w_deep", "w_group", *(f"{v}_{d}" for v in ("x", "out") for d in range(3)),
)  # fmt: skip

TEXT = """\
def direct(x, w, out, table, work, {sizes}, start, stop, part):
    # units are blocks of output rows of one group of channels of one image
    depth = deep * tall * broad
    across = wide + (broad - 1) * d_1
    rows = block + (tall - 1) * d_0
    tiles = quotient(many + {tile} - 1, {tile}) * {tile}
    table_at = part * quotient(room, 2)
    weights = part * room + 2 * depth
    padded = weights + tiles * depth
    made = padded + deep * rows * across + (broad - 1) * d_1 + {lanes}
    line = quotient(block * across + {lanes} - 1, {lanes}) * {lanes}
    for c in range(deep):
        for a in range(tall):
            for b in range(broad):
                table[table_at + (c * tall + a) * broad + b] = (c * rows + {a} * d_0) * across + {b} * d_1
    ready = -1
    blocks = quotient(high + block - 1, block)
    for unit in range(start, stop):
        first = remainder(unit, blocks) * block
        group = remainder(quotient(unit, blocks), groups)
        image = quotient(quotient(unit, blocks), groups)
        count = least(block, high - first)
        if group != ready:
            ready = group
            for o in range(tiles):
                at = weights + quotient(o, {tile}) * {tile} * depth + remainder(o, {tile})
                for c in range(deep):
                    for k in range(tall * broad):
                        value = float32(0.0)
                        if o < many:
                            value = w[group * w_group + o * w_row + c * w_deep + k]
                        work[at + (c * tall * broad + k) * {tile}] = value
        low, end = least(p_1, across), greatest(least(width + p_1, across), least(p_1, across))
        for c in range(deep):
            for i in range(count + (tall - 1) * d_0):
                y = first + i - p_0
                at = padded + (c * rows + i) * across
                place = image * x_0 + (group * deep + c) * x_1 + y * x_2 - p_1
                if y < 0 or y >= height:
                    between_zeros(work, at, across, x, place, across, across)
                else:
                    between_zeros(work, at, across, x, place, low, end)
        length = quotient(count * across + {lanes} - 1, {lanes}) * {lanes}
        for at in range(0, depth, {terms}):
            gathered(work, made, line, work, weights + at * {tile}, depth, work, padded, table, table_at + at, tiles, length,
                least({terms}, depth - at), at)
        for o in range(many):
            for i in range(count):
                at = made + o * line + i * across
                place = image * out_0 + (group * many + o) * out_1 + (first + i) * out_2
                for j in range(wide):
                    out[place + j] = work[at + j]
"""


def forward(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """None: ``placed`` does better, or, unless it is to be ``always``, columns and BLAS are as fast."""
    (x, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, x, w, out)
    if case is None or not _suits(case, case.x, case.y, case.channels, always):
        return None
    one = case.w.stride[0]
    steps = (one, product(case.w.shape[2:]), product((case.channels, one)))
    made = _template(case, case.x, case.y, case.padding, case.channels, steps, ("a", "b"), (x, w, out))
    return [replace(made, piece=product(case.y.shape[1:]))]


def backward_input(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """The same with cotangents for the image, and the window from its other end."""
    (g, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, out, w, g)
    if case is None or not _suits(case, case.y, case.x, case.w.shape[1], always):
        return None
    windows = zip(case.dilation, map(hint, case.w.shape[2:]), case.padding, strict=True)
    padding = tuple(d * (n - 1) - p for d, n, p in windows)
    if min(padding) < 0:
        return None
    one = case.w.stride[0]
    steps = (product(case.w.shape[2:]), one, product((case.channels, one)))
    turned = ("(tall - 1 - a)", "(broad - 1 - b)")
    return [_template(case, case.y, case.x, padding, case.w.shape[1], steps, turned, (g, w, out))]


def _suits(case: Case, source: ArrayView, result: ArrayView, channels: Int, always: bool) -> bool:
    """Can it be done this way, and should it?  Compared are how many of the numbers in registers are results: what lies
    over the end of a row is not, nor are channels that are not there."""
    if not case.fixed() or source.stride[3] != 1 or result.stride[3] != 1 or not convolution.dense(case.w):
        return False
    many, wide, (tall, broad) = hint(channels), hint(result.shape[3]), map(hint, case.w.shape[2:])
    depth = hint(source.shape[1]) // case.groups * tall * broad
    full = many / _up(many, rows()) * wide / (wide + (broad - 1) * case.dilation[1])
    if set(case.stride) != {1} or depth >= SHALLOW and full <= many / _up(many, lanes()):
        return False
    few = depth < SHALLOW and many > FEW and full < 0.9 or tall * broad == 1 and many < 2 * lanes()
    return always or lanes() >= 16 and many >= FEWEST and not few


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _template(
    case: Case, x: ArrayView, out: ArrayView, padding: Any, many: Any, steps: Any, order: tuple[str, str], views: Any
) -> Template:
    """``steps``: of the weight, from one channel of results to the next, from one that is summed, and of a group."""
    (deep, height, width), (high, wide) = x.shape[1:], out.shape[2:]
    deep, (tall, broad) = deep // case.groups, case.w.shape[2:]
    d_0, d_1 = case.dilation
    across = wide + (broad - 1) * d_1
    block = max(1, min(high, BLOCK // ((deep + many) * across)))
    short = lanes()
    tiles = -(-many // rows()) * rows()
    room = (2 + tiles) * deep * tall * broad + deep * (block + (tall - 1) * d_0) * across + (broad - 1) * d_1 + short
    room += tiles * -(-block * across // short) * short
    room += room % 2
    sizes = (
        case.groups, deep, many, height, width, high, wide, tall, broad, block, room, *padding, d_0, d_1, *steps,
        *x.stride[:3], *out.stride[:3],
    )  # fmt: skip
    text = TEXT.format(sizes=", ".join(SIZES), a=order[0], b=order[1], lanes=short, tile=rows(), terms=TERMS)
    params = (("x", "float32"), ("w", "float32"), ("out", "float32"), ("table", "int64"), ("work", "float32"))
    source = Source("direct", text, (*params, *((n, "size") for n in SIZES)))
    units = product((x.shape[0], case.groups, ceil_div(high, block)))
    work = product((out.shape[0], case.groups, many, deep, tall, broad, high, wide))
    return Template(source, (*views, "scratch", "scratch", *sizes), units, work, 1, 4 * room)
