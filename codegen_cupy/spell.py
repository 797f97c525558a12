"""CUDA C++ spellings: of names, of element types, of literals, and of every word of the scalar vocabulary.

Stage: codegen.  In: one ``Let`` of the loop IR, its operands as C++ text.  Out: a C++ expression.
Read next: ``helpers.cuh`` (the device functions named here), ``body`` (which writes the statements).

How types are held: bool and integers as themselves, float16 and bfloat16 in memory as a struct of 16 bits and in
registers as ``float`` ("fast" numerics rounds them when they are stored; "strict" after every operation).

Accuracy in float32: all at most 2 ulp (``benchmarks/gpu_ulp.py`` tries every input).  Those of CUDA's own that exceed it
(documented: ``tan`` 4, ``atan2`` 3, ``sinh`` 3, ``asinh`` 3, ``acosh`` 4, ``atanh`` 3; measured: ``exp2`` 2.38, ``cosh`` 2.33, ``log10`` 2.09) are
computed in double and rounded once; ``pow`` is 4, its own bound.  In float64 ``asinh``, ``acosh`` are documented at 3.  No fast-math, no flush to zero, save
in ``ROUGH``: the hardware's approximations for values that half precision rounds anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from tinytorch.dtypes import DType

REGISTER: dict[str, str] = {
    "bool": "bool", "uint8": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "uint32": "unsigned", "uint64": "unsigned long long", "float16": "float",
    "bfloat16": "float", "float32": "float", "float64": "double",
}  # fmt: skip
MEMORY: dict[str, str] = {**REGISTER, "float16": "f16", "bfloat16": "bf16"}
HALVES = {"float16": "f16", "bfloat16": "bf16"}

#: What a value, an axis or a buffer may not be called: words of C++, functions of its library, names that our kernels use.
_TAKEN = set(
    "r block point at total lane warp team row rows part parts c k live base first last failed done alignas auto bool break case catch char class "
    "const continue default delete do double else enum explicit export extern false float for friend goto if inline int "
    "long mutable namespace new operator private protected public register return short signed sizeof static struct "
    "switch template this throw true try typedef typename union unsigned using virtual void volatile while and or not "
    "xor abs min max exp log sqrt sin cos tan floor ceil round trunc pow fmod erf tanh y0 y1 yn j0 j1 jn".split()
)


def safe(name: str) -> str:
    """A C++ identifier for a loop-IR name."""
    text = re.sub(r"\W", "_", name)
    return f"{text}_" if text in _TAKEN or text[0].isdigit() else text


def register_type(d: DType) -> str:
    """The C++ type of a value in a register; NotImplementedError for complex numbers."""
    if d.name not in REGISTER:
        raise NotImplementedError(f"CUDA kernels compute no {d.name}")
    return REGISTER[d.name]


def memory_type(d: DType) -> str:
    """The C++ type of an element in memory."""
    if d.name not in MEMORY:
        raise NotImplementedError(f"CUDA kernels hold no {d.name}")
    return MEMORY[d.name]


def from_memory(text: str, d: DType) -> str:
    return f"to_float({text})" if d.name in HALVES else text


def to_memory(text: str, d: DType) -> str:
    return f"to_{HALVES[d.name]}({text})" if d.name in HALVES else text


def literal(value: int | float | bool, d: DType) -> str:
    """A Python number as a C++ literal of the register type of ``d``, exact after rounding to ``d``."""
    if d.kind == "b":
        return "true" if value else "false"
    if d.kind in "iu":
        return _integer(int(value), d)
    rounded = float(d.np.type(value))
    if math.isnan(rounded) or math.isinf(rounded):
        return _special(rounded, d)
    if d.name == "float64":
        return repr(rounded)
    text = np.format_float_positional(np.float32(rounded), unique=True, trim="0")
    if len(text) > 16:
        text = np.format_float_scientific(np.float32(rounded), unique=True, trim="0")
    return f"{text}f"


def _integer(value: int, d: DType) -> str:
    bits = 8 * d.itemsize
    value &= (1 << bits) - 1
    if d.is_signed and value >> (bits - 1):
        value -= 1 << bits
    if d.name == "int64":
        return f"{value}ll" if value != -(2**63) else "(-9223372036854775807ll - 1)"
    if d.name == "int32" and value == -(2**31):
        return "(-2147483647 - 1)"
    suffix = {"uint64": "ull", "uint32": "u"}.get(d.name, "")
    return f"{value}{suffix}"


def _special(value: float, d: DType) -> str:
    if d.name == "float64":
        bits = 0x7FF8 << 48 if math.isnan(value) else (0x7FF0 if value > 0 else 0xFFF0) << 48
        return f"__longlong_as_double(0x{bits:016x}ll)"
    bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000
    return f"__int_as_float(0x{bits:08x})"


# --- the vocabulary -------------------------------------------------------------------------------------------------
Spelling = Callable[..., str]  # (dtype of the operands, *operand texts) -> C++ expression


def _wrap(sign: str) -> Spelling:
    """Integer arithmetic in the unsigned type of the same width, so that it wraps instead of being undefined."""

    def spell(d: DType, a: str, b: str) -> str:
        if d.kind == "b":
            return f"{a} {'&' if sign == '*' else '^' if sign == '-' else '|'} {b}"
        if d.kind == "f":
            return f"{a} {sign} {b}"
        if d.itemsize < 4:
            return f"({REGISTER[d.name]})({a} {sign} {b})"
        wide = "unsigned long long" if d.itemsize == 8 else "unsigned"
        return f"({REGISTER[d.name]})(({wide}){a} {sign} ({wide}){b})"

    return spell


def _libm(name: str, *, through_double: bool = False) -> Spelling:
    """A CUDA math function, ``namef`` for float and ``name`` for double."""

    def spell(d: DType, *args: str) -> str:
        if d.name == "float64":
            return f"{name}({', '.join(args)})"
        if through_double and d.name == "float32":
            return f"(float){name}({', '.join(f'(double){a}' for a in args)})"
        return f"{name}f({', '.join(args)})"

    return spell


def _float_or_same(name: str) -> Spelling:
    """Rounding functions, which leave integers alone."""
    float_spelling = _libm(name)
    return lambda d, a: float_spelling(d, a) if d.kind == "f" else a


def _compare(sign: str) -> Spelling:
    return lambda d, a, b: f"{a} {sign} {b}"


def _bits(sign: str) -> Spelling:
    return lambda d, a, b: f"({REGISTER[d.name]})({a} {sign} {b})" if d.itemsize < 4 else f"{a} {sign} {b}"


def _helper(name: str, *, floats: str | None = None) -> Spelling:
    """One of ``helpers.cuh``; ``floats`` names the variant for floating types."""
    return lambda d, *args: f"{floats if floats and d.kind == 'f' else _of_type(name, d)}({', '.join(args)})"


def _of_type(name: str, d: DType) -> str:
    """A template's name for integers of this type: C++ cannot tell it from a literal, which is an ``int`` at least."""
    return f"{name}<{REGISTER[d.name]}>" if d.kind in "iu" and d.itemsize < 4 else name


