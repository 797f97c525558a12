"""Side by side on the CPU: tinytorch compiled and eager, torch compiled and eager, in one process, in turn.

    python benchmarks/cpu.py [--only TEXT] [--rounds 9] [--no-torch] [--save FILE]

Run it in an environment that has both ``torch==2.13.0`` and this package.  Every figure is a median over rounds in
which the contestants alternate, so a drift of the machine's speed meets all alike; quote ratios.  One more contestant of
a memory-bound case is a plain copy that moves as many bytes as the case must, to new memory where the case makes new
results: what lies in a cache for the one lies there for the other.  The last column is the copy's time / the case's.
First calls and memory are measured in processes of their own: ``benchmarks/processes.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TT_NUM_THREADS", "2")

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.cases import CPU, Case  # noqa: E402


def runner(case: Case, torch: Any, compiled: bool) -> Callable[[], Any]:
    """What is timed: a call; or forward, loss, backward (and optimizer step), as a user would write it."""
    fn, args = case.build(torch, "cpu")
    wrap = torch.compile if compiled else (lambda f: f)
    if compiled:
        torch.compiler.reset()  # each case by itself: no sizes are taken to vary because another case had others
    if case.name.startswith("AdamW"):
        step = wrap(fn.step)
        return lambda: step()
    if not case.train:
        call = wrap(fn)
        return lambda: call(*args)
    if case.kernel:
        *inputs, g = args
        call = wrap(fn)

        def forward_backward() -> None:
            for t in inputs:
                if t.requires_grad:
                    t.grad = None
            call(*inputs).backward(g)

        return forward_backward
    x, y, opt = args
    loss_of = wrap(lambda x, y: torch.nn.functional.cross_entropy(fn(x), y))

    def step() -> Any:
        opt.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        opt_step()
        return loss

    opt_step = wrap(opt.step)
    return step


#: Seconds that a contestant runs before it is timed: OpenMP's threads go on spinning for the one before.
SETTLE = 0.1


def once(fn: Callable[[], Any], seconds: float = 0.05) -> float:
    """Seconds per call, over enough calls to fill ``seconds``."""
    start = time.perf_counter()
    n = 0
    while True:
        fn()
        n += 1
        taken = time.perf_counter() - start
        if taken > seconds:
            return taken / n


def copier(moved: int, fresh: bool) -> Callable[[], Any]:
    """A copy that reads and writes ``moved`` bytes in all, on as many threads as the contestants use."""
    threads = int(os.environ["TT_NUM_THREADS"])
    pool = ThreadPoolExecutor(threads)
    a = np.ones(moved // 8, np.float32)
    old = np.empty_like(a)
    parts = [slice(i * a.size // threads, (i + 1) * a.size // threads) for i in range(threads)]

    def copy() -> None:
        b = np.empty_like(a) if fresh else old
        list(pool.map(lambda p: np.copyto(b[p], a[p]), parts))

    return copy


def measure(case: Case, contestants: dict[str, tuple[Any, bool]], rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"case": case.name}
    runs = {}
    for name, (torch, compiled) in contestants.items():
        start = time.perf_counter()
        try:
            fn = runner(case, torch, compiled)
            fn()
        except Exception as e:  # one contestant's failure is a row of the table, not the end of the run
            result[name] = {"error": f"{type(e).__name__}: {str(e).splitlines()[0][:120] if str(e) else ''}"}
            continue
        first = time.perf_counter() - start
        fn()
        runs[name] = fn
        result[name] = {"first_s": round(first, 3)}
    if case.moved:
        runs["copy"], result["copy"] = copier(case.moved, case.fresh), {}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, fn in runs.items():
            once(fn, SETTLE)  # whose threads were waiting awake are asleep after that, and its own awake
            times[name].append(once(fn))
    for name, ts in times.items():
        result[name] |= {
            "us": round(statistics.median(ts) * 1e6, 2),
            "min_us": round(min(ts) * 1e6, 2),
            "max_us": round(max(ts) * 1e6, 2),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()

    tinytorch = importlib.import_module("tinytorch")
    contestants: dict[str, tuple[Any, bool]] = {"tt.compile": (tinytorch, True), "tt eager": (tinytorch, False)}
    if not options.no_torch:
        torch = importlib.import_module("torch")
        torch.set_num_threads(int(os.environ["TT_NUM_THREADS"]))
        contestants |= {"torch.compile": (torch, True), "torch eager": (torch, False)}
    print(f"{platform.processor() or platform.machine()}, {os.environ['TT_NUM_THREADS']} threads; ", end="")
    print(f"medians of {options.rounds} rounds (min..max), microseconds; share of the speed of a copy of as many bytes")
    rows = []
    for case in CPU:
        if options.only not in case.name:
            continue
        row = measure(case, contestants, options.rounds)
        rows.append(row)
        print(f"\n{case.name}")
        for name in [*contestants, *(["copy"] if case.moved else [])]:
            got = row[name]
            if "error" in got:
                print(f"  {name:14s} {got['error']}")
                continue
            first = f"first {got['first_s']:6.2f} s" if "first_s" in got else " " * 14
            rate = f"{case.moved / got['us'] / 1e3:7.1f} GB/s {row['copy']['us'] / got['us']:5.0%}" if case.moved else ""
            print(f"  {name:14s} {got['us']:11.1f} ({got['min_us']:.1f}..{got['max_us']:.1f}) {first} {rate}")
        if all("us" in row.get(n, {}) for n in ("tt.compile", "torch.compile")):
            print(f"  ours / torch.compile = {row['tt.compile']['us'] / row['torch.compile']['us']:.3f}")
    ratios = [r["tt.compile"]["us"] / r["torch.compile"]["us"] for r in rows
              if "us" in r.get("tt.compile", {}) and "us" in r.get("torch.compile", {})]  # fmt: skip
    if ratios:
        print(f"\ngeometric mean of ours / torch.compile over {len(ratios)} cases: {statistics.geometric_mean(ratios):.3f}")
    if options.save:
        options.save.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
