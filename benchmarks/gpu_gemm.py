"""Our own matrix products and convolutions on a GPU: right, and how fast?  ``python benchmarks/gpu_gemm.py [part ...]``.

Parts: ``matmul`` (plain, and with bias and GELU behind), ``prologue`` (an operand computed while it is loaded), ``conv``
(forward, both gradients).  Every candidate's result is
compared with torch's in float64 (or float32 on the card), results poisoned before; times are medians by CUDA events with
a cold L2.  Beside ours: torch eager (cuBLAS, cuDNN), torch.compile for the fused product, and for convolutions the
row's own kernel, which copies windows and calls the library.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from codegen_cupy import channels_last, convolution, cuda_machine, gemm, gemm_schedules, machine, machine_code  # noqa: E402
from codegen_cupy.following import following  # noqa: E402
from codegen_cupy.gemm import Problem, Tiles  # noqa: E402
from codegen_cupy.host import Call, Launch, Memory, Step, View  # noqa: E402
from codegen_cupy.launch import Block  # noqa: E402
from codegen_cupy.preceding import computed, preceding  # noqa: E402
from compiler.loop.build import KernelRecorder, kernel  # noqa: E402
from compiler.loop.ir import Kernel  # noqa: E402
from tinytorch.dtypes import DType, bfloat16, float32  # noqa: E402
from tinytorch.ops import convolution as rows  # noqa: E402

BUDGET = float(os.environ.get("SECONDS_LEFT", "110"))
QUICK = bool(os.environ.get("QUICK"))  # fewer cases, one or two choices for each
began = time.perf_counter()


def left() -> float:
    return BUDGET - (time.perf_counter() - began)


class Bench:
    """Arrays of one case, and the clock."""

    def __init__(self) -> None:
        import cupy
        import torch

        self.cp, self.torch = cupy, torch
        self.flush = cupy.empty(256 << 20, cupy.uint8)
        self.device = machine.machine(False)

    def array(self, *shape: int, dtype: DType = float32, scale: float = 1.0) -> tuple[Any, Any]:
        """(torch tensor, its CuPy array): one memory."""
        t = (self.torch.randn(*shape, device="cuda") * scale).to(getattr(self.torch, dtype.name))
        return t, self.seen(t)

    def seen(self, t: Any) -> Any:
        cp = self.cp
        memory = cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(t.data_ptr(), t.numel() * t.element_size(), t), 0)
        item = t.element_size()
        np_type = {"torch.bfloat16": bfloat16.np, "torch.float32": float32.np}[str(t.dtype)]
        return cp.ndarray(tuple(t.shape), np_type, memory, tuple(s * item for s in t.stride()))

    def us(self, run: Callable[[], Any], count: int = 15) -> float:
        cp, times = self.cp, []
        stream = cp.cuda.ExternalStream(self.torch.cuda.current_stream().cuda_stream)
        with stream:
            run()
            for _ in range(count):
                self.flush.fill(1)
                a, b = cp.cuda.Event(), cp.cuda.Event()
                a.record()
                run()
                b.record()
                b.synchronize()
                times.append(cp.cuda.get_elapsed_time(a, b) * 1e3)
        return statistics.median(times)

    def ready(self, steps: list[Step], arrays: dict[str, Any]) -> Callable[[], None]:
        """Steps with their kernels loaded and arguments packed."""
        at = {n: a.data.ptr for n, a in arrays.items()}
        keep: list[Any] = []
        calls: list[Callable[[int], None]] = []
        for s in steps:
            if isinstance(s, Memory):
                keep.append(self.cp.full(s.items, float("nan"), s.dtype.np))
                at[s.name] = keep[-1].data.ptr
            elif isinstance(s, Launch):
                (k,), block = self.device.functions([s.source], fmad=True), Block(s)
                for i, b in enumerate(s.buffers):
                    block.cells[i] = at[b]
                for i, n in enumerate(s.scratch_bytes):
                    keep.append(self.cp.zeros(max(n, 1), "uint8"))
                    block.cells[len(s.buffers) + len(s.sizes) + i] = keep[-1].data.ptr
                keep.append((block, k))
                calls.append(self._launcher(s, k, block))
        stream = self.device.stream

        def run() -> None:
            for c in calls:
                c(stream())

        run.keep = keep  # type: ignore[attr-defined]
        return run

    def _launcher(self, s: Launch, k: Any, block: Block) -> Callable[[int], None]:
        (gx, gy), (bx, by) = s.grid, s.source.block
        return lambda stream: self.device.launch(k.ptr, gx, gy, 1, bx, by, 1, s.source.shared, stream, block.pointer, 0)

    def error(self, got: Any, want: Any) -> float:
        gap = float((got.double() - want.double()).abs().max() / want.double().abs().max())
        return gap if gap == gap else float("inf")


def compiled(steps: Iterable[Step]) -> None:
    """Their kernels, side by side, into the cache."""
    texts = {s.source.text: s.source.name for s in steps if isinstance(s, Launch)}
    try:
        machine_code.cubins(list(texts.items()), cuda_machine.architecture())
    except Exception as e:
        print("  compiling together failed:", str(e)[:200])


def trial(bench: Bench, p: Problem, choices: Iterable[Tiles], arrays: dict[str, Any], out: Any, want: Any, tolerance: float) -> list[tuple[float, Tiles]]:
    """(us, tiles) of every choice that is right, the default first."""
    made = [(t, gemm.launches(p, t)) for t in choices if gemm.possible(p, t)]
    compiled([s for _, steps in made for s in steps])
    found = []
    for t, steps in made:
        try:
            run = bench.ready(steps, arrays)
            out.fill_(float("nan"))
            run()
            bench.torch.cuda.synchronize()
            wrong = bench.error(out, want)
            if wrong > tolerance:
                print(f"  WRONG {p.name} {gemm_schedules.label(t)}: {wrong:.2e}")
                continue
            found.append((bench.us(run), t))
        except Exception as e:
            print(f"  FAILS {p.name} {gemm_schedules.label(t)}: {type(e).__name__}: {str(e)[:200]}")
    return found


# --- products ---------------------------------------------------------------------------------------------------------
def bias_gelu(m: int, n: int, dtype: DType) -> Kernel:
    def bias_gelu(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (m, n), (n, 1))
        b = k.param("b", dtype, (n,), (1,))
        y = k.param("y", dtype, (m, n), (n, 1))
        for i in k.map(m):
            for j in k.map(n):
                v = k.add(k.cast(k.load(x, i * n + j), dtype=float32), k.cast(k.load(b, j), dtype=float32))
                out = k.mul(k.mul(v, 0.5), k.add(k.erf(k.mul(v, 0.7071067811865476)), 1.0))
                k.store(y, i * n + j, k.cast(out, dtype=dtype))

    return kernel(bias_gelu)


MATMULS = [
    ("4096^3", 4096, 4096, 4096, False), ("gpt2 qkv", 16384, 768, 2304, True), ("gpt2 fc", 16384, 768, 3072, True),
    ("gpt2 proj", 16384, 3072, 768, True), ("mlp 4096", 4096, 784, 512, True), ("gpt2 fc dw", 768, 16384, 3072, False),
]  # fmt: skip


def tile_choices(p: Problem) -> list[Tiles]:
    """Shapes with two depths and counts of stages."""
    if QUICK:
        return [*gemm_schedules.candidates(p, grouped=True)[:1], *(gemm_schedules.grouped_tiles(p, m, n, s, 1) for m, n, s in ((128, 128, 4), (128, 256, 4), (128, 256, 3), (256, 128, 4)))]
    out = [] if p.dtype is float32 else [gemm_schedules.grouped_tiles(p, m, n, s) for m, n in gemm_schedules.GROUPED for s in (3, 4)]
    for m, n in ((128, 128), (128, 256), (256, 128), (64, 128)):
        for k, stages in ((32, 4), (64, 3)) if p.dtype is not float32 else ((16, 3), (32, 3), (16, 4)):
            t = gemm_schedules.tiles(p, m, n, stages, k)
            out.append(t)
            if p.tensor and (m, n) == (128, 128):
                out.append(replace(t, across=4))  # smaller parts for more warps
    return out


def matmul_problem(case: tuple[Any, ...], dtype: DType, fast: bool, *, fused: bool) -> Problem:
    _, m, k, n, transposed = case
    y = View("y", (k, n), (1, k) if transposed else (n, 1), 0)
    then = following(bias_gelu(m, n, dtype), {}, "x", {"x": "product", "b": "b", "y": "out"}) if fused else None
    p = gemm.matmul(View("x", (m, k), (k, 1), 0), y, View("out", (m, n), (n, 1), 0), dtype, then=then, tf32=fast)
    assert p is not None
    return p


def matmul_cases(dtype: DType) -> list[tuple[Any, ...]]:
    if QUICK:
        return [c for c in MATMULS if dtype is bfloat16 and c[0] in ("4096^3", "gpt2 fc", "gpt2 proj")]
    return MATMULS if dtype is bfloat16 else MATMULS[:1] + MATMULS[4:5]


def matmuls(bench: Bench) -> None:
    torch = bench.torch
    if QUICK:
        problems = [matmul_problem(c, bfloat16, False, fused=fused) for c in matmul_cases(bfloat16) for fused in (False, True)]
        compiled(s for p in problems for t in tile_choices(p) if gemm.possible(p, t) for s in gemm.launches(p, t))
    print("== matmul: us, TFLOP/s in brackets; torch = x @ w (+ bias, gelu), eager | compiled")
    for dtype, fast in ((bfloat16, True), (float32, True), (float32, False)):
        for case in matmul_cases(dtype):
            name, m, k, n, transposed = case
            if left() < 5:
                return
            x, _ = bench.array(m, k, dtype=dtype)
            w, _ = bench.array(*((n, k) if transposed else (k, n)), dtype=dtype, scale=k**-0.5)
            y = w.T if transposed else w
            b, _ = bench.array(n, dtype=dtype)
            out = torch.empty(m, n, dtype=x.dtype, device="cuda")
            arrays = {"x": bench.seen(x), "y": bench.seen(w), "out": bench.seen(out), "b": bench.seen(b)}
            torch.backends.cuda.matmul.allow_tf32 = fast
            gelu = lambda: torch.nn.functional.gelu(x @ y + b)  # noqa: E731, B023
            plain, fused = bench.us(lambda: x @ y), bench.us(gelu)  # noqa: B023
            product, want = (x.double() @ y.double()), torch.nn.functional.gelu(x.double() @ y.double() + b.double())
            tolerance = 1e-2 if dtype is bfloat16 else 2e-3 if fast else 1e-5
            flops = 2.0 * m * n * k
            p, q = (matmul_problem(case, dtype, fast, fused=fused) for fused in (False, True))
            print(f"{name} {dtype.name}{' tf32' if p.tf32 else ''}: torch plain {plain:.1f} ({flops / plain * 1e-6:.0f}), with bias and gelu {fused:.1f}")
            ours = trial(bench, p, tile_choices(p), arrays, out, product, tolerance)
            for us, t in sorted(ours, key=lambda r: r[0])[:4]:
                print(f"    plain {us:8.1f} ({flops / us * 1e-6:.0f})  {gemm_schedules.label(t)}")
            default = gemm_schedules.default_tiles(q, grouped=True)
            best = [t for _, t in sorted(ours, key=lambda r: r[0])[:2]]
            for us, t in trial(bench, q, best if QUICK else [default, *best], arrays, out, want, tolerance):
                print(f"    fused {us:8.1f} ({flops / us * 1e-6:.0f})  {gemm_schedules.label(t)}{' (default)' if t == default else ''}")


# --- an operand computed while it is loaded ----------------------------------------------------------------------------
def made_before(m: int, n: int, gelu: bool) -> Kernel:
    """A cast of float32 to bfloat16, or GELU of a bfloat16 matrix."""
    dtype = bfloat16 if gelu else float32

    def made_before(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (m, n), (n, 1))
        y = k.param("y", bfloat16, (m, n), (n, 1))
        for i in k.map(m):
            for j in k.map(n):
                v = k.cast(k.load(x, i * n + j), dtype=float32)
                out = k.mul(k.mul(v, 0.5), k.add(k.erf(k.mul(v, 0.7071067811865476)), 1.0)) if gelu else v
                k.store(y, i * n + j, k.cast(out, dtype=bfloat16))

    return kernel(made_before)


def prologues(bench: Bench) -> None:
    torch = bench.torch
    print("== operands computed while they are loaded: us; torch: eager, the operand's kernel and the product")
    for name, m, k, n, gelu in (("weight cast, gpt2 fc", 16384, 768, 3072, False), ("gelu before gpt2 proj", 16384, 3072, 768, True), ("weight cast, 256 rows", 256, 4096, 4096, False)):
        if left() < 4:
            return
        x, _ = bench.array(m, k, dtype=bfloat16)
        w, _ = bench.array(n, k, dtype=bfloat16 if gelu else float32, scale=k**-0.5)
        out = torch.empty(m, n, dtype=x.dtype, device="cuda")
        eager = (lambda: torch.nn.functional.gelu(x) @ w.T) if gelu else (lambda: x @ w.to(torch.bfloat16).T)  # noqa: B023
        lies = View("x", (m, k), (k, 1), 0), View("w", (k, n), (1, k), 0)
        p = gemm.matmul(*lies, View("out", (m, n), (n, 1), 0), bfloat16)
        by = preceding(made_before(*((m, k) if gelu else (n, k)), gelu), {}, {"x": "given", "y": "x" if gelu else "w"})
        assert p is not None and by is not None
        q = computed(p, by)
        assert q is not None
        arrays = {"x": bench.seen(x), "w": bench.seen(w), "given": bench.seen(x if gelu else w), "out": bench.seen(out)}
        print(f"{name}: torch {bench.us(eager):.1f}")
        for us, t in trial(bench, q, gemm_schedules.candidates(q, grouped=True)[:2], arrays, out, eager(), 2e-2):
            print(f"    {us:8.1f}  {gemm_schedules.label(t)}")


# --- convolutions -----------------------------------------------------------------------------------------------------
CONVS = [  # name, images, channels in, out, size, window, stride, padding
    ("resnet 3x3", 32, 64, 64, 56, 3, 1, 1), ("cnn layer 1, batch 32", 32, 3, 16, 32, 3, 1, 1), ("cnn layer 2, batch 32", 32, 16, 32, 16, 3, 1, 1),
    ("cnn layer 1, batch 512", 512, 3, 16, 32, 3, 1, 1), ("cnn layer 2, batch 512", 512, 16, 32, 16, 3, 1, 1),
    ("strided 3x3", 32, 128, 128, 56, 3, 2, 1), ("deep 3x3", 32, 512, 512, 7, 3, 1, 1), ("1x1", 32, 256, 64, 56, 1, 1, 0),
]  # fmt: skip


def conv_cases(tf32: bool) -> list[tuple[Any, ...]]:
    return CONVS[::3] if tf32 else CONVS[:1] + CONVS[5:] if QUICK else CONVS


def conv_calls(case: tuple[Any, ...]) -> dict[str, Call]:
    """The convolution and its gradients, on dense memory a0, a1, out."""
    _, n, c, o, size, k, stride, pad = case
    high = (size + 2 * pad - k) // stride + 1
    x, w, y = (n, c, size, size), (o, c, k, k), (n, o, high, high)
    params = dict(stride=(stride, stride), padding=(pad, pad), dilation=(1, 1), groups=1)

    def call(fn: str, *shapes: tuple[int, ...], **more: Any) -> Call:
        a, b, out = (View(name, s, (s[1] * s[2] * s[3], s[2] * s[3], s[3], 1), 0) for name, s in zip(("a0", "a1", "out"), shapes, strict=True))
        return Call(fn, (a, b), (out,), {**params, **more})

    return {
        "conv": call("conv", x, w, y), "conv_input": call("conv_input", y, w, x, size=(size, size)),
        "conv_weight": call("conv_weight", x, y, w, kernel=(k, k)),
    }  # fmt: skip


def conv_problem(call: Call, dtype: DType, tf32: bool) -> Problem:
    """As it is done without measuring: gathered, or with channels laid last first."""
    plain, laid = (
        p and replace(p, tf32=tf32, others=tuple(replace(q, tf32=tf32) for q in p.others))
        for p in (convolution.problem(call, dtype), channels_last.problem(call, dtype))
    )
    assert plain is not None
    return gemm_schedules.cheaper(plain, laid, grouped=True)


def convs(bench: Bench) -> None:
    torch = bench.torch
    print("== conv: us; ours default | best; cuDNN (benchmarked); windows copied and the library (float32 only)")
    torch.backends.cudnn.benchmark = True
    totals: dict[str, list[float]] = {}
    kinds = ((bfloat16, False), (float32, False), (float32, True))[: 2 if QUICK else 3]
    problems = [conv_problem(call, d, tf32) for d, tf32 in kinds for case in conv_cases(tf32) for call in conv_calls(case).values()]
    compiled(s for p in problems for t in conv_choices(p, gemm_schedules.default_tiles(p, grouped=True)) if gemm.possible(p, t) for s in gemm.launches(p, t))
    print(f"{time.perf_counter() - began:.0f} s until all was compiled")
    for dtype, tf32 in kinds:
        for case in conv_cases(tf32):
            name, n, c, o, size, k, stride, pad = case
            if left() < 8:
                print("no time left")
                return
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cuda.matmul.allow_tf32 = tf32
            x, xa = bench.array(n, c, size, size, dtype=dtype)
            w, wa = bench.array(o, c, k, k, dtype=dtype, scale=(c * k * k) ** -0.5)
            y = torch.nn.functional.conv2d(x, w, stride=stride, padding=pad)
            g, ga = bench.array(*y.shape, dtype=dtype)
            params = dict(stride=(stride, stride), padding=(pad, pad), dilation=(1, 1), groups=1)
            back = lambda mask: torch.ops.aten.convolution_backward(  # noqa: E731
                g, x, w, None, (stride, stride), (pad, pad), (1, 1), False, (0, 0), 1, mask  # noqa: B023
            )
            parts: list[tuple[str, Any, Any, Any, Callable[[], Any], int | None]] = [
                ("conv", (x, w), y, lambda: rows._conv_kernel(bench.cp, xa, wa, **params), lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad), None),  # noqa: B023
                ("conv_input", (g, w), x, lambda: rows._conv_input_kernel(bench.cp, ga, wa, (size, size), **params), lambda: back([True, False, False]), 0),  # noqa: B023
                ("conv_weight", (x, g), w, lambda: rows._conv_weight_kernel(bench.cp, xa, ga, (k, k), **params), lambda: back([False, True, False]), 1),  # noqa: B023
            ]  # fmt: skip
            line = []
            for fn, args, like, windows, cudnn, which in parts:
                torch.backends.cudnn.allow_tf32 = False
                want = cudnn() if which is None else cudnn()[which]
                torch.backends.cudnn.allow_tf32 = tf32
                theirs = bench.us(cudnn, 9)
                copied = bench.us(windows, 5) if dtype is float32 and not tf32 and not QUICK else 0.0
                out = torch.empty_like(like)
                p = conv_problem(conv_calls(case)[fn], dtype, tf32)
                arrays = {"a0": bench.seen(args[0]), "a1": bench.seen(args[1]), "out": bench.seen(out)}
                default = gemm_schedules.default_tiles(p, grouped=True)
                found = trial(bench, p, conv_choices(p, default), arrays, out, want, 2e-2 if dtype is bfloat16 else 3e-3 if tf32 else 1e-4)
                if not found:
                    line.append(f"{fn} NONE RIGHT")
                    continue
                first, (best, t) = found[0][0], min(found, key=lambda r: r[0])
                flops = 2.0 * y.numel() * c * k * k
                line.append(f"{fn.replace('conv_', '')} {first:.1f} ({gemm_schedules.label(default)}) | {best:.1f} ({flops / best * 1e-6:.0f} TF, {gemm_schedules.label(t)}) cudnn {theirs:.1f}" + (f" copied {copied:.1f}" if copied else ""))
                for key, us in (("default", first), ("best", best), ("cudnn", theirs), ("copied", copied)):
                    totals.setdefault(f"{dtype.name}{' tf32' if tf32 else ''} {key}", []).append(us)
            print(f"{name} {dtype.name}{' tf32' if tf32 else ''}: " + "\n    ".join(["", *line]))
    for key, times in totals.items():
        print(f"geometric mean {key}: {statistics.geometric_mean([t for t in times if t] or [1.0]):.1f} us over {len(times)}")


def conv_choices(p: Problem, default: Tiles) -> list[Tiles]:
    """The default, and a few that stand next to it."""
    if QUICK:
        return [default, *(t for t in gemm_schedules.candidates(p, grouped=True) if (t.m, t.n) != (default.m, default.n))][: 1 if p.dtype is float32 else 2]
    more = [*gemm_schedules.candidates(p, grouped=True)[1:3], replace(default, stages=4), replace(default, k=2 * default.k)]
    if default.parts > 1:
        more.append(replace(default, parts=default.parts * 2))
    if p.dtype is not float32:
        more += [gemm_schedules.grouped_tiles(p, m, n, 3) for m, n in ((64, 128), (128, 128)) if m <= 2 * p.rows]
    return list(dict.fromkeys([default, *more]))


def main() -> None:
    parts = sys.argv[1:] or ["conv", "prologue", "matmul"]
    bench = Bench()
    if "matmul" in parts:
        matmuls(bench)
    if "prologue" in parts:
        prologues(bench)
    if "conv" in parts:
        convs(bench)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
