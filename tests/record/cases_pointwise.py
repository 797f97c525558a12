"""Pointwise functions: every type, special values, broadcasting, layouts, promotion, scalars."""

from __future__ import annotations

from harness import ALL, COMPLEX, FLOATS, INTS, REALS, WIDE, Case, T, stream

A, B = T((2, 3)), T((2, 3), "positive")
CASES: list[Case] = []


def case(
    name: str, expr: str, dtypes: tuple[str, ...] = WIDE, grad: bool = True, zeros: bool = True, **inputs: T
) -> None:
    CASES.append(Case(name, expr, inputs or {"a": A}, dtypes, grad, zeros=zeros))


# --- one operand ------------------------------------------------------------------------------------------------------
for name in "neg abs sign square exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh erf sigmoid relu floor ceil trunc round frac positive".split():
    if name in ("sign", "floor", "ceil", "trunc", "round", "frac"):
        kinds = FLOATS if name == "frac" else REALS
    elif name in ("abs", "square", "neg", "positive"):
        kinds = (*REALS, *COMPLEX)
    elif name in ("exp", "sin", "cos", "tanh", "sigmoid"):
        kinds = (*REALS, "bool", *COMPLEX)
    elif name == "relu":
        kinds = REALS
    else:
        kinds = (*REALS, "bool")
    unit = name in ("exp", "exp2", "expm1", "sinh", "cosh")
    case(name, f"torch.{name}(a)", kinds, a=T((2, 3), "unit" if unit else "near"))
    case(f"{name}.edges", f"torch.{name}(a)", WIDE, grad=False, a=T((4, 8), "edges"))
for name in "sqrt rsqrt log log2 log10 log1p reciprocal".split():
    case(name, f"torch.{name}(a)", (*REALS, *(COMPLEX if name in ("sqrt", "log", "reciprocal") else ())), a=B)
    case(f"{name}.edges", f"torch.{name}(a)", WIDE, grad=False, a=T((4, 8), "edges"))
for name in "asin acos atanh".split():
    case(name, f"torch.{name}(a)", (*REALS, "bool"), a=T((2, 3), "unit"))
case("acosh", "torch.acosh(a + 1)", REALS, a=B)
for name in "isnan isinf isfinite".split():
    case(name, f"torch.{name}(a)", (*FLOATS, "int64"), a=T((4, 8), "edges"))
case("logical_not", "torch.logical_not(a)", (*REALS, "bool"), a=T((3, 4), "unit"))
case("bitwise_not", "torch.bitwise_not(a)", (*INTS, "bool"))
case("invert", "~a", (*INTS, "bool"))
case("nan_to_num", "torch.nan_to_num(a)", FLOATS, a=T((4, 8), "edges"))
case("nan_to_num.given", "torch.nan_to_num(a, nan=1.0, posinf=2.0, neginf=-3.0)", WIDE, a=T((4, 8), "edges"))
case("logit", "torch.logit(a * 0.1)", FLOATS, a=B)
case("logit.eps", "torch.logit(a, eps=0.2)", WIDE, a=T((2, 3), "unit"))
case("round.decimals", "torch.round(a * 0.77, decimals=2)", WIDE)
case("deg2rad", "torch.deg2rad(a)", FLOATS)
case("rad2deg", "torch.rad2deg(a)", FLOATS)

# --- two operands -----------------------------------------------------------------------------------------------------
for name in "add mul maximum minimum eq ne lt le gt ge".split():
    kinds = ALL if name in ("add", "mul", "eq", "ne") else (*REALS, "bool")
    case(name, f"torch.{name}(a, b)", kinds, a=A, b=T((2, 3)))
    case(f"{name}.broadcast", f"torch.{name}(a, b)", ("float32", "int32"), a=T((2, 1, 3)), b=T((4, 1)))
    case(f"{name}.edges", f"torch.{name}(a, b)", WIDE, grad=False, a=T((6, 8), "edges"), b=T((6, 8), "edges"))
    if name not in ("maximum", "minimum"):
        case(f"{name}.number", f"torch.{name}(a, 2)", ALL if name in ("add", "mul", "eq", "ne") else REALS)
        case(f"{name}.float", f"torch.{name}(a, 1.5)", ALL if name in ("add", "mul") else REALS)
