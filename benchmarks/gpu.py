"""Side by side on one GPU: torch eager, torch.compile (default and max-autotune-no-cudagraphs) and tinytorch compiled.

    python benchmarks/gpu.py [--only TEXT] [--reps 30] [--modes default,max-autotune-no-cudagraphs] [--ours default] [--save FILE]

Device time: CUDA events around one call, the L2 flushed by a 256 MB write before it and a spin kernel in front so that
the host is never waited for.  Host time: the median wall time of a call that is queued without waiting.  The share is
of the copy bandwidth measured in the same run.  Absolute times belong to one machine: quote ratios.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.cases import gpt  # noqa: E402

DEVICE = "cuda"


@dataclass(frozen=True)
class Case:
    """``build(torch, compile_)`` gives the call that is timed; ``moved`` the bytes it must move at least."""

    name: str
    build: Callable[[Any, Callable[[Any], Any]], Callable[[], Any]]
    moved: int = 0
    autotuned: bool = True  # whether torch's max-autotune is worth its compile time here
    more: tuple[str, ...] = ()  # further modes of torch.compile
    tokens: int = 0  # of a language model's step


def tensor(torch: Any, *shape: int, dtype: str = "float32", seed: int = 0, grad: bool = False) -> Any:
    """Random data made on the host in blocks, so that both libraries hold the same numbers."""
    n = int(np.prod(shape))
    block = np.random.default_rng(seed).standard_normal(min(n, 1 << 20), np.float32)
    data = np.resize(block, shape)
    t = torch.from_numpy(data).to(DEVICE).to(getattr(torch, dtype))
    return t.requires_grad_() if grad else t


def forward(fn: Callable[..., Any], *make: Callable[[Any], Any]) -> Callable[[Any, Any], Callable[[], Any]]:
    def build(torch: Any, compile_: Any) -> Callable[[], Any]:
        args = tuple(m(torch) for m in make)
        call = compile_(lambda *a: fn(torch, *a))
        return lambda: call(*args)

    return build


def forward_backward(fn: Callable[..., Any], g: Any, *make: Callable[[Any], Any]) -> Any:
    def build(torch: Any, compile_: Any) -> Callable[[], Any]:
        args = tuple(m(torch) for m in make)
        cotangent = g(torch) if g else None
        leaves = [a for a in args if a.requires_grad]
        call = compile_(lambda *a: fn(torch, *a))

        def step() -> None:
            for leaf in leaves:
                leaf.grad = None
            call(*args).backward(cotangent)

        return step

    return build


def of(*shape: int, **kw: Any) -> Callable[[Any], Any]:
    return lambda torch: tensor(torch, *shape, **kw)


def gate(torch: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    return torch.nn.functional.gelu(x * w + b) * torch.sigmoid(x) + r


def rms(torch: Any, x: Any, w: Any) -> Any:
    v = x.float()
    return (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def kernels() -> list[Case]:
    F = lambda torch: torch.nn.functional  # noqa: E731
    R, C = 16384, 4096
    cases = []
    for d, size in (("float32", 4), ("bfloat16", 2)):
        n, m = 65536, 1024
        cases.append(Case(f"gelu gate {d} {n}x{m}", forward(
            gate, of(n, m, dtype=d), of(m, dtype=d, seed=1), of(m, dtype=d, seed=2), of(n, m, dtype=d, seed=3)), 3 * n * m * size))
        for rows, cols in ((R, C), (64, 131072)):
            cases.append(Case(f"softmax {d} {rows}x{cols}", forward(
                lambda torch, x: torch.softmax(x, -1), of(rows, cols, dtype=d)), 2 * rows * cols * size))
    b = "bfloat16"
    cases += [
        Case("layer norm fwd bf16", forward(lambda t, x, w, c: F(t).layer_norm(x, (C,), w, c),
             of(R, C, dtype=b), of(C, dtype=b, seed=1), of(C, dtype=b, seed=2)), 2 * R * C * 2),
        Case("layer norm fwd+bwd bf16", forward_backward(lambda t, x, w, c: F(t).layer_norm(x, (C,), w, c), of(R, C, dtype=b, seed=5),
             of(R, C, dtype=b, grad=True), of(C, dtype=b, seed=1, grad=True), of(C, dtype=b, seed=2, grad=True)), 5 * R * C * 2, False),
        Case("RMS norm fwd bf16", forward(rms, of(R, C, dtype=b), of(C, dtype=b, seed=1)), 2 * R * C * 2),
        Case("RMS norm fwd+bwd bf16", forward_backward(rms, of(R, C, dtype=b, seed=5),
             of(R, C, dtype=b, grad=True), of(C, dtype=b, seed=1, grad=True)), 5 * R * C * 2, False),
        Case("cross entropy fwd+bwd bf16 8192x50304", forward_backward(
             lambda t, x, y: F(t).cross_entropy(x, y), None, of(8192, 50304, dtype=b, grad=True),
             lambda t: t.from_numpy(np.random.default_rng(1).integers(0, 50257, 8192)).to(DEVICE)), 3 * 8192 * 50304 * 2),
        Case("cross entropy whole step bf16 8192x50304", _loss_and_gradient, 3 * 8192 * 50304 * 2, False),
        Case("sum(0) fp32 65536x1024", forward(lambda t, x: x.sum(0), of(65536, 1024)), 65536 * 1024 * 4),
        Case("sum fp32 2^28", forward(lambda t, x: x.sum(), of(1 << 28)), 4 << 28),
        Case("x.T+y fp32 8192^2", forward(lambda t, x, y: x.T + y, of(8192, 8192), of(8192, 8192, seed=1)), 3 * 8192**2 * 4),
        Case("dropout+residual+layer norm fwd+bwd bf16", forward_backward(
             lambda t, x, r, w, c: F(t).layer_norm(F(t).dropout(x, 0.1, True) + r, (C,), w, c), of(R, C, dtype=b, seed=5),
             of(R, C, dtype=b, grad=True), of(R, C, dtype=b, seed=1, grad=True),
             of(C, dtype=b, seed=2, grad=True), of(C, dtype=b, seed=3, grad=True)), 9 * R * C * 2, False),
        Case("attention causal fwd bf16 8x16x2048x64", forward(
             lambda t, q, k, v: F(t).scaled_dot_product_attention(q, k, v, is_causal=True),
             *(of(8, 16, 2048, 64, dtype=b, seed=s) for s in range(3))), 0, False),
        Case("attention causal fwd+bwd bf16 8x16x2048x64", forward_backward(
             lambda t, q, k, v: F(t).scaled_dot_product_attention(q, k, v, is_causal=True), of(8, 16, 2048, 64, dtype=b, seed=5),
             *(of(8, 16, 2048, 64, dtype=b, seed=s, grad=True) for s in range(3))), 0, False),
        Case("tiny: 10 ops on 128 floats", forward(_tiny, of(128))),
        Case("AdamW, 124 M parameters", _adamw, 7 * 4 * 124_000_000, False),
        Case("MLP step, batch 64", lambda t, c: _mlp(t, c, 64), 0, False, ("reduce-overhead",)),
        Case("MLP step, batch 4096", lambda t, c: _mlp(t, c, 4096), 0, False, ("reduce-overhead",)),
        Case("GPT-2 small step, bf16 autocast, 16x1024", _gpt2, 0, False, tokens=16 * 1024),
    ]  # fmt: skip
    return cases


def _tiny(torch: Any, x: Any) -> Any:
    y = x * 2 + 1
    y = torch.tanh(y) * x - 0.5
    y = torch.relu(y) + torch.sigmoid(x)
    return (y * y).sqrt() + x


def _loss_and_gradient(torch: Any, compile_: Any) -> Callable[[], Any]:
    """Loss and gradient: torch compiles the loss and runs backward, we compile both as one graph."""
    x = tensor(torch, 8192, 50304, dtype="bfloat16", grad=True)
    y = torch.from_numpy(np.random.default_rng(1).integers(0, 50257, 8192)).to(DEVICE)
    loss_of = torch.nn.functional.cross_entropy
    if torch.__name__ == "torch":
        call = compile_(lambda: loss_of(x, y))
    else:
        call = lambda: loss_of(x, y)  # noqa: E731

    def step() -> Any:
        x.grad = None
        loss = call()
        loss.backward()
        return loss.detach()

    return step if torch.__name__ == "torch" else compile_(step)  # type: ignore[no-any-return]


def _adamw(torch: Any, compile_: Any) -> Callable[[], Any]:
    params = []
    for i in range(31):
        p = torch.nn.Parameter(tensor(torch, 4_000_000, seed=i))
        p.grad = tensor(torch, 4_000_000, seed=100 + i)
        params.append(p)
    more = {"fused": True} if torch.__name__ == "torch" else {}
    return compile_(torch.optim.AdamW(params, lr=1e-3, **more).step)  # type: ignore[no-any-return]


def _train(torch: Any, compile_: Any, loss_of: Any, opt: Any) -> Callable[[], Any]:
    """Torch compiles the loss and runs backward and a fused optimizer; we compile the whole step, as one graph."""
    if torch.__name__ == "torch":
        call = compile_(loss_of)

        def step() -> Any:
            opt.zero_grad(set_to_none=True)
            loss = call()
            loss.backward()
            opt.step()
            return loss

        return step

    def whole() -> Any:
        opt.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        opt.step()
        return loss.detach()

    return compile_(whole)  # type: ignore[no-any-return]


def _optimizer(torch: Any, model: Any) -> Any:
    more = {"fused": True} if torch.__name__ == "torch" else {}
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **more)


def _mlp(torch: Any, compile_: Any, batch: int) -> Callable[[], Any]:
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).to(DEVICE)
    x = tensor(torch, batch, 784)
    y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, batch)).to(DEVICE)
    return _train(torch, compile_, lambda: nn.functional.cross_entropy(model(x), y), _optimizer(torch, model))


def _gpt2(torch: Any, compile_: Any) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = gpt(torch, 50304, 768, 12, 12, 1024)
    model.head.weight = model.tok.weight
    model.to(DEVICE)
    ids = np.random.default_rng(0).integers(0, 50257, (16, 1025))
    x = torch.from_numpy(ids[:, :-1].copy()).to(DEVICE)
    y = torch.from_numpy(ids[:, 1:].copy().reshape(-1)).to(DEVICE)

    def loss_of() -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x)
        return torch.nn.functional.cross_entropy(logits, y)

    return _train(torch, compile_, loss_of, _optimizer(torch, model))


# --- timing -----------------------------------------------------------------------------------------------------------
class Timer:
    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)

    def device_us(self, fn: Callable[[], Any], reps: int) -> tuple[float, float, float]:
        torch = self.torch
        times = []
        for _ in range(reps):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush.zero_()
            torch.cuda._sleep(2_000_000)
            start.record()
            fn()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        times.sort()
        return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]

    def host_us(self, fn: Callable[[], Any], reps: int) -> float:
        torch = self.torch
        times = []
        for _ in range(max(reps, 10)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            fn()
            times.append((time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
        return statistics.median(times)

    def wall_us(self, fn: Callable[[], Any], reps: int) -> float:
        """Back to back, waiting only at the end: what a training loop sees."""
        torch = self.torch
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(reps):
            fn()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / reps * 1e6


def run(case: Case, name: str, torch: Any, compile_: Any, timer: Timer, reps: int) -> dict[str, Any]:
    import torch as peer

    peer.cuda.synchronize()
    peer.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        fn = case.build(torch, compile_)
        built = time.perf_counter()
        fn()
        peer.cuda.synchronize()
        first = time.perf_counter() - built
        fn(), fn()
        median, low, high = timer.device_us(fn, reps)
        got = {"us": median, "p10": low, "p90": high, "host_us": timer.host_us(fn, reps), "wall_us": timer.wall_us(fn, reps), "first_s": first}
        got["peak_GB"] = peak_memory(torch)
        return got
    except Exception as e:
        traceback.print_exc(limit=-3)
        return {"error": f"{type(e).__name__}: {str(e)[:200]}", "after_s": time.perf_counter() - start}


def copy_rate(timer: Timer) -> float:
    """Bytes read plus written per second by a copy of 1 GiB."""
    source = timer.torch.empty(1 << 28, device=DEVICE)
    target = timer.torch.empty_like(source)
    return 2 * 4 * (1 << 28) / timer.device_us(lambda: target.copy_(source), 20)[0] * 1e6


def peak_memory(torch: Any) -> float:
    if torch.__name__ == "torch":
        return float(torch.cuda.max_memory_allocated() / 1e9)
    import cupy

    return float(cupy.get_default_memory_pool().total_bytes() / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains one of these, comma separated")
    parser.add_argument("--reps", type=int, default=30)
    parser.add_argument("--modes", default="default,max-autotune-no-cudagraphs")
    parser.add_argument("--ours", default="default", help="modes of tinytorch.compile, comma separated")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    import cupy
    import torch

    tinytorch = importlib.import_module("tinytorch")
    timer = Timer()
    peak = copy_rate(timer)
    card = torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, CuPy {cupy.__version__}; copy {peak / 1e12:.2f} TB/s", flush=True)
    rows = []
    wanted = options.only.split(",")
    for case in kernels():
        if not any(w in case.name for w in wanted):
            continue
        contestants: dict[str, tuple[Any, Any]] = {"torch eager": (torch, lambda f: f)}
        for mode in (*filter(None, options.modes.split(",")), *case.more):
            if mode == "default" or case.autotuned or mode in case.more:
                contestants[f"torch {mode}"] = (torch, lambda f, mode=mode: torch.compile(f, mode=mode, dynamic=False))
        for mode in options.ours.split(","):
            contestants[f"ours {mode}"] = (tinytorch, lambda f, mode=mode: tinytorch.compile(f, mode=mode, dynamic=False))
        print(f"\n{case.name}", flush=True)
        row: dict[str, Any] = {"case": case.name}
        for name, (module, compile_) in contestants.items():
            row[name] = got = run(case, name, module, compile_, timer, options.reps)
            torch._dynamo.reset()
            tinytorch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
            cupy.get_default_memory_pool().free_all_blocks()
            if "error" in got:
                print(f"  {name:32s} {got['error']}", flush=True)
                continue
            share = f"{case.moved / got['us'] * 1e6 / peak:6.1%} of copy" if case.moved else ""
            if case.tokens:
                share = f"{case.tokens / got['wall_us'] * 1e3:6.1f} k tokens/s"
            print(f"  {name:32s} {got['us']:10.1f} us ({got['p10']:.1f}..{got['p90']:.1f})  host {got['host_us']:8.1f}  wall {got['wall_us']:9.1f}"
                  f"  first {got['first_s']:6.2f} s  peak {got['peak_GB']:5.2f} GB  {share}", flush=True)  # fmt: skip
        peers = [v for k, v in row.items() if k.startswith("torch ") and k != "torch eager" and "us" in v]
        mine = [v for k, v in row.items() if k.startswith("ours") and "us" in v]
        if peers and mine:
            row["ratio"], row["wall_ratio"] = (min(p[t] for p in peers) / min(m[t] for m in mine) for t in ("us", "wall_us"))
            print(f"  best torch.compile mode / ours = {row['ratio']:.2f}, back to back with the host {row['wall_ratio']:.2f}", flush=True)
        rows.append(row)
        if options.save:
            options.save.write_text(json.dumps({"card": card, "date": time.strftime("%Y-%m-%d"), "copy_TBps": peak / 1e12, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
