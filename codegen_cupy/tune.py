"""Choosing schedules by running them: what may vary for a nest, and how a candidate is built, checked and timed.

Stage: codegen.  In: a nest with known sizes.  Out: its ``Schedule``.  Used under ``config.autotune``
(``mode="max-autotune"``, ``"max-autotune-no-cudagraphs"``).  The search goes one field at a time
(``compiler.autotune``); a candidate whose results differ from the default's is thrown away, one that cannot be better
(the default moves its bytes at the memory's speed already) or cannot run (registers, threads) is never tried.
``config.deterministic`` leaves alone whatever the order of a sum depends on.  Read next: ``choice``, ``sources``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from codegen_cupy import launch, sources, tiles
from codegen_cupy.host import Launch, Memory, Recipe
from codegen_cupy.kernel_text import HOST
from codegen_cupy.machine import Machine, machine
from codegen_cupy.nest import Nest, value_at
from codegen_cupy.schedule import MULTIPROCESSORS, WARP, Schedule, Situation, inner_loops, splittable
from compiler import autotune, cache, logs
from compiler.config import Config
from compiler.loop.ir import Buffer, Kernel, Store, Update, walk

#: Seconds that one kernel may take, and all of a process together.
KERNEL_BUDGET, TOTAL_BUDGET = 6.0, 90.0
#: A kernel that moves its bytes at so large a part of the copy bandwidth is left as it is.
GOOD_ENOUGH = 0.96
#: Elements of a row that a thread may hold in registers.
MOST_HELD = 128
FLUSH_BYTES = 256 << 20
_spent = 0.0


def picker(config: Config, emulate: bool) -> Callable[[Kernel, Nest, Situation], Schedule]:
    """What ``sources.sources`` takes as ``pick``: the tuned schedule of every nest."""

    def pick(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
        start = sources.pick_schedule(kernel, nest, at)
        return tuned(kernel, nest, at, start, config, machine(emulate))

    return pick


def tuned(kernel: Kernel, nest: Nest, at: Situation, start: Schedule, config: Config, device: Machine) -> Schedule:
    """The best schedule found, the default one where there is nothing to choose."""
    fields = proposals(nest, start, at.sizes, deterministic=config.deterministic)
    if not fields or _spent > TOTAL_BUDGET:
        return start
    bench = Bench(kernel, nest, at.sizes, start, device)
    key = cache.key_of("tune", repr(nest), repr(kernel.params), repr(start), repr(at), device_name(device), cache.package_hash("codegen_cupy"))
    try:
        best = autotune.search(kernel.name, key, start, fields, bench.measure)
        return start if best == start else consistent(nest, start, best, at.sizes)
    except Exception as e:  # memory for the trial may be short; the default needs none
        logs.log("autotune", f"{kernel.name}: not tuned: {type(e).__name__}: {e}")
        return start
    finally:
        bench.close()


def proposals(nest: Nest, start: Schedule, sizes: Mapping[str, int], *, deterministic: bool = False) -> dict[str, tuple[Any, ...]]:
    """Values worth trying, by field, in the order in which they matter."""
    points = value_at(nest.points, sizes)
    sums = any(isinstance(s, Update) or (isinstance(s, Store) and s.mode != "set") for s in walk(nest.body))
    out: dict[str, tuple[Any, ...]] = {}
    if start.kind == "pointwise" and not inner_loops(nest):
        if points >= 2**16:
            out = {"threads": (64, 256, 512), "vector": tuple(v for v in (1, 2, 4) if v < start.vector),
                   "stream": (True, False), "once": (True, False), "rounds": (1, 2)}  # fmt: skip
    elif start.kind == "tile":
        out = {"side": tiles.SIDES, "threads": (128, 256, 512, 1024), "vector": tuple(v for v in (1, 2, 4) if v < start.vector), "stream": (True, False)}
    elif start.kind == "row" and not (sums and deterministic):
        if start.chunks and not start.blocks and max(value_at(x.extent, sizes) for x in inner_loops(nest)) > 8192:
            out["chunks"] = (0,)
        if start.blocks:
            out["blocks"] = tuple(MULTIPROCESSORS * n for n in (1, 2, 3, 4))
            out["prefetch"] = (True, False)
            out["waits"] = ("registers", "shared")
            out["resident"] = (1, 2, 3, 4)
        if start.split > 1:
            out["split"] = tuple(max(1, start.split * n // 4) for n in (1, 2, 8))
        if start.cluster > 1:
            out["cluster"] = (1, 2, 4, 8)
            out["resident"] = (2, 3, 4)
        out["stream"] = (True, False)
        out["team"] = tuple(t for t in (32, 64, 128, 256, 512, 1024) if start.team // 4 <= t <= start.team * 4)
        if start.split == start.cluster == 1 and start.team <= 256:
            out["threads"] = tuple(start.team * n for n in (1, 2, 4))
        if start.vector > 1:
            out["vector"] = (start.vector // 2,)
    elif start.kind == "column" and not (sums and deterministic):
        out = {"split": tuple(max(1, start.split * n // 4) for n in (1, 2, 8)) if splittable(nest) else (), "team": (4, 8, 16, 32)}
        if start.vector > 1:
            out["vector"] = (start.vector // 2,)
    return {name: tuple(v for v in values if v != getattr(start, name)) for name, values in out.items() if values}


def consistent(nest: Nest, start: Schedule, s: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """The schedule with what follows from the changed fields; ValueError if it cannot run well."""
    if s.kind == "column":
        s = replace(s, threads=WARP * s.team)
    if s.kind == "row":
        threads = s.threads if s.threads % s.team == 0 and (s.threads != start.threads or s.team == start.team) else s.team
        s = replace(s, threads=s.team if s.cluster > 1 or s.split > 1 else max(threads, s.team, 128 if s.team <= WARP else 0))
        if s.chunks:
            length = max(value_at(x.extent, sizes) for x in inner_loops(nest))
            s = replace(s, chunks=-(-length // (s.lanes * s.vector)))
            if s.chunks * s.vector > MOST_HELD:
                raise ValueError(f"{s.chunks * s.vector} elements a thread do not fit into registers")
    if s.kind == "tile":
        s = replace(s, threads=min(s.threads, s.side**2 // s.vector))
        if s.threads * s.vector % s.side:
            raise ValueError("threads that do not make whole rows of a tile")
    if s.threads > 1024:
        raise ValueError("more than 1024 threads")
    if s.split < 1:
        raise ValueError("no part")
    return s


class Bench:
    """One nest on memory of its own: builds candidates, compares what they compute, times them."""

    def __init__(self, kernel: Kernel, nest: Nest, sizes: Mapping[str, int], start: Schedule, device: Machine) -> None:
        self.kernel, self.nest, self.sizes, self.start, self.device = kernel, nest, sizes, start, device
        self.began = time.perf_counter()
        self.arrays: list[Any] | None = None
        self.wanted: dict[int, Any] | None = None
        self.best = float("inf")

    def measure(self, choice: Schedule) -> float:
        """Seconds of a launch; an error for a candidate that is wrong, fails, or comes too late."""
        first = self.wanted is None
        if not first and time.perf_counter() - self.began > KERNEL_BUDGET:
            raise TimeoutError("the time for tuning this kernel is spent")
        if not first and self.at_the_wall():
            raise ValueError("the memory's speed is reached already")
        s = consistent(self.nest, self.start, choice, self.sizes)
        run = self.build(s)
        self.check(run)
        seconds = self.seconds(run)
        self.best = min(self.best, seconds)
        return seconds

    def build(self, s: Schedule) -> Callable[[list[Any]], Any]:
        source = sources.write(self.kernel, self.nest, s, "candidate")
        sizes = tuple(self.sizes[n] for n in source.sizes)
        work = min(value_at(source.work, self.sizes), source.max_blocks)
        scratch = tuple(value_at(x.items, self.sizes) * x.itemsize for x in source.scratch)
        step = Launch(source, (work, source.split), source.buffers, sizes, scratch)
        names = tuple(b.name for b in self.kernel.params)
        given = tuple(self._memory(b) for b in self.kernel.params)
        words = frozenset(b.name for b in self.kernel.params if b.device == HOST)
        return launch.prepared(Recipe(names, (step,), (), given, frozenset(), words), self.device, fmad=not s.strict)

    def _memory(self, b: Buffer) -> Memory:
        ints = lambda xs: tuple(value_at(x, self.sizes) for x in xs)  # noqa: E731
        return Memory(b.name, b.dtype, ints(b.shape), ints(b.stride))

    # --- what it computes ---
    def check(self, run: Callable[[list[Any]], Any]) -> None:
        """Run once from the same start; ValueError if the results are not the default's."""
        arrays = self.memory()
        written = [n for n, b in enumerate(self.kernel.params) if b.name in self.kernel.writes]
        for n in written:
            arrays[n][...] = self.example(self.kernel.params[n], n)
        run(arrays)
        if self.wanted is None:
            self.wanted = {n: arrays[n].copy() for n in written}
            return
        for n, want in self.wanted.items():
            if not alike(self.device.xp, arrays[n], want):
                raise ValueError(f"{self.kernel.params[n].name} differs from the default's")

    def memory(self) -> list[Any]:
        if self.arrays is None:
            self.arrays = [self.example(b, n) for n, b in enumerate(self.kernel.params)]
        return self.arrays

    def example(self, b: Buffer, seed: int) -> Any:
        if b.device == HOST:
            return np.zeros(2, np.int64)
        return example(self.device, self._memory(b), seed)

    # --- how long it takes ---
    def seconds(self, run: Callable[[list[Any]], Any]) -> float:
        arrays = self.memory()
        return cold_seconds(self.device, lambda: run(arrays))

    def at_the_wall(self) -> bool:
        """Does the best so far move its bytes as fast as memory goes?"""
        if self.device.synchronous:
            return False
        moved = sum(self._memory(b).items * b.dtype.itemsize for b in self.kernel.params)
        return moved / self.best > GOOD_ENOUGH * COPY_BANDWIDTH

    def close(self) -> None:
        global _spent
        _spent += time.perf_counter() - self.began
        self.arrays = self.wanted = None