case("sub", "torch.sub(a, b)", (*REALS, *COMPLEX), a=A, b=T((2, 3)))
case("add.alpha", "torch.add(a, b, alpha=2)", (*REALS, *COMPLEX), a=A, b=T((2, 3)))
case("sub.alpha", "torch.sub(a, b, alpha=3)", REALS, a=A, b=T((2, 3)))
case("rsub", "5 - a", REALS)
case("rsub.function", "torch.rsub(a, b, alpha=2)", WIDE, a=A, b=T((2, 3)))
case("div", "torch.div(a, b)", (*REALS, "bool", *COMPLEX), a=A, b=T((2, 3), "positive"))
case("div.trunc", "torch.div(a, b, rounding_mode='trunc')", REALS, a=T((4, 6)), b=T((4, 6), "positive"))
case("div.floor", "torch.div(a, b, rounding_mode='floor')", REALS, a=T((4, 6)), b=T((4, 6), "positive"))
case("div.number", "a / 3", REALS)
case("rdiv", "3 / a", REALS, a=B)
case("div.zero", "a / 0", FLOATS, grad=False)
for name in "fmod remainder floor_divide".split():
    case(name, f"torch.{name}(a, b)", REALS, zeros=name != "remainder", grad=name != "floor_divide", a=T((4, 6)), b=T((4, 6), "positive"))
    case(f"{name}.negative", f"torch.{name}(a, -b)", (*FLOATS, "int64", "int8"), zeros=name != "remainder", grad=name != "floor_divide", a=T((4, 6)), b=T((4, 6), "positive"))
    case(f"{name}.number", f"torch.{name}(a, 3)", REALS, zeros=name != "remainder", grad=name != "floor_divide", a=T((4, 6)))
    case(f"{name}.edges", f"torch.{name}(a, b)", WIDE, grad=False, zeros=name != "remainder", a=T((6, 8), "edges"), b=T((6, 8), "edges"))
case("floor_divide.tenths", "torch.tensor([1, .5, 6, 1], dtype=dtype) // torch.tensor([.1, .1, .2, 1/3], dtype=dtype)", WIDE)
case("remainder.reflected", "torch.remainder(7, a)", REALS, grad=False, a=B)
case("pow", "torch.pow(a, b)", (*FLOATS, *INTS, *COMPLEX), a=B, b=T((2, 3), "positive"))
case("pow.bases", "torch.pow(a, b)", WIDE, a=T((4, 6)), b=T((4, 6), "index:4", "float32"))
for e in ("0", "1", "2", "3", "-1", "0.5", "-0.5", "2.5", "4"):
    case(f"pow.by {e}", f"a ** {e}", FLOATS if "." in e or "-" in e else REALS, a=B)
case("pow.edges", "torch.pow(a, b)", WIDE, grad=False, a=T((6, 8), "edges"), b=T((6, 8), "edges"))
case("pow.reflected", "2 ** a", (*WIDE, "int64"), a=B)
case("pow.wraps", "torch.cos(a ** 5)", ("uint8",), a=T((3,), "positive"))
case("pow.int float", "a ** 2.0", INTS, a=B)
for name in "atan2 copysign hypot fmax fmin logaddexp".split():
    kinds = FLOATS if name in ("hypot", "logaddexp") else REALS
    case(name, f"torch.{name}(a, b)", kinds, a=A, b=T((2, 3)))
    case(f"{name}.edges", f"torch.{name}(a, b)", WIDE, grad=False, a=T((6, 8), "edges"), b=T((6, 8), "edges"))
case("copysign.number", "torch.copysign(a, -2.0)", FLOATS)
case("xlogy", "torch.xlogy(a, b)", WIDE, a=T((3, 4), "unit"), b=T((3, 4), "positive"))
case("xlogy.edges", "torch.xlogy(a, b)", WIDE, grad=False, a=T((6, 8), "edges"), b=T((6, 8), "edges"))
for name in "bitwise_and bitwise_or bitwise_xor".split():
    case(name, f"torch.{name}(a, b)", (*INTS, "bool"), a=A, b=T((2, 3)))
    case(f"{name}.number", f"torch.{name}(a, 5)", INTS)
case("operators.bits", "(a & b, a | b, a ^ b, a & 3)", (*INTS,), a=A, b=T((2, 3)))
case("operators.bool", "(a & b, a | b, a ^ b, ~a)", ("bool",), a=A, b=T((2, 3)))
case("shift", "(a << 2, a >> 1, torch.bitwise_left_shift(a, b), torch.bitwise_right_shift(a, b))", INTS, a=A, b=B)
for name in "logical_and logical_or logical_xor".split():
    case(name, f"torch.{name}(a, b)", (*REALS, "bool"), a=T((3, 4), "unit"), b=T((3, 4), "unit"))
