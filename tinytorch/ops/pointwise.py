"""Pointwise rows: one scalar in each operand, one out.

Stage: eager, read by all.  In: tensors and numbers, broadcast together.  Out: a tensor.  A row's body says what it does
to one element, in the vocabulary of ``ops.scalars``; its vjp is written in rows again.  Read next: ``reduce``, ``views``.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import Meta, Op, broadcast_shapes, elementwise_strides, pointwise_infer, result_type
from tinytorch.ops.special import select
from tinytorch.ops.spell_numpy import handler, words_by_blocks


def row(name: str, body: Any, vjp: Any = None, **more: Any) -> Op:
    op = Op(name=name, kind="pointwise", body=body, vjp=vjp, **more)
    if op.quick is None and op.kernel is None and op.types in ("same", "float") and body.__code__.co_argcount == 2:
        object.__setattr__(op, "quick", lambda a: words_by_blocks(body, a))
    return op


def conjugate(x: Any) -> Any:
    """The complex conjugate; what is real, number or tensor, is itself."""
    if isinstance(x, complex):
        return x.conjugate()
    dtype = getattr(x, "dtype", None)
    return conj(x) if dtype is not None and dtype.is_complex else x


def conj_of(x: Any) -> Any:
    """The conjugate, which a real tensor or number is of itself."""
    if isinstance(x, complex):
        return x.conjugate()
    return conj(x) if hasattr(x, "dtype") and x.dtype.is_complex else x


# --- arithmetic -------------------------------------------------------------------------------------------------------
add: Op = row("add", lambda s, x, y: s.add(x, y), lambda out, x, y: (lambda g: g, lambda g: g), ufunc="add")


def _sub_infer(x: Any, y: Any) -> Meta:
    kinds = [m.dtype is dtypes.bool_ if isinstance(m, Meta) else isinstance(m, bool) for m in (x, y)]
    if all(kinds):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )
    for m in (x, y):
        if isinstance(m, bool) or isinstance(m, Meta) and m.dtype is dtypes.bool_:
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
                "use the `~` or `logical_not()` operator instead."
            )
    return pointwise_infer(sub, [x, y], {})


sub: Op = row(
    "sub",
    lambda s, x, y: s.sub(x, y),
    lambda out, x, y: (lambda g: g, lambda g: neg(g)),
    infer=_sub_infer,
    ufunc="subtract",
)
mul: Op = row(
    "mul",
    lambda s, x, y: s.mul(x, y),
    lambda out, x, y: (lambda g: mul(g, conjugate(y)), lambda g: mul(g, conjugate(x))),
    ufunc="multiply",
)
div: Op = row(
    "div",
    lambda s, x, y: s.div(x, y),
    lambda out, x, y: (lambda g: div(g, conjugate(y)), lambda g: neg(div(mul(g, conjugate(out)), conjugate(y)))),
    ufunc="true_divide",
    types="float",
)
floordiv: Op = row(
    "floordiv",
    lambda s, x, y: s.floordiv(x, y),
    lambda out, x, y: (lambda g: mul(g, 0.0), lambda g: mul(g, 0.0)),
    ufunc="floor_divide",
)
mod: Op = row(
    "mod",
    lambda s, x, y: s.mod(x, y),
    lambda out, x, y: (lambda g: g, lambda g: neg(mul(g, floordiv(x, y)))),
    ufunc="remainder",
)
fmod: Op = row(
    "fmod",
    lambda s, x, y: s.fmod(x, y),
    lambda out, x, y: (lambda g: g, lambda g: neg(mul(g, trunc(div(x, y))))),
    ufunc="fmod",
)


def _neg_infer(x: Meta) -> Meta:
    if x.dtype is dtypes.bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the "
            "`~` or `logical_not()` operator instead."
        )
    return pointwise_infer(neg, [x], {})


neg: Op = row("neg", lambda s, x: s.neg(x), lambda out, x: (lambda g: neg(g),), infer=_neg_infer, ufunc="negative")
abs_: Op = row(
    "abs",
    lambda s, x: s.abs(x),
    lambda out, x: (lambda g: mul(g, direction(x)),),
    infer=lambda x: pointwise_infer(abs_, [x], {})._replace(dtype=x.dtype.to_real()),
    ufunc="absolute",
)
sign: Op = row(
    "sign",
    lambda s, x: s.where(s.ne(x, x), s.like(0, x), s.sign(x)),
    lambda out, x: (lambda g: mul(g, 0.0),),
    doc="-1, 0 or 1; 0 for NaN, as in PyTorch",
)


def direction(x: Any) -> Any:
    """sign(x), for complex numbers x / |x|, 0 at 0."""
    if not x.dtype.is_complex:
        return sign(x)
    size = abs_(x)
    return where(eq(size, 0.0), 0.0, div(x, size))



def _pow_vjp(out: Any, x: Any, y: Any) -> Any:
    """0 ** 0 is constant in its base, and constant in its exponent where the base is 0 and the exponent not negative."""

    def of_base(g: Any) -> Any:
        if not hasattr(y, "dtype"):
            return mul(g, 0.0) if y == 0 else mul(g, conj_of(mul(pow_(x, y - 1), y)))
        return where(eq(y, 0.0), 0.0, mul(g, conj_of(mul(y, pow_(x, sub(y, 1))))))

    def of_exponent(g: Any) -> Any:
        if hasattr(x, "dtype"):
            flat = bit_and(eq(x, 0.0), ge(y, 0.0)) if not out.dtype.is_complex else eq(x, 0.0)
            return where(flat, 0.0, mul(g, conj_of(mul(out, log(x)))))
        if x == 0:
            return where(ge(y, 0.0), 0.0, mul(g, mul(out, -math.inf)))
        return mul(g, conj_of(mul(out, cmath.log(x) if isinstance(x, complex) or x < 0 else math.log(x))))

    return of_base, of_exponent


def _pow_kernel(xp: Any, x: Any, y: Any) -> Any:
    return handler(xp).pow(x, y)


pow_: Op = row("pow", lambda s, x, y: s.pow(x, y), _pow_vjp, ufunc="power", kernel=_pow_kernel)
square: Op = row("square", lambda s, x: s.mul(x, x), lambda out, x: (lambda g: mul(g, mul(conj_of(x), 2.0)),), ufunc="square")
reciprocal: Op = row(
    "reciprocal",
    lambda s, x: s.div(s.like(1, x), x),
    lambda out, x: (lambda g: neg(mul(g, conj_of(mul(out, out)))),),
    types="float",
)


maximum: Op = row(
    "maximum",
    lambda s, x, y: s.maximum(x, y),
    lambda out, x, y: (
        lambda g: mul(g, where(eq(x, y), 0.5, where(gt(x, y), 1.0, 0.0))),
        lambda g: mul(g, where(eq(x, y), 0.5, where(lt(x, y), 1.0, 0.0))),
    ),
    ufunc="maximum",
)
minimum: Op = row(
    "minimum",
    lambda s, x, y: s.minimum(x, y),
    lambda out, x, y: (
        lambda g: mul(g, where(eq(x, y), 0.5, where(lt(x, y), 1.0, 0.0))),
        lambda g: mul(g, where(eq(x, y), 0.5, where(gt(x, y), 1.0, 0.0))),
    ),
    ufunc="minimum",
)


clamp_min: Op = row(
    "clamp_min",
    lambda s, x, low: s.maximum(x, low),
    lambda out, x, low: (lambda g: where(ge(x, low), g, 0.0), lambda g: where(lt(x, low), g, 0.0)),
    ufunc="maximum",
    doc="as maximum; at equality the cotangent is the element's, not the bound's",
)
clamp_max: Op = row(
    "clamp_max",
    lambda s, x, high: s.minimum(x, high),
    lambda out, x, high: (lambda g: where(le(x, high), g, 0.0), lambda g: where(gt(x, high), g, 0.0)),
    ufunc="minimum",
    doc="as minimum; at equality the cotangent is the element's, not the bound's",
)
copysign: Op = row(
    "copysign",
    lambda s, x, y: s.copysign(x, y),
    lambda out, x, y: (lambda g: where(eq(x, 0.0), 0.0, mul(g, copysign(sign(x), mul(x, y)))), lambda g: mul(g, 0.0)),
    ufunc="copysign",
    types="float",
)

# --- elementary functions ---------------------------------------------------------------------------------------------
exp: Op = row("exp", lambda s, x: s.exp(x), lambda out, x: (lambda g: mul(g, conjugate(out)),), ufunc="exp", types="float")
exp2: Op = row(
    "exp2", lambda s, x: s.exp2(x), lambda out, x: (lambda g: mul(g, mul(out, math.log(2))),), ufunc="exp2", types="float"
)
expm1: Op = row(
    "expm1", lambda s, x: s.expm1(x), lambda out, x: (lambda g: mul(g, add(out, 1.0)),), ufunc="expm1", types="float"
)
log: Op = row("log", lambda s, x: s.log(x), lambda out, x: (lambda g: div(g, conjugate(x)),), ufunc="log", types="float")
log2: Op = row(
    "log2", lambda s, x: s.log2(x), lambda out, x: (lambda g: div(g, mul(x, math.log(2))),), ufunc="log2", types="float"
)
log10: Op = row(
    "log10",
    lambda s, x: s.log10(x),
    lambda out, x: (lambda g: div(g, mul(x, math.log(10))),),
    ufunc="log10",
    types="float",
)
log1p: Op = row(
    "log1p", lambda s, x: s.log1p(x), lambda out, x: (lambda g: div(g, add(x, 1.0)),), ufunc="log1p", types="float"
)
sqrt: Op = row(
    "sqrt", lambda s, x: s.sqrt(x), lambda out, x: (lambda g: div(g, mul(conj_of(out), 2.0)),), ufunc="sqrt", types="float"
)
rsqrt: Op = row(
    "rsqrt",
    lambda s, x: s.rsqrt(x),
    lambda out, x: (lambda g: mul(g, conj_of(mul(-0.5, mul(out, mul(out, out))))),),
    types="float",
)
sin: Op = row("sin", lambda s, x: s.sin(x), lambda out, x: (lambda g: mul(g, conj_of(cos(x))),), ufunc="sin", types="float")
cos: Op = row("cos", lambda s, x: s.cos(x), lambda out, x: (lambda g: neg(mul(g, conj_of(sin(x)))),), ufunc="cos", types="float")
tan: Op = row(
    "tan", lambda s, x: s.tan(x), lambda out, x: (lambda g: mul(g, conj_of(add(mul(out, out), 1.0))),), ufunc="tan", types="float"
)
asin: Op = row(
    "asin",
    lambda s, x: s.asin(x),
    lambda out, x: (lambda g: mul(g, rsqrt(sub(1.0, mul(x, x)))),),
    ufunc="arcsin",
    types="float",
)
acos: Op = row(
    "acos",
    lambda s, x: s.acos(x),
    lambda out, x: (lambda g: neg(mul(g, rsqrt(sub(1.0, mul(x, x))))),),
    ufunc="arccos",
    types="float",
)
atan: Op = row(
    "atan",
    lambda s, x: s.atan(x),
    lambda out, x: (lambda g: div(g, add(mul(x, x), 1.0)),),
    ufunc="arctan",
    types="float",
)
atan2: Op = row(
    "atan2",
    lambda s, y, x: s.atan2(y, x),
    lambda out, y, x: (
        lambda g: div(mul(g, x), add(mul(x, x), mul(y, y))),
        lambda g: neg(div(mul(g, y), add(mul(x, x), mul(y, y)))),
    ),
    ufunc="arctan2",
    types="float",
)
sinh: Op = row("sinh", lambda s, x: s.sinh(x), lambda out, x: (lambda g: mul(g, conj_of(cosh(x))),), ufunc="sinh", types="float")
cosh: Op = row("cosh", lambda s, x: s.cosh(x), lambda out, x: (lambda g: mul(g, conj_of(sinh(x))),), ufunc="cosh", types="float")
tanh: Op = row(
    "tanh",
    lambda s, x: s.tanh(x),
    lambda out, x: (lambda g: mul(g, conj_of(sub(1.0, mul(out, out)))),),
    ufunc="tanh",
    types="float",
)
asinh: Op = row(
    "asinh",
    lambda s, x: s.asinh(x),
    lambda out, x: (lambda g: mul(g, rsqrt(add(mul(x, x), 1.0))),),
    ufunc="arcsinh",
    types="float",
)
acosh: Op = row(
    "acosh",
    lambda s, x: s.acosh(x),
    lambda out, x: (lambda g: mul(g, rsqrt(sub(mul(x, x), 1.0))),),
    ufunc="arccosh",
    types="float",
)
atanh: Op = row(
    "atanh",
    lambda s, x: s.atanh(x),
    lambda out, x: (lambda g: div(g, sub(1.0, mul(x, x))),),
    ufunc="arctanh",
    types="float",
)
erf: Op = row(
    "erf",
    lambda s, x: s.erf(x),
    lambda out, x: (lambda g: mul(g, mul(2 / math.sqrt(math.pi), exp(neg(mul(x, x))))),),
    types="float",
)
sigmoid: Op = row(
    "sigmoid",
    lambda s, x: s.div(s.like(1, x), s.add(s.like(1, x), s.exp(s.neg(x)))),
    lambda out, x: (lambda g: mul(g, conj_of(mul(out, sub(1.0, out)))),),
    types="float",
)
relu: Op = row(
    "relu",
    lambda s, x: s.where(s.lt(x, s.like(0, x)), s.like(0, x), x),
    lambda out, x: (lambda g: where(gt(out, 0), g, 0.0),),
    doc="-0.0 and NaN stay, as in PyTorch"
)



#: The numbers in a GELU by tanh, ``x / 2 * (1 + tanh(GELU[1] * (x + GELU[0] * x ** 3)))``.
GELU = (0.044715, math.sqrt(2 / math.pi))


def _gelu_tanh(s: Any, x: Any) -> Any:
    """(1 + tanh u) / 2, the square of x, and the tanh."""
    square = s.mul(x, x)
    tanh = s.tanh(s.mul(s.mul(x, s.like(GELU[1], x)), s.add(s.like(1, x), s.mul(square, s.like(GELU[0], x)))))
    return s.mul(s.add(tanh, s.like(1, x)), s.like(0.5, x)), square, tanh


def _gelu_tanh_grad(s: Any, g: Any, x: Any) -> Any:
    share, square, tanh = _gelu_tanh(s, x)
    square = s.minimum(square, s.like(2.0**14, x))  # where 1 - tanh^2 has long been 0, which times infinity is NaN
    slope = s.add(s.like(GELU[1], x), s.mul(square, s.like(3 * GELU[0] * GELU[1], x)))  # of u
    rise = s.mul(s.mul(s.sub(s.like(1, x), s.mul(tanh, tanh)), s.mul(x, s.like(0.5, x))), slope)
    return s.mul(g, s.add(share, rise))


def _gelu_tanh_twice(x: Any) -> Any:
    """The second derivative, in rows."""
    square = mul(x, x)
    t = tanh(mul(mul(x, GELU[1]), add(mul(square, GELU[0]), 1.0)))
    slope = add(mul(square, 3 * GELU[0] * GELU[1]), GELU[1])
    bend = sub(add(slope, mul(square, 3 * GELU[0] * GELU[1])), mul(mul(x, mul(slope, slope)), t))
    return mul(sub(1.0, mul(t, t)), bend)


gelu_tanh: Op = row(
    "gelu_tanh",
    lambda s, x: s.mul(x, _gelu_tanh(s, x)[0]),
    lambda out, x: (lambda g: gelu_tanh_grad(g, x),),
    types="float",
    doc="x times the normal distribution's cumulative function, approximated by tanh",
)
gelu_tanh_grad: Op = row(
    "gelu_tanh_grad",
    _gelu_tanh_grad,
    lambda out, g, x: (lambda gg: gelu_tanh_grad(gg, x), lambda gg: mul(mul(gg, g), _gelu_tanh_twice(x))),
    types="float",
)

# --- rounding ---------------------------------------------------------------------------------------------------------
floor: Op = row("floor", lambda s, x: s.floor(x), lambda out, x: (lambda g: mul(g, 0.0),), ufunc="floor")
ceil: Op = row("ceil", lambda s, x: s.ceil(x), lambda out, x: (lambda g: mul(g, 0.0),), ufunc="ceil")
trunc: Op = row("trunc", lambda s, x: s.trunc(x), lambda out, x: (lambda g: mul(g, 0.0),), ufunc="trunc")
round_: Op = row("round", lambda s, x: s.round(x), lambda out, x: (lambda g: mul(g, 0.0),), ufunc="rint")

# --- comparisons and selection ----------------------------------------------------------------------------------------
eq: Op = row("eq", lambda s, x, y: s.eq(x, y), ufunc="equal", types="bool")
ne: Op = row("ne", lambda s, x, y: s.ne(x, y), ufunc="not_equal", types="bool")
lt: Op = row("lt", lambda s, x, y: s.lt(x, y), ufunc="less", types="bool")
le: Op = row("le", lambda s, x, y: s.le(x, y), ufunc="less_equal", types="bool")
gt: Op = row("gt", lambda s, x, y: s.gt(x, y), ufunc="greater", types="bool")
ge: Op = row("ge", lambda s, x, y: s.ge(x, y), ufunc="greater_equal", types="bool")
isnan: Op = row("isnan", lambda s, x: s.isnan(x), ufunc="isnan", types="bool")
logical_not: Op = row("logical_not", lambda s, x: s.eq(x, s.like(0, x)), ufunc="logical_not", types="bool")


def _where_infer(c: Any, x: Any, y: Any) -> Meta:
    """Types come from x and y alone; the condition must be bool."""
    if isinstance(c, Meta) and c.dtype is not dtypes.bool_:
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {c.dtype.title}")
    metas = [m for m in (c, x, y) if isinstance(m, Meta)]
    shape = broadcast_shapes(*[m.shape for m in metas])
    return Meta(shape, result_type([x, y]), elementwise_strides(shape, metas))


def _where_kernel(xp: Any, c: Any, x: Any, y: Any) -> Any:
    given, wanted = getattr(x, "dtype", None), getattr(y, "dtype", None)
    if wanted is None and type(y) in (int, float) and given is not None and given.kind == "f":
        return select(xp, c, x, given.type(y))
    if given is None and type(x) in (int, float) and wanted is not None and wanted.kind == "f":
        return select(xp, c, wanted.type(x), y)
    if given == wanted and given is not None:
        return select(xp, c, x, y)
    metas = [Meta(a.shape, dtypes.from_numpy(a.dtype)) if hasattr(a, "shape") else a for a in (x, y)]
    to = result_type(metas).np
    return select(xp, c, *(a.astype(to) if hasattr(a, "astype") else xp.asarray(a).astype(to) for a in (x, y)))


where: Op = row(
    "where",
    lambda s, c, x, y: s.where(c, x, y),
    lambda out, c, x, y: (None, lambda g: where(c, g, 0.0), lambda g: where(c, 0.0, g)),
    infer=_where_infer,
    types="custom",
    kernel=_where_kernel,
)

# --- bits -------------------------------------------------------------------------------------------------------------
def _bits(name: str, fn: str, ufunc: str, kernel: str, arity: int = 2) -> Op:
    """Integers only, and bools unless it shifts; ``kernel`` is the name in PyTorch's error."""

    def infer(*metas: Any) -> Meta:
        found = pointwise_infer(op, metas, {})
        if dtypes.category(found.dtype) > 1 or found.dtype is dtypes.bool_ and name in ("shl", "shr"):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{found.dtype.title}'")
        return found

    body = (lambda s, x: getattr(s, fn)(x)) if arity == 1 else (lambda s, x, y: getattr(s, fn)(x, y))
    op = row(name, body, infer=infer, ufunc=ufunc)
    return op


