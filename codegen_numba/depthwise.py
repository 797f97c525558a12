"""Convolutions of each channel by itself: a padded image, and every place of the window some elements on.

Stage: codegen_numba.  In: an ``Extern`` step that names ``conv`` or ``conv_input``, whose groups have one channel.  Out: a
``Template``.  Such a convolution moves more than it computes, and its products have a single row, of which BLAS makes
little.  A channel of an image is copied between zeros; then a loop over pixels, which LLVM makes vectors of, adds up all
places of the window, written out.  Rows follow each other without a break, as what lies over the end of one is left out
when results are copied.  The gradient of the input is the same with zeros also between cotangents, as many as the stride
asks for, and the window turned round.  Read next: ``placed``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from textwrap import indent
from typing import Any

from codegen_numba import convolution
from codegen_numba.analysis import hint
from codegen_numba.compile import Source
from codegen_numba.convolution import Case
from codegen_numba.matmul import Template
from codegen_numba.product import lanes
from compiler.loop.ir import ArrayView, Buffer, Extern

#: Places of a window that are written out, and channels of results that one channel may have.
PLACES, FEW = 49, 2

SIZES = (
    "channels", "many", "height", "width", "high", "wide", "room", "s_0", "u_0", "p_0", "p_1", "d_0", "d_1", "w_row",
    *(f"{v}_{d}" for v in ("x", "out") for d in range(3)),
)  # fmt: skip

TEXT = """\
def depthwise(x, w, out, work, {sizes}, start, stop, part):
    # units are channels of results of one image
    rows = (high - 1) * s_0 + {tall_1} * d_0 + 1
    across = (wide - 1) * {s} + {broad_1} * d_1 + 1
    padded = part * room
    made = padded + rows * across + across
    low, end = least(greatest(p_1, 0), across), greatest(least(width + p_1, across), least(greatest(p_1, 0), across))
    for t in range(padded, made):
        work[t] = float32(0.0)
    for unit in range(start, stop):
        channel = remainder(unit, channels)
        image = quotient(unit, channels)
        source = image * x_0 + quotient(channel, many) * x_1
{copy}\
{weights}\
        target = image * out_0 + channel * out_1
{body}"""
COPY = """\
        for i in range(rows):
            y = i - p_0
            if y < 0 or y >= height:
                between_zeros(work, padded + i * across, across, x, source, across, across)
            else:
                between_zeros(work, padded + i * across, across, x, source + y * x_2 - p_1, low, end)
"""
#: With zeros between, which were there from the beginning.
APART = """\
        first = quotient(greatest(0 - p_1, 0) + {u} - 1, {u})
        last = least(width, quotient(greatest(across - p_1, 0) + {u} - 1, {u}))
        for y in range(height):
            i = y * u_0 + p_0
            if i >= 0 and i < rows:
                at = padded + i * across + p_1
                for j in range(first, last):
                    work[at + j * {u}] = x[source + y * x_2 + j]
"""
#: Rows without a break.
FLAT = """\
        for t in range((high - 1) * across + wide):
            at = padded + t
            work[made + t] = {sum}
        for i in range(high):
            for j in range(wide):
                out[target + i * out_2 + j] = work[made + i * across + j]
"""
#: Of strides: also the columns between, as numbers that lie together are added faster than those that are wanted.
ROWS = """\
        for i in range(high):
            for t in range((wide - 1) * {s} + 1):
                at = padded + i * s_0 * across + t
                work[made + t] = {sum}
            for j in range(wide):
                out[target + i * out_2 + j] = work[made + j * {s}]