case("lerp", "torch.lerp(a, b, 0.3)", FLOATS, a=A, b=T((2, 3)))
case("lerp.tensor", "torch.lerp(a, b, c)", FLOATS, a=A, b=T((2, 3)), c=T((2, 3), "unit"))
case("addcmul", "torch.addcmul(a, b, c, value=0.5)", FLOATS, a=A, b=T((2, 3)), c=T((3,)))
case("addcdiv", "torch.addcdiv(a, b, c, value=0.5)", FLOATS, a=A, b=T((2, 3)), c=T((2, 3), "positive"))
case("isclose", "torch.isclose(a, b)", (*WIDE, "int64"), a=T((6, 8), "edges"), b=T((6, 8), "edges"))
case("isclose.nan", "torch.isclose(a, a * 1.0000001, equal_nan=True)", WIDE, a=T((6, 8), "edges"))
case("allclose", "(torch.allclose(a, a + 1e-9), torch.allclose(a, a + 1), torch.equal(a, a), torch.equal(a, a + 1))", WIDE)

# --- bounds and choice ------------------------------------------------------------------------------------------------
case("clamp", "torch.clamp(a, -1, 1)", REALS)
case("clamp.min", "torch.clamp(a, min=0.5)", REALS)
case("clamp.max", "a.clamp(max=0.5)", FLOATS)
case("clamp.tensors", "torch.clamp(a, b, c + 0.0625)", WIDE, a=T((3, 4)), b=T((3, 4), "unit"), c=T((4,), "unit"))
case("clamp.edges", "torch.clamp(a, -1, 1)", WIDE, grad=False, a=T((6, 8), "edges"))
case("clamp.crossed", "torch.clamp(a, 1, -1)", WIDE)
case("clamp_min", "(a.clamp_min(0), a.clamp_max(0))", REALS)
case("where", "torch.where(c, a, b)", ALL, a=A, b=T((2, 3)), c=T((2, 3), "bool"))
case("where.broadcast", "torch.where(c, a, b)", WIDE, a=T((3,)), b=T((2, 1)), c=T((2, 3), "bool"))
case("where.number", "torch.where(c, a, 0.0)", FLOATS, a=A, c=T((2, 3), "bool"))
case("where.numbers", "torch.where(c, 1.0, 2)", ("float32",), c=T((2, 3), "bool"))
case("where.promote", "torch.where(c, a, b)", (*REALS, "bool"), a=A, b=T((2, 3), "near", "int32"), c=T((2, 3), "bool"))
case("masked_fill", "a.masked_fill(c, 2)", (*REALS, "bool"), c=T((2, 3), "bool"), a=A)
case("masked_fill.inf", "a.masked_fill(c, float('-inf'))", FLOATS, c=T((3,), "bool"), a=A)

# --- promotion --------------------------------------------------------------------------------------------------------
KINDS = (*REALS, "bool", "complex64")
for other in KINDS:
    case(f"promote.add {other}", "a + b", KINDS, grad=False, a=A, b=T((2, 3), "positive", other))
    case(f"promote.0-d {other}", "a * b", tuple(k for k in KINDS if (k, other) != ("float16", "complex64")), grad=False, a=A, b=T((), "positive", other))
    if other != "complex64":
        case(f"promote.div {other}", "a / b", tuple(k for k in KINDS if k != "complex64"), grad=False, a=B, b=T((2, 3), "positive", other))
case("promote.numbers", "(a + 1, a + 1.5, a * True, a + 0.5, 2 * a, 1.0 - a * 2)", REALS, grad=False)
case("promote.complex number", "(a + 1j, a * 2j)", (*WIDE, "int64"), grad=False)
case("promote.grad", "a * b", ("float32",), a=A, b=T((2, 3), "near", "float64"))
case("result_type", "(torch.result_type(a, 1.0), torch.result_type(a, b), torch.promote_types(a.dtype, b.dtype))", KINDS, grad=False, a=A, b=T((), "near", "float64"))

