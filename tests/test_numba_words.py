"""The scalar vocabulary in kernels: every name spelled, every name and type as NumPy has it."""

from __future__ import annotations

import numpy as np
import pytest
from numba_helpers import run_kernel

from codegen_numba import spell
from compiler.loop import ir
from compiler.loop.interp import FUNCTIONS
from compiler.sym.expr import Symbol
from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops import philox
from tinytorch.ops.scalars import VOCABULARY

INTEGERS = [dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64]
FLOATS = [dtypes.float32, dtypes.float64]
TYPES = [dtypes.bool_, *INTEGERS, *FLOATS]
RNG = np.random.default_rng(3)

#: Words whose results must be NumPy's to the bit; the elementary functions have tests of their own.
EXACT = [
    "add", "sub", "mul", "div", "floordiv", "mod", "fmod", "neg", "abs", "sign", "minimum", "maximum", "copysign",
    "sqrt", "rsqrt", "floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "where", "bit_and",
    "bit_or", "bit_xor", "bit_not", "shl", "shr",
]  # fmt: skip


def test_every_name_is_spelled():
    assert set(spell.SPELLINGS) | spell.TARGETED == set(VOCABULARY)


def values(dtype: DType, n: int = 997) -> np.ndarray:
    """Ordinary numbers, and the ones that go wrong."""
    if dtype.kind == "b":
        return RNG.integers(0, 2, n).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype.np)
        edge = [info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.min + 1, 63, 64, 31, 32]
        edge += [-1, -2, -3, -7] if dtype.kind == "i" else []
        wide = RNG.integers(info.min, info.max, n, dtype=dtype.np, endpoint=True)
        small = RNG.integers(0, 9, n).astype(dtype.np)
        return _mixed(np.array(edge, dtype.np), np.where(RNG.random(n) < 0.5, wide, small))
    edge = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 2.5, 3.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 5e-324, 1e-40, 2.0**31]
    with np.errstate(all="ignore"):
        return _mixed(np.array(edge).astype(dtype.np), (RNG.normal(size=n) * 10).astype(dtype.np))