def _neg(d: DType, a: str) -> str:
    if d.kind in "iu":
        wide = "unsigned long long" if d.itemsize == 8 else "unsigned"
        return f"({REGISTER[d.name]})(0u - ({wide}){a})"
    return f"-({a})" if a.startswith("-") else f"-{a}"


def _abs(d: DType, a: str) -> str:
    if d.kind == "f":
        return f"fabs({a})" if d.name == "float64" else f"fabsf({a})"
    if d.kind in "ub":
        return a
    return f"({a} < 0 ? {_neg(d, a)} : {a})" if d.itemsize >= 4 else f"{_of_type('abs_of', d)}({a})"


def _fmod(d: DType, a: str, b: str) -> str:
    return _libm("fmod")(d, a, b) if d.kind == "f" else f"{_of_type('trunc_mod_int', d)}({a}, {b})"


def _pow(d: DType, a: str, b: str) -> str:
    return _libm("pow")(d, a, b) if d.kind == "f" else f"{_of_type('pow_int', d)}({a}, {b})"


def _bit_not(d: DType, a: str) -> str:
    return f"!{a}" if d.kind == "b" else f"({REGISTER[d.name]})~{a}"


SPELLINGS: dict[str, Spelling] = {
    "add": _wrap("+"), "sub": _wrap("-"), "mul": _wrap("*"),
    "div": lambda d, a, b: f"{a} / {b}",
    "floordiv": _helper("floor_div_int", floats="floor_div_float"),
    "mod": _helper("floor_mod_int", floats="floor_mod_float"),
    "fmod": _fmod, "pow": _pow, "neg": _neg, "abs": _abs, "sign": _helper("sign_of"),
    "minimum": _helper("nan_min"), "maximum": _helper("nan_max"), "copysign": _libm("copysign"),
    "exp": _libm("exp"), "exp2": _libm("exp2", through_double=True), "expm1": _libm("expm1"),
    "log": _libm("log"), "log2": _libm("log2"), "log10": _libm("log10", through_double=True), "log1p": _libm("log1p"),
    "sqrt": _libm("sqrt"), "rsqrt": _libm("rsqrt"),
    "sin": _libm("sin"), "cos": _libm("cos"), "tan": _libm("tan", through_double=True),
    "asin": _libm("asin"), "acos": _libm("acos"), "atan": _libm("atan"),
    "atan2": _libm("atan2", through_double=True),
    "sinh": _libm("sinh", through_double=True), "cosh": _libm("cosh", through_double=True), "tanh": _libm("tanh"),
    "asinh": _libm("asinh", through_double=True), "acosh": _libm("acosh", through_double=True),
    "atanh": _libm("atanh", through_double=True), "erf": _libm("erf"),
    "floor": _float_or_same("floor"), "ceil": _float_or_same("ceil"), "trunc": _float_or_same("trunc"),
    "round": _float_or_same("rint"),
    "eq": _compare("=="), "ne": _compare("!="), "lt": _compare("<"), "le": _compare("<="),
    "gt": _compare(">"), "ge": _compare(">="),
    "isnan": lambda d, a: f"{a} != {a}" if d.kind == "f" else "false",
    "where": lambda d, c, a, b: f"{c} ? {a} : {b}",
    "bit_and": _bits("&"), "bit_or": _bits("|"), "bit_xor": _bits("^"), "bit_not": _bit_not,
    "shl": _helper("shift_left"), "shr": _helper("shift_right"),
    "philox": _helper("philox"),
}  # fmt: skip