# --- memory layout of results -----------------------------------------------------------------------------------------
M = T((3, 4))
case("layout.unary", "torch.exp(a.t())", ("float32",), a=M)
case("layout.both", "a.t() + b.t()", ("float32",), a=M, b=T((3, 4)))
case("layout.first", "a.t() + b", ("float32",), a=M, b=T((4, 3)))
case("layout.second", "b + a.t()", ("float32",), a=M, b=T((4, 3)))
case("layout.mixed", "a.permute(2, 0, 1) * b", ("float32",), a=T((2, 3, 4)), b=T((4, 2, 3)))
case("layout.permuted", "a.permute(2, 0, 1) * b.permute(1, 2, 0)", ("float32",), a=T((2, 3, 4)), b=T((3, 4, 2)))
case("layout.row", "a.t() + c", ("float32",), a=M, c=T((3,)))
case("layout.column", "a.t() + c", ("float32",), a=M, c=T((4, 1)))
case("layout.expanded", "c.expand(4, 3) + 1", ("float32",), c=T((3,)))
case("layout.expanded two", "c.expand(4, 3) * d.expand(4, 3)", ("float32",), c=T((3,)), d=T((4, 1)))
case("layout.strided", "a[:, ::2] + 1", ("float32",), a=M)
case("layout.strided t", "a[:, ::2].t() * 2", ("float32",), a=M)
case("layout.strided both", "a[::2].t() + b", ("float32",), a=T((6, 4)), b=T((4, 3)))
case("layout.ones", "a.permute(1, 0, 2) + b", ("float32",), a=T((2, 1, 4)), b=T((1, 2, 4)))
case("layout.ones t", "torch.exp(a.permute(2, 1, 0))", ("float32",), a=T((2, 1, 4)))
case("layout.cast", "a.t().double()", ("float32",), a=M)
case("layout.compare", "a.t() > b", ("float32",), a=M, b=T((4, 3)))
case("layout.where", "torch.where(c, a.t(), b)", ("float32",), a=M, b=T((4, 3)), c=T((4, 3), "bool"))
case("layout.where t", "torch.where(c.t(), a.t(), b)", ("float32",), a=M, b=T((4, 3)), c=T((3, 4), "bool"))
case("layout.clone", "(a.t().clone(), a[:, ::2].clone(), a.t().contiguous(), c.expand(4, 3).clone())", ("float32",), a=M, c=T((3,)))
case("layout.number", "1.0 - a.t()", ("float32",), a=M)
case("layout.sigmoid", "torch.sigmoid(a.t())", ("float32",), a=M)
case("layout.empty", "a.t() + 1", ("float32",), a=T((0, 4)))
case("layout.clamp", "a.t().clamp(b, None)", ("float32",), a=M, b=T((4, 3)))

# --- complex ----------------------------------------------------------------------------------------------------------
case("real", "(a.real, a.imag, a.conj() * 1)", COMPLEX)
case("complex.make", "torch.complex(a, b)", WIDE, a=A, b=T((2, 3)))
case("polar", "torch.polar(a, b)", WIDE, a=B, b=T((2, 3)))
case("view_as_real", "torch.view_as_real(a) * 2", COMPLEX)
case("view_as_complex", "torch.view_as_complex(a) * 2j", WIDE, a=T((3, 2)))
case("complex.abs", "torch.abs(a)", COMPLEX)


# --- random layouts: who decides how a result lies --------------------------------------------------------------------
def look(k: int, sizes: tuple[int, int, int], numbers: list[int]) -> tuple[T, str]:
    """An input, and an expression that shows it with shape ``sizes``: permuted, sliced, broadcast."""
    order = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)][numbers[0] % 6]
    stepped, spread = numbers[1] % 4, numbers[2] % 5  # which dimension is sliced or broadcast; 3 and more: none
    shape = [1 if d == spread else n * (2 if d == stepped else 1) for d, n in enumerate(sizes)]
    back = [order.index(d) for d in range(3)]
    text = f"{'ab'[k]}.permute{tuple(back)}"
    text += "[" + ", ".join("::2" if d == stepped and d != spread else ":" for d in range(3)) + "]"
    return T(tuple(shape[d] for d in order)), text + (f".expand{sizes}" if numbers[3] % 2 else "")


for _i in range(80):
    _n = [int(v) for v in stream(f"layout {_i}", 12)]
    _sizes = (_n[8] % 3 + 1, _n[9] % 3 + 1, _n[10] % 3 + 2)
    (_a, _left), (_b, _right) = look(0, _sizes, _n[:4]), look(1, _sizes, _n[4:8])
    _how = ("{0} + {1}", "torch.where({0} > 0, {0}, {1})", "torch.maximum({0}, {1})", "({0}).clone() * 2", "torch.exp({0}) > {1}")[_n[11] % 5]
    case(f"layouts.{_i}", _how.format(_left, _right), ("float32",), grad=False, a=_a, b=_b)

for name in ("signbit", "isposinf", "isneginf"):
    case(f"{name}.edges", f"torch.{name}(a)", WIDE, grad=False, a=T((4, 8), "edges"))
case("erfc", "torch.erfc(a)", ("float32", "float64"), a=T((3, 4)))
case("where.method", "a.where(a > b, b)", ("float32",), a=T((3, 4)), b=T((4,)))
case("angle", "torch.angle(a)", (*REALS, *COMPLEX))
