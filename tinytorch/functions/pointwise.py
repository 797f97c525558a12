"""Pointwise functions under their public names: ``add``, ``exp``, ``clamp``, ``logical_and``, ...

Stage: eager.  In: tensors and numbers.  Out: tensors, from the rows of ``ops.pointwise``.  Mirrors the pointwise part of
``torch``.  The tables at the end of each part are the list of names.  Read next: ``functions.reduction``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.dtypes import DType
from tinytorch.functions.args import is_number, need_tensor, plain, type_name
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor

_OPERANDS = (Tensor, int, float, complex)
_complex = complex


def into(out: Tensor | None, result: Tensor) -> Tensor:
    """What ``out=`` means: resize is not needed or an error, cast if allowed, write."""
    if out is None:
        return result
    return out._write_result(result)


# --- one operand ------------------------------------------------------------------------------------------------------
def _unary(name: str, op: Op) -> Callable[..., Tensor]:
    def fn(input: Tensor, *, out: Tensor | None = None) -> Tensor:
        if not isinstance(input, Tensor):
            need_tensor(name, input)
        return op(input) if out is None else into(out, op(input))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"``{name}`` of each element.  Mirrors ``torch.{name}``."
    return fn


#: public name -> row
UNARY: dict[str, str] = {
    "neg": "neg", "negative": "neg", "abs": "abs", "absolute": "abs", "sign": "sign", "square": "square",
    "reciprocal": "reciprocal", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "arcsin": "asin", "acos": "acos", "arccos": "acos", "atan": "atan", "arctan": "atan",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "arcsinh": "asinh", "acosh": "acosh",
    "arccosh": "acosh", "atanh": "atanh", "arctanh": "atanh", "erf": "erf", "sigmoid": "sigmoid", "relu": "relu",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc", "isnan": "isnan",
    "logical_not": "logical_not", "bitwise_not": "bit_not",
}  # fmt: skip
for _name, _row in UNARY.items():
    globals()[_name] = _unary(_name, TABLE[_row])


def positive(input: Tensor) -> Tensor:
    """The tensor itself; RuntimeError for bool."""
    if input.dtype is dtypes.bool_:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def isinf(input: Tensor) -> Tensor:
    """True where +inf or -inf."""
    if not input.dtype.is_floating_point:
        return ops.ne(input, input)
    return ops.eq(ops.abs(input), math.inf)


def isfinite(input: Tensor) -> Tensor:
    """True where neither infinite nor NaN."""
    if not input.dtype.is_floating_point:
        return ops.eq(input, input)
    return ops.lt(ops.abs(input), math.inf)


def round(input: Tensor, *, decimals: int = 0, out: Tensor | None = None) -> Tensor:  # noqa: A001
    """Half to even, to ``decimals`` places."""
    need_tensor("round", input)
    if not decimals:
        return into(out, ops.round(input))
    scale = 10.0**decimals
    return into(out, ops.div(ops.round(ops.mul(input, scale)), scale))


def frac(input: Tensor) -> Tensor:
    """The part after the point, with the sign of the number."""
    return ops.sub(input, ops.trunc(input))


def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced; None means the largest (smallest) finite number of the type."""
    if not input.dtype.is_floating_point:
        return ops.clone(input)
    info = dtypes.finfo(input.dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf
    x = ops.where(ops.isnan(input), float(nan), input)
    x = ops.where(ops.eq(x, math.inf), float(high), x)
    return ops.where(ops.eq(x, -math.inf), float(low), x)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x held in [eps, 1 - eps] if eps is given."""
    x = input if eps is None else clamp(input, eps, 1 - eps)
    return ops.log(ops.div(x, ops.sub(1.0, x)))


def deg2rad(input: Tensor) -> Tensor:
    return ops.mul(input, math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    return ops.mul(input, 180 / math.pi)


# --- two operands -----------------------------------------------------------------------------------------------------
def operand(name: str, x: Any, arg: str, position: int) -> Any:
    """A tensor or a number; TypeError for anything else."""
    if isinstance(x, _OPERANDS):
        return x
    if is_number(x):
        return plain(x)
    raise TypeError(f"{name}(): argument '{arg}' (position {position}) must be Tensor, not {type_name(x)}")


def first_operand(name: str, input: Any, other: Any) -> None:
    """A tensor, or a number before a tensor; TypeError for anything else."""
    if not isinstance(input, Tensor) and not (isinstance(other, Tensor) and is_number(input)):
        need_tensor(name, input)


def _binary(name: str, op: Op) -> Callable[..., Tensor]:
    def fn(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
        if not isinstance(input, Tensor):
            first_operand(name, input, other)
        result = op(input, other if isinstance(other, Tensor) else operand(name, other, "other", 2))
        return result if out is None else into(out, result)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"``{name}`` of each pair of elements, broadcast.  Mirrors ``torch.{name}``."
    return fn


BINARY: dict[str, str] = {
    "mul": "mul", "multiply": "mul", "fmod": "fmod", "maximum": "maximum", "minimum": "minimum",
    "copysign": "copysign", "atan2": "atan2", "arctan2": "atan2", "eq": "eq", "ne": "ne", "not_equal": "ne",
    "lt": "lt", "less": "lt", "le": "le", "less_equal": "le", "gt": "gt", "greater": "gt", "ge": "ge",
    "greater_equal": "ge",
    "remainder": "mod", "floor_divide": "floordiv", "bitwise_and": "bit_and", "bitwise_or": "bit_or",
    "bitwise_xor": "bit_xor", "bitwise_left_shift": "shl", "bitwise_right_shift": "shr",
}  # fmt: skip
for _name, _row in BINARY.items():
    globals()[_name] = _binary(_name, TABLE[_row])


def _scaled(other: Any, alpha: Any) -> Any:
    return (
        other
        if type(alpha) is int and alpha == 1
        else (ops.mul(other, alpha) if isinstance(other, Tensor) else other * alpha)
    )


def add(input: Tensor, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input + alpha * other.  Mirrors ``torch.add``."""
    first_operand("add", input, other)
    return into(out, ops.add(input, _scaled(operand("add", other, "other", 2), alpha)))


def sub(input: Tensor, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input - alpha * other; RuntimeError for bools.  Mirrors ``torch.sub``."""
    first_operand("sub", input, other)
    return into(out, ops.sub(input, _scaled(operand("sub", other, "other", 2), alpha)))


def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return ops.sub(operand("rsub", other, "other", 2), _scaled(input, alpha))


def div(input: Tensor, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """Division; ``rounding_mode`` None (true), "trunc" (towards 0) or "floor".  Mirrors ``torch.div``."""
    first_operand("div", input, other)
    other = operand("div", other, "other", 2)
    if rounding_mode is None:
        return into(out, ops.div(input, other))
    if rounding_mode == "floor":
        return into(out, ops.floordiv(input, other))
    if rounding_mode != "trunc":
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )
    if ops.result_type([input, other]).is_floating_point:
        return into(out, ops.trunc(ops.div(input, other)))
    return into(out, ops.floordiv(ops.sub(input, ops.fmod(input, other)), other))


def pow(input: Any, exponent: Any, *, out: Tensor | None = None) -> Tensor:  # noqa: A001
    """input ** exponent; squares, cubes, roots and reciprocals by their own rows.  Mirrors ``torch.pow``."""
    base, exponent = operand("pow", input, "input", 1), operand("pow", exponent, "exponent", 2)
    if isinstance(exponent, Tensor) or not isinstance(base, Tensor):
        return into(out, ops.pow(base, exponent))
    dtype = base.dtype
    if dtype.kind in "iub" and isinstance(exponent, int) and not isinstance(exponent, bool) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    if isinstance(exponent, int | float) and dtype is not dtypes.bool_:
        if exponent == 2 and (isinstance(exponent, int) or dtype.is_floating_point):
            return into(out, ops.square(base))
        if dtype.is_floating_point:
            if exponent == 3:
                return into(out, ops.mul(ops.square(base), base))
            if exponent == 0.5:
                return into(out, ops.sqrt(base))
            if exponent == -0.5:
                return into(out, ops.rsqrt(base))
            if exponent == -1:
                return into(out, ops.reciprocal(base))
    return into(out, ops.pow(base, exponent))


def _logical(name: str, row: str) -> Callable[..., Tensor]:
    op = TABLE[row]

    def fn(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
        need_tensor(name, input)
        need_tensor(name, other, "other", 2)
        return into(out, op(ops.ne(input, 0), ops.ne(other, 0)))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"``{name}`` of elements that count as true when not 0.  Mirrors ``torch.{name}``."
    return fn


logical_and = _logical("logical_and", "bit_and")
logical_or = _logical("logical_or", "bit_or")
logical_xor = _logical("logical_xor", "bit_xor")


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger; a number wins over NaN."""
    return ops.where(ops.isnan(input), other, ops.where(ops.isnan(other), input, ops.maximum(input, other)))


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller; a number wins over NaN."""
    return ops.where(ops.isnan(input), other, ops.where(ops.isnan(other), input, ops.minimum(input, other)))


def hypot(input: Tensor, other: Tensor) -> Tensor:
    return ops.sqrt(ops.add(ops.square(input), ops.square(other)))


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) without overflow; equal infinities stay."""
    high = ops.maximum(input, other)
    gap = ops.neg(ops.abs(ops.sub(input, other)))
    return ops.where(ops.eq(input, other), ops.add(high, math.log(2)), ops.add(high, ops.log1p(ops.exp(gap))))


def xlogy(input: Any, other: Any) -> Tensor:
    """x * log(y), 0 where x is 0 (NaN where y is)."""
    product = ops.mul(input, ops.log(other) if isinstance(other, Tensor) else math.log(other))
    if not isinstance(input, Tensor):
        return product if input else ops.where(ops.isnan(other), math.nan, ops.mul(other, 0.0))
    nan = ops.isnan(other) if isinstance(other, Tensor) else other != other
    return ops.where(
        ops.eq(input, 0) if nan is False else ops.bit_and(ops.eq(input, 0), ops.bit_not(nan)), 0.0, product
    )


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), from the nearer side.  Mirrors ``torch.lerp``."""
    gap = ops.sub(end, input)
    if not isinstance(weight, Tensor):
        return (
            ops.add(input, ops.mul(gap, weight))
            if -0.5 < weight < 0.5
            else ops.sub(end, ops.mul(gap, 1 - weight))
        )
    near = ops.lt(ops.abs(weight), 0.5)
    return ops.where(
        near, ops.add(input, ops.mul(weight, gap)), ops.sub(end, ops.mul(gap, ops.sub(1, weight)))
    )


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    return ops.add(input, _scaled(ops.mul(tensor1, tensor2), value))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    return ops.add(input, _scaled(ops.div(tensor1, tensor2), value))


# --- bounds and choice ------------------------------------------------------------------------------------------------
def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Tensor | None = None) -> Tensor:  # noqa: A002
    """max(min(x, max), min); a bound is a number, a tensor or None, not both None.  Mirrors ``torch.clamp``."""
    need_tensor("clamp", input)
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if min is not None:
        input = ops.clamp_min(input, min if isinstance(min, Tensor) else plain(min))
    if max is not None:
        input = ops.clamp_max(input, max if isinstance(max, Tensor) else plain(max))
    return into(out, input)


clip = clamp


def clamp_min(input: Tensor, min: Any) -> Tensor:  # noqa: A002
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:  # noqa: A002
    return clamp(input, max=max)


def where(condition: Tensor, input: Any = None, other: Any = None, *, out: Tensor | None = None) -> Any:
    """``input`` where ``condition``, else ``other``.  With the condition alone: its nonzero indices as a tuple."""
    need_tensor("where", condition, "condition")
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if condition.dtype is dtypes.uint8:
        condition = ops.ne(condition, 0)
    return into(
        out, ops.where(condition, operand("where", input, "input", 2), operand("where", other, "other", 3))
    )


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``value`` (a number or 0-d tensor) where ``mask``; the type stays that of ``input``."""
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got mask with dtype {mask.dtype.name}"
        )
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s)."
            )
        return ops.where(mask, value.to(input.dtype), input)
    return ops.where(mask, number_in(input.dtype, value), input)


