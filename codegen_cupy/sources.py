"""One ``Kernel`` becomes one or more ``Source``s under given sizes: pick a schedule, call the writer of its kind.

Stage: codegen.  In: kernel, situation (sizes, alignment, aliasing).  Out: ``Source``s in launch order.
Read next: ``schedule``, then the writers ``pointwise``, ``rows``, ``columns``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from codegen_cupy import columns, pointwise, rows
from codegen_cupy import nest as nests
from codegen_cupy.kernel_text import Source
from codegen_cupy.nest import Nest
from codegen_cupy.schedule import Schedule, Situation, choose, splittable
from compiler.loop.ir import Kernel

Writer = Callable[[Kernel, Nest, Schedule, str], Source]


def write(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    """The text of one nest under one schedule."""
    if schedule.kind == "pointwise":
        return pointwise.emit(kernel, nest, schedule, name)
    if schedule.kind == "column" and splittable(nest):
        return columns.emit(kernel, nest, schedule, name)
    return rows.emit(kernel, nest, schedule, name)


def sources(
    kernel: Kernel, sizes: Mapping[str, int], *, aligned: bool = True, restrict: bool = True, strict: bool = False,
    pick: Callable[[Kernel, Nest, Situation], Schedule] = choose,
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
        out.append(write(kernel, nest, pick(kernel, nest, at), base if len(parts) == 1 else f"{base}_{n}"))
    return tuple(out)
