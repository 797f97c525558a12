"""Elementary functions in kernels: within 2 ulp (pow 4) of the exact value, special values as in NumPy, vectorised."""

from __future__ import annotations

import math
import os
import re

import numpy as np
import pytest
from numba_helpers import run_source

from benchmarks.ulp import worst as sweep
from codegen_numba import math as own
from codegen_numba import trig
from codegen_numba.compile import Source, assembly

NUMPY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "atan2": np.arctan2, "float_pow": np.power,
}  # fmt: skip
UNARY = [*own.UNARY, *trig.FUNCTIONS]
RNG = np.random.default_rng(7)


def source(name: str, dtype: str, count: int) -> Source:
    names = "xyz"[:count]
    return Source(
        "k",
        f"def k({', '.join(names)}, out, start, stop, part):\n    for i in range(start, stop):\n"
        f"        out[i] = {name}({', '.join(n + '[i]' for n in names)})\n",
        (*((n, dtype) for n in names), ("out", dtype)),
    )


def call(name: str, *args: np.ndarray) -> np.ndarray:
    out = np.empty_like(args[0])
    run_source(source(name, args[0].dtype.name, len(args)), [*args, out], out.size)
    return out


def exact(name: str, *args: np.ndarray) -> np.ndarray:
    """The function in a wider format: float64 for float32, long double for float64."""
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64 if a.dtype == np.float32 else np.longdouble) for a in args]
        if name == "erf":
            return np.array([math.erf(v) for v in wide[0]])
        return NUMPY[name](*wide)


def errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the exact value; infinite for a wrong NaN, infinity or zero sign."""
    dtype, info = got.dtype.type, np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        near = want.astype(dtype)
        unit = np.maximum(np.spacing(np.minimum(np.abs(near), info.max)), info.smallest_subnormal)
        out = np.abs((got.astype(want.dtype) - want) / unit.astype(want.dtype)).astype(np.float64)
    special = ~np.isfinite(near) | ~np.isfinite(got)
    same = (got == near) | (np.isnan(got) & np.isnan(near))
    # one step over the edge of the format is one ulp, not a wrong infinity
    edge = np.isinf(near) & (np.abs(got) == info.max) | np.isinf(got) & (np.abs(near) == info.max)
    out = np.where(special, np.where(same, 0.0, np.where(edge, 1.0, np.inf)), out)
    return np.where((near == 0) & (got == 0) & (np.signbit(got) != np.signbit(near)), np.inf, out)


def some_float32() -> np.ndarray:
    bits = np.arange(11, 2**32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [np.linspace(-2, 2, 80_001), np.linspace(-110, 110, 80_001), 1 + np.ldexp(1, -np.arange(24.0).astype(int))]
    return np.concatenate([bits, *(x.astype(np.float32) for x in near), np.float32([0.0, -0.0, np.inf, -np.inf])])


def some_float64(n: int = 60_000) -> np.ndarray:
    bits = RNG.integers(0, 2**64, n, dtype=np.uint64).view(np.float64)
    near = [
        RNG.uniform(-50, 50, n), RNG.uniform(-1.1, 1.1, n), RNG.uniform(-800, 800, n),
        np.ldexp(RNG.uniform(-1, 1, n), RNG.integers(-60, 20, n)), 1 + np.ldexp(RNG.uniform(-1, 1, n), RNG.integers(-50, 0, n)),
    ]  # fmt: skip
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308]
    return np.concatenate([bits, *near, edges])


def worst(name: str, *args: np.ndarray) -> tuple[float, tuple]:
    e = errors(call(name, *args), exact(name, *args))
    at = int(np.argmax(e))
    return float(e[at]), tuple(a[at] for a in args)


@pytest.mark.parametrize("name", UNARY)
def test_float32_is_within_two_ulp(name):
    error, at = worst(name, some_float32())
    assert error <= 2, (error, at)


@pytest.mark.parametrize("name", [n for n in UNARY if n != "erf"])
def test_float64_is_within_two_ulp(name):
    error, at = worst(name, some_float64())
    assert error <= 2, (error, at)


def test_float64_erf_is_as_good_as_the_c_library():
    x = np.concatenate([some_float64(20_000), RNG.uniform(-6.5, 6.5, 50_000)])
    want = np.array([math.erf(v) for v in x])  # itself within one ulp
    assert errors(call("erf", x), want).max() <= 3


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 5e-324]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["float_pow", "atan2"])
def test_two_arguments(name, dtype):
    with np.errstate(over="ignore"):
        a, b = (v.ravel().astype(dtype) for v in np.meshgrid(SPECIAL, SPECIAL))
    x = np.concatenate([a, RNG.uniform(0, 20, 40_000), np.exp(RNG.uniform(-80, 80, 40_000))]).astype(dtype)
    y = np.concatenate([b, RNG.uniform(-30, 30, 40_000), RNG.uniform(-9, 9, 40_000)]).astype(dtype)
    error, at = worst(name, x, y)
    assert error <= (4 if name == "float_pow" else 2), (error, at)


@pytest.mark.parametrize("name", ["float_pow", "atan2"])
def test_two_random_doubles(name):
    x, y = (RNG.permutation(some_float64(20_000)) for _ in range(2))
    error, at = worst(name, x, y)
    assert error <= (4 if name == "float_pow" else 2), (error, at)


@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
def test_every_half_precision_number_survives(bits):
    """All 65,536 patterns to float32 and back, and rounding of float32 to each."""
    import ml_dtypes

    kind = np.dtype(np.float16 if bits == "float16" else ml_dtypes.bfloat16)
    to, back = ("half_to_float", "float_to_half") if bits == "float16" else ("bfloat_to_float", "float_to_bfloat")
    every = np.arange(2**16, dtype=np.uint16)
    wide = np.empty(2**16, np.float32)
    run_source(_unary(to, "uint16", "float32"), [every, wide], wide.size)
    want = every.view(kind).astype(np.float32)
    assert np.array_equal(wide, want, equal_nan=True)
    with np.errstate(all="ignore"):
        x = [want, np.nextafter(want, np.float32(np.inf)), RNG.normal(size=1000).astype(np.float32) * 1e4]
        x = np.concatenate([*x, (want[:-1].astype(np.float64) + want[1:]).astype(np.float32) / 2])
        doubles = np.concatenate([x.astype(np.float64), x.astype(np.float64) * (1 + 2.0**-40)])
    for values in (x, doubles):
        out = np.empty(values.size, np.uint16)
        run_source(_unary(back, values.dtype.name, "uint16"), [values, out], out.size)
        with np.errstate(all="ignore"):
            narrow = values.astype(np.float32) if bits == "bfloat16" else values
            rounded = narrow.astype(kind).astype(np.float32)
        assert np.array_equal(out.view(kind).astype(np.float32), rounded, equal_nan=True)


def _unary(word: str, source_type: str, target: str) -> Source:
    return Source(
        "k",
        f"def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = {word}(x[i])\n",
        (("x", source_type), ("out", target)),
    )


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin", "cos", "expm1", "log1p"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loops_over_elementary_functions_become_vectors(name, dtype):
    text = assembly(source(name, dtype, 1))
    vector = len(re.findall(r"^\s+v?[a-z0-9]*p[sd]\s.*[xyz]mm", text, re.M))
    assert vector > 12, text


@pytest.mark.parametrize("name", UNARY)
def test_blocks_of_float32_numbers(name):
    """The sweep over all of them, of which every 509th block is enough to know that it works."""
    error, at = sweep(name, step=509)
    assert 0.2 < error <= 2, (error, at)


@pytest.mark.skipif(not os.environ.get("TT_LONG_TESTS"), reason="half an hour: all float32 numbers; set TT_LONG_TESTS=1")
@pytest.mark.parametrize("name", UNARY)
def test_all_float32_numbers(name):
    error, at = sweep(name)
    assert error <= 2, (error, at)
