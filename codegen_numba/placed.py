"""Convolutions without columns: channels in vectors, pixels along a padded image.

Stage: codegen_numba.  In: an ``Extern`` step that names ``conv`` or ``conv_input``.  Out: ``Template``s: packing the weights,
and the rest.  A block of an image is copied between zeros.  The number that a place of the window meets at a pixel then
lies so far on for the pixel, and so far for the place: ``placed`` multiplies such numbers by vectors of weights, those of
many channels side by side, by one table of pixels and one of places.  So strides and dilations cost nothing, and no pixel
is computed in vain; what was summed is turned over into the result.  ``convolution`` writes each element as often as
windows meet it, for BLAS.  The gradient of the input is the convolution with the window turned round.
Read next: ``placed_weight``, ``convolution``, ``product``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Any

from codegen_numba import convolution, runtime
from codegen_numba.analysis import ceil_div, hint, product
from codegen_numba.compile import Source
from codegen_numba.convolution import Case
from codegen_numba.matmul import Template
from codegen_numba.product import SHORT, lanes, rows
from compiler.loop.ir import ArrayView, Buffer, Extern, Int

#: Elements that a block of images and its results may have, pixels that a block should have, and terms that are summed
#: before they are added to the rest: as many as a first-level cache holds of the weights of two vectors of channels.
BLOCK, PIXELS, TERMS = 131_072, 128, 128
#: Channels of results (of a group) and terms from which it is faster than columns and BLAS.
FEWEST, SHALLOW = 8, 48

SIZES = (
    "groups", "deep", "many", "height", "width", "high", "wide", "whole", "tall", "across", "several", "block", "room",
    "s_0", "s_1", "p_0", "p_1", "d_0", *(f"{v}_{d}" for v in ("x", "out") for d in range(3)),
)  # fmt: skip
OF_KIND = ("broad", "shift", "step", "first")

PACK = """\
def placed_pack(w, packed, first, deep, many, tall, broad, w_row, w_deep, w_group, w_a, w_b, start, stop, part):
    # units are panels of channels of results: for each term of the sum their weights, side by side
    panels = quotient(many + {panel} - 1, {panel})
    for u in range(start, stop):
        o = remainder(u, panels) * {panel}
        at = first + u * deep * tall * broad * {panel}
        place = quotient(u, panels) * w_group + o * w_row
        if o + {panel} > many:
            for t in range(deep * tall * broad * {panel}):
                packed[at + t] = float32(0.0)
{body}"""
ALONG = """\
        turn_over(w, place, w_row, packed, at, {panel}, least({panel}, many - o), deep * tall * broad)
"""
APART = """\
        for c in range(deep):
            for a in range(tall):
                for b in range(broad):
                    to = at + ((c * tall + a) * broad + b) * {panel}
                    here = place + c * w_deep + a * w_a + b * w_b
                    if o + {panel} <= many:
                        for r in range({panel}):
                            packed[to + r] = w[here + r * w_row]
                    else:
                        for r in range(many - o):
                            packed[to + r] = w[here + r * w_row]
"""

#: The rows that a block reads, of some images' channels, between zeros.
COPY = """\
for c in range(deep):
    for m in range(images):
        for i in range((count - 1) * s_0 + greatest(tall - 1, 0) * d_0 + 1):
            y = first * s_0 + i - p_0
            at = padded + ((c * several + m) * rows + i) * across
            place = (image + m) * x_0 + (group * deep + c) * x_1 + y * x_2 - p_1
            if y < 0 or y >= height:
                between_zeros(work, at, across, x, place, across, across)
            else:
                between_zeros(work, at, across, x, place, low, end)