bit_and = _bits("bit_and", "bit_and", "bitwise_and", "bitwise_and_cpu")
bit_or = _bits("bit_or", "bit_or", "bitwise_or", "bitwise_or_cpu")
bit_xor = _bits("bit_xor", "bit_xor", "bitwise_xor", "bitwise_xor_cpu")
bit_not = _bits("bit_not", "bit_not", "invert", "bitwise_not_cpu", arity=1)
shl = _bits("shl", "shl", "left_shift", "lshift_cpu")
shr = _bits("shr", "shr", "right_shift", "rshift_cpu")

# --- copies and types -------------------------------------------------------------------------------------------------
def _overwrite_infer(x: Meta, y: Meta) -> Meta:
    if len(y.shape) > len(x.shape) or broadcast_shapes(x.shape, y.shape) != tuple(x.shape):
        raise RuntimeError(f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(y.shape)}")
    return Meta(x.shape, x.dtype, elementwise_strides(x.shape, [x]))


overwrite: Op = row(
    "overwrite",
    lambda s, x, y: y,
    lambda out, x, y: (lambda g: mul(g, 0.0), lambda g: g),
    infer=_overwrite_infer,
    kernel=lambda xp, x, y: xp.array(xp.broadcast_to(y, x.shape)),
    types="first",
    doc="y in the shape of x: what copying over x is to the tape, where x still has a (zero) gradient",
)
clone: Op = row("clone", lambda s, x: x, lambda out, x: (lambda g: g,), kernel=lambda xp, x: xp.array(x, copy=True), doc="keeps the strides of dense tensors")


