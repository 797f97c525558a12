"""What a call costs before any arithmetic: ten pointwise operators on 128 floats, eagerly.

``python benchmarks/eager_overhead.py`` times tinytorch.  ``--against PYTHON`` also runs this file under another
interpreter, where ``torch`` is PyTorch, in alternating rounds on one thread, and prints the ratio of the best rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def program(torch: Any, x: Any, w: Any, b: Any) -> Any:
    y = x * w
    y = y + b
    y = torch.sin(y)
    y = y * 2.0
    y = y - x
    y = torch.exp(y)
    y = y * w
    y = y + 1.0
    y = torch.tanh(y)
    return y * b


def measure(torch: Any, grad: bool, calls: int = 10, rounds: int = 2000) -> float:
    """Best of many rounds, in microseconds a call.  Rounds are short: some of them are not shared with other processes."""
    x, w, b = (torch.randn(128) for _ in range(3))
    x.requires_grad_(grad)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            program(torch, x, w, b)
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    return best


def child(kind: str) -> None:
    if kind == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        sys.path.insert(0, str(ROOT))
        import tinytorch as torch
    print(json.dumps({"plain": measure(torch, False), "recorded": measure(torch, True)}))


def ask(python: str, kind: str) -> dict[str, float]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run([python, __file__, "--child", kind], capture_output=True, text=True, check=True, env=env)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=("torch", "tinytorch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(ask(sys.executable, "tinytorch"))
        if options.against:
            theirs.append(ask(options.against, "torch"))
    for what in ("plain", "recorded"):
        mine = [r[what] for r in ours]
        line = f"{what:9s} tinytorch {min(mine):6.1f} us (median {statistics.median(mine):.1f})"
        if theirs:
            other = [r[what] for r in theirs]
            line += f"   torch {min(other):6.1f} us (median {statistics.median(other):.1f})   ratio {min(mine) / min(other):.2f}"
        print(line)


if __name__ == "__main__":
    main()
