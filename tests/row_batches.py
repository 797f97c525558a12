"""Programs of rows compiled and compared with eager: one by one or many as one graph, interpreted or as machine code.

A hundred thousand programs: ``python tests/row_batches.py --seconds 3600 [--from SEED] [--workers N] [--save FILE]``.
``--machine cuda`` runs them by the CUDA codegen, on a GPU or the emulated one.  Seed ``n`` is program ``rolled(n)`` on every machine; each batch of seeds draws its numerics, tuning and machine.  Compiling
several as one graph shares what a graph costs and lets the scheduler fuse what has nothing to do with one another; when a
batch differs, its programs run alone, and the seeds and the smallest failing part of each are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent)]

import cuda_programs  # noqa: E402
import numpy as np  # noqa: E402
from loop_helpers import trace  # noqa: E402
from numba_helpers import TINY  # noqa: E402
from program_bounds import agrees  # noqa: E402
from row_programs import Program, Step, rolled  # noqa: E402

from codegen_numba.build import build  # noqa: E402
from compiler.config import Config  # noqa: E402
from compiler.loop import compile_graph, interp  # noqa: E402
from compiler.loop.ir import Extern  # noqa: E402
from compiler.loop.printer import format_plan, parse_plan  # noqa: E402
from compiler.loop.verify import verify  # noqa: E402
from tinytorch.device import emulated  # noqa: E402
from tinytorch.tensor import Tensor  # noqa: E402

BATCH = 12


class DiffersError(AssertionError):
    pass


def together(batch: list[Program]) -> tuple[Any, list[Tensor]]:
    """The programs side by side as one function, and its inputs."""
    counts = [len(p.inputs) for p in batch]

    def fn(*inputs: Tensor) -> tuple[Tensor, ...]:
        out: list[Tensor] = []
        rest = list(inputs)
        for p, n in zip(batch, counts, strict=True):
            out += p(*rest[:n])
            rest = rest[n:]
        return tuple(out)

    return fn, [t for p in batch for t in p.inputs]


def check(
    batch: list[Program], machine: str, numerics: str = "fast", tiny: bool = False, graph: bool = False, watch: bool = False
) -> None:
    """Compile ``batch`` as one graph for ``machine`` (numba, cuda, or interp: the loop interpreter) and compare.

    ``tiny``: as if the data were large.  For CUDA: ``graph`` records launches, ``watch`` looks for races if emulated.
    """
    fn, tensors = together(batch)
    config = Config().replace({"numerics": numerics})
    plan = compile_graph(trace(fn, *tensors), config)
    arrays = [t._data for t in tensors]
    before = [a.tobytes() for a in arrays]
    if machine == "interp":
        verify(plan)
        text = format_plan(plan)
        assert parse_plan(text) == plan, text
        _compare(batch, interp.run_plan(plan, arrays, order="shuffle"), numerics, lambda: text)
        return
    if machine == "cuda":
        _check_cuda(batch, plan, arrays, numerics, cuda_programs.Compiled(plan, numerics, vary=tiny, graph=graph, check=watch))
        return
    built = build(plan, config, TINY if tiny else None)
    for _ in range(2):  # the second call meets used memory
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = built(arrays)
        _compare(batch, got, numerics, lambda: "\n".join([format_plan(plan), built.source, *built.kernels.values()]))
    if [a.tobytes() for a in arrays] != before:
        raise DiffersError("an input was written")


def unflushed(want: np.ndarray, got: np.ndarray) -> np.ndarray:
    """``got`` with ``want``'s subnormal numbers where it has zeros: CuPy's own kernels, which rows without a lowering run,
    take them for zeros."""
    if want.dtype.kind in "biuc" or want.dtype.itemsize == 8 or got.shape != want.shape or got.dtype != want.dtype:
        return got
    with np.errstate(all="ignore"):
        lost = (got == 0) & (np.abs(want.astype(np.float64)) < 2.0**-126)
    return np.where(lost, want, got)


def _check_cuda(batch: list[Program], plan: Any, arrays: list[np.ndarray], numerics: str, built: cuda_programs.Compiled) -> None:
    values = [p.values[o].array for p in batch for o in p.outputs]
    flushes = any(isinstance(s, Extern) and s.fn != "matmul" for s in plan.steps)
    for _ in range(3):  # a graph is recorded in the second call and launched in the third
        got = built(arrays)
        if flushes and not emulated():
            got = [unflushed(w, g) for w, g in zip(values, got, strict=True)]
        _compare(batch, got, numerics, lambda: f"{format_plan(plan)}\n{built.texts()}")
    for was, now in zip(arrays, built.inputs(), strict=True):
        if was.tobytes() != now.tobytes():
            raise DiffersError("an input was written")


def _compare(batch: list[Program], got: list[np.ndarray], numerics: str, text: Any) -> None:
    rest = list(got)
    for p in batch:
        for o in p.outputs:
            g, value = rest.pop(0), p.values[o]
            w = value.array
            if g.dtype != w.dtype or g.shape != w.shape:
                raise DiffersError(f"{p}\nv{o}: {g.dtype}{g.shape} instead of {w.dtype}{w.shape}\n{text()}")
            good = agrees(g, value, numerics == "strict")
            if not good.all():
                at = tuple(int(i[0]) for i in np.nonzero(~np.atleast_1d(good))) if g.ndim else ()
                raise DiffersError(
                    f"{p}\nv{o}{list(at)}: {g[at]!r}, eager has {w[at]!r} within {value.error[at]!r}\n{text()}"
                )


def alone(p: Program, **how: Any) -> str | None:
    """What goes wrong with this program by itself."""
    try:
        check([p], **how)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__}: {e}\n    at {last.filename}:{last.lineno} in {last.name}"
    return None


def smallest(p: Program, **how: Any) -> Program:
    """With one output, and steps that nothing needs dropped; then each step tried as the output of its own."""
    for o in range(len(p.steps)):
        if isinstance(p.steps[o], Step):
            part = needed(replace(p, outputs=[o]))
            if alone(part, **how):
                return part
    return p


def needed(p: Program) -> Program:
    """Without the steps and inputs its outputs do not need."""
    keep: set[int] = set()
    pending = list(p.outputs)
    while pending:
        n = pending.pop()
        if n not in keep:
            keep.add(n)
            s = p.steps[n]
            pending += [a[1] for a in s.args if isinstance(a, tuple)] if isinstance(s, Step) else []
    order = sorted(keep)
    new = {n: k for k, n in enumerate(order)}
    out = Program(outputs=[new[o] for o in p.outputs])
    for n in order:
        s = p.steps[n]
        if isinstance(s, int):
            out.steps.append(len(out.inputs))
            out.inputs.append(p.inputs[s])
        else:
            out.steps.append(Step(s.name, tuple(("v", new[a[1]]) if isinstance(a, tuple) else a for a in s.args), s.params))
        out.values.append(p.values[n])
    return out


def drawn(first: int, machine: str) -> dict[str, Any]:
    """How a batch is compiled: depends on its first seed alone."""
    dice = random.Random(f"how {first}")
    if machine == "cuda":
        numerics, tiny, graph, watch = dice.choice(["fast", "strict"]), dice.random() < 0.6, dice.random() < 0.3, dice.random() < 0.2
        return {"machine": "cuda", "numerics": numerics, "tiny": tiny, "graph": graph, "watch": watch}
    how: dict[str, Any] = {"machine": "interp" if dice.random() < 0.15 else "numba", "numerics": dice.choice(["fast", "strict"])}
    how["tiny"] = how["machine"] == "numba" and dice.random() < 0.4
    return how


def run_batch(first: int, machine: str = "cpu", only: int | None = None) -> dict[str, Any]:
    """Seeds ``first`` to ``first + BATCH``, or one of them."""
    how = drawn(first, machine)
    seeds = [first + k for k in range(BATCH)] if only is None else [only]
    batch = [rolled(seed) for seed in seeds]
    report: dict[str, Any] = {"first": first, **how, "failures": {}}
    report["rows"] = dict(Counter(s.name for p in batch for s in p.steps if isinstance(s, Step)))
    try:
        check(batch, **how)
    except Exception as e:
        if machine == "cuda" and cuda_programs.lost():  # no kernel runs in this process any more
            print(f"--- {seeds}: {type(e).__name__}: {e}\n{batch[0] if only else ''}", file=sys.stderr, flush=True)
            os._exit(1)
        for seed, p in zip(seeds, batch, strict=True):
            if alone(p, **how):
                small = smallest(p, **how)
                report["failures"][seed] = f"{small}\n{alone(small, **how)}"
        if not report["failures"]:
            report["failures"][f"{first} to {first + BATCH - 1} together"] = f"{type(e).__name__}: {e}"
    return report


def reports(first: int, programs: int, seconds: float, workers: int, machine: str = "cpu") -> Iterator[dict[str, Any]]:
    """Of batch after batch.  If a process dies, those in flight are run again one by one, to see which killed it."""
    began, at = time.monotonic(), first
    most = 400 if machine == "cuda" else 40  # a GPU takes seconds to start with
    pool = ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=most)
    pending: list[tuple[int, Any]] = []
    while True:
        while len(pending) < 2 * workers and time.monotonic() - began < seconds and at < first + programs:
            pending.append((at, pool.submit(run_batch, at, machine)))
            at += BATCH
        if not pending:
            pool.shutdown()
            return
        try:
            yield pending[0][1].result()
            pending.pop(0)
        except BrokenProcessPool:
            for seed, _ in pending:
                yield apart(seed, machine)
            pending, pool = [], ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=most)


def apart(first: int, machine: str) -> dict[str, Any]:
    """A batch in a process of its own; if that dies as well, each of its programs in one."""
    report = in_process(first, machine)
    if report is not None:
        return report
    report = {"first": first, **drawn(first, machine), "rows": {}, "failures": {}}
    for seed in range(first, first + BATCH):
        found = in_process(first, machine, seed)
        report["failures"] |= {seed: f"the process died\n{rolled(seed)}"} if found is None else found["failures"]
    report["failures"] = report["failures"] or {f"{first} to {first + BATCH - 1} together": "the process died"}
    return report


def in_process(*args: Any) -> dict[str, Any] | None:
    """``run_batch`` in a process of its own; None if it dies."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(run_batch, *args).result()
        except BrokenProcessPool:
            return None


def way(report: dict[str, Any]) -> str:
    """How the batch of a report was compiled."""
    return " ".join([report["machine"], report["numerics"], *(k for k in ("tiny", "graph", "watch") if report.get(k))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=10**9)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--save", type=Path, help="failures, and the count so far after every batch")
    parser.add_argument("--machine", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    os.environ.setdefault("TT_CACHE", "0")
    if options.machine == "cuda":
        cuda_programs.choose_machine()
    began, done, failures = time.monotonic(), 0, 0
    ways: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for report in reports(options.first, options.programs, options.seconds, options.workers, options.machine):
        done += BATCH
        ways[way(report)] += BATCH
        rows.update(report["rows"])
        for seed, text in report["failures"].items():
            failures += 1
            print(f"=== {seed} ({way(report)})\n{text}", flush=True)
        if options.save:
            state = {"from": options.first, "programs": done, "failures": failures, "seconds": round(time.monotonic() - began),
                     "ways": dict(ways), "rows": dict(rows)}  # fmt: skip
            options.save.write_text(json.dumps(state, indent=1))
    print(f"{done} programs from seed {options.first}, {failures} failures, {time.monotonic() - began:.0f} s; {dict(ways)}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
