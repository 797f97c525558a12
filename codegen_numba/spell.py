"""How each word of the scalar vocabulary is written in kernel source.

Stage: codegen_numba.  In: a vocabulary name, operand texts, their type.  Out: one Python expression.  Plain operators
where Numba means the same by them; else a word of ``intrinsics``.  Half-precision values live in float32 registers.
Adding a vocabulary name means adding it here, once.  Read next: ``emit``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tinytorch.dtypes import BY_NAME, DType

#: By kind of the operands: f floats, i integers, b bools.  {t} is the source name of the operands' type.
SPELLINGS: dict[str, dict[str, str]] = {
    "add": {"f": "{0} + {1}", "i": "{t}({0} + {1})", "b": "bit_or({0}, {1})"},
    "sub": {"f": "{0} - {1}", "i": "{t}({0} - {1})", "b": "bit_xor({0}, {1})"},
    "mul": {"f": "{0} * {1}", "i": "{t}({0} * {1})", "b": "bit_and({0}, {1})"},
    "div": {"f": "{0} / {1}"},
    "floordiv": {"fi": "floordiv({0}, {1})"},
    "mod": {"fi": "mod({0}, {1})"},
    "fmod": {"fi": "fmod({0}, {1})"},
    "pow": {"f": "float_pow({0}, {1})", "i": "int_pow({0}, {1})"},
    "neg": {"f": "-{0}", "i": "negative({0})"},
    "abs": {"fi": "absolute({0})", "b": "{0}"},
    "sign": {"fi": "sign({0})", "b": "{0}"},
    "minimum": {"fi": "minimum({0}, {1})", "b": "bit_and({0}, {1})"},
    "maximum": {"fi": "maximum({0}, {1})", "b": "bit_or({0}, {1})"},
    "copysign": {"f": "copysign({0}, {1})"},
    **{
        name: {"f": name + "({0})"}
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin",
            "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        )
    },
    "atan2": {"f": "atan2({0}, {1})"},
    **{name: {"f": name + "({0})", "ib": "{0}"} for name in ("floor", "ceil", "trunc")},
    "round": {"f": "roundeven({0})", "ib": "{0}"},
    "eq": {"fib": "{0} == {1}"},
    "ne": {"fib": "{0} != {1}"},
    "lt": {"fi": "{0} < {1}", "b": "to_int8({0}) < to_int8({1})"},
    "le": {"fi": "{0} <= {1}", "b": "to_int8({0}) <= to_int8({1})"},
    "gt": {"fi": "{0} > {1}", "b": "to_int8({0}) > to_int8({1})"},
    "ge": {"fi": "{0} >= {1}", "b": "to_int8({0}) >= to_int8({1})"},
    "isnan": {"f": "{0} != {0}", "ib": "False"},
    "where": {"fib": "select({0}, {1}, {2})"},
    "bit_and": {"ib": "bit_and({0}, {1})"},
    "bit_or": {"ib": "bit_or({0}, {1})"},
    "bit_xor": {"ib": "bit_xor({0}, {1})"},
    "bit_not": {"ib": "bit_not({0})"},
    "shl": {"i": "shl({0}, {1})"},
    "shr": {"i": "shr({0}, {1})"},
    "philox": {"i": "philox({0}, {1}, {2})"},
}  # fmt: skip

#: Spelled by ``cast``, ``bitcast`` and ``literal`` below: they take a target type.
TARGETED = frozenset(("cast", "bitcast", "const"))
#: From memory, to memory, both, and to memory what is a number of the type already.
HALVES = {"float16": ("half_to_float", "float_to_half", "round_half", "float_to_half"),
          "bfloat16": ("bfloat_to_float", "float_to_bfloat", "round_bfloat", "top_half")}  # fmt: skip


def register_type(dtype: DType) -> str:
    """The type a value has in registers."""
    return "float32" if dtype.name in HALVES else dtype.name


def memory_type(dtype: DType) -> str:
    """The type of a buffer's elements as kernel source sees them."""
    return "uint16" if dtype.name in HALVES else "uint8" if dtype.name == "bool" else dtype.name


