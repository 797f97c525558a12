"""Eager's spelling of the scalar vocabulary: NumPy or CuPy ufuncs on whole arrays.

Stage: eager.  In: a pointwise row.  Out: ``kernel(xp, *arrays, **params)``.  The body of the row runs once per call on
arrays instead of scalars: that is all eager is.  Read next: ``pointwise``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from tinytorch.dtypes import DType
from tinytorch.ops import philox, special
from tinytorch.ops.cupy_gaps import OTHERWISE
from tinytorch.ops.opdef import Op

try:  # what ``np.errstate(all="ignore")`` does, at a sixth of its price: the state is a context variable
    from numpy._core import umath as _umath

    _QUIET = _umath._make_extobj(all="ignore")
    _set, unquiet = _umath._extobj_contextvar.set, _umath._extobj_contextvar.reset

    def quiet() -> Any:
        """Floating-point warnings off; give the result to ``unquiet``."""
        return _set(_QUIET)

except (ImportError, AttributeError):  # another NumPy

    def quiet() -> Any:
        """Floating-point warnings off; give the result to ``unquiet``."""
        return np.seterr(all="ignore")

    def unquiet(token: Any) -> None:
        np.seterr(**token)


#: vocabulary name -> ufunc of the same meaning
UFUNCS: dict[str, str] = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "fmod": "fmod", "pow": "power", "neg": "negative", "abs": "absolute", "sign": "sign",
    "minimum": "minimum", "maximum": "maximum", "copysign": "copysign", "exp": "exp", "exp2": "exp2",
    "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "isnan": "isnan", "where": "where",
    "bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor", "bit_not": "invert",
    "shl": "left_shift", "shr": "right_shift",
}  # fmt: skip


class ArrayHandler:
    """Gives each vocabulary name its meaning on arrays of the module ``xp``."""

    def __init__(self, xp: Any) -> None:
        for name, ufunc in UFUNCS.items():
            setattr(self, name, getattr(xp, ufunc))
        self.xp = xp
        self.pow = self._pow
        self.where = partial(special.select, xp)

    def _pow(self, x: Any, y: Any) -> Any:
        """Integers to negative powers are what division makes of them: 0, or the sign for 1 and -1.  The power 0.5 of
        half types is their root, as NumPy has it for float32 and float64: NaN for -inf."""
        xp = self.xp
        x, y = xp.asarray(x), xp.asarray(y)
        if xp is np and y.ndim == 0 and x.itemsize == 2 and x.dtype == y.dtype and x.dtype.kind in "fV" and y == 0.5:
            return np.sqrt(x)
        if x.dtype.kind not in "iu" or y.dtype.kind == "c" or not (y < 0).any():
            return xp.power(x, y)
        below = xp.where(x == 1, 1, xp.where(x == -1, xp.where(y % 2 == 0, 1, -1), 0))
        return xp.where(y < 0, below.astype(x.dtype), xp.power(x, xp.maximum(y, 0)))

    def rsqrt(self, x: Any) -> Any:
        return 1 / self.xp.sqrt(x)

    def erf(self, x: Any) -> Any:
        return special.erf(self.xp, x)

    def cast(self, x: Any, dtype: DType) -> Any:
        return self.xp.asarray(x).astype(dtype.np)

    def bitcast(self, x: Any, dtype: DType) -> Any:
        return x.view(dtype.np)

    def const(self, value: Any, dtype: DType) -> Any:
        return dtype.np.type(value)

    def like(self, value: Any, x: Any) -> Any:
        return x.dtype.type(value)

    def philox(self, seed: Any, counter: Any, lane: Any) -> Any:
        return philox.draw_at(self.xp, seed, counter, lane)


@cache
def handler(xp: Any) -> ArrayHandler:
    return ArrayHandler(xp)


#: elements in a block: what a body of several words makes in between stays in the second-level cache
BLOCK = 1 << 15


def words_by_blocks(body: Callable[..., Any], a: Any) -> Any:
    """``body`` of one contiguous NumPy array, of a large one block by block."""
    words = handler(np)
    if a.size <= BLOCK:
        return body(words, a)
    out = np.empty_like(a)
    flat, into = a.reshape(-1), out.reshape(-1)
    for i in range(0, flat.size, BLOCK):
        into[i : i + BLOCK] = body(words, flat[i : i + BLOCK])
    return out


@cache
def spelling(op: Op) -> Callable[..., Any]:
    """The eager kernel of a pointwise row: its ufunc where it names one, else its body over arrays."""
    if op.ufunc is not None:
        name, fast, other = op.ufunc, getattr(np, op.ufunc), OTHERWISE.get(op.ufunc)
        if other is not None:
            return lambda xp, *arrays: fast(*arrays) if xp is np else other(xp, *arrays)
        return lambda xp, *arrays: fast(*arrays) if xp is np else getattr(xp, name)(*arrays)
    body = op.body
    return lambda xp, *arrays, **params: body(handler(xp), *arrays, **params)
