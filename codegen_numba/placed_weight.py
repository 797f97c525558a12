"""Gradients of a convolution's weight without columns: channels in vectors, places of the window along a padded image.

Stage: codegen_numba.  In: an ``Extern`` step that names ``conv_weight``.  Out: ``Template``s: summing, joining.  A block of an
image is copied between zeros, and the cotangents of its results are turned over, so that those of one pixel lie side by
side.  The cotangent of pixel ``t`` belongs with the number ``t``'s place says, seen from each place of the window: ``placed``
multiplies numbers of the image by vectors of cotangents, by one table of places of the window and one of pixels.  So
strides cost nothing.  ``convolution`` writes each element as often as windows meet it, for BLAS, which packs both again.
Read next: ``placed``, ``product``.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from codegen_numba import convolution
from codegen_numba.analysis import hint, product
from codegen_numba.compile import Source
from codegen_numba.matmul import Template
from codegen_numba.placed import COPY, promising
from codegen_numba.product import SHORT, lanes, rows
from compiler.loop.ir import Buffer, Extern

#: Elements that a block of images and its cotangents may have, pixels that a block should have, and pixels that are summed
#: before they are added to the rest: as many as a first-level cache holds of the cotangents of two vectors.
BLOCK, PIXELS, TERMS = 131_072, 256, 128

SIZES = (
    "groups", "deep", "many", "height", "width", "high", "wide", "tall", "broad", "several", "block", "room", "s_0", "s_1",
    "p_0", "p_1", "d_0", "d_1", *(f"x_{d}" for d in range(3)), "g_0", "g_1",
)  # fmt: skip

TEXT = """\
def placed_weight(x, g, table, work, {sizes}, start, stop, part):
    # units are images; each part sums into a weight of its own, in panels of channels of results
    depth = deep * tall * broad
    lines = quotient(depth + {tile} - 1, {tile}) * {tile}
    panels = quotient(many + {panel} - 1, {panel})
    rows = (block - 1) * s_0 + (tall - 1) * d_0 + 1
    across = (wide - 1) * s_1 + (broad - 1) * d_1 + 1
    pixels = several * block * wide
    total = part * room
    padded = total + groups * panels * lines * {panel}
    turned = padded + deep * several * rows * across
    places = quotient(turned + panels * pixels * {panel} + 1, 2)
    for t in range(total, padded):
        work[t] = float32(0.0)
    for t in range(turned, turned + panels * pixels * {panel}):
        work[t] = float32(0.0)
    for t in range(lines):
        table[places + t] = padded
    for c in range(deep):
        for a in range(tall):
            for b in range(broad):
                table[places + (c * tall + a) * broad + b] = padded + (c * several * rows + a * d_0) * across + b * d_1
    for first in range(0, high, block):
        count = least(block, high - first)
        for m in range(several):
            for i in range(count):
                for j in range(wide):
                    table[places + lines + (m * count + i) * wide + j] = (m * rows + i * s_0) * across + j * s_1
        for image in range(start, stop, several):
            images = least(several, stop - image)
            length = images * count * wide
            for group in range(groups):
                low, end = least(p_1, across), greatest(least(width + p_1, across), least(p_1, across))
{copy}\
                for p in range(panels):
                    for m in range(images):
                        turn_over(g, (image + m) * g_0 + (group * many + p * {panel}) * g_1 + first * wide, g_1,
                            work, turned + (p * pixels + m * count * wide) * {panel}, {panel},
                            least({panel}, many - p * {panel}), count * wide)
                for at in range(0, length, {terms}):
                    for p in range(panels):
                        placed(work, total + (group * panels + p) * lines * {panel}, {panel}, work, table, places,
                            table, places + lines + at, work, turned + (p * pixels + at) * {panel}, {panel}, lines,
                            least({panel}, quotient(many - p * {panel} + {short} - 1, {short}) * {short}),
                            least({terms}, length - at), 1)
"""

JOIN = """\
def placed_weight_join(out, work, depth, many, w_row, room, parts, start, stop, part):
    # units are panels: the parts' sums, turned over
    lines = quotient(depth + {tile} - 1, {tile}) * {tile}
    panels = quotient(many + {panel} - 1, {panel})
    for u in range(start, stop):
        at = u * lines * {panel}
        for p in range(1, parts):
            for t in range(at, at + lines * {panel}):
                work[t] = work[t] + work[p * room + t]
        o = remainder(u, panels) * {panel}
        turn_over(work, at, {panel}, out, (quotient(u, panels) * many + o) * w_row, w_row, depth, least({panel}, many - o))
"""


def backward_weight(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """None: it cannot be, or, unless it is to be ``always``, columns and BLAS are as fast."""
    (x, g), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, x, out, g)
    if case is None or not case.fixed() or case.x.stride[3] != 1 or not convolution.dense_rows(case.y):
        return None
    if not convolution.dense(case.w) or not (always or promising(hint(case.channels), hint(case.depth))):
        return None
    images, (high, wide), (tall, broad) = hint(case.x.shape[0]), map(hint, case.y.shape[2:]), map(hint, case.w.shape[2:])
    groups, deep, many, depth = case.groups, hint(case.w.shape[1]), hint(case.channels), hint(case.depth)
    panel = min(2 * lanes(), -(-many // SHORT) * SHORT)
    panels, lines = -(-many // panel), -(-depth // rows()) * rows()
    (s_0, s_1), (d_0, d_1) = case.stride, case.dilation
    across = (wide - 1) * s_1 + (broad - 1) * d_1 + 1

    def elements(several: int, block: int) -> int:
        """Of a block of images and its cotangents."""
        return several * (deep * ((block - 1) * s_0 + (tall - 1) * d_0 + 1) * across + panels * panel * block * wide)

    block = max([n for n in range(1, high + 1) if elements(1, n) <= BLOCK], default=1)
    several = 1
    while block == high and several < images and several * high * wide < PIXELS and elements(several + 1, high) <= BLOCK:
        several += 1
    total = groups * panels * lines * panel
    room = total + elements(several, block) + 2 * (lines + several * block * wide + 1)
    room += room % 2
    sizes = (
        groups, deep, many, *case.x.shape[2:], high, wide, tall, broad, several, block, room, *case.stride, *case.padding,
        *case.dilation, *case.x.stride[:3], *case.y.stride[:2],
    )  # fmt: skip
    text = TEXT.format(sizes=", ".join(SIZES), copy=indent(COPY, " " * 16), tile=rows(), panel=panel, short=SHORT, terms=TERMS)
    params = (("x", "float32"), ("g", "float32"), ("table", "int64"), ("work", "float32"), *((n, "size") for n in SIZES))
    work = product((images, groups, many, depth, high, wide))
    slots = (x, g, "scratch", "scratch", *sizes)
    first = Template(Source("placed_weight", text, params), slots, images, work, 1, 4 * room)
    params = (("out", "float32"), ("work", "float32"), *((n, "size") for n in ("depth", "many", "w_row", "room", "parts")))
    join = Source("placed_weight_join", JOIN.format(tile=rows(), panel=panel), params)
    slots = (out, "scratch", depth, many, case.w.stride[0], room, "parts")
    return [first, Template(join, slots, groups * panels, total, 1, 4 * room)]
