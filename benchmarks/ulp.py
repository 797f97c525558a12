"""How far are the elementary functions of our CPU kernels from the exact value?  ``python benchmarks/ulp.py [NAME...]``.

Runs every unary function on all 2**32 float32 inputs (every ``--step``-th block of 65,536 bit patterns) in our own kernels
and compares with the same function in float64: NumPy's, whose error is a few units of the 53rd bit, and the C library's
``erf``.  That is 2**-26 of a float32 ulp, so the reference decides every case but one that falls within that of a limit.
About a minute a function.  The contract is 2 ulp; ``TT_LONG_TESTS=1 pytest tests/test_numba_math.py`` asserts it.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from codegen_numba import kernels, trig  # noqa: E402
from codegen_numba import math as own
from codegen_numba.compile import Source  # noqa: E402

#: Bit patterns at once: what fits a second-level cache with all that is computed from it.
BLOCK = 1 << 16
NUMPY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
}  # fmt: skip
FUNCTIONS = [*own.UNARY, *trig.FUNCTIONS]


@cache
def compiled() -> tuple[Any, Any]:
    """``erf`` on arrays, and the largest error of a block with its place: loops that NumPy does not have."""
    import numba

    @numba.njit(error_model="numpy")
    def erf(x, out):  # type: ignore[no-untyped-def]
        for i in range(x.size):
            out[i] = math.erf(x[i])

    @numba.njit(error_model="numpy")
    def largest(got, want, near, got_bits, near_bits):  # type: ignore[no-untyped-def]
        worst, where = -1.0, 0
        for i in range(got.size):
            exponent = np.int32(near_bits[i] >> 23) & np.int32(255)
            if exponent == 255 or (got_bits[i] >> 23) & 255 == 255:
                if got[i] == near[i] or (got[i] != got[i] and near[i] != near[i]):
                    error = 0.0
                elif abs(got_bits[i] - near_bits[i]) == 1:  # over the edge of the format: one step
                    error = 1.0
                else:
                    error = np.inf
            elif near[i] == 0 and got[i] == 0 and got_bits[i] != near_bits[i]:
                error = np.inf  # a zero of the wrong sign
            else:
                error = math.ldexp(abs(np.float64(got[i]) - want[i]), 150 - max(exponent, np.int32(1)))
            if error > worst:
                worst, where = error, i
        return worst, where

    return erf, largest


def entry(name: str) -> Any:
    """The kernel ``out[i] = name(x[i])``, to be called with the address of its arguments."""
    text = f"def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = {name}(x[i])\n"
    source = Source("k", text, (("x", "float32"), ("out", "float32")))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernels.address(source))


def worst(name: str, step: int = 1) -> tuple[float, float]:
    """The largest error in ulp over every ``step``-th block of inputs, and the input where it is."""
    erf, largest = compiled()
    call = entry(name)
    bits, got, near = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    x, wide, want = bits.view(np.float32), np.empty(BLOCK), np.empty(BLOCK)
    words = np.array([x.ctypes.data, got.ctypes.data], np.int64)
    reference = erf if name == "erf" else NUMPY[name]
    low = np.arange(BLOCK, dtype=np.uint32)
    top, at = -1.0, 0.0
    with np.errstate(all="ignore"):
        for start in range(0, 1 << 32, BLOCK * step):
            np.add(low, np.uint32(start), out=bits)
            call(words.ctypes.data, 0, BLOCK, 0)
            wide[:] = x
            reference(wide, want)
            near[:] = want
            error, where = largest(got, want, near, got.view(np.int32), near.view(np.int32))
            if error > top:
                top, at = error, float(x[where])
    return top, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=FUNCTIONS)
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    bad = 0
    for name in options.names:
        began = time.process_time()
        top, at = worst(name, options.step)
        bad += top > 2
        note = "   ABOVE THE CONTRACT" * (top > 2)
        print(f"{name:6} {top:8.4f} ulp at {at!r:24} {time.process_time() - began:6.1f} s{note}", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
