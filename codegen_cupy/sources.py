"""One ``Kernel`` becomes one or more ``Source``s under given sizes: pick a schedule, call the writer of its kind.

Stage: codegen.  In: kernel, situation (sizes, alignment, aliasing).  Out: ``Source``s in launch order.
Read next: ``choice``, then the writers ``pointwise``, ``tiles``, ``rows``, ``columns``, ``scans``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from codegen_cupy import (
    columns,
    gathered,
    helpers,
    in_order,
    onehot,
    online,
    phases,
    pointwise,
    rows,
    scans,
    tiles,
)
from codegen_cupy import nest as nests
from codegen_cupy.choice import choose
from codegen_cupy.kernel_text import Source
from codegen_cupy.nest import Nest
from codegen_cupy.row_schedules import clustered
from codegen_cupy.schedule import Schedule, Situation, inner_loops, splittable
from compiler.config import config
from compiler.loop.ir import Buffer, Kernel

Writer = Callable[[Kernel, Nest, Schedule, str], Source]


def pick_schedule(kernel: Kernel, nest: Nest, situation: Situation) -> Schedule:
    """The schedule taken without measuring."""
    first = choose(kernel, nest, situation)
    if first.kind == "scan" and not all(scans.scannable(x) for x in inner_loops(nest) if x.kind == "scan"):
        return replace(first, kind="pointwise", vector=1, threads=128, team=1)
    if first.kind == "pointwise":
        tile = tiles.shape(kernel, nest, situation)
        if tile is not None:
            return replace(first, **tile)
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


@dataclass(frozen=True)
class Launches:
    """What running a kernel takes: ``sources`` in order, and buffers that carry values from one to the next."""

    sources: tuple[Source, ...]
    carried: tuple[Buffer, ...] = ()


def _phases(
    kernel: Kernel, nest: Nest, at: Situation
) -> Iterator[tuple[Kernel, Nest, tuple[Buffer, ...]]]:
    """The nests a nest is run as, each with its kernel and the buffers first seen with it."""
    sizes = at.sizes
    first = phases.row_sums(kernel, phases.gathered_columns(nest), sizes)
    new: tuple[Buffer, ...] = first.carried
    for inner in first.nests:
        whole = onehot.narrowed(online.online(onehot.closed(inner)))
        alone = clustered(first.kernel, whole, at) is not None
        second = phases.Phases(first.kernel, (whole,)) if alone else phases.split(first.kernel, whole, sizes)
        for x in second.nests:
            yield second.kernel, x, (*new, *second.carried)
            new, second = (), replace(second, carried=())


def sources(
    kernel: Kernel, sizes: Mapping[str, int], *, aligned: bool = True, restrict: bool = True, strict: bool = False,
    pick: Callable[[Kernel, Nest, Situation], Schedule] | None = None, clusters: bool = True,
) -> Launches:  # fmt: skip
    """All launches of a kernel.  ``pick`` may be an autotuner's choice; ``clusters``: the machine has them."""
    situation = Situation(sizes, aligned, False, restrict, strict, config.deterministic, clusters)
    parts: list[tuple[Kernel, Nest]] = []
    carried: list[Buffer] = []
    for nest in nests.nests(kernel):
        if nests.value_at(nest.points, sizes) > 0:
            for k, x, buffers in _phases(kernel, nest, situation):
                parts.append((k, x))
                carried += buffers
    base = re.sub(r"\W", "_", kernel.name)
    out = []
    for n, (k, nest) in enumerate(parts):
        at = replace(situation, wide=nests.needs_64_bits(k, nest, sizes))
        schedule = (pick or pick_schedule)(k, nest, at)
        if at.ordered and in_order.order_matters(k, nest) and not gathered.gathers_all(nest, schedule, k):
            nest = in_order.in_order(k, nest)
            schedule = replace(schedule, kind="pointwise", vector=1, team=1, chunks=0, blocks=0, split=1, threads=32 if nest.axes else 1)
        out.append(write(k, nest, schedule, helpers.free(base if len(parts) == 1 else f"{base}_{n}")))
    return Launches(tuple(out), tuple(carried))
