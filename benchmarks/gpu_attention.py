"""Is attention right and fast on a GPU?  ``python benchmarks/gpu_attention.py [--quick] [--shape NAME] [--part NAME]``.

Each part (torch, forward, keys+queries, fused, other) of each shape runs in a process of its own, so that one bad kernel
spoils only its part.  Every config is checked against float64 on sampled heads, with outputs poisoned before, and timed
by CUDA events (median).  TFLOP/s count 4 T S D per head forward, 10 T S D backward, halved if causal, as is the custom;
so the two-launch backward, which computes 14 T S D, is judged by the same work.  ``$OUT`` receives a JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from codegen_cupy import attention, attention_tiles, cuda_machine, machine, machine_code  # noqa: E402
from codegen_cupy.attention import Problem  # noqa: E402
from codegen_cupy.attention_tiles import Tiles  # noqa: E402
from codegen_cupy.host import Launch, View  # noqa: E402
from codegen_cupy.launch import Block  # noqa: E402
from tinytorch.dtypes import DType, bfloat16, float16, float32  # noqa: E402


@dataclass(frozen=True)
class Shape:
    name: str
    b: int
    h: int
    hk: int
    t: int
    d: int
    dtype: DType = bfloat16
    causal: bool = True
    dropout: float = 0.0

    @property
    def flops(self) -> float:
        """Of forward; backward counts 2.5 times as much."""
        return 4.0 * self.b * self.h * self.t * self.t * self.d * (0.5 if self.causal else 1.0)


MAIN = [
    Shape("causal 8x16x2048x64", 8, 16, 16, 2048, 64), Shape("gpt2 16x12x1024x64", 16, 12, 12, 1024, 64),
    Shape("causal 4x16x2048x128", 4, 16, 16, 2048, 128),
]  # fmt: skip
OTHERS = [
    Shape("full 8x16x2048x64", 8, 16, 16, 2048, 64, causal=False),
    Shape("fp16 causal 8x16x2048x64", 8, 16, 16, 2048, 64, float16),
    Shape("causal grouped 4x32/8x2048x128", 4, 32, 8, 2048, 128),
    Shape("causal 2x8x2048x256", 2, 8, 8, 2048, 256),
    Shape("causal 8x16x1000x96", 8, 16, 16, 1000, 96),
    Shape("dropout gpt2 16x12x1024x64", 16, 12, 12, 1024, 64, dropout=0.1),
    Shape("float32 causal 2x12x1024x64", 2, 12, 12, 1024, 64, float32),
]
PARTS = ("torch", "forward", "apart", "fused")
FLUSH = 256 << 20  # bytes written before each timed run, so that nothing is left in the L2


# --- our side ---------------------------------------------------------------------------------------------------------
class Arrays:
    """Random inputs, poisoned outputs, and the problem they make."""

    def __init__(self, cp: Any, s: Shape, seed: int = 0) -> None:
        self.cp, self.shape = cp, s
        rng = cp.random.default_rng(seed)

        def new(heads: int) -> Any:  # as a projection leaves it: (batch, rows, heads, size), seen with heads first
            flat = rng.standard_normal((s.b, s.t, heads, s.d), dtype=cp.float32).astype(s.dtype.np)
            return flat.transpose(0, 2, 1, 3)

        self.of = {"q": new(s.h), "k": new(s.hk), "v": new(s.hk), "g": new(s.h)}
        for name, like in (("out", "q"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
            self.of[name] = new(s.h if like == "q" else s.hk)
        self.of["lse"] = cp.empty((s.b, s.h, s.t), cp.float32)
        self.of["delta"] = cp.empty((s.b, s.h, s.t), cp.float32)
        self.of["dq_sum"] = cp.zeros((s.b, s.h, s.t, s.d), cp.float32)
        if s.dropout:
            self.of["state"] = cp.asarray([1234, 7], cp.int64)
        self.scale = 1 / s.d**0.5
        views = {
            n: View(n, a.shape, tuple(x // a.itemsize for x in a.strides), 0) for n, a in self.of.items()
        }
        self.problem = Problem(s.dtype, views, None, s.causal, self.scale, s.dropout, 3)

    def poison(self, *names: str) -> None:
        for n in names:
            self.of[n].data.memset_async(0xFF, self.of[n].nbytes)  # NaN in every type

    def wide(self, name: str, b: int, h: int) -> Any:
        return self.of[name][b, h].astype(self.cp.float64)

    def truth(self, b: int, kv: int) -> dict[str, Any]:
        """Everything of one head of keys and the heads of queries that share it, in float64."""
        cp, s = self.cp, self.shape
        per = s.h // s.hk
        out: dict[str, Any] = {"dk": 0.0, "dv": 0.0}
        k, v = self.wide("k", b, kv), self.wide("v", b, kv)
        for h in range(kv * per, kv * per + per):
            q, g = self.wide("q", b, h), self.wide("g", b, h)
            scores = q @ k.T * self.scale
            if s.causal:
                scores = cp.where(cp.tri(s.t, dtype=bool), scores, -cp.inf)
            peak = scores.max(1, keepdims=True)
            e = cp.exp(scores - peak)
            total = e.sum(1, keepdims=True)
            p = e / total
            keep = self.kept(b, h)
            o = (p * keep) @ v
            dp = (g @ v.T) * keep
            delta = (g * o).sum(1, keepdims=True)
            ds = p * (dp - delta) * self.scale
            out[f"out {h}"], out[f"lse {h}"] = o, (peak + cp.log(total))[:, 0]
            out[f"dq {h}"] = ds @ k
            out["dk"] += ds.T @ q
            out["dv"] += (p * keep).T @ g
        return out

    def kept(self, b: int, h: int) -> Any:
        """Dropout's factors for one head: words of the stream that starts at offset 7 + 3."""
        s, cp = self.shape, self.cp
        if not s.dropout:
            return 1.0
        from tinytorch.ops import philox

        first = (b * s.h + h) * s.t * s.t
        uniform = philox.fill(cp, 1234, 10 + first // 4, s.t * s.t, philox.UNIFORM)
        return cp.where(uniform >= cp.float32(s.dropout), 1 / (1 - s.dropout), 0.0).reshape(s.t, s.t)

    def error(self, *names: str) -> float:
        """The worst relative error over a few heads; infinite if anything is not a number."""
        s, worst = self.shape, 0.0
        for b, kv in ((0, 0), (s.b - 1, s.hk - 1), (s.b // 2, s.hk // 2)):
            truth = self.truth(b, kv)
            for key, want in truth.items():
                name, *head = key.split()
                if name in names:
                    got = self.wide(name, b, int(head[0]) if head else kv)
                    bad = float(self.cp.linalg.norm(got - want) / self.cp.linalg.norm(want))
                    worst = max(worst, bad if bad == bad else float("inf"))
        whole = all(bool(self.cp.isfinite(self.of[n].astype(self.cp.float32)).all()) for n in names)
        return worst if whole else float("inf")

    def fill_saved(self) -> None:
        """lse and delta, by our forward."""
        for launch in attention.forward(self.problem):
            Ready(self, launch)()
        g, o = self.of["g"].astype(self.cp.float32), self.of["out"].astype(self.cp.float32)
        self.of["delta"][...] = (g * o).sum(-1)


class Ready:
    """A launch with its kernel loaded and arguments packed."""

    def __init__(self, arrays: Arrays, launch: Launch) -> None:
        self.machine = machine.machine(False)
        self.launch, self.kernel = launch, self.machine.functions([launch.source], fmad=True)[0]
        self.block = Block(launch)
        for i, name in enumerate(launch.buffers):
            self.block.cells[i] = arrays.of[name].data.ptr

    def __call__(self) -> None:
        (gx, gy), (bx, by), s = self.launch.grid, self.launch.source.block, self.launch.source.shared
        self.machine.launch(self.kernel.ptr, gx, gy, 1, bx, by, 1, s, 0, self.block.pointer, 0)

    def resources(self) -> str:
        get = self.machine.driver.funcGetAttribute
        return f"{get(4, self.kernel.ptr)} regs, {get(3, self.kernel.ptr)} B local, {self.launch.source.shared >> 10} KiB shared"


def median_us(cp: Any, run: Callable[[], Any], count: int) -> tuple[float, float]:
    for _ in range(3):
        run()
    flush = cp.empty(FLUSH, cp.uint8)
    cp.cuda.Device().synchronize()
    events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(count)]
    for a, b in events:
        flush.data.memset_async(0, FLUSH)
        a.record()
        run()
        b.record()
    cp.cuda.Device().synchronize()
    times = [cp.cuda.get_elapsed_time(a, b) * 1e3 for a, b in events]
    return statistics.median(times), min(times)


def compile_all(launches: list[Launch]) -> None:
    texts = {launch.source.text: launch.source.name for launch in launches}
    try:
        machine_code.cubins(list(texts.items()), cuda_machine.architecture())
    except Exception as e:  # each variant will say so for itself
        print("compiling together failed:", str(e)[:300])


def describe(t: Tiles | None) -> str:
    if t is None:
        return "plain"
    where = ("regs" if t.registers else "tile") + (" wgmma" if t.groups else "") + (" ahead" if t.ahead else "")
    return f"warps {t.warps} rows {16 * t.m * t.warps:3} by {t.other:3} stages {t.stages} resident {t.resident} own in {where}"


def trial(
    a: Arrays, label: str, tiles: Tiles | None, make: Callable[[], list[Launch]], outs: tuple[str, ...], work: float,
    count: int, rows: list[dict[str, Any]], before: Callable[[], Any] | None = None,
) -> None:  # fmt: skip
    """Build, check, time and print one variant."""
    try:
        ready = [Ready(a, launch) for launch in make()]
        resources = "; ".join(r.resources() for r in ready)

        def run() -> None:
            if before is not None:
                before()
            for r in ready:
                r()

        a.poison(*outs)
        run()
        error = a.error(*outs)
        us, best = median_us(a.cp, run, count)
        rate = work / us * 1e-6
        print(f"  {label:8} {describe(tiles):68} {us:8.1f} us (best {best:8.1f}) {rate:6.1f} TFLOP/s  error {error:.1e}  {resources}", flush=True)
        rows.append(dict(part=label, tiles=describe(tiles), us=us, best=best, tflops=rate, error=error, resources=resources))
    except Exception as e:
        print(f"  {label:8} {describe(tiles)}: {type(e).__name__}: {str(e)[:400]}", flush=True)
        if "illegal" in str(e).lower() or "launch failure" in str(e).lower():
            raise


def ours(part: str, s: Shape, count: int, most: int, kind: str) -> list[dict[str, Any]]:
    import cupy as cp

    a, rows = Arrays(cp, s), list[dict[str, Any]]()
    p, d = a.problem, s.d
    many = p.halves

    def chosen(found: list[Tiles]) -> list[Tiles | None]:
        is_of = {"wgmma": lambda t: t.groups, "mma": lambda t: not t.groups, "ahead": lambda t: t.ahead}
        asked = [t for i, t in enumerate(found) if not i or not kind or any(is_of[k](t) for k in kind.split(","))]
        return [*asked[:most]] if many else [None]

    if part == "forward":
        variants = chosen(attention_tiles.forward_tiles(d))
        compile_all([x for t in variants for x in attention.forward(p, t)])
        for t in variants:
            trial(a, "forward", t, lambda t=t: attention.forward(p, t), ("out", "lse"), s.flops, count, rows)
        return rows
    a.fill_saved()
    work = 2.5 * s.flops
    if part == "apart" and not many:
        trial(a, "backward", None, lambda: attention.backward(p), ("dq", "dk", "dv"), work, count, rows)
    elif part == "apart":
        keys, queries = chosen(attention_tiles.keys_tiles(d)), chosen(attention_tiles.queries_tiles(d))
        compile_all([attention.keys_launch(p, t) for t in keys] + [attention.queries_launch(p, t) for t in queries])
        for t in keys:  # shares of the work by their number of products: 4 and 3 of 5, as 5 is what is counted
            trial(a, "keys", t, lambda t=t: [attention.keys_launch(p, t)], ("dk", "dv"), work * 4 / 5, count, rows)
        for t in queries:
            trial(a, "queries", t, lambda t=t: [attention.queries_launch(p, t)], ("dq",), work * 3 / 5, count, rows)
    elif part == "fused" and many:
        variants = chosen(attention_tiles.fused_tiles(d))
        compile_all([x for t in variants for x in attention.fused_backward(p, t)])
        total = a.of["dq_sum"]

        def clear() -> None:
            total.data.memset_async(0, total.nbytes)

        for t in variants:
            trial(a, "fused", t, lambda t=t: attention.fused_backward(p, t), ("dq", "dk", "dv"), work, count, rows, clear)
    return rows


# --- torch's side -----------------------------------------------------------------------------------------------------
def torchs(s: Shape, count: int) -> list[dict[str, Any]]:
    import torch
    import torch.nn.functional as F

    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[s.dtype.name]

    def new(heads: int) -> Any:
        return torch.randn(s.b, s.t, heads, s.d, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()

    q, k, v = new(s.h), new(s.hk), new(s.hk)
    g = new(s.h).detach()

    def forward() -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=s.causal, dropout_p=s.dropout, enable_gqa=s.h != s.hk)

    def timed(run: Callable[[], Any]) -> tuple[float, float]:
        for _ in range(3):
            run()
        times, flush = [], torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
        for _ in range(count):
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_000_000)  # the host gets ahead, so that its time is outside the events
            a.record()
            run()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e3)
        return statistics.median(times), min(times)

    rows = []
    with torch.no_grad():
        us, best = timed(forward)
    rows.append(dict(part="torch forward", us=us, best=best, tflops=s.flops / us * 1e-6))
    out = forward()
    us, best = timed(lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True))
    rows.append(dict(part="torch backward", us=us, best=best, tflops=2.5 * s.flops / us * 1e-6))
    us, best = timed(lambda: torch.autograd.grad(forward(), (q, k, v), g))
    rows.append(dict(part="torch both", us=us, best=best, tflops=3.5 * s.flops / us * 1e-6))
    for r in rows:
        print(f"  {r['part']:64} {r['us']:8.1f} us (best {r['best']:8.1f}) {r['tflops']:6.1f} TFLOP/s", flush=True)
    return rows


