"""The words of kernel source that plain Numba lacks, each with the LLVM it stands for.

Stage: codegen_numba.  In: the types of a call.  Out: instructions at the place of the call, of the type of the first
operand unless said otherwise.  ``NAMES`` is what kernel source may use.  Read next: ``spell`` (who uses them), ``front``
(who writes calls of them), ``numba_front`` (who tells Numba of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from typing import Any

from llvmlite import ir
from llvmlite.ir.instructions import FastMathFlags

from codegen_numba import blas, bypass, math, parallel, product, random_rows, transpose, trig, types
from codegen_numba.joined_math import erf_plus_one, logistic, share
from codegen_numba.llvm import F32, F64, Machine, V

NAMES: dict[str, Any] = {}
Body = Callable[..., V]


@dataclass(frozen=True, eq=False)
class Word:
    """``typed(*argument types)`` gives a signature; ``write(builder, signature, values)`` the value, None of a call that
    has none.  ``literal`` asks for the arguments' values where they are constants."""

    name: str
    typed: Callable[..., Any]
    write: Callable[..., ir.Value | None]
    literal: bool = False


def word(name: str, arity: int, body: Body, result: Callable[..., types.Type] | types.Type | None = None) -> None:
    """Define ``name(a, ...)``: ``body(m, a, ...)`` on wrapped values; the result has the type of the first operand,
    or ``result``."""

    def typed(*args: types.Type) -> Any:
        if len(args) != arity:
            return None
        out = result if isinstance(result, types.Type) else args[0] if result is None else result(*args)
        return out(*args)

    def write(builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        m = Machine(builder, F32 if signature.args[0] == types.float32 else F64)
        m.types = signature.args
        return body(m, *(V(m, v) for v in values)).v

    NAMES[name] = Word(name, typed, write)


def _signed(m: Machine) -> bool:
    return bool(getattr(m.types[0], "signed", False))


# --- elementary functions --------------------------------------------------------------------------------------------
for _name, _body in {**math.UNARY, **trig.FUNCTIONS}.items():
    word(_name, 1, _body)
for _name, _two in math.BINARY.items():
    word(_name, 2, _two)
for _name, _llvm in {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "roundeven": "roundeven",
}.items():  # fmt: skip
    word(_name, 1, lambda m, x, _llvm=_llvm: m.intrinsic(_llvm, x))
word("rsqrt", 1, lambda m, x: 1.0 / m.sqrt(x))
word("logistic", 1, logistic)
word("erf_plus_one", 1, erf_plus_one)
word("share", 2, share)
word("copysign", 2, lambda m, x, s: m.copysign(x, s))


# --- arithmetic on floats and integers -------------------------------------------------------------------------------
def _absolute(m: Machine, x: V) -> V:
    if x.is_float:
        return m.abs(x)
    return m.select(x < 0, 0 - x, x) if _signed(m) else x


def _sign(m: Machine, x: V) -> V:
    if x.is_float:
        one = m.select(x > 0.0, 1.0, m.select(x < 0.0, x.lift(-1.0), x))
        return m.select(x == 0.0, x.lift(0.0), one)
    if not _signed(m):
        return m.select(x != 0, x.lift(1), x)
    return m.select(x > 0, x.lift(1), m.select(x < 0, x.lift(-1), x))


def _less(m: Machine, a: V, b: V) -> V:
    return a < b if a.is_float or _signed(m) else a.below(b)


def _extreme(greatest: bool) -> Body:
    """NaN from either side wins; which zero wins is open, as in NumPy."""

    def body(m: Machine, a: V, b: V) -> V:
        if a.is_float:
            fn = m.intrinsic("maximum" if greatest else "minimum", a, b)
            fn.v.fastmath = FastMathFlags(["nsz"])
            return fn
        return m.select(_less(m, b, a) if greatest else _less(m, a, b), a, b)

    return body


word("absolute", 1, _absolute)
word("sign", 1, _sign)
word("negative", 1, lambda m, x: 0 - x)
word("maximum", 2, _extreme(True))
word("minimum", 2, _extreme(False))


def _float_divmod(m: Machine, a: V, b: V) -> tuple[V, V]:
    """NumPy's: the remainder by fmod, turned to the sign of the divisor; the quotient from it, snapped to a whole."""
    rest = V(m, m.builder.frem(a.v, b.v))
    quotient = (a - rest) / b
    turn = (rest != 0.0) & ((b < 0.0) ^ (rest < 0.0))
    quotient = m.select(turn, quotient - 1.0, quotient)
    rest = m.select(turn, rest + b, m.select(rest == 0.0, m.copysign(a.lift(0.0), b), rest))
    whole = m.intrinsic("floor", quotient)
    whole = m.select(quotient - whole > 0.5, whole + 1.0, whole)
    whole = m.select(quotient == 0.0, m.copysign(a.lift(0.0), a / b), whole)
    return m.select(b == 0.0, a / b, whole), rest


def _int_divmod(m: Machine, a: V, b: V) -> tuple[V, V]:
    """Floors; by zero gives 0 and 0, and the least integer by -1 wraps: no operand may trap."""
    zero = b == 0
    if not _signed(m):
        safe = m.select(zero, b.lift(1), b)
        q, r = V(m, m.builder.udiv(a.v, safe.v)), V(m, m.builder.urem(a.v, safe.v))
        return m.select(zero, a.lift(0), q), m.select(zero, a.lift(0), r)
    minus = b == -1
    safe = m.select(zero | minus, b.lift(1), b)
    q = V(m, m.builder.sdiv(a.v, safe.v))
    r = a - q * safe
    turn = (r != 0) & ((r ^ b) < 0)
    q, r = m.select(turn, q - 1, q), m.select(turn, r + b, r)
    q = m.select(minus, 0 - a, q)
    return m.select(zero, a.lift(0), q), m.select(zero | minus, a.lift(0), r)


def _int_fmod(m: Machine, a: V, b: V) -> V:
    bad = (b == 0) | (b == -1) if _signed(m) else b == 0
    safe = m.select(bad, b.lift(1), b)
    rest = V(m, (m.builder.srem if _signed(m) else m.builder.urem)(a.v, safe.v))
    return m.select(bad, a.lift(0), rest)


word("floordiv", 2, lambda m, a, b: (_float_divmod if a.is_float else _int_divmod)(m, a, b)[0])
word("mod", 2, lambda m, a, b: (_float_divmod if a.is_float else _int_divmod)(m, a, b)[1])
word("fmod", 2, lambda m, a, b: V(m, m.builder.frem(a.v, b.v)) if a.is_float else _int_fmod(m, a, b))


def _int_pow(m: Machine, a: V, b: V) -> V:
    """By squaring, wrapping; a negative exponent gives 0 but for the bases 1 and -1."""
    one, out = a.lift(1), a.lift(1)
    power, bits = a, b
    for _ in range(a.v.type.width):
        out = m.select((bits & 1) != 0, out * power, out)
        power, bits = power * power, bits.lshr(1)
    if not _signed(m):
        return out
    unit = m.select(a == 1, one, m.select(a == -1, m.select((b & 1) != 0, a, one), a.lift(0)))
    return m.select(b < 0, unit, out)


NAMES["float_pow"] = NAMES.pop("pow")
word("int_pow", 2, _int_pow)


def _shift(left: bool) -> Body:
    """A shift by the width or more pushes every bit out, as in NumPy."""

    def body(m: Machine, a: V, n: V) -> V:
        width = a.v.type.width
        ok = n.below(width)
        safe = m.select(ok, n, n.lift(0))
        if left:
            return m.select(ok, a << safe, a.lift(0))
        if _signed(m):
            return m.select(ok, a >> safe, a >> (width - 1))
        return m.select(ok, a.lshr(safe), a.lift(0))

    return body


word("shl", 2, _shift(True))
word("shr", 2, _shift(False))
word("bit_and", 2, lambda m, a, b: a & b)
word("bit_or", 2, lambda m, a, b: a | b)
word("bit_xor", 2, lambda m, a, b: a ^ b)
word("bit_not", 1, lambda m, a: ~a)
word("select", 3, lambda m, c, a, b: m.select(c, a, b), lambda c, a, b: a)

# index arithmetic: quotient and remainder of what is never negative, and the general ones
word("quotient", 2, lambda m, a, b: V(m, m.builder.udiv(a.v, b.v)))
word("remainder", 2, lambda m, a, b: V(m, m.builder.urem(a.v, b.v)))
word("least", 2, lambda m, a, b: m.select(a < b, a, b))
word("greatest", 2, lambda m, a, b: m.select(a > b, a, b))


# --- accumulators ----------------------------------------------------------------------------------------------------
def _free(op: str) -> Body:
    """One instruction whose terms may be regrouped, so that a sum over a loop becomes several running side by side.

    Without ``nsz``: with it LLVM also regroups a term with what it was computed of, and ``a + (x - x)`` loses its NaN.
    """

    def body(m: Machine, a: V, b: V) -> V:
        value = getattr(m.builder, op)(a.v, b.v, flags=["reassoc"])
        value.exact = True
        return V(m, value)

    return body


word("accumulate", 2, _free("fadd"))
word("multiply_up", 2, _free("fmul"))


def _two_sum_error(m: Machine, a: V, b: V) -> V:
    """What ``a + b`` loses by rounding."""
    s = a + b
    t = s - a
    return (a - (s - t)) + (b - t)


word("lost_by_adding", 2, _two_sum_error)
word("finish_sum", 2, lambda m, s, lost: m.select(m.abs(s) < inf, s + lost, s))


# --- types -----------------------------------------------------------------------------------------------------------
_INT = {f"{s}int{w}": (w, s != "u") for s in ("", "u") for w in (8, 16, 32, 64)}


def _to_int(m: Machine, x: V, width: int, signed: bool) -> V:
    """C's conversion as compilers do it on this kind of machine: out of range and NaN give the least integer."""
    b = m.builder
    if not x.is_float:
        have, t = x.v.type.width, ir.IntType(width)
        if have == width:
            return x
        if have > width:
            return V(m, b.trunc(x.v, t))
        return V(m, (b.sext if _signed(m) else b.zext)(x.v, t))
    via = 32 if width < 32 or (width == 32 and signed) else 64
    top = 2.0 ** (via - 1)
    ok = (x >= -top) & (x < top)
    if x.v.type == ir.FloatType() or via == 64:
        ok = (x >= -top) & (x < top)
    else:
        ok = (x > -top - 1.0) & (x < top)
    t = ir.IntType(via)
    got = V(m, b.fptosi(m.select(ok, x, x.lift(0.0)).v, t))
    got = m.select(ok, got, got.lift(-(2 ** (via - 1))))
    return got if via == width else V(m, b.trunc(got.v, ir.IntType(width)))


def _bitcast(m: Machine, x: V, t: ir.Type) -> V:
    return x if x.v.type == t else V(m, m.builder.bitcast(x.v, t))


for _name, (_width, _is_signed) in _INT.items():
    _type = getattr(types, _name)
    word(f"to_{_name}", 1, lambda m, x, w=_width, s=_is_signed: _to_int(m, x, w, s), _type)
    word(f"as_{_name}", 1, lambda m, x, w=_width: _bitcast(m, x, ir.IntType(w)), _type)
word("as_float32", 1, lambda m, x: _bitcast(m, x, ir.FloatType()), types.float32)
word("as_float64", 1, lambda m, x: _bitcast(m, x, ir.DoubleType()), types.float64)


def _half_to_float(m: Machine, bits: V) -> V:
    half = m.builder.bitcast(bits.v, ir.HalfType())
    return V(m, m.builder.fpext(half, ir.FloatType()))


def _narrow(m: Machine, x: V) -> V:
    """float64 to float32 so that a later rounding to fewer bits is the only one: the last bit remembers what was lost."""
    if x.v.type == ir.FloatType():
        return x
    f = m.at(F32)
    near = m.convert(x, F32)
    back = f.convert(near, F64)
    bits = f.to_bits(near)
    bits = m.select(m.abs(back) > m.abs(x), bits - 1, bits)
    return f.from_bits(m.select(back != x, bits | 1, bits))


def _float_to_half(m: Machine, x: V) -> V:
    half = m.builder.fptrunc(_narrow(m, x).v, ir.HalfType())
    return V(m, m.builder.bitcast(half, ir.IntType(16)))


def _bfloat_to_float(m: Machine, bits: V) -> V:
    wide = V(m, m.builder.zext(bits.v, ir.IntType(32))) << 16
    return V(m, m.builder.bitcast(wide.v, ir.FloatType()))


def _float_to_bfloat(m: Machine, x: V) -> V:
    """Half to even by integer addition; NaN stays NaN (and quiet)."""
    m = m.at(F32)
    x = V(m, m.builder.fptrunc(x.v, ir.FloatType())) if x.v.type == ir.DoubleType() else x
    return _top_half(m, _bfloat_above(m, x))


def _bfloat_above(m: Machine, x: V) -> V:
    """A float32 whose upper half is ``x`` as bfloat16; the lower half is anything."""
    bits = m.to_bits(x)
    rounded = bits + ((bits.lshr(16) & 1) + 0x7FFF)
    return m.from_bits(m.select(x.is_nan(), bits | 0x7FC00000, rounded))


def _top_half(m: Machine, x: V) -> V:
    return V(m, m.builder.trunc(m.at(F32).to_bits(x).lshr(16).v, ir.IntType(16)))


def _round_bfloat(m: Machine, x: V) -> V:
    if x.v.type == ir.DoubleType():
        return _bfloat_to_float(m.at(F32), _float_to_bfloat(m, x))
    return m.from_bits(m.to_bits(_bfloat_above(m, x)) & -0x10000)


word("half_to_float", 1, _half_to_float, types.float32)
word("bfloat_to_float", 1, _bfloat_to_float, types.float32)
word("float_to_half", 1, _float_to_half, types.uint16)
word("float_to_bfloat", 1, _float_to_bfloat, types.uint16)
word("round_half", 1, lambda m, x: _half_to_float(m, _float_to_half(m, x)), types.float32)
word("round_bfloat", 1, _round_bfloat, types.float32)
word("top_half", 1, _top_half, types.uint16)


# --- random numbers --------------------------------------------------------------------------------------------------
def _philox(m: Machine, seed: V, counter: V, lane: V) -> V:
    """Word ``lane`` of Philox 4x32-10; 64-bit registers hold the 32-bit words and their products."""
    low = 0xFFFFFFFF
    k0, k1 = seed & low, seed.lshr(32)
    c = [counter & low, counter.lshr(32), seed.lift(0), seed.lift(0)]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [p1.lshr(32) ^ c[1] ^ k0, p1 & low, p0.lshr(32) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    lane = lane & 3
    word_ = m.select(lane < 2, m.select(lane == 0, c[0], c[1]), m.select(lane == 2, c[2], c[3]))
    return V(m, m.builder.trunc(word_.v, ir.IntType(32)))


word("philox", 3, _philox, types.uint32)


# --- memory ----------------------------------------------------------------------------------------------------------
def _scratch(name: str, t: types.Type) -> None:
    """``scratch_float32(n)``: room for ``n`` elements that lasts as long as the function runs."""

    def typed(n: types.Type) -> Any:
        return types.CPointer(t)(n) if isinstance(n, types.IntegerLiteral) else None

    def write(builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        with builder.goto_entry_block():
            block = builder.alloca(t.llvm, size=signature.args[0].literal_value)
            block.align = 64
        return block

    NAMES[name] = Word(name, typed, write, literal=True)


def _pointers(*places: int) -> Callable[..., Any]:
    """Arguments at these places are pointers, the rest int64; no result."""

    def typed(*args: types.Type) -> Any:
        return types.void(*(a if n in places else types.int64 for n, a in enumerate(args)))

    return typed


def _turn_in(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``turn_in(source, at, stride, tile, width, rows, cols)``: see ``transpose``; ``at`` is where the tile begins."""
    source, at, stride, tile, width, rows, cols = values
    _turn(builder, builder.gep(source, [at]), stride, tile, width, rows, cols)


def _turn_over(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``turn_over(source, at, stride, target, to, width, rows, cols)``: from memory to memory."""
    source, at, stride, target, to, *rest = values
    _turn(builder, builder.gep(source, [at]), stride, builder.gep(target, [to]), *rest)


def _turn_out(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``turn_out(tile, width, target, at, stride, rows, cols)``: the other way."""
    tile, width, target, at, stride, rows, cols = values
    _turn(builder, tile, width, builder.gep(target, [at]), stride, rows, cols)


def _turn(builder: ir.IRBuilder, source: ir.Value, a: Any, target: ir.Value, *rest: Any) -> None:
    bits = {ir.FloatType: 32, ir.DoubleType: 64}.get(type(source.type.pointee)) or source.type.pointee.width
    pointer = ir.IntType(bits).as_pointer()
    fn = transpose.turn(builder.module, bits)
    builder.call(fn, [builder.bitcast(source, pointer), a, builder.bitcast(target, pointer), *rest])


def _gemm(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``gemm_float32(address, ta, tb, m, n, k, alpha, a, a_at, lda, b, b_at, ldb, beta, c, c_at, ldc)``: CBLAS, row-major,
    with the place of each matrix in its buffer."""
    address, ta, tb, m, n, k, alpha, a, a_at, lda, b, b_at, ldb, beta, c, c_at, ldc = values
    i32, i64, f, p = ir.IntType(32), ir.IntType(64), alpha.type, a.type
    kind = ir.FunctionType(ir.VoidType(), [i32, i32, i32, i64, i64, i64, f, p, i64, p, i64, f, p, i64])
    a, b, c = builder.gep(a, [a_at]), builder.gep(b, [b_at]), builder.gep(c, [c_at])
    fn = builder.inttoptr(address, kind.as_pointer())
    ta, tb = builder.trunc(ta, i32), builder.trunc(tb, i32)
    builder.call(fn, [i32(blas.ROW_MAJOR), ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc])


def _gemm_typed(t: types.Type) -> Callable[..., Any]:
    i, p = types.int64, types.CPointer(t)
    return lambda *args: types.void(i, i, i, i, i, i, t, p, i, i, p, i, i, t, p, i, i) if len(args) == 17 else None


for _name in ("float32", "float64"):
    NAMES[f"gemm_{_name}"] = Word(f"gemm_{_name}", _gemm_typed(getattr(types, _name)), _gemm)


def _product(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``product(c, c_at, c_row, a, a_at, a_row, a_column, b, b_at, b_row, m, n, k, keep)``: see that file."""
    c, c_at, c_row, a, a_at, a_row, a_column, b, b_at, *rest = values
    c, a, b = builder.gep(c, [c_at]), builder.gep(a, [a_at]), builder.gep(b, [b_at])
    builder.call(product.product(builder.module), [c, c_row, a, a_row, a_column, b, *rest])


def _gathered(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``gathered(c, c_at, c_row, a, a_at, a_tile, b, b_at, table, table_at, m, n, k, keep)``: see that file."""
    c, c_at, c_row, a, a_at, a_tile, b, b_at, table, table_at, *rest = values
    c, a, b, table = (builder.gep(p, [at]) for p, at in ((c, c_at), (a, a_at), (b, b_at), (table, table_at)))
    builder.call(product.gathered(builder.module), [c, c_row, a, a_tile, b, table, *rest])


def _placed(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``placed(c, c_at, c_row, a, rows, rows_at, terms, terms_at, b, b_at, b_row, m, n, k, keep)``: see that file."""
    c, c_at, c_row, a, rows, rows_at, terms, terms_at, b, b_at, *rest = values
    c, rows, terms, b = (builder.gep(p, [at]) for p, at in ((c, c_at), (rows, rows_at), (terms, terms_at), (b, b_at)))
    builder.call(product.placed(builder.module), [c, c_row, a, rows, terms, b, *rest])


NAMES["product"] = Word("product", _pointers(0, 3, 7), _product)
NAMES["gathered"] = Word("gathered", _pointers(0, 3, 6, 8), _gathered)
NAMES["placed"] = Word("placed", _pointers(0, 3, 4, 6, 8), _placed)


NAMES[parallel.WORD] = Word(parallel.WORD, lambda *args: None if args else types.void(), lambda *_: None)


def _between_zeros(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``between_zeros(target, at, across, source, place, low, end)``: a row of ``across`` elements, of which those in [low, end)
    are the source's, number ``low`` from ``place + low``."""
    target, at, across, source, place, low, end = values
    byte, i64, size = ir.IntType(8).as_pointer(), ir.IntType(64), signature.args[0].element.bits // 8
    clear = builder.module.declare_intrinsic("llvm.memset", [byte, i64])
    copy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, i64])

    def row(pointer: ir.Value, start: ir.Value, first: ir.Value) -> ir.Value:
        return builder.bitcast(builder.gep(pointer, [builder.add(start, first)]), byte)

    def span(first: ir.Value, last: ir.Value) -> ir.Value:
        return builder.mul(builder.sub(last, first), i64(size))

    no = ir.IntType(1)(0)
    for first, last in ((i64(0), low), (end, across)):
        builder.call(clear, [row(target, at, first), ir.IntType(8)(0), span(first, last), no])
    builder.call(copy, [row(target, at, low), row(source, place, low), span(low, end), no])


def _philox_row(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``philox_row(row, seed, counter, blocks)``: see ``random_rows``."""
    builder.call(random_rows.row_function(builder.module), values)


def _write_around(builder: ir.IRBuilder, signature: Any, values: Any) -> None:
    """``write_around(target, at, row, count)``: see ``bypass``."""
    target, at, row, count = values
    size = signature.args[0].element.bits // 8
    start, row = (builder.bitcast(p, bypass.I8.as_pointer()) for p in (builder.gep(target, [at]), row))
    builder.call(bypass.row_function(builder.module), [start, row, builder.mul(count, count.type(size))])


def _fetch(builder: ir.IRBuilder, signature: Any, values: Any, later: bool = False) -> None:
    """``fetch(source, at, count)``, ``fetch_later``: see ``bypass``."""
    source, at, count = values
    size = signature.args[0].element.bits // 8
    start = builder.bitcast(builder.gep(source, [at]), bypass.I8.as_pointer())
    builder.call(bypass.fetch_function(builder.module, later), [start, builder.mul(count, count.type(size))])


NAMES["between_zeros"] = Word("between_zeros", _pointers(0, 3), _between_zeros)
NAMES["write_around"] = Word("write_around", _pointers(0, 2), _write_around)
NAMES["fetch"] = Word("fetch", _pointers(0), _fetch)
NAMES["fetch_later"] = Word("fetch_later", _pointers(0), lambda b, s, v: _fetch(b, s, v, later=True))
NAMES["settle"] = Word("settle", _pointers(), lambda builder, signature, values: bypass.settle(builder))
NAMES["philox_row"] = Word("philox_row", _pointers(0), _philox_row)
NAMES["turn_in"] = Word("turn_in", _pointers(0, 3), _turn_in)
NAMES["turn_over"] = Word("turn_over", _pointers(0, 3), _turn_over)
NAMES["turn_out"] = Word("turn_out", _pointers(0, 2), _turn_out)

for _name in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
    _scratch(f"scratch_{_name}", getattr(types, _name))
    NAMES[_name] = getattr(types, _name)
NAMES["inf"], NAMES["nan"] = inf, nan