"""
TEXT = """\
def placed_conv(x, packed, out, table, work, {sizes}, start, stop, part):
    # units are blocks of output rows of one image; of whole images several go together
    panels = quotient(many + {panel} - 1, {panel})
    rows = (block - 1) * s_0 + greatest(tall - 1, 0) * d_0 + 1
    lines = quotient(several * block * wide + {tile} - 1, {tile}) * {tile}
    padded = part * room
    made = padded + deep * several * rows * across
    flat = made + lines * {panel}
    places = quotient(flat + {flat} * lines * {panel} + 1, 2)
    for t in range(lines):
        table[places + t] = padded
    for m in range(several):
        for i in range(block):
            for j in range(wide):
                table[places + (m * block + i) * wide + j] = padded + (m * rows + i * s_0) * across + j * s_1
{tables}\
    blocks = quotient(high + block - 1, block)
    low, end = least(greatest(p_1, 0), across), greatest(least(width + p_1, across), least(greatest(p_1, 0), across))
    for unit in range(start, stop, several):
        first = remainder(unit, blocks) * block
        image = quotient(unit, blocks)
        images = least(several, stop - unit)
        count = least(block, high - first)
        length = images * count * wide
        for group in range(groups):
{copy}\
            for p in range(panels):
                columns = least({panel}, many - p * {panel})
{sums}\
                for m in range(images):
                    place = (image + m) * out_0 + (group * many + p * {panel}) * out_1 + first * out_2
{store}"""
#: Results of a channel lie together: from where they were summed to where they belong.  Otherwise by ``flat``, and the
#: kinds of columns side by side, so that each line of memory is written once.
STRAIGHT = """\
                    turn_over(work, made + m * count * wide * {panel}, {panel}, out, place, out_1, count * wide, columns)
"""
FLAT = """\
                turn_over(work, made, {panel}, work, flat + {k} * lines * {panel}, lines, length, columns)
"""
SPREAD = """\
                    for o in range(columns):
                        for i in range(count):
                            at = flat + o * lines + (m * count + i) * wide
                            to = place + o * out_1 + i * out_2
                            for j in range(quotient(whole, {kinds})):
{each}{rest}"""
TABLES = """\
    depth_{k} = deep * tall * broad_{k}
    terms_{k} = {before}
    for c in range(deep):
        for a in range(tall):
            for b in range(broad_{k}):
                place = (c * several * rows + a * d_0) * across + shift_{k} + b * step_{k}
                table[terms_{k} + (c * tall + a) * broad_{k} + b] = place
"""
SUMS = """\
                for at in range(0, depth_{k}, {terms}):
                    placed(work, made, {panel}, work, table, places, table, terms_{k} + at, packed,
                        first_{k} + ((group * panels + p) * depth_{k} + at) * {panel}, {panel},
                        quotient(length + {tile} - 1, {tile}) * {tile}, quotient(columns + {short} - 1, {short}) * {short},
                        least({terms}, depth_{k} - at), at)
