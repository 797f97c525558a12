"""Every name of the scalar vocabulary has a CUDA spelling, and it means what eager means: on edge values, for every
element type, through the emulator.  (On a GPU the elementary functions are CUDA's own; see ``benchmarks/gpu_ulp.py``.)"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codegen_cupy import emulate, spell
from codegen_cupy.sources import sources
from compiler.loop.build import KernelRecorder, kernel
from compiler.loop.ir import Kernel
from tinytorch import dtypes
from tinytorch.dtypes import DType, bool_, float32
from tinytorch.ops.scalars import VOCABULARY
from tinytorch.ops.spell_numpy import handler

needs_compiler = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")

FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
INTEGERS = [dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64]
EXACT = set(
    "add sub mul div neg abs sign minimum maximum copysign sqrt floor ceil trunc round eq ne lt le gt ge isnan where "
    "bit_and bit_or bit_xor bit_not shl shr floordiv mod fmod".split()
)
FLOAT_ONLY = {n for n, f in VOCABULARY.items() if f.result == "same"} - set(
    "add sub mul floordiv mod fmod pow neg abs sign minimum maximum bit_and bit_or bit_xor bit_not shl shr where floor ceil "
    "trunc round".split()
)
INTEGER_ONLY = set("bit_and bit_or bit_xor bit_not shl shr".split())
OTHERWISE = set("cast bitcast const philox".split())


def test_every_name_is_spelled() -> None:
    assert spell.spelled_names() == set(VOCABULARY)


def values(d: DType) -> np.ndarray:
    if d.kind == "b":
        return np.array([False, True])
    if d.kind == "f":
        tiny = float(np.finfo(np.float32).tiny) if d.name != "float16" else 6e-8
        some = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.25, -9.75, 100.0, tiny, -tiny, np.inf, -np.inf, np.nan]
        return np.array(some).astype(d.np)
    info = np.iinfo(d.np)
    some = [0, 1, 2, 3, 5, 7, 8, 13, 31, 63, 100, info.max, info.max - 1, info.min, info.min + 1]
    some += [-1, -2, -3, -7, -100] if d.is_signed else []
    return np.array(some, d.np)


def names_for(d: DType) -> list[str]:
    kind = {"f": lambda n: n not in INTEGER_ONLY, "b": lambda n: n in {*EXACT} - FLOAT_ONLY and VOCABULARY[n].result == "bool"}
    fits = kind.get(d.kind, lambda n: n not in FLOAT_ONLY)
    return [n for n in VOCABULARY if n not in OTHERWISE and fits(n)]


def operands(n: int, d: DType) -> list[np.ndarray]:
    return [np.array(c, d.np) for c in zip(*itertools.product(values(d), repeat=n), strict=True)]


def arity(name: str) -> int:
    return 2 if name == "where" else VOCABULARY[name].arity


def all_functions(names: list[str], d: DType, count: dict[int, int]) -> Kernel:
    """One kernel that applies each function to all pairs (or values) of edge operands."""

    def functions(k: KernelRecorder) -> None:
        inputs = {n: [k.param(f"x{n}{i}", d, (count[n],), (1,)) for i in range(n)] for n in (1, 2)}
        chosen = k.param("chosen", bool_, (count[2],), (1,))
        outs = {n: k.param(f"out_{n}", bool_ if VOCABULARY[n].result == "bool" else d, (count[arity(n)],), (1,)) for n in names}
        for group in (1, 2):
            for i in k.map(count[group]):
                args = [k.load(x, i) for x in inputs[group]]
                for name in (n for n in names if arity(n) == group):
                    given = [k.load(chosen, i), *args] if name == "where" else args
                    k.store(outs[name], i, k.let(name, *given, dtype=outs[name].dtype))

    return kernel(functions)


def run(k: Kernel, arrays: dict[str, np.ndarray], *, strict: bool = False) -> None:
    for source in sources(k, {}, strict=strict).sources:
        emulate.compile_kernel(source.text, source.name)(
            (int(source.work), source.split), source.block, [arrays[b] for b in source.buffers]
        )


@needs_compiler
@pytest.mark.parametrize("d", [*FLOATS, *INTEGERS], ids=lambda d: d.name)
def test_spelling_means_what_eager_means(d: DType) -> None:
    one, two = operands(1, d), operands(2, d)
    names = names_for(d)
    k = all_functions(names, d, {1: one[0].size, 2: two[0].size})
    arrays = {f"x1{i}": x for i, x in enumerate(one)} | {f"x2{i}": x for i, x in enumerate(two)}
    arrays["chosen"] = np.arange(two[0].size) % 2 == 0
    for b in k.params:
        if b.name.startswith("out_"):
            arrays[b.name] = np.zeros(b.shape, b.dtype.np)
    run(k, arrays, strict=True)
    for name in names:
        args = [arrays["chosen"], *two] if name == "where" else one if arity(name) == 1 else two
        if name == "pow" and d.kind != "f":
            args = [args[0], np.where(args[1] < 0, 0, args[1])]  # NumPy refuses negative exponents of integers
            run_pow(k, arrays, d)
        with np.errstate(all="ignore"):
            want = np.asarray(getattr(handler(np), name)(*args))
        compare(name, arrays[f"out_{name}"] if name != "pow" or d.kind == "f" else pow_wanted(arrays, args), want, d)


@needs_compiler
@pytest.mark.parametrize("d", [*FLOATS, *INTEGERS], ids=lambda d: d.name)
def test_a_number_beside_a_value_is_of_its_type(d: DType) -> None:
    """In C++ a literal is an ``int`` or wider, which a template of one type refuses beside a narrower integer."""
    x = values(d)
    names = [n for n in names_for(d) if VOCABULARY[n].arity == 2]

    def beside(k: KernelRecorder) -> None:
        given = k.param("x", d, (x.size,), (1,))
        outs = {n: k.param(n, bool_ if VOCABULARY[n.split("_", 1)[1]].result == "bool" else d, (x.size,), (1,)) for n in sides}
        for i in k.map(x.size):
            v = k.load(given, i)
            for n, out in outs.items():
                side, name = n.split("_", 1)
                k.store(out, i, k.let(name, *((v, 3) if side == "right" else (3, v)), dtype=out.dtype))

    sides = [f"{side}_{n}" for n in names for side in ("left", "right") if n != "pow" or d.kind == "f" or side == "right"]
    k = kernel(beside)
    arrays = {"x": x} | {b.name: np.zeros(b.shape, b.dtype.np) for b in k.params if b.name != "x"}
    run(k, arrays, strict=True)
    three = np.full(x.shape, 3, d.np)
    for n in sides:
        side, name = n.split("_", 1)
        with np.errstate(all="ignore"):
            want = np.asarray(getattr(handler(np), name)(*((x, three) if side == "right" else (three, x))))
        compare(name, arrays[n], want, d)


def run_pow(k: Kernel, arrays: dict[str, np.ndarray], d: DType) -> None:
    """Negative integer exponents are PyTorch's: 0, save for bases 1 and -1."""
    base, exponent, got = arrays["x20"], arrays["x21"], arrays["out_pow"]
    negative = exponent < 0
    odd = exponent.astype(np.int64) % 2 == 1
    want = np.where(base == 1, 1, np.where((base == -1), np.where(odd, -1, 1), 0)) if d.is_signed else np.zeros_like(base)
    np.testing.assert_array_equal(got[negative], want.astype(d.np)[negative])


