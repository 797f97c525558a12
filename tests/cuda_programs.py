"""Running plans by the CUDA codegen in tests: on a GPU where there is one, on the emulated one otherwise.

``on_device`` and ``on_host`` move arrays with their strides and their place in memory.  ``varied`` makes the codegen take
other schedules than it would: thresholds so small that little data has several blocks, clusters, parts and tiles, and
fields of schedules drawn among those the tuner may try.  Which ones follows from the nest, so a failure comes again.
"""

from __future__ import annotations

import os
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from codegen_cupy import (
    choice,
    emulate,
    phases,
    pointwise,
    row_schedules,
    schedule,
    sources,
    tiles,
    tune,
    ways,
)
from codegen_cupy.emulated_machine import memory_of
from codegen_cupy.machine import machine
from codegen_cupy.nest import Nest, divides, vectorizable
from codegen_cupy.program import Program
from codegen_cupy.schedule import WARP, Schedule, Situation
from compiler.config import Config
from compiler.loop.ir import Kernel, Plan
from tinytorch.device import cuda_available, emulated

#: Thresholds so small that the programs' little data is much.
SMALL = [
    (choice, "MULTIPROCESSORS", 2), (row_schedules, "MULTIPROCESSORS", 2), (tune, "MULTIPROCESSORS", 2), (choice, "MANY", 64),
    (row_schedules, "ONLINE", 24), (row_schedules, "LONG", 32), (phases, "FEW", 24), (phases, "LONG", 24),
    (tiles, "SIDES", (8, 4)), (pointwise, "FEW_THREADS", 512), (ways, "WORTH", 1),
]  # fmt: skip


def choose_machine() -> None:
    """The emulated GPU where there is no other, for this process and those it starts."""
    if not cuda_available():
        os.environ["TT_CUDA_EMULATE"] = "1"


def available() -> bool:
    return emulate.available() or (cuda_available() and not emulated())


def lost() -> bool:
    """Has an error made the GPU unusable for this process?"""
    if emulated():
        return False
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        return True
    return False


def on_device(a: np.ndarray) -> Any:
    """The array on the GPU: with its strides, and as far from a multiple of 16 bytes as it is here."""
    if emulated():
        return a
    import cupy

    memory = memory_of(a)
    low = a.ctypes.data - memory.offset
    block = cupy.zeros(memory.block.size + 16, np.uint8)
    start = low % 16
    block[start : start + memory.block.size] = cupy.asarray(memory.block)
    return cupy.ndarray(a.shape, a.dtype, block.data + start + memory.offset, a.strides)


def on_host(a: Any) -> np.ndarray:
    """The array with its strides, copied by bytes."""
    if isinstance(a, np.ndarray):
        return a
    if not a.size:
        return np.empty(a.shape, a.dtype)
    ends = [(n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)]
    low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends) + a.itemsize
    block = type(a)((high - low,), np.uint8, a.data + low).get()
    return np.ndarray(a.shape, a.dtype, block, -low, a.strides)


class Compiled:
    """A plan ready to run, as ``codegen_numba.build.build`` gives one: called with NumPy arrays, it gives NumPy arrays."""

    def __init__(self, plan: Plan, numerics: str, *, vary: bool, graph: bool, check: bool) -> None:
        tunes = vary and any(getattr(s, "fn", "") == "matmul" for s in plan.steps)
        config = Config().replace({"numerics": numerics, "cudagraphs": graph, "autotune": tunes})
        self.check = check
        self.vary = vary
        with self.around():
            self.program = Program(plan, config)
        self.arrays: list[Any] | None = None

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.arrays is None:
            self.arrays = [on_device(a) for a in arrays]
        with self.around():
            return [on_host(a) for a in self.program(self.arrays)]

    @contextmanager
    def around(self) -> Iterator[None]:
        """As things are while it is compiled and called, which may compile as well."""
        with varied() if self.vary else ExitStack(), watched(self.check), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what cannot be recorded is said; so are NumPy's overflows in rows that it runs
            yield

    def inputs(self) -> list[np.ndarray]:
        """What the inputs hold now."""
        return [on_host(a) for a in self.arrays or ()]

    def texts(self) -> str:
        with self.around():
            return "\n".join(s.source.text for s in self.program.recipe().launches)


@contextmanager
def watched(check: bool) -> Iterator[None]:
    """With the emulated machine's watch over races and memory."""
    if not (check and emulated()):
        yield
        return
    with mock.patch.object(machine(True), "check", True):
        yield


@contextmanager
def varied() -> Iterator[None]:
    """Other schedules inside, also for products."""
    with ExitStack() as changes:
        for module, name, value in SMALL:
            changes.enter_context(mock.patch.object(module, name, value))
        changes.enter_context(mock.patch.object(tune, "picker", lambda config, emulate: other))
        changes.enter_context(mock.patch.object(sources, "pick_schedule", other))
        changes.enter_context(mock.patch.object(ways.Contest, "won", won))
        yield


def won(self: Any, make: Mapping[str, Callable[[], Any]]) -> Any:
    """Any of the ways to do a product."""
    way = random.Random(zlib.crc32(repr(self.problem).encode())).choice(list(make))
    return None if way == "apart" else make[way]()


_first = sources.pick_schedule


def other(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
    """A schedule that is right for the nest, and seldom the best."""
    dice = random.Random(zlib.crc32(repr((nest, at)).encode()))
    start = _first(kernel, nest, at)
    start = dice.choice([start, *wilder(kernel, nest, at, start)])
    fields = tune.proposals(nest, start, at.sizes)
    if start.kind == "pointwise" and not schedule.inner_loops(nest):
        fields = {"threads": (32, 64, 256), "stream": (True, False), "once": (True, False)}
    for name in dice.sample(list(fields), dice.randint(0, min(3, len(fields)))):
        if fields[name]:
            try:
                start = tune.consistent(nest, start, replace(start, **{name: dice.choice(fields[name])}), at.sizes)
            except ValueError:  # as the tuner takes it
                continue
    return start


def wilder(kernel: Kernel, nest: Nest, at: Situation, start: Schedule) -> list[Schedule]:
    """What ``choose`` would take for larger sizes."""
    out = []
    if start.kind == "pointwise" and not schedule.inner_loops(nest) and nest.axes and at.aligned and vectorizable(nest.body):
        widest = schedule.widest_vector(kernel, nest, nest.axes[-1].name, dict(at.facts))
        out += [replace(start, vector=v) for v in (2, 4, 8) if v <= widest and divides(v, nest.axes[-1].extent, dict(at.facts))]
    if start.kind == "row" and schedule.splittable(nest):
        out += [replace(start, split=n, chunks=0, team=team, threads=team) for n in (2, 3) for team in (WARP, 2 * WARP)]
    if start.kind == "column" and schedule.splittable(nest):
        out += [replace(start, split=n) for n in (2, 3)]
    return out
