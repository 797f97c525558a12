"""Are the CUDA kernels right and near the memory's speed?  ``python benchmarks/gpu_smoke.py [--quick] [--variants]``.

Builds hand-written loop-IR kernels at real sizes, checks each against float64 on the host (on sampled rows) and times
it by CUDA events with a cold L2 beside a plain copy.  ``--variants`` times other schedules of the same kernel too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import cuda_cases as cases  # noqa: E402

import codegen_cupy  # noqa: E402
from codegen_cupy import cuda_machine, host, launch, machine, schedule, sources  # noqa: E402
from compiler.loop.ir import Alloc, ArrayView, Buffer, Kernel, Plan, Run  # noqa: E402
from tinytorch.dtypes import bfloat16, float32  # noqa: E402

FLUSH_BYTES = 256 << 20
COPIED = 1 << 28  # floats


def plan_of(kernel: Kernel, fills: dict[str, Any] | None = None) -> Plan:
    """A plan of one launch: parameters that are written become outputs."""
    fills = fills or {}
    inputs = tuple(p for p in kernel.params if p.name not in kernel.writes)
    outs = tuple(p for p in kernel.params if p.name in kernel.writes)
    steps = (*(Alloc(b, fills.get(b.name)) for b in outs), Run(0, tuple(p.name for p in kernel.params)))
    views = tuple(ArrayView(b.name, b.shape, b.stride) for b in outs)
    return Plan(inputs, views, (kernel,), steps)


def array(cp: Any, b: Buffer, seed: int) -> Any:
    """Random data of a buffer's type, shape and strides."""
    rng = cp.random.default_rng(seed)
    shape = tuple(int(s) for s in b.shape)
    n = int(np.prod(shape))
    if b.name == "ids":
        return rng.integers(0, 50000, shape, dtype=cp.int64)
    if b.name == "state":
        return cp.asarray([1234, 7], dtype=cp.int64)
    flat = rng.standard_normal(n, dtype=cp.float32).astype(b.dtype.np)
    item = b.dtype.itemsize
    return cp.ndarray(shape, b.dtype.np, flat.data, tuple(int(s) * item for s in b.stride))


@dataclass
class Case:
    name: str
    kernel: Kernel
    check: Callable[[Any, dict[str, Any], list[Any]], float]
    fills: dict[str, Any] | None = None


def median_us(cp: Any, run: Callable[[], Any], flush: Any, count: int) -> tuple[float, float]:
    """Median and best time between events, L2 flushed before each run."""
    for _ in range(3):
        run()
    times = []
    for _ in range(count):
        flush.fill(1)
        a, b = cp.cuda.Event(), cp.cuda.Event()
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(cp.cuda.get_elapsed_time(a, b) * 1e3)
    return statistics.median(times), min(times)


# --- checks: the largest error relative to the largest value, on sampled rows ---------------------------------------------
def relative(got: Any, want: np.ndarray) -> float:
    got = got.get() if hasattr(got, "get") else got
    got = np.asarray(got).astype(np.float64)
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) + 1e-30))