def pow_wanted(arrays: dict[str, np.ndarray], args: list[np.ndarray]) -> np.ndarray:
    keep = arrays["x21"] >= 0
    with np.errstate(all="ignore"):
        filler = np.power(args[0], args[1])
    return np.where(keep, arrays["out_pow"], filler)


def compare(name: str, got: np.ndarray, want: np.ndarray, d: DType) -> None:
    if d.kind != "f" or VOCABULARY[name].result == "bool":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    if name in EXACT:
        np.testing.assert_array_equal(g, w, err_msg=name)
        if name not in ("minimum", "maximum", "sign"):  # which zero wins there is not said
            np.testing.assert_array_equal(np.signbit(g[~np.isnan(w)]), np.signbit(w[~np.isnan(w)]), err_msg=name)
        return
    size = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}[d.name]
    np.testing.assert_allclose(g, w, rtol=4 * size, atol=4 * size * 1e-3 if name != "erf" else 2e-7, err_msg=name)


@needs_compiler
@pytest.mark.parametrize("source", [bool_, *INTEGERS, *FLOATS], ids=lambda d: d.name)
def test_casts(source: DType) -> None:
    x = values(source)
    if source.kind == "f":
        x = x[np.abs(x.astype(np.float64)) < 100]  # beyond the target's range C leaves the result open
    targets = [bool_, *INTEGERS, *FLOATS]

    def casts(k: KernelRecorder) -> None:
        a = k.param("x", source, x.shape, (1,))
        outs = [k.param(f"out_{t.name}", t, x.shape, (1,)) for t in targets]
        for i in k.map(x.size):
            for out in outs:
                k.store(out, i, k.cast(k.load(a, i), dtype=out.dtype))

    k = kernel(casts)
    arrays = {"x": x} | {f"out_{t.name}": np.zeros(x.shape, t.np) for t in targets}
    run(k, arrays)
    for t in targets:
        positive = x if t.name != "uint8" or source.kind != "f" else np.abs(x)
        if positive is x:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(arrays[f"out_{t.name}"], x.astype(t.np), err_msg=t.name)


