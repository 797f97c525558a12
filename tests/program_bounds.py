"""How far a correct result may be from eager's, element by element: the bound that travels with each value.

In: a row, its arguments (``Value`` or number) and its eager result.  Out: an array of bounds; 0 where every correct
machine gets the same bits, infinite where nothing can be said (an intermediate of half precision that overflows, say).
Views and index rows are linear, so the row itself, run on the bounds of its arguments, gives that of its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinytorch.device import cpu
from tinytorch.ops import TABLE
from tinytorch.tensor import Tensor

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
LARGEST = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}

#: The bound of a zero of either sign: what divides by it may be infinite in both directions.
SIGN = 5e-324

#: Rows that move numbers and compute nothing.
MOVES = set(
    "expand permute slice select diagonal unfold unsqueeze squeeze slice_backward diagonal_backward cat flip gather "
    "scatter index_select index slice_scatter clone contiguous".split()
)
#: Rows that move numbers and add those that meet.
GATHERS = {"scatter_add", "index_add", "unfold_backward", "index_put", "sum", "cumsum"}
#: Functions that never pull two arguments further apart than by this factor.
SMOOTH = {"tanh": 1.0, "sin": 1.0, "cos": 1.0, "erf": 1.13, "sigmoid": 0.25, "atan": 1.0, "asinh": 1.0}
#: Other rows that look at the memory of their argument in another way.
LOOKS = {"view", "real", "imag", "view_as_real", "view_as_complex"}
#: Rows whose result is one of their arguments, or comes of them without rounding.
CHOICES = LOOKS | set(
    "neg abs relu maximum minimum clamp_min clamp_max where copysign floor ceil trunc round sign eq ne lt le gt ge isnan "
    "logical_not bit_and bit_or bit_xor bit_not shl shr fmod amax amin any all argmax argmin overwrite conj "
    "bitcast full iota uniform random_bits scatter_reduce".split()
)
#: Rows of a single rounding, which no numerics may change.
ONCE = {"sqrt", "div", "cast", "reciprocal", "floordiv"}
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "square": lambda x: x * x}
#: Rows that take arguments which are off; to all others only exact ones are given.
CONTINUOUS = MOVES | GATHERS | LOOKS | set(SMOOTH) | set(ARITHMETIC) | set(
    "neg abs relu maximum minimum clamp_min clamp_max where exp div conj amax amin matmul cast overwrite copysign var".split()
)  # fmt: skip
#: Rows for which strict numerics promise eager's very bits.
STRICT = MOVES | CHOICES | set(ARITHMETIC) | {"sqrt", "div", "cast", "floordiv"}


@dataclass(frozen=True)
class Value:
    """A tensor of a program, what it may be off by, and whether strict numerics promise its very bits."""

    t: Tensor
    error: np.ndarray
    same: bool = True

    @property
    def array(self) -> np.ndarray:
        return self.t._data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.t._data.shape

    @property
    def kind(self) -> str:
        """One of b, i, u, f, c."""
        return self.t.dtype.kind

    @property
    def exact(self) -> bool:
        return not self.error.any()


def exact(t: Tensor) -> Value:
    return Value(t, np.zeros(t._data.shape))


def met(args: list[Any]) -> list[Any]:
    """The arguments of one row as they meet: a 0-d tensor beside tensors of half precision is rounded to theirs in eager and
    in strict numerics, and need not be in fast ones."""
    halves = [UNIT[a.t.dtype.name] for a in args if isinstance(a, Value) and a.kind == "f" and a.array.ndim]
    unit = min(halves, default=0.0)

    def rounded(a: Any) -> Any:
        if not isinstance(a, Value) or a.kind != "f" or a.array.ndim or not UNIT[a.t.dtype.name] < unit > 2.0**-20:
            return a
        return replace(a, error=a.error + unit * size(a.array))

    return [rounded(a) for a in args]


def result(name: str, out: Tensor, args: list[Any], params: dict[str, Any]) -> Value:
    """``out`` of the row ``name`` with its bound."""
    values = [a for a in args if isinstance(a, Value)]
    same = name in STRICT and all(v.same for v in values)
    with np.errstate(all="ignore"):
        same = same and not (name == "copysign" and _signs_of_nan(args[1]).any())
        free = _signs_of_zero(name, out, args)
        error = _bound(name, out, args, params, values)
        return Value(out, np.where(free, np.maximum(error, SIGN), error), same and not np.any(free))


def _signs_of_zero(name: str, out: Tensor, args: list[Any]) -> Any:
    """Where a result is the greatest or least of zeros of both signs, which no machine promises to tell apart."""
    if out.dtype.kind != "f":
        return False
    a, b = ([x.array if isinstance(x, Value) else x for x in args] + [0.0, 0.0])[:2]
    if name in ("maximum", "minimum", "clamp_min", "clamp_max", "relu"):
        return (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    if name in ("amax", "amin"):
        signs = np.signbit(a[a == 0])
        return (out._data == 0) & bool(signs.any() and not signs.all())
    return False


def wide(a: Any) -> Any:
    """In a format that holds products of two such numbers."""
    return a.astype(np.longdouble if a.dtype == np.float64 else np.float64) if isinstance(a, np.ndarray) else a


def size(a: Any) -> Any:
    return np.abs(a if a.dtype.kind == "c" else wide(a)).astype(np.float64) if isinstance(a, np.ndarray) else abs(a)


def finite(a: np.ndarray) -> np.ndarray:
    return np.isfinite(a if a.dtype.kind == "c" else wide(a))


def _bound(name: str, out: Tensor, args: list[Any], params: dict[str, Any], values: list[Value]) -> np.ndarray:
    data = out._data
    xs = [a.array if isinstance(a, Value) else a for a in args]
    off = not all(v.exact for v in values)
    error = np.broadcast_to(_carried(name, data, args, xs, params), data.shape) if off else np.zeros(data.shape)
    if out.dtype.is_complex:
        error = error if name in MOVES | CHOICES else error + 8 * 2.0 ** -(23 if data.itemsize == 8 else 52) * np.abs(data)
        return np.where(finite(data), error, np.inf)
    if not out.dtype.is_floating_point:
        return np.zeros(data.shape)
    error = np.where(finite(data), error + _rounded(name, out, args, xs, params, off), error)
    error = np.where(finite(data) | _certain(name, out, args, xs, values), error, np.inf)
    return np.where(np.isnan(error), np.inf, error)


def _carried(name: str, data: np.ndarray, args: list[Any], xs: list[Any], params: dict[str, Any]) -> Any:
    """What the bounds of the arguments become."""
    es = [a.error if isinstance(a, Value) else 0.0 for a in args]
    if name in MOVES | GATHERS:
        bounds = [Tensor._wrap(a.error, cpu) if a.kind in "fc" else a.t for a in args]
        return TABLE[name](*bounds, **params)._data
    if name in SMOOTH:
        return SMOOTH[name] * es[0]
    match name:
        case "view":
            return es[0].reshape(data.shape)
        case "view_as_real":
            return es[0][..., None]
        case "view_as_complex":
            return es[0].sum(-1)
        case "add" | "sub":
            return es[0] + es[1]
        case "mul":
            return size(xs[0]) * es[1] + size(xs[1]) * es[0] + es[0] * es[1]
        case "square":
            return (2 * size(xs[0]) + es[0]) * es[0]
        case "exp":
            return size(data) * np.expm1(es[0])
        case "div":
            low = size(xs[1]) - es[1]
            return np.where(low > 0, (size(data) * es[1] + es[0]) / low, np.inf)
        case "where":
            return np.where(xs[0], es[1], es[2])
        case "maximum" | "minimum" | "clamp_min" | "clamp_max":
            return np.maximum(es[0], es[1])
        case "amax" | "amin":
            return np.max(es[0], axis=params["dim"], keepdims=params["keepdim"])
        case "matmul":
            return size(xs[0]) @ es[1] + es[0] @ size(xs[1]) + es[0] @ es[1]
        case "overwrite":
            return es[1]
        case "copysign":
            return np.where(es[1] > 0, np.inf, es[0])
        case "var":
            return 16 * np.max(size(xs[0]), initial=0.0) * np.max(es[0], initial=0.0)
        case _:  # neg, abs, relu, conj, real, imag, cast
            return es[0]


def _rounded(name: str, out: Tensor, args: list[Any], xs: list[Any], params: dict[str, Any], off: bool) -> Any:
    """What the row itself may be off by, where its result is finite."""
    unit, tiny = UNIT[out.dtype.name], TINY[out.dtype.name]
    half = unit > 2.0**-20
    one = unit * size(out._data) + tiny
    if name == "copysign":
        return np.where(_signs_of_nan(args[1]), np.inf, 0.0)
    if name == "overwrite" and half:
        return np.where(wide(np.broadcast_to(xs[1], out._data.shape)) == wide(out._data), 0.0, one)
    if name in MOVES | CHOICES:
        return 0.0
    if name in ARITHMETIC:
        return np.where(ARITHMETIC[name](*map(wide, xs)) == wide(out._data), 0.0, one)
    if name in ONCE:
        return one if half or off else 0.0
    if name in GATHERS or name == "matmul":
        return _summed(name, out, args, xs, params)
    if name in ("prod", "cumprod"):
        return np.where(_partial_overflow(name, out, xs[0], params), np.inf, 40 * one)
    if name == "var":
        return 64 * unit * np.max(size(xs[0]), initial=0.0) ** 2 + tiny
    return (40 if half else 16) * one


def _signs_of_nan(a: Any) -> np.ndarray:
    """Where the sign of a NaN would be taken, which nobody promises."""
    return np.isnan(wide(a.array if isinstance(a, Value) else np.asarray(a)))


def _partial_overflow(name: str, out: Tensor, x: np.ndarray, params: dict[str, Any]) -> Any:
    """May some of the factors have a product that is out of range?  Then an order that multiplies these first has NaN
    or infinity where another has a number, and 0 where another has not."""
    logs = np.log2(size(x))
    logs = np.where(np.isfinite(logs), logs, 0.0)
    row = TABLE["sum" if name == "prod" else "cumsum"]
    up, down = (row(Tensor._wrap(f(logs, 0.0), cpu), **params)._data for f in (np.maximum, np.minimum))
    lowest = np.log2(TINY[out.dtype.name] / UNIT[out.dtype.name])
    return (up > np.log2(LARGEST[out.dtype.name]) - 1) | (down < lowest + 1)


def _summed(name: str, out: Tensor, args: list[Any], xs: list[Any], params: dict[str, Any]) -> Any:
    """Sums in any order: without error if all numbers are small multiples of one power of two."""
    unit, numbers = UNIT[out.dtype.name], [a.array for a in args if a.kind not in "iub"]
    n = max((a.size for a in numbers), default=1) + 2
    steps = [np.where(finite(a), wide(a), 0) * 64 for a in numbers]
    if all((s == np.rint(s)).all() for s in steps):
        tops = [float(np.max(np.abs(s), initial=1.0)) for s in steps]
        if (np.prod(tops) if name == "matmul" else max(tops, default=1.0)) * n * unit < 0.5:
            return 0.0
    sizes = [a.t if a.kind in "iub" else Tensor._wrap(np.where(finite(a.array), size(a.array), 0), cpu) for a in args]
    total = TABLE[name](*sizes, **params)._data
    return np.where(total < LARGEST[out.dtype.name] / 2, n * (unit * total + TINY[out.dtype.name]), np.inf)


def _certain(name: str, out: Tensor, args: list[Any], xs: list[Any], values: list[Value]) -> Any:
    """Where an infinity or NaN comes from the arguments' own, and not from overflow that another order might avoid."""
    if name == "copysign":
        return ~_signs_of_nan(args[1])
    if name == "pow" and isinstance(args[1], Value):  # NumPy takes the root (of -inf: NaN) where all exponents are one 0.5
        return (wide(xs[1]) != 0.5) & (UNIT[out.dtype.name] < 2.0**-20)
    if name in MOVES | CHOICES or name in SMOOTH:
        return True
    if name in ARITHMETIC:
        return ~np.isfinite(ARITHMETIC[name](*map(wide, xs)))
    if name in GATHERS:
        tops = [np.max(np.where(finite(v.array), size(v.array), 0), initial=0.0) * v.array.size for v in values]
        return max(tops) < LARGEST[out.dtype.name] / 4
    return name not in ("prod", "cumprod", "var", "matmul") and UNIT[out.dtype.name] < 2.0**-20


def agrees(got: np.ndarray, value: Value, strict: bool) -> np.ndarray:
    """Is each element within its bound (twice: eager is off as well)?"""
    want = value.array
    if want.dtype.kind in "biu":
        return np.asarray(got == want)
    g, w = (a if a.dtype.kind == "c" else wide(a) for a in (got, want))
    with np.errstate(all="ignore"):
        equal = (g == w) | (np.isnan(g) & np.isnan(w))
        if strict and value.same:
            return np.asarray(equal)
        return np.asarray(equal | np.isinf(value.error) | (np.abs(g - w) <= 2 * value.error))
