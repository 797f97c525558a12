"""The closed vocabulary of scalar functions in which every pointwise row is written.

Stage: eager and codegens.  In: a row's ``body(s, ...)``, which calls these names on a *handler* ``s`` passed in.
Out: whatever the handler makes of it: a NumPy array, a loop-IR statement, a line of Numba or CUDA.  A codegen spells
every name of ``VOCABULARY`` (a test says so).  Read next: ``ops.opdef``, ``ops.pointwise``.

Operands of one call have one dtype, cast there by the row's type rule before the body runs; comparisons give bool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class ScalarFn:
    """``arity`` operands; ``result`` is ``same`` (as the operands) or ``bool`` or ``target`` (given by an extra dtype)."""

    name: str
    arity: int
    result: Literal["same", "bool", "target"] = "same"
    doc: str = ""


VOCABULARY: dict[str, ScalarFn] = {
    f.name: f
    for f in (
        # arithmetic; integers wrap in their own width
        ScalarFn("add", 2),
        ScalarFn("sub", 2),
        ScalarFn("mul", 2),
        ScalarFn("div", 2, doc="true division of floats"),
        ScalarFn("floordiv", 2, doc="Python's //: rounds to -inf; floats by fmod, so 1.0 // 0.1 is 9"),
        ScalarFn("mod", 2, doc="Python's %: the sign of the divisor"),
        ScalarFn("fmod", 2, doc="C's fmod: the sign of the dividend"),
        ScalarFn("pow", 2),
        ScalarFn("neg", 1),
        ScalarFn("abs", 1),
        ScalarFn("sign", 1, doc="-1, 0, 1; NaN stays NaN"),
        ScalarFn("minimum", 2, doc="NaN from either side wins"),
        ScalarFn("maximum", 2, doc="NaN from either side wins"),
        ScalarFn("copysign", 2),
        # elementary functions on floats
        ScalarFn("exp", 1),
        ScalarFn("exp2", 1),
        ScalarFn("expm1", 1),
        ScalarFn("log", 1),
        ScalarFn("log2", 1),
        ScalarFn("log10", 1),
        ScalarFn("log1p", 1),
        ScalarFn("sqrt", 1),
        ScalarFn("rsqrt", 1),
        ScalarFn("sin", 1),
        ScalarFn("cos", 1),
        ScalarFn("tan", 1),
        ScalarFn("asin", 1),
        ScalarFn("acos", 1),
        ScalarFn("atan", 1),
        ScalarFn("atan2", 2),
        ScalarFn("sinh", 1),
        ScalarFn("cosh", 1),
        ScalarFn("tanh", 1),
        ScalarFn("asinh", 1),
        ScalarFn("acosh", 1),
        ScalarFn("atanh", 1),
        ScalarFn("erf", 1),
        # rounding
        ScalarFn("floor", 1),
        ScalarFn("ceil", 1),
        ScalarFn("trunc", 1),
        ScalarFn("round", 1, doc="half to even"),
        # comparisons and selection
        ScalarFn("eq", 2, "bool"),
        ScalarFn("ne", 2, "bool"),
        ScalarFn("lt", 2, "bool"),
        ScalarFn("le", 2, "bool"),
        ScalarFn("gt", 2, "bool"),
        ScalarFn("ge", 2, "bool"),
        ScalarFn("isnan", 1, "bool"),
        ScalarFn("where", 3, doc="where(bool, a, b): the dtype of a and b"),
        # bits, of integers and bools
        ScalarFn("bit_and", 2),
        ScalarFn("bit_or", 2),
        ScalarFn("bit_xor", 2),
        ScalarFn("bit_not", 1),
        ScalarFn("shl", 2),
        ScalarFn("shr", 2, doc="arithmetic for signed types"),
        # types
        ScalarFn("cast", 1, "target", doc="cast(x, dtype): C conversion, to bool by != 0"),
        ScalarFn("bitcast", 1, "target", doc="bitcast(x, dtype): same bits, same width"),
        ScalarFn("const", 1, "target", doc="const(python number, dtype)"),
        # random numbers
        ScalarFn("philox", 3, "target", doc="philox(seed, counter, lane): uint32 word of Philox 4x32-10; int64 operands"),
    )
}


class Handler(Protocol):
    """Anything that gives every name of ``VOCABULARY`` a meaning; values are whatever the handler makes them.

    Handlers know the type of each value, so all offer ``like(number, x)`` besides: ``const`` in the type of ``x``.
    """

    def __getattr__(self, name: str) -> Any: ...