def _rows(x: Any, count: int = 64) -> np.ndarray:
    step = max(1, x.shape[0] // count)
    return x[::step].get().astype(np.float64)


def check_gelu(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    from math import erf

    v = x["x"][::100_003].get().astype(np.float64)
    want = v * 0.5 * (1 + np.array([erf(t * 0.7071067811865476) for t in v]))
    return relative(out[0][::100_003], want)


def check_softmax(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    v = _rows(x["x"])
    e = np.exp(v - v.max(1, keepdims=True))
    step = max(1, x["x"].shape[0] // 64)
    return relative(out[0][::step], e / e.sum(1, keepdims=True))


def check_layer_norm(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    v, w, b = _rows(x["x"]), x["w"].get().astype(np.float64), x["b"].get().astype(np.float64)
    want = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5) * w + b
    return relative(out[0][:: max(1, x["x"].shape[0] // 64)], want)


def check_layer_norm_backward(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    g, v, w = (x[k].astype(cp.float64) for k in ("g", "x", "w"))
    xhat = (v - x["mean"][:, None]) * x["rstd"][:, None].astype(cp.float64)
    gw, n = g * w, v.shape[1]
    dx = x["rstd"][:, None] * (gw - (gw.sum(1, keepdims=True) + xhat * (gw * xhat).sum(1, keepdims=True)) / n)
    wants = [dx, (g * xhat).sum(0), g.sum(0)]
    return max(relative(o, w_.get()) for o, w_ in zip(out, wants, strict=True))


def check_column_sum(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    return relative(out[0], x["x"].astype(cp.float64).mean(0).get())


def check_full_sum(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    whole = float(x["x"].astype(cp.float64).sum())
    size = float(cp.abs(x["x"]).sum(dtype=cp.float64))
    return abs(float(out[0]) - whole) / size


def check_transpose(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    return float(cp.abs(out[0] - (x["a"] + x["b"])).max())


def check_embedding(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    return float(cp.abs(out[0].astype(cp.float32) - x["table"][x["ids"]].astype(cp.float32)).max())


def check_dropout(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    from tinytorch.ops import philox

    n = 4096
    uniform = philox.fill(np, 1234, 7, n, philox.UNIFORM).astype(np.float64)
    want = np.where(uniform < 0.9, x["x"][:n].get().astype(np.float64) / 0.9, 0)
    return relative(out[0][:n], want)


def check_argmax(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    return float((out[1] != x["x"].argmax(1)).sum())


def check_cumsum(cp: Any, x: dict[str, Any], out: list[Any]) -> float:
    return relative(out[0], x["x"].astype(cp.float64).cumsum(1).get())


def all_cases(scale: int) -> list[Case]:
    s = scale
    return [
        Case("gelu fp32 2^26", cases.gelu(float32, (1 << 26) // s), check_gelu),
        Case("gelu bf16 2^27", cases.gelu(bfloat16, (1 << 27) // s), check_gelu),
        Case("softmax fp32 16384x4096", cases.softmax(float32, 16384 // s, 4096), check_softmax),
        Case("softmax bf16 16384x4096", cases.softmax(bfloat16, 16384 // s, 4096), check_softmax),
        Case("softmax fp32 64x131072", cases.softmax(float32, 64, 131072 // s), check_softmax),
        Case("softmax fp32 65536x256", cases.softmax(float32, 65536 // s, 256), check_softmax),
        Case("layer_norm fp32 16384x4096", cases.layer_norm(float32, 16384 // s, 4096), check_layer_norm),
        Case("layer_norm bf16 16384x4096", cases.layer_norm(bfloat16, 16384 // s, 4096), check_layer_norm),
        Case("layer_norm_backward fp32 8192x1024", cases.layer_norm_backward(8192 // s, 1024),
             check_layer_norm_backward, {"dw": 0.0, "db": 0.0}),
        Case("column_sum fp32 65536x1024", cases.column_sum(float32, 65536 // s, 1024), check_column_sum),
        Case("column_sum bf16 65536x1024", cases.column_sum(bfloat16, 65536 // s, 1024), check_column_sum),
        Case("full_sum fp32 2^28", cases.full_sum(float32, (1 << 28) // s), check_full_sum),
        Case("transpose_add fp32 8192^2", cases.transpose_add(8192 // s, 8192 // s), check_transpose),
        Case("embedding bf16 65536x1024", cases.embedding(65536 // s, 50304, 1024, bfloat16), check_embedding),
        Case("dropout fp32 2^26", cases.dropout((1 << 26) // s), check_dropout),
        Case("argmax fp32 8192x8192", cases.argmax(float32, 8192 // s, 8192), check_argmax),
        Case("cumsum fp32 8192x4096", cases.cumsum(8192 // s, 4096), check_cumsum),
    ]  # fmt: skip


def variants(first: schedule.Schedule) -> list[schedule.Schedule]:
    """Neighbours of a schedule worth knowing about."""
    out = []
    if first.kind == "pointwise":
        out += [replace(first, threads=t) for t in (64, 256, 512)]
        out += [replace(first, vector=v) for v in (1, 2, 4, 8) if v < first.vector]
    if first.kind == "row" and first.split == 1:
        for team in (32, 64, 128, 256, 512, 1024):
            rounds = -(-first.chunks * first.team // team) if first.chunks else 0
            if team != first.team and rounds * first.vector <= 64:
                out.append(replace(first, team=team, threads=max(team, 128 if team <= 32 else team), chunks=rounds))
        if first.blocks:
            out += [replace(first, blocks=b) for b in (132, 264, 528, 1056) if b != first.blocks]
    if first.kind == "row" and first.split > 1:
        out += [replace(first, split=max(1, first.split * n // 4)) for n in (1, 2, 8, 16)]
    if first.kind == "column":
        out += [replace(first, split=max(1, first.split * n // 4)) for n in (1, 2, 8)]
        out += [replace(first, team=t, threads=32 * t) for t in (4, 8, 16) if t != first.team]
    return out


def moved(kernel: Kernel, arrays: dict[str, Any]) -> int:
    """Bytes: each parameter once, combining targets twice."""
    total = 0
    for p in kernel.params:
        n = 1
        for extent in p.shape:
            n *= int(extent)
        if p.name == "table" and "ids" in arrays:
            n = int(arrays["ids"].size) * int(p.shape[1])
        total += n * p.dtype.itemsize
    return total


def run_case(cp: Any, case: Case, flush: Any, ceiling: float, args: Any, rows: list[dict[str, Any]]) -> None:
    inputs = [b for b in case.kernel.params if b.name not in case.kernel.writes]
    arrays = {b.name: array(cp, b, i) for i, b in enumerate(inputs)}
    flat = list(arrays.values())
    plan = plan_of(case.kernel, case.fills)
    begin = time.perf_counter()
    program = codegen_cupy.build(plan, None)
    built = time.perf_counter() - begin
    picks: list[schedule.Schedule] = []
    host.prepare(plan, {}, aligned=True, strict=False,
                 pick=lambda k, n, at: picks.append(sources.pick_schedule(k, n, at)) or picks[-1])  # fmt: skip
    trials: list[tuple[str, Any]] = [("default", program)]
    if args.variants and len(picks) == 1:
        for v in variants(picks[0]):
            try:
                recipe = host.prepare(plan, {}, aligned=True, strict=False, pick=lambda k, n, at, v=v: v)
                trials.append((_difference(picks[0], v), launch.prepared(recipe, machine.machine(False))))
            except Exception as e:
                print(f"    variant {v}: {type(e).__name__}: {str(e)[:200]}")
    bytes_moved = moved(case.kernel, arrays)
    for label, run in trials:
        try:
            out = run(flat)
            error = case.check(cp, arrays, out)
            us, best = median_us(cp, lambda run=run: run(flat), flush, 10 if args.quick else 30)
        except Exception as e:
            print(f"    {label}: {type(e).__name__}: {str(e)[:300]}")
            continue
        share = bytes_moved / us * 1e-6 / ceiling * 100
        first = f"{case.name:36}" if label == "default" else f"    {label:32}"
        shown = f"  [{_describe(picks)}] built in {built:.2f} s" if label == "default" else ""
        print(f"{first} {us:9.1f} us  best {best:9.1f}  {share:5.1f} % of copy  error {error:.1e}{shown}", flush=True)
        rows.append(dict(case=case.name, variant=label, us=us, best=best, share=share, error=error,
                         schedule=_describe(picks)))  # fmt: skip


def _describe(picks: list[schedule.Schedule]) -> str:
    return "; ".join(
        f"{p.kind} v{p.vector} team{p.team} threads{p.threads} chunks{p.chunks} split{p.split} blocks{p.blocks}"
        for p in picks
    )


def _difference(a: schedule.Schedule, b: schedule.Schedule) -> str:
    fields = ("vector", "threads", "team", "chunks", "split", "blocks")
    return " ".join(f"{f}={getattr(b, f)}" for f in fields if getattr(a, f) != getattr(b, f))


def small_call(cp: Any) -> None:
    """What a call of ten fused operations on 128 numbers costs the host."""
    plan = plan_of(cases.gelu(float32, 128))
    program = codegen_cupy.build(plan, None)
    x = [cp.random.default_rng(0).standard_normal(128, dtype=cp.float32)]
    for _ in range(200):
        program(x)
    cp.cuda.Device().synchronize()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            program(x)
        times.append((time.perf_counter() - begin) * 1e4)
        cp.cuda.Device().synchronize()
    print(f"small call: {statistics.median(times):.2f} us of host time\n{next(iter(program._runs.values())).source}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="sizes divided by 16, fewer runs")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    import cupy as cp

    print(sys.version.split()[0], "cupy", cp.__version__, cuda_machine.architecture())
    cp.cuda.runtime.setDevice(0)
    flush = cp.empty(FLUSH_BYTES, cp.uint8)
    a, b = cp.empty(COPIED, cp.float32), cp.empty(COPIED, cp.float32)
    a.fill(1)
    us, _ = median_us(cp, partial(cp.copyto, b, a), flush, 10)
    ceiling = 2 * a.nbytes / us * 1e-6
    print(f"copy {ceiling:.2f} TB/s")
    a = b = None
    rows: list[dict[str, Any]] = []
    for case in all_cases(16 if args.quick else 1):
        if args.only in case.name:
            try:
                run_case(cp, case, flush, ceiling, args, rows)
            except Exception:
                print(case.name, "FAILED")
                traceback.print_exc()
            cp.get_default_memory_pool().free_all_blocks()
    small_call(cp)
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "gpu_smoke.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
