"""Which block sizes, tiles and shares suit a kernel on this machine, and by which way to make a product: proposals, and how
to time them.

Stage: codegen_numba.  In: a kernel, or a library call, with known sizes.  Out: its ``Tune``.  Used under ``config.autotune``
(``mode="max-autotune"``); ``config.deterministic`` leaves out the choices that change the order of sums.
Read next: ``compiler.autotune``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from codegen_numba import analysis, kernels, narrow, runtime, target, templates
from codegen_numba.analysis import known
from codegen_numba.schedule import Tune, phases
from compiler import autotune, cache
from compiler.config import Config
from compiler.loop.ir import Alloc, ArrayView, Buffer, Extern, Kernel, Loop, Plan, Run, Store, Update, walk
from compiler.loop.printer import format_kernel, format_plan


def tuned(kernel: Kernel, config: Config, start: Tune) -> Tune:
    """The best tuning found for ``kernel``; ``start`` if its sizes are not known or there is nothing to choose."""
    fields = proposals(kernel, config, start)
    if kernel.sizes or not fields or not all(_known(b) for b in kernel.params):
        return start
    bare = replace(kernel, name="kernel", origin=(), lines=())
    key = cache.key_of(
        "tune", format_kernel(bare), config.key(), runtime.thread_count(), target.description(), sorted(fields),
        cache.package_hash("codegen_numba"), kernels.versions(),
    )  # fmt: skip
    arrays = [example(b) for b in kernel.params if b.name not in kernel.writes]

    def measure(choice: Tune) -> float:
        from codegen_numba.build import build

        built = build(alone(kernel), replace(config, autotune=False), choice)
        return autotune.least_time(lambda: built(arrays, ()))

    return autotune.search(kernel.name, key, start, fields, measure)


def proposals(kernel: Kernel, config: Config, start: Tune) -> dict[str, tuple[Any, ...]]:
    """Values worth trying, by field, for what this kernel has."""
    out: dict[str, tuple[Any, ...]] = {}
    cut = phases(kernel, runtime.thread_count(), start)
    if any(p.kind == "tiles" for p in cut):
        out["tile"] = ((64, 64), (64, 128), (128, 128), (256, 64), (128, 256), (64, 256))
    total = sum(analysis.hint(p.total) for p in cut)
    if runtime.thread_count() > 1 and start.parallel // 16 < total < start.parallel * 64:
        out["parallel"] = (max(1, total // 4), total * 4)
    if runtime.thread_count() > 1 and total >= start.parallel:
        out["parts"] = (1, 2, 8)
    if not config.deterministic and _sums(kernel):
        out["block"] = (256, 512, 4096)
    return out


# --- products and convolutions -----------------------------------------------------------------------------------------
#: Bytes of a result between a product and the kernel behind it.
BLOCKS = (-1, 1 << 16, 1 << 18, 1 << 20)


def tuned_call(plan: Plan, places: tuple[int, ...], buffers: dict[str, Buffer], config: Config, start: Tune) -> Tune:
    """The best way found for the library call at the first of ``places``, timed with the kernel at the second, if any."""
    call = plan.steps[places[0]]
    assert isinstance(call, Extern)
    ways = templates.ways(call, buffers)
    small = _renamed(plan, places, buffers)
    if not ways or small is None or config.deterministic:
        return start
    fields = {"way": ways, **({"together": BLOCKS} if len(places) > 1 else {})}
    key = cache.key_of(
        "call", format_plan(small), config.key(), runtime.thread_count(), target.description(), sorted(fields),
        cache.package_hash("codegen_numba"), kernels.versions(),
    )  # fmt: skip
    arrays = [example(b) for b in small.inputs]

    def measure(choice: Tune) -> float:
        from codegen_numba.build import build

        built = build(small, replace(config, autotune=False), choice)
        return autotune.least_time(lambda: built(list(arrays), ()))

    return autotune.search(call.fn, key, start, fields, measure)


def _renamed(plan: Plan, places: tuple[int, ...], buffers: dict[str, Buffer]) -> Plan | None:
    """These steps as a plan of their own, equal for all that differ in names only; None if sizes are not known."""
    steps = [s for n in places if isinstance(s := plan.steps[n], Run | Extern)]
    names: dict[str, str] = {}
    for name in (a for s in steps for a in _touched(s)):
        names.setdefault(name, f"b{len(names)}")
    written = frozenset().union(*(narrow.written(plan, s) for s in steps))
    own = {name: replace(buffers[name], name=new) for name, new in names.items()}
    if not all(_known(b) for b in own.values()):
        return None
    made = [b for name, b in own.items() if name in written]
    bare = [replace(plan.kernels[s.kernel], name="kernel", origin=(), lines=()) for s in steps if isinstance(s, Run)]
    inputs = tuple(b for name, b in own.items() if name not in written)
    outputs = tuple(ArrayView(b.name, b.shape, b.stride) for b in made)
    return Plan(inputs, outputs, tuple(bare), (*(Alloc(b) for b in made), *(_with_names(s, names) for s in steps)))


def _touched(s: Run | Extern) -> list[str]:
    return list(s.args) if isinstance(s, Run) else [v.buffer for v in (*s.args, *s.outs) if isinstance(v, ArrayView)]


def _with_names(s: Run | Extern, names: dict[str, str]) -> Run | Extern:
    if isinstance(s, Run):
        return Run(0, tuple(names[a] for a in s.args), s.sizes)
    args = tuple(replace(v, buffer=names[v.buffer]) if isinstance(v, ArrayView) else v for v in s.args)
    return replace(s, args=args, outs=tuple(replace(v, buffer=names[v.buffer]) for v in s.outs), origin=())


def _sums(kernel: Kernel) -> bool:
    """Is there a sum long enough to have blocks?"""
    stmts = list(walk(kernel.body))
    long = any(isinstance(s, Loop) and s.kind == "reduce" and (known(s.extent) or 0) > 256 for s in stmts)
    return long and any(isinstance(s, Update) and s.combine == "add" for s in stmts)


def alone(kernel: Kernel) -> Plan:
    """A plan that runs the kernel once on memory of its own."""
    inputs = tuple(b for b in kernel.params if b.name not in kernel.writes)
    made = [b for b in kernel.params if b.name in kernel.writes]
    combined = {s.buffer for s in walk(kernel.body) if isinstance(s, Store) and s.mode != "set"}
    allocs = tuple(Alloc(b, 0 if b.name in combined else None) for b in made)
    views = tuple(ArrayView(b.name, b.shape, b.stride) for b in made)
    return Plan(inputs, views, (kernel,), (*allocs, Run(0, tuple(b.name for b in kernel.params))))


def example(b: Buffer) -> Any:
    """An array like the buffer: ordinary numbers, and zeros for integers, which may be indices."""
    shape = [analysis.hint(n) for n in b.shape]
    stride = [known(s) or 0 for s in b.stride]
    reach = [(n - 1) * s for n, s in zip(shape, stride, strict=True)]
    span = 1 + sum(map(abs, reach))
    if b.dtype.kind == "f":
        flat = np.random.default_rng(0).normal(size=span).astype(b.dtype.np)
    else:
        flat = np.zeros(span, b.dtype.np)
    first = -sum(r for r in reach if r < 0)
    return np.lib.stride_tricks.as_strided(flat[first:], shape, [s * flat.itemsize for s in stride])


def _known(b: Buffer) -> bool:
    return all(known(n) for n in b.shape) and all(known(s) is not None for s in b.stride)