def number_in(dtype: DType, value: Any) -> Any:
    """A Python number as one that does not promote ``dtype``: cut to an integer, made a bool."""
    check_number(dtype, value)
    if dtype is dtypes.bool_:
        return value != 0
    return math.trunc(value) if dtype.kind in "iu" and type(value) is float else value


def check_number(dtype: DType, value: Any) -> None:
    """RuntimeError where a number would be cut: 1.5 into ints is allowed, 1j into floats is not."""
    if type(value) is _complex and not dtype.is_complex:
        raise RuntimeError("value cannot be converted to type without overflow")


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """|a - b| <= atol + rtol * |b|, or equal.  Mirrors ``torch.isclose``."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"{input.dtype.title} did not match {other.dtype.title}")
    close = ops.eq(input, other)
    if equal_nan:
        close = ops.bit_or(close, ops.bit_and(ops.isnan(input), ops.isnan(other)))
    if input.dtype.kind in "iub" and not rtol and not atol:
        return close
    wide = input if input.dtype.kind == "f" else ops.cast(input, dtype=dtypes.float64)
    goal = other if other.dtype.kind == "f" else ops.cast(other, dtype=dtypes.float64)
    gap = ops.abs(ops.sub(wide, goal))
    near = ops.le(gap, ops.add(ops.mul(ops.abs(goal), rtol), atol))
    return ops.bit_or(close, ops.bit_and(near, isfinite(gap)))


subtract, divide, true_divide = sub, div, div


def erfc(input: Tensor) -> Tensor:
    """1 - erf(x)."""
    return ops.sub(1, ops.erf(input))  # type: ignore[no-any-return]


def signbit(input: Tensor) -> Tensor:
    """Whether the sign is minus; also that of -0.0."""
    if input.dtype.is_floating_point:
        return ops.lt(ops.copysign(1.0, input), 0)  # type: ignore[no-any-return]
    return ops.lt(input, 0)  # type: ignore[no-any-return]


def isposinf(input: Tensor) -> Tensor:
    return ops.eq(input, math.inf)  # type: ignore[no-any-return]


def isneginf(input: Tensor) -> Tensor:
    return ops.eq(input, -math.inf)  # type: ignore[no-any-return]
