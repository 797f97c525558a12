"""Programs of rows compiled and compared with eager: one by one or many as one graph, interpreted or as machine code.

A hundred thousand programs: ``python tests/row_batches.py --seconds 3600 [--from SEED] [--workers N] [--save FILE]``.
Seed ``n`` is program ``rolled(n)`` on every machine; each batch of seeds draws its numerics, tuning and machine.  Compiling
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

import numpy as np  # noqa: E402
from loop_helpers import trace  # noqa: E402
from numba_helpers import TINY  # noqa: E402
from program_bounds import agrees  # noqa: E402
from row_programs import Program, Step, rolled  # noqa: E402

from codegen_numba.build import build  # noqa: E402
from compiler.config import Config  # noqa: E402
from compiler.loop import compile_graph, interp  # noqa: E402
from compiler.loop.printer import format_plan, parse_plan  # noqa: E402
from compiler.loop.verify import verify  # noqa: E402
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


def check(batch: list[Program], machine: str, numerics: str = "fast", tiny: bool = False) -> None:
    """Compile ``batch`` as one graph for ``machine`` (numba, or interp: the loop interpreter) and compare."""
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
    built = build(plan, config, TINY if tiny else None)
    for _ in range(2):  # the second call meets used memory
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = built(arrays)
        _compare(batch, got, numerics, lambda: "\n".join([format_plan(plan), built.source, *built.kernels.values()]))
    if [a.tobytes() for a in arrays] != before:
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


def run_batch(first: int) -> dict[str, Any]:
    """Seeds ``first`` to ``first + BATCH``; how they are compiled depends on ``first`` alone."""
    dice = random.Random(f"how {first}")
    how: dict[str, Any] = {"machine": "interp" if dice.random() < 0.15 else "numba", "numerics": dice.choice(["fast", "strict"])}
    how["tiny"] = how["machine"] == "numba" and dice.random() < 0.4
    batch = [rolled(first + k) for k in range(BATCH)]
    report: dict[str, Any] = {"first": first, **how, "failures": {}}
    report["rows"] = dict(Counter(s.name for p in batch for s in p.steps if isinstance(s, Step)))
    try:
        check(batch, **how)
    except Exception as e:
        for k, p in enumerate(batch):
            if alone(p, **how):
                small = smallest(p, **how)
                report["failures"][first + k] = f"{small}\n{alone(small, **how)}"
        if not report["failures"]:
            report["failures"][f"{first} to {first + BATCH - 1} together"] = f"{type(e).__name__}: {e}"
    return report


def reports(first: int, programs: int, seconds: float, workers: int) -> Iterator[dict[str, Any]]:
    """Of batch after batch.  If a process dies, those in flight are run again one by one, to see which killed it."""
    began, at = time.monotonic(), first
    pool = ProcessPoolExecutor(workers, max_tasks_per_child=40)
    pending: list[tuple[int, Any]] = []
    while True:
        while len(pending) < 2 * workers and time.monotonic() - began < seconds and at < first + programs:
            pending.append((at, pool.submit(run_batch, at)))
            at += BATCH
        if not pending:
            pool.shutdown()
            return
        try:
            yield pending[0][1].result()
            pending.pop(0)
        except BrokenProcessPool:
            for seed, _ in pending:
                yield apart(seed)
            pending, pool = [], ProcessPoolExecutor(workers, max_tasks_per_child=40)


def apart(seed: int) -> dict[str, Any]:
    """A batch in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(run_batch, seed).result()
        except BrokenProcessPool:
            how = {"machine": "?", "numerics": "?", "tiny": False, "rows": {}}
            return {"first": seed, **how, "failures": {f"{seed} to {seed + BATCH - 1}": "the process died"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=10**9)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--save", type=Path, help="failures, and the count so far after every batch")
    options = parser.parse_args()
    os.environ.setdefault("TT_CACHE", "0")
    began, done, failures = time.monotonic(), 0, 0
    ways: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for report in reports(options.first, options.programs, options.seconds, options.workers):
        done += BATCH
        ways[f"{report['machine']} {report['numerics']}{' tiny' * report['tiny']}"] += BATCH
        rows.update(report["rows"])
        for seed, text in report["failures"].items():
            failures += 1
            print(f"=== {seed} ({report['machine']}, {report['numerics']}, tiny={report['tiny']})\n{text}", flush=True)
        if options.save:
            state = {"from": options.first, "programs": done, "failures": failures, "seconds": round(time.monotonic() - began),
                     "ways": dict(ways), "rows": dict(rows)}  # fmt: skip
            options.save.write_text(json.dumps(state, indent=1))
    print(f"{done} programs from seed {options.first}, {failures} failures, {time.monotonic() - began:.0f} s; {dict(ways)}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