"""


@dataclass(frozen=True)
class Window:
    """Along one dimension: result ``t`` is summed from the numbers at ``t * stride + k * dilation - padding``, k in
    [0, ``places``), each times the weight at ``first + k * step``."""

    places: int
    first: int
    step: int
    stride: int
    padding: int
    dilation: int

    def over(self, results: int) -> int:
        """Numbers from the first that so many results are summed from to the last."""
        return (results - 1) * self.stride + max(0, self.places - 1) * self.dilation + 1


def forward(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """None: it cannot be, or, unless it is to be ``always``, columns and BLAS are as fast."""
    (x, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, x, w, out)
    if case is None or not _suits(case, case.x, case.y, case.channels, always):
        return None
    assert isinstance(x, ArrayView) and isinstance(w, ArrayView)
    down, along = (
        Window(hint(n), 0, 1, s, p, d)
        for n, s, p, d in zip(case.w.shape[2:], case.stride, case.padding, case.dilation, strict=True)
    )
    one = case.w.stride[0]
    steps = (one, product(case.w.shape[2:]), product((case.channels, one)))
    *pack, made = _templates(case, (x, case.x), w, (out, case.y), down, [along], case.channels, steps)
    return [*pack, replace(made, piece=product(case.y.shape[1:]))]


def backward_input(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """The same with cotangents for the image, and the window from its other end: for each remainder of places of the
    image by the strides, as these meet weights of their own.  Those of columns are made together."""
    (g, w), (out,) = step.args, step.outs
    case = convolution.case_of(step, buffers, out, w, g)
    if case is None or not _suits(case, case.y, case.x, case.w.shape[1], always):
        return None
    assert isinstance(g, ArrayView) and isinstance(w, ArrayView)
    one, (s_0, s_1), (d_0, d_1), (p_0, p_1) = case.w.stride[0], case.stride, case.dilation, case.padding
    steps = (product(case.w.shape[2:]), one, product((case.channels, one)))
    high, (tall, broad) = hint(case.x.shape[2]), map(hint, case.w.shape[2:])
    alongs = [turned(broad, s_1, p_1, d_1, e) for e in range(s_1)]
    made: list[Template] = []
    for e in range(min(s_0, high)):
        shape = (*case.x.shape[:2], ceil_div(high - e, s_0), case.x.shape[3])
        stride = (*case.x.stride[:2], case.x.stride[2] * s_0, case.x.stride[3])
        result = ArrayView(out.buffer, shape, stride, out.offset + e * case.x.stride[2])
        down = turned(tall, s_0, p_0, d_0, e)
        made += _templates(case, (g, case.y), w, (result, result), down, alongs, case.w.shape[1], steps)
    room = max(hint(t.scratch) for t in made)
    return [replace(t, scratch=room) for t in made]  # the same memory serves them all


def turned(places: int, stride: int, padding: int, dilation: int, offset: int) -> Window:
    """For the results that are ``offset`` elements behind a multiple of ``stride``: windows that meet number ``i`` by the
    weight ``k`` begin at ``(i + padding - k * dilation) / stride``, of which only whole ones are there."""
    met = [k for k in range(places) if (offset + padding - k * dilation) % stride == 0][::-1]
    if not met:
        return Window(0, 0, 0, 1, 0, 0)
    starts = [(offset + padding - k * dilation) // stride for k in met[:2]]
    step = met[1] - met[0] if len(met) > 1 else 0
    return Window(len(met), met[0], step, 1, -starts[0], starts[-1] - starts[0])


def _suits(case: Case, source: ArrayView, result: ArrayView, channels: Int, always: bool) -> bool:
    """Can it be done this way, and should it?"""
    if not case.fixed() or source.stride[3] != 1 or result.stride[3] != 1 or not convolution.dense(case.w):
        return False
    return always or promising(hint(channels), hint(product((source.shape[1], *case.w.shape[2:]))) // case.groups)


def promising(many: int, depth: int) -> bool:
    """Are vectors full enough, and sums long enough beside what is done once for each?"""
    return lanes() >= 16 and many >= FEWEST and depth >= SHALLOW


Side = tuple[ArrayView, ArrayView]  # as the step has it, and in four dimensions


def _templates(
    case: Case, image: Side, w: ArrayView, result: Side, down: Window, alongs: list[Window], channels: Int,
    steps: tuple[Int, ...],
) -> list[Template]:  # fmt: skip
    """``alongs``: for each kind of columns of the result, in turn.  ``steps``: of the weight, from one channel of results to
    the next, from one that is summed, and of a group."""
    (x, source), (out, target) = image, result
    images, high, whole = (hint(target.shape[d]) for d in (0, 2, 3))
    deep, many, kinds = hint(source.shape[1]) // case.groups, hint(channels), len(alongs)
    alongs = alongs if down.places else [Window(0, 0, 0, 1, 0, 0)] * kinds
    panel = min(2 * lanes(), -(-many // SHORT) * SHORT)
    panels, wide, taps = -(-many // panel), -(-whole // kinds), sum(a.places for a in alongs)
    straight = kinds == 1 and taps > 0 and convolution.dense_rows(target)
    padding = max((a.padding for a in alongs if a.places), default=0)
    shifts = [padding - a.padding if a.places else 0 for a in alongs]
    across = max(s + a.over(wide) for s, a in zip(shifts, alongs, strict=True))

    def lines(several: int, block: int) -> int:
        return -(-several * block * wide // rows()) * rows()

    def elements(several: int, block: int) -> int:
        """Of a block of images and a panel of its results."""
        return deep * several * down.over(block) * across + lines(several, block) * panel * (1 if straight else 1 + kinds)

    most = -(-high // -(-runtime.thread_count() // images))  # every thread should have some
    block = max([n for n in range(1, most + 1) if elements(1, n) <= BLOCK], default=1)
    several = 1
    while block == high and several < images and several * high * wide < PIXELS and elements(several + 1, high) <= BLOCK:
        several += 1
    room = elements(several, block) + 2 * (lines(several, block) + deep * down.places * taps + 1)
    room += room % 2
    sizes = [
        case.groups, deep if taps else 0, many, *source.shape[2:], high, wide, whole, down.places, across, several, block, room,
        down.stride, alongs[0].stride, down.padding, padding, down.dilation, *source.stride[:3], *target.stride[:3],
    ]  # fmt: skip
    packs, packed = [], 0
    w_a, w_b = hint(case.w.shape[3]), 1
    for shift, along in zip(shifts, alongs, strict=True):
        sizes += [along.places, shift, along.dilation, packed]
        depth = deep * down.places * along.places
        if depth:
            first = replace(w, offset=w.offset + down.first * w_a + along.first * w_b)
            of_w = (packed, deep, many, down.places, along.places, *steps, down.step * w_a, along.step * w_b)
            packs.append(_pack(panel, (first, "shared", *of_w), case.groups * panels, depth * panel))
        packed += case.groups * panels * depth * panel
    params = (("x", "float32"), ("packed", "float32"), ("out", "float32"), ("table", "int64"), ("work", "float32"))
    names = (*SIZES, *(f"{n}_{k}" for k in range(kinds) for n in OF_KIND))
    made = Source("placed_conv", _text(names, panel, alongs, straight), (*params, *((n, "size") for n in names)))
    units, work = images * -(-high // block), images * case.groups * many * max(1, deep * down.places * taps) * high * wide
    templates = [*packs, Template(made, (x, "shared", out, "scratch", "scratch", *sizes), units, work, 1, 4 * room)]
    return [replace(t, shared=4 * packed) for t in templates]


def _pack(panel: int, slots: tuple[Any, ...], panels: int, each: int) -> Template:
    names = PACK[PACK.index("(") + 1 : PACK.index(", start")].split(", ")
    of = dict(zip(names, slots, strict=True))
    whole = (of["w_deep"], of["w_a"], of["w_b"]) == (of["tall"] * of["broad"], of["broad"], 1)  # terms lie together
    text = PACK.format(panel=panel, body=(ALONG if whole else APART).format(panel=panel))
    params = ((names[0], "float32"), (names[1], "float32"), *((n, "size") for n in names[2:]))
    return Template(Source("placed_pack", text, params), slots, panels, 16 * panels * each)


def _text(names: tuple[str, ...], panel: int, alongs: list[Window], straight: bool) -> str:
    kinds = len(alongs)
    tables = sums = each = rest = ""
    for k, along in enumerate(alongs):
        before = f"terms_{k - 1} + depth_{k - 1}" if k else "places + lines"
        tables += TABLES.format(k=k, before=before)
        if along.places:
            sums += SUMS.format(k=k, panel=panel, terms=TERMS, tile=rows(), short=SHORT)
            sums += "" if straight else FLAT.format(k=k, panel=panel)
        value = f"work[at + {k} * lines * {panel} + {{}}]" if along.places else "float32(0.0)"
        each += f"{' ' * 32}out[to + j * {kinds} + {k}] = {value.format('j')}\n"
        if k < kinds - 1:
            rest += f"{' ' * 28}if remainder(whole, {kinds}) > {k}:\n"
            rest += f"{' ' * 32}out[to + whole - remainder(whole, {kinds}) + {k}] = {value.format('wide - 1')}\n"
    store = STRAIGHT.format(panel=panel) if straight else SPREAD.format(kinds=kinds, each=each, rest=rest)
    return TEXT.format(
        sizes=", ".join(names), panel=panel, tile=rows(), flat=0 if straight else kinds, tables=tables,
        copy=indent(COPY, " " * 12), sums=sums, store=store,
    )  # fmt: skip