@needs_compiler
def test_bitcast_and_const() -> None:
    x = np.array([1.0, -2.5, np.inf], np.float32)
    h = np.array([1.0, -2.5, 65504], np.float16)

    def bits(k: KernelRecorder) -> None:
        a = k.param("x", float32, (3,), (1,))
        b = k.param("h", dtypes.float16, (3,), (1,))
        out = k.param("out", dtypes.int32, (3,), (1,))
        half = k.param("half", dtypes.int16, (3,), (1,))
        back = k.param("back", dtypes.float16, (3,), (1,))
        nan = k.param("nan", float32, (3,), (1,))
        for i in k.map(3):
            k.store(out, i, k.bitcast(k.load(a, i), dtype=dtypes.int32))
            word = k.bitcast(k.load(b, i), dtype=dtypes.int16)
            k.store(half, i, word)
            k.store(back, i, k.bitcast(word, dtype=dtypes.float16))
            k.store(nan, i, k.const(float("nan"), dtype=float32))

    k = kernel(bits)
    arrays = {"x": x, "h": h, "out": np.zeros(3, np.int32), "half": np.zeros(3, np.int16), "back": np.zeros(3, np.float16),
              "nan": np.zeros(3, np.float32)}  # fmt: skip
    run(k, arrays)
    np.testing.assert_array_equal(arrays["out"], x.view(np.int32))
    np.testing.assert_array_equal(arrays["half"], h.view(np.int16))
    np.testing.assert_array_equal(arrays["back"], h)
    assert np.isnan(arrays["nan"]).all()


@needs_compiler
@pytest.mark.parametrize("d", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_all_half_values_survive_and_all_roundings_are_right(d: DType) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(d.np)
    rng = np.random.default_rng(0)
    between = (rng.standard_normal(2**16) * 10.0 ** rng.integers(-9, 4, 2**16)).astype(np.float32)
    ties = (every.astype(np.float64) * (1 + (2**-11 if d is dtypes.float16 else 2**-8))).astype(np.float32)

    def halves(k: KernelRecorder) -> None:
        a = k.param("a", d, (2**16,), (1,))
        wide = k.param("wide", float32, (2**16,), (1,))
        for n in ("between", "ties"):
            b, out = k.param(n, float32, (2**16,), (1,)), k.param(f"{n}_out", d, (2**16,), (1,))
            for i in k.map(2**16):
                k.store(out, i, k.cast(k.load(b, i), dtype=d))
        for i in k.map(2**16):
            k.store(wide, i, k.cast(k.load(a, i), dtype=float32))

    k = kernel(halves)
    arrays = {"a": every, "wide": np.zeros(2**16, np.float32), "between": between, "ties": ties,
              "between_out": np.zeros(2**16, d.np), "ties_out": np.zeros(2**16, d.np)}  # fmt: skip
    run(k, arrays)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(arrays["wide"], every.astype(np.float32))
        for n, x in (("between", between), ("ties", ties)):
            np.testing.assert_array_equal(arrays[f"{n}_out"].astype(np.float32), x.astype(d.np).astype(np.float32))