"""


#: The gradient of the weight: cotangents lie between zeros as their windows do, so that each place is one sum of products.
WEIGHT = """\
def depthwise_weight(x, g, out, work, images, many, height, width, high, wide, room, p_0, p_1, d_0, d_1, w_row, x_0, x_1, x_2,
        g_0, g_1, g_2, start, stop, part):
    # units are channels of results
    rows = (high - 1) * {s_0} + {tall_1} * d_0 + 1
    across = (wide - 1) * {s_1} + {broad_1} * d_1 + 1
    padded = part * room
    apart = padded + rows * across
    low, end = least(greatest(p_1, 0), across), greatest(least(width + p_1, across), least(greatest(p_1, 0), across))
    length = (high - 1) * {s_0} * across + (wide - 1) * {s_1} + 1
    for t in range(apart, apart + length):
        work[t] = float32(0.0)
    for channel in range(start, stop):
{zeros}\
        for image in range(images):
            source = image * x_0 + quotient(channel, many) * x_1
{copy}\
            for i in range(high):
                place = image * g_0 + channel * g_1 + i * g_2
                for j in range(wide):
                    work[apart + i * {s_0} * across + j * {s_1}] = g[place + j]
            for first in range(0, length, {terms}):
                last = least(first + {terms}, length)
{sums}{results}"""
#: Terms that are summed before they are added to the rest, and sums at a time.
TERMS, SUMS = 2048, 12


def forward(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """None: there are groups of several channels, or other layouts."""
    (x, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, x, w, out)
    if case is None or not _suits(case, case.x, case.y, always):
        return None
    return [_template(case, (x, w, out), case.x, case.y, case.stride, (1, 1), case.padding, False)]


def backward_input(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    (g, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, out, w, g)
    if case is None or case.channels != 1 or not _suits(case, case.y, case.x, always):
        return None
    windows = zip(case.dilation, map(hint, case.w.shape[2:]), case.padding, strict=True)
    padding = tuple(d * (n - 1) - p for d, n, p in windows)
    return [_template(case, (g, w, out), case.y, case.x, (1, 1), case.stride, padding, True)]


def _suits(case: Case, source: ArrayView, result: ArrayView, always: bool) -> bool:
    if not case.fixed() or source.stride[3] != 1 or result.stride[3] != 1 or not convolution.dense(case.w):
        return False
    tall, broad = map(hint, case.w.shape[2:])
    return case.w.shape[1] == 1 and tall * broad <= PLACES and hint(case.channels) <= FEW and (always or lanes() >= 16)


def _template(
    case: Case, views: tuple[Any, ...], source: ArrayView, target: ArrayView, stride: tuple[int, ...], apart: tuple[int, ...],
    padding: tuple[int, ...], turned: bool,
) -> Template:  # fmt: skip
    (height, width), (high, wide), (tall, broad) = (map(hint, v.shape[2:]) for v in (source, target, case.w))
    (d_0, d_1), many, images, channels = case.dilation, hint(case.channels), hint(target.shape[0]), hint(target.shape[1])
    rows, across = (high - 1) * stride[0] + (tall - 1) * d_0 + 1, (wide - 1) * stride[1] + (broad - 1) * d_1 + 1
    room = (rows + 1 + high if set(stride) == {1} else rows + 2) * across
    sizes = (
        channels, many, height, width, high, wide, room, stride[0], apart[0], *padding, d_0, d_1, case.w.stride[0],
        *source.stride[:3], *target.stride[:3],
    )  # fmt: skip
    places = [(a, b) for a in range(tall) for b in range(broad)]
    weights = "".join(
        f"        weight_{n} = w[channel * w_row + {len(places) - 1 - n if turned else n}]\n" for n in range(len(places))
    )
    total = " + ".join(f"weight_{n} * work[at + {a} * d_0 * across + {b} * d_1]" for n, (a, b) in enumerate(places))
    text = TEXT.format(
        sizes=", ".join(SIZES), tall_1=tall - 1, broad_1=broad - 1, s=stride[1], weights=weights,
        copy=COPY if set(apart) == {1} else APART.format(u=apart[1]),
        body=(FLAT if set(stride) == {1} else ROWS).format(sum=total, s=stride[1]),
    )  # fmt: skip
    params = (("x", "float32"), ("w", "float32"), ("out", "float32"), ("work", "float32"), *((n, "size") for n in SIZES))
    source_text = Source("depthwise", text, params, contract=True)
    work = images * channels * high * wide * len(places)
    return Template(source_text, (*views, "scratch", *sizes), images * channels, work, 1, 4 * room, piece=high * wide)


def backward_weight(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    (x, g), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, x, out, g)
    if case is None or not _suits(case, case.x, case.y, always):
        return None
    (high, wide), (tall, broad), (s_0, s_1) = map(hint, case.y.shape[2:]), map(hint, case.w.shape[2:]), case.stride
    (d_0, d_1), many, images, channels = case.dilation, hint(case.channels), hint(case.x.shape[0]), hint(case.y.shape[1])
    rows, across = (high - 1) * s_0 + (tall - 1) * d_0 + 1, (wide - 1) * s_1 + (broad - 1) * d_1 + 1
    room = (rows + (high - 1) * s_0 + 1) * across
    places = [(n, a, b) for n, (a, b) in enumerate(itertools.product(range(tall), range(broad)))]
    sums = ""
    for some in (places[at : at + SUMS] for at in range(0, len(places), SUMS)):
        sums += "".join(f"{' ' * 16}sum_{n} = float32(0.0)\n" for n, _, _ in some) + f"{' ' * 16}for t in range(first, last):\n"
        sums += f"{' ' * 20}one = work[apart + t]\n"
        for n, a, b in some:
            sums += f"{' ' * 20}sum_{n} = accumulate(sum_{n}, one * work[padded + t + {a} * d_0 * across + {b} * d_1])\n"
        sums += "".join(f"{' ' * 16}total_{n} = total_{n} + sum_{n}\n" for n, _, _ in some)
    text = WEIGHT.format(
        copy=indent(COPY, "    "), tall_1=tall - 1, broad_1=broad - 1, s_0=s_0, s_1=s_1, terms=TERMS, sums=sums,
        zeros="".join(f"        total_{n} = float32(0.0)\n" for n, _, _ in places),
        results="".join(f"        out[channel * w_row + {n}] = total_{n}\n" for n, _, _ in places),
    )  # fmt: skip
    sizes = (
        images, many, *case.x.shape[2:], high, wide, room, *case.padding, d_0, d_1, case.w.stride[0], *case.x.stride[:3],
        *case.y.stride[:3],
    )  # fmt: skip
    names = text[text.index("work, ") + 6 : text.index(", start")].split(",")
    arrays = (("x", "float32"), ("g", "float32"), ("out", "float32"), ("work", "float32"))
    params = (*arrays, *((n.strip(), "size") for n in names))
    work = images * channels * high * wide * len(places)
    return [Template(Source("depthwise_weight", text, params), (x, g, out, "scratch", *sizes), channels, work, 1, 4 * room)]
