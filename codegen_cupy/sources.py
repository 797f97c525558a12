"""One ``Kernel`` becomes one or more ``Source``s under given sizes: pick a schedule, call the writer of its kind.

Stage: codegen.  In: kernel, situation (sizes, alignment, aliasing).  Out: ``Source``s in launch order.
Read next: ``schedule``, then the writers ``pointwise``, ``tiles``, ``rows``, ``columns``, ``scans``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from codegen_cupy import columns, pointwise, rows, scans, tiles
from codegen_cupy import nest as nests
from codegen_cupy.kernel_text import Source
from codegen_cupy.nest import Nest
from codegen_cupy.schedule import Schedule, Situation, choose, inner_loops, splittable
from compiler.loop.ir import Kernel

Writer = Callable[[Kernel, Nest, Schedule, str], Source]


def pick_schedule(kernel: Kernel, nest: Nest, situation: Situation) -> Schedule:
    """The schedule taken without measuring."""
    first = choose(kernel, nest, situation)
    if first.kind == "scan" and not all(scans.scannable(x) for x in inner_loops(nest) if x.kind == "scan"):
        return replace(first, kind="pointwise", vector=1, threads=128, team=1)
    if first.kind == "pointwise":
        axis = tiles.across(nest, situation)
        if axis is not None:
            return replace(first, kind="tile", across=axis, vector=1, threads=tiles.SIDE * tiles.ROWS)
    return first


def write(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    """The text of one nest under one schedule."""
    if schedule.kind == "tile":
        return tiles.emit(kernel, nest, schedule, name)
    if schedule.kind == "pointwise":
        return pointwise.emit(kernel, nest, schedule, name)
    if schedule.kind == "scan":
        return scans.ScanKernel(kernel, nest, schedule).source(name)
    if schedule.kind == "column" and splittable(nest):
        return columns.emit(kernel, nest, schedule, name)
    return rows.emit(kernel, nest, schedule, name)


def sources(
    kernel: Kernel, sizes: Mapping[str, int], *, aligned: bool = True, restrict: bool = True, strict: bool = False,
    pick: Callable[[Kernel, Nest, Situation], Schedule] | None = None,
) -> tuple[Source, ...]:  # fmt: skip
    """All launches of a kernel, in order.  ``pick`` may be an autotuner's choice."""
    out = []
    parts = nests.nests(kernel)
    base = re.sub(r"\W", "_", kernel.name)
    for n, nest in enumerate(parts):
        if nests.value_at(nest.points, sizes) == 0:
            continue
        at = Situation(sizes, aligned, False, restrict, strict)
        at = replace(at, wide=nests.needs_64_bits(kernel, nest, sizes))
        out.append(write(kernel, nest, (pick or pick_schedule)(kernel, nest, at), base if len(parts) == 1 else f"{base}_{n}"))
    return tuple(out)