def kind(dtype: DType) -> str:
    return "i" if dtype.kind == "u" else dtype.kind


def literal(value: Any, dtype: DType) -> str:
    """A Python number as a constant of ``dtype``."""
    k = kind(dtype)
    if k == "b":
        return str(bool(value))
    if k == "i":
        text = str(int(value))
        return text if dtype.name == "int64" else f"{dtype.name}({text})"
    number = float(value)
    text = repr(number) if math.isfinite(number) else "nan" if number != number else "inf" if number > 0 else "-inf"
    return text if dtype.name == "float64" else f"{register_type(dtype)}({text})"


def spell(fn: str, args: Sequence[str], operand: DType, result: DType, strict: bool) -> str:
    """``fn(*args)``; in strict numerics a half-precision result is rounded at once."""
    if fn == "cast":
        return cast(args[0], operand, result)
    if fn == "bitcast":
        return bitcast(args[0], operand, result)
    k = kind(operand)
    text = next((t for kinds, t in SPELLINGS[fn].items() if k in kinds), None)
    if text is None:
        raise TypeError(f"{fn} has no meaning on {operand.name}")
    if k == "i" and text.startswith("{t}(") and operand.name in ("int64", "uint64"):
        text = text[4:-1]
    out = text.format(*args, t=register_type(operand))
    if strict and result.name in HALVES and fn not in EXACT:
        return f"{HALVES[result.name][2]}({out})"
    return out


#: Functions whose result needs no rounding if the operands needed none.
EXACT = frozenset(
    ("neg", "abs", "sign", "minimum", "maximum", "copysign", "floor", "ceil", "trunc", "round", "where")
)


def cast(text: str, source: DType, target: DType) -> str:
    if source is target:
        return text
    k, want = kind(source), kind(target)
    if want == "b":
        return f"{text} != 0"
    if want == "i":
        return f"to_{target.name}({text})"
    if target.name in HALVES:
        wide = text if k == "f" else f"float32({_number(text, k)})"
        return f"{HALVES[target.name][2]}({wide})"
    if want == "f":
        return text if register_type(source) == target.name else f"{target.name}({_number(text, k)})"
    raise TypeError(f"cannot cast {source.name} to {target.name}")


def _number(text: str, k: str) -> str:
    return f"to_int32({text})" if k == "b" else text


def bitcast(text: str, source: DType, target: DType) -> str:
    bits = to_memory(text, source)
    return from_memory(bits if target.name in HALVES else f"as_{memory_type(target)}({bits})", target)


def from_memory(text: str, dtype: DType) -> str:
    """An element as it lies in memory, as a value."""
    if dtype.name in HALVES:
        return f"{HALVES[dtype.name][0]}({text})"
    return f"{text} != 0" if dtype.name == "bool" else text


def to_memory(text: str, dtype: DType, exact: bool = False) -> str:
    """A value as it lies in memory; ``exact``: is it a number of the half type already?"""
    if dtype.name in HALVES:
        return f"{HALVES[dtype.name][3 if exact else 1]}({text})"
    return f"to_uint8({text})" if dtype.name == "bool" else text


#: Every word that kernel source may use and that no value may be called.
WORDS = frozenset(
    re.findall(r"[a-z_0-9]+(?=\()", " ".join(t for d in SPELLINGS.values() for t in d.values()))
) | frozenset(f for words in HALVES.values() for f in words) | frozenset(
    f"{p}{t}" for p in ("", "to_", "as_", "scratch_") for t in BY_NAME
) | frozenset((
    "accumulate", "multiply_up", "lost_by_adding", "finish_sum", "quotient", "remainder", "least", "greatest", "inf",
    "nan", "turn_in", "turn_out", "philox_row", "write_around",
    "fetch", "fetch_later", "settle", "logistic", "erf_plus_one", "share", "independent",
))  # fmt: skip