def _mixed(edge: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.where(RNG.random(rest.size) < 0.4, RNG.choice(edge, rest.size), rest)


def elementwise(fn: str, args: list[np.ndarray], result: DType, *extra: ir.Value) -> np.ndarray:
    """``fn`` over arrays by a kernel of one loop."""
    types = [dtypes.from_numpy(a.dtype) if a.dtype != bool else dtypes.bool_ for a in args]
    i = Symbol("i")
    params = [ir.Buffer(f"x{n}", d, (args[0].size,), (1,)) for n, d in enumerate(types)]
    out = ir.Buffer("out", result, (args[0].size,), (1,))
    loads = [ir.Load(f"v{n}", b.name, i, b.dtype) for n, b in enumerate(params)]
    let = ir.Let("y", fn, (*(s.name for s in loads), *extra), result)
    loop = ir.Loop("i", args[0].size, "map", (*loads, let, ir.Store("out", i, "y")))
    kernel = ir.Kernel("k", (*params, out), frozenset(("out",)), (), (loop,))
    return run_kernel(kernel, args, numerics="strict")[0]


def same(got: np.ndarray, want: np.ndarray, args: list[np.ndarray]) -> None:
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        # which of two zeros a minimum gives is open
        equal &= np.isnan(want) | (want == 0) | (np.signbit(got) == np.signbit(want))
    else:
        equal = got == want
    bad = np.flatnonzero(~equal)
    assert not bad.size, [(tuple(a[k] for a in args), got[k], want[k]) for k in bad[:5]]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("fn", EXACT)
def test_words_are_numpys(fn, dtype):
    if not any(spell.kind(dtype) in kinds for kinds in spell.SPELLINGS[fn]):
        pytest.skip("no such operation on this type")
    if fn in ("sub", "sign", "neg", "abs", "round", "floor", "ceil", "trunc", "isnan") and dtype.kind == "b":
        pytest.skip("NumPy has none on booleans")
    arity = VOCABULARY[fn].arity
    args = [values(dtype) for _ in range(arity)]
    if fn == "where":
        args[0] = values(dtypes.bool_)
    result = dtypes.bool_ if VOCABULARY[fn].result == "bool" else dtype
    with np.errstate(all="ignore"):
        want = np.asarray(getattr(FUNCTIONS, fn)(*args))
    if fn == "round" and dtype.kind in "iu":
        want = args[0]  # NumPy goes by way of floats here
    same(elementwise(fn, args, result), want, args)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_powers(dtype):
    x, y = values(dtype), np.abs(values(dtype) % dtype.np.type(9)).astype(dtype.np)
    with np.errstate(all="ignore"):
        same(elementwise("pow", [x, y], dtype), np.power(x, y), [x, y])


@pytest.mark.parametrize("target", [*TYPES, dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("source", [*TYPES, dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_casts(source, target):
    with np.errstate(all="ignore"):
        if source.name in spell.HALVES:
            x = values(dtypes.float32).astype(source.np)
        else:
            x = values(source)
        if target.kind in "iu" and source.kind == "f":
            wide = x.astype(np.float64)
            info = np.iinfo(target.np)
            inside = (wide > float(info.min)) & (wide < float(info.max))
            x = np.where(inside, wide, 3.0).astype(source.np)  # C leaves the rest open
        want = x.astype(target.np)
    got = elementwise("cast", [x], target)
    if target.name in spell.HALVES:
        got, want = got.astype(np.float32), want.astype(np.float32)
    same(got, want, [x])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (dtypes.float32, dtypes.int32), (dtypes.int32, dtypes.float32), (dtypes.float64, dtypes.int64),
        (dtypes.int64, dtypes.float64), (dtypes.float16, dtypes.int16), (dtypes.int16, dtypes.float16),
        (dtypes.float32, dtypes.float32), (dtypes.uint8, dtypes.int8),
    ],
)  # fmt: skip
def test_bitcasts(source, target):
    x = RNG.integers(0, 1000, 99).astype(source.np)
    same(elementwise("bitcast", [x], target), x.view(target.np), [x])


@pytest.mark.parametrize("fn", ["add", "mul", "div", "exp", "sqrt", "neg", "maximum"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_strict_half_precision_rounds_like_eager(fn, dtype):
    x, y = (RNG.normal(size=500).astype(np.float32).astype(dtype.np) for _ in range(2))
    args = [np.abs(x) if fn == "sqrt" else x, y][: VOCABULARY[fn].arity]
    got = elementwise(fn, args, dtype).astype(np.float32)
    want = getattr(np, {"add": "add", "mul": "multiply", "div": "divide", "neg": "negative"}.get(fn, fn))(
        *(a.astype(np.float32) for a in args)
    ).astype(dtype.np).astype(np.float32)  # fmt: skip
    if fn == "exp":
        np.testing.assert_allclose(got, want, rtol=2.0**-7 if dtype.name == "bfloat16" else 2.0**-10)
    else:
        assert np.array_equal(got, want)


def test_philox_words():
    seed = np.full(64, 0x1234_5678_9ABC_DEF0, np.int64)
    counter, lane = np.arange(64, dtype=np.int64) // 4 + 5, np.arange(64, dtype=np.int64) % 4
    got = elementwise("philox", [seed, counter, lane], dtypes.uint32)
    assert np.array_equal(got, philox.fill(np, int(seed[0]), 5, 64))


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64], ids=lambda d: d.name)
def test_integer_division_never_kills_the_process(dtype):
    least = np.iinfo(dtype.np).min
    x = np.array([least, least, 5, 0, -5], dtype.np)
    y = np.array([-1, 0, 0, 0, 0], dtype.np)
    with np.errstate(all="ignore"):
        for fn, ufunc in (("floordiv", np.floor_divide), ("mod", np.remainder), ("fmod", np.fmod)):
            same(elementwise(fn, [x, y], dtype), ufunc(x, y), [x, y])
