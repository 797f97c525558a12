"""What capture costs: a call's guards, many parameters' guards, and tracing a deep model.

``python -m benchmarks.capture [--torch]``.  Times are the best of many rounds on one thread: what a call costs is a floor,
and everything that disturbs a machine only adds to it.  With ``--torch`` PyTorch, where it is installed, runs beside in the same
process, round by round.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import tinytorch
from benchmarks.cases import gpt
from compiler.capture import entry


def ten_ops(x: Any) -> Any:
    """Ten pointwise operations."""
    y = x * 2 + 1
    y = y * x - 3
    y = y * 0.5 + x
    y = y - 1
    return (y * y + x) * 0.1


def best(calls: dict[str, Callable[[], Any]], rounds: int, number: int) -> dict[str, float]:
    """Microseconds per call, the least over ``rounds``; the candidates take turns."""
    found = dict.fromkeys(calls, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(number):
                    call()
                found[name] = min(found[name], (time.perf_counter() - start) / number * 1e6)
    finally:
        gc.enable()
    return found


def call_overhead(with_torch: bool) -> dict[str, float]:
    """A call of ten operations on 128 floats: whole, the graph alone, and the guards alone."""
    values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    x = tinytorch.from_numpy(values.copy())
    compiled = tinytorch.compile(ten_ops)
    compiled(x)
    check, run, _ = compiled._tt_door[1].first
    carried = check(ten_ops, x)
    empty = entry.compile_function(ten_ops, lambda gm, examples: lambda *args: (x,))
    empty(x)
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: ten_ops(x),
        "compiled, whole call": lambda: compiled(x),
        "graph alone": lambda: run(*carried),
        "guards alone": lambda: check(ten_ops, x),
        "wrapper with guards": lambda: empty(x),
    }
    if with_torch:
        import torch

        torch.set_num_threads(1)
        t = torch.from_numpy(values.copy())
        theirs = torch.compile(ten_ops)
        theirs(t)
        calls |= {"PyTorch eager": lambda: ten_ops(t), "PyTorch compiled, whole call": lambda: theirs(t)}
    return best(calls, 200, 200)


def many_parameters(parameters: int = 50) -> dict[str, float]:
    """The guards of a module that reads 50 parameters."""
    nn = tinytorch.nn
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(parameters // 2)])
    compiled = entry.compile_function(lambda m, x: m(x), lambda gm, examples: gm, fullgraph=True)
    x = tinytorch.ones(2, 4)
    compiled(model, x)
    fn, cache = compiled._tt_door
    check = cache.first[0]
    assert check(fn, model, x) is not None
    return best({f"guards of {parameters} parameters": lambda: check(fn, model, x)}, 100, 100)


def capture_time(layers: int = 12) -> dict[str, float]:
    """Seconds to capture a transformer, nothing compiled behind it; processor time, which other programs do not add to."""
    model = gpt(tinytorch, 256, 64, 4, layers, 64)
    ids = tinytorch.zeros(2, 64, dtype=tinytorch.int64)
    times = []
    for _ in range(5):
        entry.reset()
        compiled = tinytorch.compile(model, backend="eager", fullgraph=True)
        start = time.process_time()
        compiled(ids)
        times.append(time.process_time() - start)
    return {f"capture of {layers} layers, first call": times[0], f"capture of {layers} layers, best": min(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", action="store_true", help="run PyTorch beside")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}")
    for name, value in call_overhead(options.torch).items():
        print(f"{name:32} {value:8.2f} us")
    for name, value in many_parameters().items():
        print(f"{name:32} {value:8.2f} us")
    for name, value in capture_time().items():
        print(f"{name:32} {value:8.3f} s")


if __name__ == "__main__":
    main()