# --- the frame --------------------------------------------------------------------------------------------------------
def child(part: str, s: Shape, args: argparse.Namespace) -> None:
    count = 8 if args.quick else 25
    rows: list[dict[str, Any]] = []
    try:
        rows = torchs(s, count) if part == "torch" else ours(part, s, count, args.most, args.kind)
    except Exception:
        traceback.print_exc(file=sys.stdout)
    Path(args.child).write_text(json.dumps(rows), encoding="utf-8")


def parts_of(s: Shape, parts: tuple[str, ...], args: argparse.Namespace, most: int) -> dict[str, list[dict[str, Any]]]:
    print(f"{s.name} {s.dtype.name}", flush=True)
    found = {}
    for part in parts:
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "rows.json"
            command = [sys.executable, __file__, "--child", str(file), "--shape", s.name, "--part", part, "--most", str(most), "--kind", args.kind]
            try:
                subprocess.run(command + ["--quick"] * args.quick, timeout=args.timeout, check=False)
                found[part] = json.loads(file.read_text(encoding="utf-8"))
            except Exception as e:
                print(f"  {part}: {type(e).__name__}: {str(e)[:200]}", flush=True)
                found[part] = []
    return found


def summary(s: Shape, found: dict[str, list[dict[str, Any]]]) -> None:
    """The best of each kind beside torch's."""
    peer = {r["part"]: r["us"] for r in found.get("torch", [])}

    def best(part: str, label: str) -> dict[str, Any] | None:
        limit = 1e-2 if s.dtype.itemsize == 2 else 1e-4
        good = [r for r in found.get(part, []) if r["part"] == label and r["error"] < limit]
        return min(good, key=lambda r: r["us"], default=None)

    forward, keys, queries, fused = best("forward", "forward"), best("apart", "keys"), best("apart", "queries"), best("fused", "fused")
    whole = best("apart", "backward")
    lines = []
    if forward:
        lines.append(("forward", forward["us"], peer.get("torch forward"), forward["tiles"]))
    if keys and queries:
        lines.append(("backward, two launches", keys["us"] + queries["us"], peer.get("torch backward"), f"{keys['tiles']} | {queries['tiles']}"))
    if fused:
        lines.append(("backward, fused", fused["us"], peer.get("torch backward"), fused["tiles"]))
    if whole:
        lines.append(("backward", whole["us"], peer.get("torch backward"), "plain"))
    for name, us, theirs, how in lines:
        ratio = f"{theirs / us:.2f} of torch's speed" if theirs else "torch not timed"
        print(f"SUMMARY {s.name:32} {name:24} {us:8.1f} us  {ratio}  [{how}]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--shape", default="", help="only shapes whose name contains this")
    parser.add_argument("--part", default="", help="torch, forward, apart or fused")
    parser.add_argument("--kind", default="", help="wgmma, mma, ahead (or several, with commas): only such configs, and the default")
    parser.add_argument("--main", action="store_true", help="only the three main shapes")
    parser.add_argument("--most", type=int, default=99, help="configs to try of each kind")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one part")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = [s for s in (MAIN if args.main else MAIN + OTHERS) if args.shape in s.name]
    if args.child:
        child(args.part, next(s for s in shapes if s.name == args.shape), args)
        return
    everything = {}
    parts = tuple(p for p in PARTS if not args.part or p == args.part)
    for s in shapes:
        most = args.most if s in MAIN else min(args.most, 3)
        everything[s.name] = parts_of(s, parts, args, most)
        summary(s, everything[s.name])
    print("\nIn short:")
    for s in shapes:
        summary(s, everything[s.name])
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "gpu_attention.json").write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