COPY_BANDWIDTH = 4.2e12  # bytes a second of the machine schedules are made for


def example(device: Machine, m: Memory, seed: int) -> Any:
    """An array like the memory: ordinary numbers, and zeros for integers, which may be indices."""
    xp, count = device.xp, max(1, m.items)
    if m.dtype.kind == "f":
        block = np.random.default_rng(seed).standard_normal(min(count, 1 << 20)).astype(np.float32)
        flat = xp.tile(xp.asarray(block), -(-count // block.size))[:count].astype(m.dtype.np)
    else:
        flat = xp.zeros(count, m.dtype.np)
    strides = tuple(s * m.dtype.itemsize for s in m.stride)
    return xp.ndarray(m.shape, m.dtype.np, flat.view(np.uint8).data, 0, strides) if xp is np else xp.ndarray(m.shape, m.dtype.np, flat.data, strides)


def cold_seconds(device: Machine, run: Callable[[], Any]) -> float:
    """How long it takes with nothing in the cache."""
    if device.synchronous:
        return autotune.least_time(run, 0.02)
    cp = device.xp
    flush = cp.empty(FLUSH_BYTES, cp.uint8)
    times = []
    for _ in range(7):
        flush.fill(1)
        a, b = cp.cuda.Event(), cp.cuda.Event()
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(cp.cuda.get_elapsed_time(a, b) * 1e-3)
    return float(sorted(times)[1])


def alike(xp: Any, a: Any, b: Any) -> bool:
    """Equal but for the order of sums."""
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    wide = xp.float64 if a.dtype.itemsize == 8 else xp.float32
    x, y = a.astype(wide), b.astype(wide)
    finite = xp.isfinite(y)
    if not bool((xp.isfinite(x) == finite).all()):
        return False
    tolerance = {1: 0.1, 2: 2e-2, 4: 1e-4, 8: 1e-11}[a.dtype.itemsize]
    x, y = xp.where(finite, x, 0), xp.where(finite, y, 0)  # before they meet: inf - inf would warn
    return not a.size or bool(abs(x - y).max() <= tolerance * abs(y).max())


def device_name(device: Machine) -> str:
    if device.synchronous:
        return "emulator"
    props = device.xp.cuda.runtime.getDeviceProperties(device.xp.cuda.Device().id)
    return str(props["name"])