#: Spellings of what half precision rounds anyway (see ``rough``); operands are float32.
ROUGH: dict[str, Spelling] = {
    "exp": lambda d, a: f"rough_exp({a})", "exp2": lambda d, a: f"rough_exp2({a})",
    "div": lambda d, a, b: f"rough_div({a}, {b})",
}  # fmt: skip


def spell(fn: str, args: tuple[str, ...], src: DType, dst: DType, *, strict: bool = False, rough: bool = False) -> str:
    """The C++ expression of one scalar function; ``src`` is the type of its operands, ``dst`` of its result.

    For ``const`` the one argument is a literal already written for ``dst``.
    """
    if fn == "const":
        text = args[0]
    elif fn == "cast":
        text = cast(args[0], src, dst)
    elif fn == "bitcast":
        text = _bitcast(args[0], src, dst)
    elif rough and fn in ROUGH and src.name == "float32":
        text = ROUGH[fn](src, *args)
    else:
        text = SPELLINGS[fn](src, *args)
    if strict and dst.name in HALVES and fn not in ("const", "bitcast"):
        return f"to_float({to_memory(f'(float)({text})', dst)})"
    return text


def cast(text: str, src: DType, dst: DType) -> str:
    """C's conversion; to bool by ``!= 0``.  float64 to a half type rounds once, when it is stored."""
    if src is dst:
        return text
    if dst.kind == "b":
        return f"{text} != {literal(0, src)}"
    if dst.name in HALVES and src.name == "float64":
        return f"to_float({to_memory(text, dst)})"
    if register_type(src) == register_type(dst):
        return text
    return f"({register_type(dst)}){text}"


def _bitcast(text: str, src: DType, dst: DType) -> str:
    inner = to_memory(text, src)
    return from_memory(f"bitcast<{memory_type(dst)}>({inner})", dst)


def spelled_names() -> set[str]:
    """All vocabulary names this codegen spells (a test compares with ``VOCABULARY``)."""
    return {*SPELLINGS, "const", "cast", "bitcast"}
