"""How far are the float32 functions of our CUDA kernels from the exact value?  ``python benchmarks/gpu_ulp.py [--step 1]``.

Runs every unary function of the vocabulary on all 2**32 float32 inputs (every ``step``-th bit pattern) on a GPU, in our own
kernels, and compares with the same function in float64 there, whose error is below 2**-50.  The contract is 2 ulp.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import codegen_cupy  # noqa: E402
from compiler.loop.build import KernelRecorder, kernel  # noqa: E402
from compiler.loop.ir import Alloc, ArrayView, Kernel, Plan, Run  # noqa: E402
from tinytorch.dtypes import DType, float32, float64, int32, int64  # noqa: E402

CHUNK = 1 << 26
FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf"
).split()
EXACT = {"sqrt"}


def on_bit_patterns(name: str, dtype: DType, step: int) -> Kernel:
    """``out[i] = name(float with the bits start + i * step)``, computed in ``dtype`` and stored as float64.

    Widened here and not by CuPy, whose own kernels flush subnormal float32 numbers to zero.
    """

    def patterns(k: KernelRecorder) -> None:
        start = k.param("start", int64, (1,), (1,))
        out = k.param("out", float64, (CHUNK,), (1,))
        for i in k.map(CHUNK):
            word = k.add(k.load(start, 0), k.index(i * step))
            x = k.bitcast(k.cast(word, dtype=int32), dtype=float32)
            k.store(out, i, k.cast(k.let(name, k.cast(x, dtype=dtype), dtype=dtype), dtype=float64))

    return kernel(patterns)


def program(name: str, dtype: DType, step: int) -> Any:
    k = on_bit_patterns(name, dtype, step)
    start, out = k.params
    return codegen_cupy.build(
        Plan((start,), (ArrayView("out", out.shape, out.stride),), (k,), (Alloc(out), Run(0, ("start", "out")))), None
    )


def worst(cp: Any, name: str, step: int) -> tuple[float, float]:
    """(largest error in ulp, the input where)."""
    single, double = program(name, float32, step), program(name, float64, step)
    top, where = 0.0, 0.0
    for start in range(0, 1 << 32, CHUNK * step):
        first = cp.asarray([start], dtype=cp.int64)
        got, exact = single([first])[0], double([first])[0]
        error = errors(cp, got, exact)
        at = int(error.argmax())
        if float(error[at]) > top:
            top = float(error[at])
            bits = cp.asarray([(start + at * step) & 0xFFFFFFFF], dtype=cp.uint32)
            where = float(bits.view(cp.float32)[0])
    return top, where


def errors(cp: Any, got: Any, exact: Any) -> Any:
    """Distances in float32 ulps of the exact value; NaN and infinities must agree."""
    limit = float(2**128)
    size = cp.maximum(cp.abs(exact), 2.0**-126)
    _, exponent = cp.frexp(cp.minimum(size, limit))
    ulp = cp.ldexp(cp.float64(1.0), exponent - 24)
    rounded = cp.where(cp.abs(exact) >= limit * (1 - 2.0**-25), cp.copysign(cp.inf, exact), exact)
    error = cp.abs(got - exact) / ulp
    same = (got == rounded) | (cp.isnan(got) & cp.isnan(exact))
    return cp.where(same, 0.0, cp.where(cp.isnan(error) | cp.isinf(error), 1e30, error))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=1)
    step = parser.parse_args().step
    import cupy as cp

    bad = 0
    for name in FUNCTIONS:
        top, where = worst(cp, name, step)
        limit = 0.501 if name in EXACT else 2.0
        bad += top > limit
        print(f"{name:8} {top:10.4f} ulp at {where!r}{'' if top <= limit else '   ABOVE THE CONTRACT'}", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