def _cast_vjp(out: Any, x: Any, dtype: DType) -> Any:
    return ((lambda g: g) if dtype.is_floating_point or dtype.is_complex else None,)


def _cast_kernel(xp: Any, x: Any, dtype: DType) -> Any:
    """C's conversion; the imaginary part is dropped without a word."""
    return (x.real if x.dtype.kind == "c" and dtype.kind not in "cb" else x).astype(dtype.np)


cast: Op = row(
    "cast",
    lambda s, x, dtype: s.cast(x, dtype),
    _cast_vjp,
    infer=lambda x, dtype: Meta(x.shape, dtype, elementwise_strides(x.shape, [x])),
    types="custom",
    kernel=_cast_kernel,
)
contiguous: Op = row(
    "contiguous",
    lambda s, x: x,
    lambda out, x: (lambda g: g,),
    infer=lambda x: Meta(x.shape, x.dtype),
    kernel=lambda xp, x: xp.array(x, order="C", copy=True),
    doc="a copy with the last dimension closest in memory",
)
conj: Op = row("conj", lambda s, x: x, lambda out, x: (lambda g: conj(g),), kernel=lambda xp, x: xp.conj(x))


sqrt_or_zero: Op = row(
    "sqrt_or_zero",
    lambda s, x: s.sqrt(x),
    lambda out, x: (lambda g: where(eq(out, 0), 0.0, div(g, mul(out, 2.0))),),
    ufunc="sqrt",
    types="float",
    doc="the square root that ends a norm: its gradient at 0 is 0",
)
