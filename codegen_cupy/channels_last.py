"""Convolutions that first lay their image's channels last: a copy for each of its bytes, then 16 bytes at once under any window.

Stage: codegen.  In: a call of ``conv``, ``conv_input`` or ``conv_weight``.  Out: the ``Problem`` of ``convolution`` with other
operands and the launches that lay them out.  Where pixels of a channel are neighbours, a window's element is found
and fetched alone, some 24 instructions for two bytes; where channels of a pixel are, eight come together, and a
thread knows its pixels beforehand.  The depth counts taps, then channels, so weights are laid out likewise:

    conv         image: x    weight: (output channels, taps, input channels)
    conv_input   image: y    weight: (input channels, taps, output channels)
    conv_weight  image: x    columns of the result: taps, input channels

Read next: ``channels_last.cuh`` (the operands), ``gemm``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from codegen_cupy import gemm
from codegen_cupy.convolution import Case, Gathering, Remainder, case, flat
from codegen_cupy.following import Coordinate, Following
from codegen_cupy.gemm import Matrix, Operand, Problem
from codegen_cupy.host import Call, Memory, Step, View
from codegen_cupy.nest import Nest, value_at
from codegen_cupy.schedule import Schedule, Situation
from codegen_cupy.sources import pick_schedule
from compiler.loop.build import KernelRecorder, kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import DType

MOST_TAPS = 32  # bits of a thread's word for a pixel
MOST_ITEMS = 1 << 30  # places are of 32 bits


@dataclass(frozen=True)
class Neighbouring:
    """An image as an operand; ``deep``: are its pixels lines?  ``step``: elements from group to group."""

    buffer: str
    offset: int
    step: int
    deep: bool
    grid: str
    copied: bool = True
    effort: int = 2

    @property
    def buffers(self) -> tuple[str, ...]:
        return (self.buffer,)

    def types(self, side: str) -> str:
        return f"{self.grid}\n{gemm._file('channels_last.cuh')}"

    def made(self, side: str, names: tuple[str, ...]) -> str:
        at = " + ".join([names[0], *([str(self.offset)] if self.offset else []), f"z0 * {self.step}ll"])
        if self.deep:
            return f"Neighbours<{side}_LINES, {side}_LENGTH, Grid> from_{side}({at}, tile.column, first);"
        return f"Chunked<{side}_LINES, {side}_LENGTH, false, Below<Grid>> from_{side}(Below<Grid>{{{at}}}, first, tile.column);"


def problem(call: Call, dtype: DType, then: Following | None = None, *, aligned: bool = True) -> Problem | None:
    """The convolution by channels; None where a group's channels are no whole number of 16 bytes, windows are large, or
    pixels can be copied as they are."""
    c = case(call, dtype, aligned=aligned)
    if c is None:
        return None
    per = 16 // dtype.itemsize
    image, channels = (c.y, c.outs) if call.fn == "conv_input" else (c.x, c.ins)
    if channels % per or c.taps > MOST_TAPS or prod(image.shape) > MOST_ITEMS or (c.pointwise and c._even(c.x) and c._even(c.y)):
        return None
    if call.fn == "conv_weight":
        return _weight(c, then) if c._even(c.y) or not c.outs % per else None
    return _conv(c, then) if call.fn == "conv" else _input(c, then)


# --- the three ---
def _conv(c: Case, then: Following | None) -> Problem:
    p = c.forward(then)
    x, before = _image(c, c.x, p.following.name)
    a: Operand = p.a
    if c.taps > 1:
        weight, more = _laid(_by_taps(c), c, p.following.name)
        a, before = Matrix(weight.buffer, c.outs, p.depth, p.depth, 1, 0, (c.outs * p.depth,), copied=True), before + more
    return replace(p, a=a, b=_under(c, x, True), before=before)


def _weight(c: Case, then: Following | None) -> Problem:
    p = c.weight(then)
    x, before = _image(c, c.x, p.following.name)
    a: Operand = p.a
    if not c._even(c.y):
        y, more = _image(c, c.y, p.following.name)
        depth = c.y.shape[0] * c.y.shape[2] * c.y.shape[3]
        a, before = Matrix(y.buffer, c.outs, depth, 1, c.groups * c.outs, 0, (c.outs,), copied=True), before + more
    columns = c.ins * c.taps
    coordinates = (
        Coordinate("z0", c.groups, c.outs * columns), Coordinate("row", c.outs, columns), Coordinate("channel", c.ins, c.taps),
        Coordinate("tap", c.taps, 1),
    )  # fmt: skip
    numbers = f"const int tap = column / {c.ins}, channel = column % {c.ins};"
    return replace(p, a=a, b=_under(c, x, False), before=before, coordinates=coordinates, numbers=numbers, run=1)


def _input(c: Case, then: Following | None) -> Problem:
    (first, *_), *_ = pieces = c.pieces(then)
    y, before = _image(c, c.y, first.following.name)
    across = c._across()
    if across is None or not across.copied:
        across = None
        weight, more = _laid(_by_outputs(c), c, first.following.name)
        before += more
    made = [replace(p, a=across or _some(c, weight, v, h), b=_cover(c, y, v, h)) for p, v, h in pieces]
    return replace(made[0], before=before, others=tuple(made[1:]))


# --- operands ---
def _under(c: Case, x: View, deep: bool) -> Neighbouring:
    (_, _, high, wide), (_, _, tall, broad) = c.y.shape, c.w.shape
    begin = (-c.padding[0], -c.padding[1])
    return Neighbouring(x.buffer, x.offset, c.ins, deep, _grid(x, c.ins, (high, wide), (tall, broad), c.stride, begin, c.dilation))


def _cover(c: Case, y: View, v: Remainder, h: Remainder) -> Neighbouring:
    grid = _grid(y, c.outs, (v.count, h.count), (v.taps, h.taps), (1, 1), (v.begin, h.begin), (-v.back, -h.back))
    return Neighbouring(y.buffer, y.offset, c.outs, True, grid)


def _grid(
    image: View, channels: int, size: tuple[int, int], taps: tuple[int, int], step: tuple[int, int], begin: tuple[int, int], move: tuple[int, int]
) -> str:
    (images, _, height, width), (far, _, row, column) = image.shape, image.stride
    named = [
        ("IMAGES", images), ("DOWN", size[0]), ("ACROSS", size[1]), ("TALL", max(1, taps[0])), ("BROAD", max(1, taps[1])),
        ("STEP_Y", step[0]), ("STEP_X", step[1]), ("BEGIN_Y", begin[0]), ("BEGIN_X", begin[1]), ("MOVE_Y", move[0]), ("MOVE_X", move[1]),
        ("HEIGHT", height), ("WIDTH", width), ("CHANNELS", channels), ("IMAGE", far), ("ROW", row), ("COLUMN", column),
    ]  # fmt: skip
    return f"struct Grid {{\n    static constexpr int {', '.join(f'{n} = {v}' for n, v in named)};\n}};"


def _some(c: Case, weight: View, v: Remainder, h: Remainder) -> Operand:
    """The taps of one remainder; all of them lie in order."""
    depth, live = c.taps * c.outs, v.taps * h.taps
    step, broad = c.ins * depth, c.w.shape[3]
    if live == c.taps:
        return Matrix(weight.buffer, c.ins, depth, depth, 1, 0, (step,), copied=True)
    ints = (c.ins, c.outs, c.taps, live, max(1, h.taps), v.first_tap * broad + h.first_tap, v.jump * broad, h.jump)
    return Gathering(weight.buffer, f"Some<{', '.join(map(str, ints))}>", 0, step, True, "", copied=True)


# --- how they are laid out ---
def _image(c: Case, v: View, name: str) -> tuple[View, tuple[Step, ...]]:
    """The image with its channels last: as it is, if they are, else a copy."""
    per = 16 // c.dtype.itemsize
    _, channels, high, wide = v.shape
    if c.aligned and v.stride[1] == 1 and not any(s % per for s in (v.offset, v.stride[0], *v.stride[2:])):
        return v, ()
    made, steps = _laid(_by_channels(v, c.dtype), c, name, v.buffer)
    return replace(made, shape=v.shape, stride=(channels * high * wide, 1, channels * wide, channels)), steps


def _laid(copy: Kernel, c: Case, name: str, buffer: str = "") -> tuple[View, tuple[Step, ...]]:
    """Memory for what the kernel writes, and its launch."""
    given, made = copy.params
    buffer = buffer or c.w.buffer
    target = f"{name}_{buffer}_{copy.name}"
    shape, stride = (tuple(value_at(n, {}) for n in ns) for ns in (made.shape, made.stride))
    pick = _near if copy.name == "by_taps" else None
    launches = gemm.launched(copy, {given.name: buffer, made.name: target}, aligned=c.aligned, pick=pick)
    return View(target, shape, stride, 0), (Memory(target, c.dtype, shape, stride), *launches)


def _by_channels(v: View, dtype: DType) -> Kernel:
    """(images, channels, rows, columns) to (images, rows, columns, channels)."""
    images, channels, high, wide = v.shape
    lines, length = (1, high * wide) if flat(v) else (high, wide)

    def by_channels(k: KernelRecorder) -> None:
        x = k.param("x", dtype, v.shape, v.stride)
        y = k.param("y", dtype, (images, high * wide, channels), (high * wide * channels, channels, 1))
        for n in k.map(images):
            for i in k.map(lines):
                for j in k.map(length):
                    for c in k.map(channels):
                        pixel = i * length + j
                        value = k.load(x, v.offset + n * v.stride[0] + c * v.stride[1] + i * v.stride[2] + j * v.stride[3])
                        k.store(y, (n * (high * wide) + pixel) * channels + c, value)

    return kernel(by_channels)


def _by_taps(c: Case) -> Kernel:
    """A weight's (output channels, input channels, taps) to (output channels, taps, input channels), some channels at a time."""
    rows, size, run = c.groups * c.outs, c.ins * c.taps, gcd(c.ins, 64)

    def by_taps(k: KernelRecorder) -> None:
        w = k.param("w", c.dtype, (rows, c.ins, c.taps), (size, c.taps, 1))
        y = k.param("y", c.dtype, (rows, c.taps, c.ins), (size, c.ins, 1))
        for o in k.map(rows):
            for many in k.map(c.ins // run):
                for t in k.map(c.taps):
                    for few in k.map(run):
                        i = many * run + few
                        k.store(y, o * size + t * c.ins + i, k.load(w, c.w.offset + o * size + i * c.taps + t))

    return kernel(by_taps)


def _near(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
    """All taps of a line of the cache are wanted in one block, by lanes that are close together in it."""
    return replace(pick_schedule(kernel, nest, at), vector=1, rounds=1, threads=1024)


def _by_outputs(c: Case) -> Kernel:
    """A weight's (output channels, input channels and taps) of each group turned."""
    size = c.ins * c.taps

    def by_outputs(k: KernelRecorder) -> None:
        w = k.param("w", c.dtype, (c.groups, c.outs, size), (c.outs * size, size, 1))
        y = k.param("y", c.dtype, (c.groups, size, c.outs), (c.outs * size, c.outs, 1))
        for g in k.map(c.groups):
            for i in k.map(size):
                for o in k.map(c.outs):
                    k.store(y, (g * size + i) * c.outs + o, k.load(w, c.w.offset + g * (c.outs * size) + o * size + i))

    return kernel(by_outputs)
