"""sin, cos and tan: a fast path for everyday arguments, and one that is right for all.

Stage: codegen_numba.  In: a ``Machine`` and an argument.  Out: the value.  Up to ``LIMIT`` the multiple of pi is taken
off in three parts.  Beyond, the bits of 2/pi that matter are multiplied as integers (Payne and Hanek), which is long;
so this is the one place with a jump.  A jump would keep LLVM from vectorising the loop around it, hence each function
exists as a scalar and as vectors of several widths, told to the vectoriser by ``vector-function-abi-variant``; a
vector jumps only if one of its lanes is huge.  Read next: ``intrinsics``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from llvmlite import ir

from codegen_numba.llvm import F32, F64, Format, Machine, V

LIMIT = {F32: 20000.0, F64: 1.0e6}
TURNS = 1 << 14  # float32: so many multiples of pi around zero are told from others by one look at bits; the limit is within

INV_PI = 0.3183098861837907
TWO_OVER_PI = 0.6366197723675814
# pi and pi/2 in three parts; those of pi all positive, so that -0.0 keeps its sign
PI_F32 = (3.141592502593994, 1.5099578831723193e-07, 1.0780605906948477e-14)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# (sin(r) - r) / r^3 in r^2: float32 on |r| <= pi/2, float64 on |r| <= pi/4
SIN_F32 = (-0.16666661202907562, 0.00833310279995203, -0.0001981199166039005, 2.6105813049071003e-06)
SIN_F64 = (
    -0.16666666666666635, 0.008333333333322758, -0.00019841269829821965, 2.7557313634120325e-06,
    -2.5050741741329698e-08, 1.5895513092806685e-10,
)  # fmt: skip
# (cos(r) - 1 + r^2 / 2) / r^4 in r^2 on |r| <= pi/4
COS_F64 = (
    0.04166666666666666, -0.0013888888888882714, 2.480158729426211e-05, -2.7557315588008077e-07,
    2.0875874165620818e-09, -1.136668958891215e-11,
)  # fmt: skip
# the binary digits of 2/pi after the point
TWO_OVER_PI_BITS = (
    0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip


# --- everyday arguments ----------------------------------------------------------------------------------------------
def _near_f32(m: Machine, x: V, quarter: bool) -> tuple[V, V]:
    """sin on float32, or cos: the distance to the nearest multiple (or odd half-multiple) of pi, then one polynomial; and
    bits of which those above ``TURNS`` are zero if that multiple was near enough."""
    magic = m.fmt.magic + TURNS // 2
    shifted = m.mad(x, INV_PI, magic) if not quarter else m.mad(x, INV_PI, -0.5) + magic
    n = shifted - magic
    at = n + 0.5 if quarter else n
    r = x
    for part in PI_F32:
        r = m.fma(at, -part, r)
    z = r * r
    small = m.fma(z, m.poly(z, SIN_F32), 0.0)  # +0, not -0, where z is 0: so -0.0 keeps its sign
    y = m.mad(r, small, r)
    odd = m.to_bits(shifted) << 31
    y = m.from_bits(m.to_bits(y) ^ (~odd & -(2**31) if quarter else odd))
    return y, m.to_bits(shifted) ^ m.to_bits(m.constant(m.fmt.magic))


def _near_f64(m: Machine, x: V) -> tuple[V, V, V]:
    """``(r, rest, quadrant)`` with ``x = quadrant * pi/2 + r + rest``."""
    nf, n = m.round_to_int(x, TWO_OVER_PI)
    a, b, c = HALF_PI
    top = m.fma(nf, -a, x)
    part = nf * b
    r = top - part
    rest = ((top - r) - part) - m.fma(nf, b, -part) - nf * c
    return r, rest, n


def _sin_cos(m: Machine, r: V, rest: V) -> tuple[V, V, V, V]:
    """sin and cos of ``r + rest``, each with what its last addition lost."""
    z = r * r
    tail = m.mad(r * z, m.poly(z, SIN_F64), rest)
    sine = r + tail
    half = z * 0.5
    one = 1.0 - half
    cos_tail = ((1.0 - one) - half) + m.mad(z * z, m.poly(z, COS_F64), -(r * rest))
    cosine = one + cos_tail
    return sine, (r - sine) + tail, cosine, (one - cosine) + cos_tail


def _turn(m: Machine, name: str, r: V, rest: V, n: V) -> V:
    sine, sine_lost, cosine, cosine_lost = _sin_cos(m, r, rest)
    odd = (n & 1) != 0
    if name == "tan":
        num, num_lost = m.select(odd, -cosine, sine), m.select(odd, -cosine_lost, sine_lost)
        den, den_lost = m.select(odd, sine, cosine), m.select(odd, sine_lost, cosine_lost)
        inverse = 1.0 / den
        q = num * inverse
        return q + (m.fma(-q, den, num) + (num_lost - q * den_lost)) * inverse
    if name == "cos":
        n, odd = n + 1, (n & 1) == 0
    y = m.select(odd, cosine, sine)
    return m.from_bits(m.to_bits(y) ^ ((n & 2) << 62))


def near(m: Machine, name: str, x: V) -> tuple[V, ir.Value]:
    """The value, and whether it is wrong because some lane is huge (or, perhaps, no number)."""
    b = m.builder
    if m.fmt is F32:
        y, turns = _near_f32(m, x, name == "cos")
        far = turns & -TURNS
        word = far if m.lanes == 1 else V(m, _any(m, far))
        return y, (word != 0).v
    y = _turn(m, name, *_near_f64(m, x))
    huge = (m.abs(x) > LIMIT[m.fmt]).v
    if m.lanes > 1:
        bits = ir.IntType(m.lanes)
        huge = b.icmp_unsigned("!=", b.bitcast(huge, bits), bits(0))
    return y if name == "cos" else m.select(x == 0.0, x, y), huge


def _any(m: Machine, x: V) -> ir.Value:
    """The bits that any lane has."""
    name = f"llvm.vector.reduce.or.v{m.lanes}i{m.fmt.bits}"
    module = m.builder.module
    fn = module.globals.get(name) or ir.Function(module, ir.FunctionType(m.fmt.int, [x.v.type]), name)
    return m.builder.call(fn, [x.v])


# --- any argument ----------------------------------------------------------------------------------------------------
def _table(module: ir.Module) -> ir.GlobalVariable:
    name = "two_over_pi"
    if name not in module.globals:
        words = [0, *TWO_OVER_PI_BITS, 0]
        type = ir.ArrayType(ir.IntType(64), len(words))
        table = ir.GlobalVariable(module, type, name)
        table.linkage, table.global_constant, table.initializer = "internal", True, ir.Constant(type, words)
    return module.globals[name]


def _far_f64(m: Machine, x: V) -> tuple[V, V, V]:
    """The same as ``_near_f64`` for one huge ``x``: 53 bits times the 192 bits of 2/pi that decide, modulo 4."""
    b, i64, i128 = m.builder, ir.IntType(64), ir.IntType(128)
    bits = m.to_bits(x)
    exponent = ((bits >> 52) & 2047) - 1075
    mantissa = (bits & (2**52 - 1)) | 2**52
    offset = exponent + 62  # into the table, which starts with 64 zeros; bits before this one give multiples of 4
    offset = m.select(offset < 0, 0, m.select(offset > 1100, 0, offset))
    word, shift = offset >> 6, offset & 63
    table = _table(b.module)
    w = [V(m, b.load(b.gep(table, [ir.Constant(i64, 0), (word + k).v], inbounds=True))) for k in range(4)]
    window = [m.intrinsic("fshl", w[k], w[k + 1], shift) for k in range(3)]
    wide = [V(m, b.zext(v.v, i128)) for v in (*window, mantissa)]
    p2 = wide[3] * wide[2]
    p1 = wide[3] * wide[1] + p2.lshr(64)
    p0 = wide[3] * wide[0] + p1.lshr(64)
    top = V(m, b.trunc(p0.v, i64))
    fraction = (((p0 << 64) | (p1 & (2**64 - 1))) << 2) | V(m, b.zext((V(m, b.trunc(p2.v, i64)).lshr(62)).v, i128))
    negative = fraction < 0
    quadrant = top.lshr(62) + V(m, b.zext(negative.v, i64))
    size = m.select(negative, 0 - fraction, fraction)
    zeros = V(m, b.ctlz(size.v, ir.Constant(ir.IntType(1), 0)))
    lead = V(m, b.trunc((size << zeros).lshr(64).v, i64))
    hi_int = lead & -(2**11)  # 53 bits, exactly a double
    hi = V(m, b.uitofp(hi_int.v, m.fmt.flt))
    lo = V(m, b.uitofp((lead - hi_int).v, m.fmt.flt))
    scale = m.power_of_two(-64 - V(m, b.trunc(zeros.v, i64)))
    scale = m.select(negative, -scale, scale)
    a = hi * HALF_PI[0]
    rest = m.fma(hi, HALF_PI[0], -a) + (hi * HALF_PI[1] + lo * HALF_PI[0])
    r = (a + rest) * scale
    rest = ((a - (a + rest)) + rest) * scale
    turns = m.select(bits < 0, 0 - quadrant, quadrant)
    return m.select(bits < 0, -r, r), m.select(bits < 0, -rest, rest), turns


def _far(module: ir.Module, name: str) -> ir.Function:
    """A function of one float64, not inlined; infinities give NaN."""
    full = f"{name}_far"
    if full in module.globals:
        return module.globals[full]
    f64 = ir.DoubleType()
    fn = _internal(module, full, ir.FunctionType(f64, [f64]), "noinline")
    m = Machine(ir.IRBuilder(fn.append_basic_block()), F64)
    x = V(m, fn.args[0])
    y = _turn(m, name, *_far_f64(m, x))
    m.builder.ret(m.select(m.abs(x) < inf, y, x - x).v)
    return fn


def _internal(module: ir.Module, name: str, type: ir.FunctionType, *attributes: str) -> ir.Function:
    fn = ir.Function(module, type, name)
    fn.linkage = "internal"
    for attribute in ("nounwind", *attributes):
        fn.attributes.add(attribute)
    return fn


# --- functions the vectoriser knows ----------------------------------------------------------------------------------
def name_of(name: str, fmt: Format, lanes: int) -> str:
    return f"tt_{name}_f{fmt.bits}" + (f"x{lanes}" if lanes > 1 else "")


def define(module: ir.Module, name: str, fmt: Format, lanes: int = 1) -> ir.Function:
    """``name`` as a function of a scalar or a vector: ``near``, unless a lane is beyond ``LIMIT``."""
    full = name_of(name, fmt, lanes)
    if full in module.globals:
        return module.globals[full]
    t = fmt.flt if lanes == 1 else ir.VectorType(fmt.flt, lanes)
    far = _far(module, name) if lanes == 1 else _far_lanes(module, name, fmt, lanes)
    fn = _internal(module, full, ir.FunctionType(t, [t]), "noinline" if lanes == 1 else "alwaysinline")
    entry, slow, done = (fn.append_basic_block(label) for label in ("entry", "slow", "done"))
    m = Machine(ir.IRBuilder(entry), fmt, lanes)
    x = V(m, fn.args[0])
    y, any_huge = near(m, name, x)
    b = m.builder
    b.cbranch(any_huge, slow, done).set_weights([1, 2000])
    b.position_at_end(slow)
    fixed = _call_far(b, far, fmt, x.v) if lanes == 1 else b.call(far, [x.v, y.v])
    b.branch(done)
    b.position_at_end(done)
    phi = b.phi(t)
    phi.add_incoming(y.v, entry)
    phi.add_incoming(fixed, slow)
    b.ret(phi)
    return fn


def _far_lanes(module: ir.Module, name: str, fmt: Format, lanes: int) -> ir.Function:
    """``(x, y) -> y`` with the lanes of huge ``x`` put right, one after the other; out of line, for it is long."""
    full, t = name_of(name, fmt, lanes) + "_far", ir.VectorType(fmt.flt, lanes)
    if full in module.globals:
        return module.globals[full]
    far = _far(module, name)
    fn = _internal(module, full, ir.FunctionType(t, [t, t]), "noinline", "cold")
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    entry, loop, done = b.block, fn.append_basic_block("loop"), fn.append_basic_block("done")
    i32 = ir.IntType(32)
    b.branch(loop)
    b.position_at_end(loop)
    at, y = b.phi(i32), b.phi(t)
    x = b.extract_element(fn.args[0], at)
    m = Machine(b, fmt)
    huge = m.abs(V(m, x)) > LIMIT[fmt]
    value = b.select(huge.v, _call_far(b, far, fmt, x), b.extract_element(y, at))
    fixed, following = b.insert_element(y, value, at), b.add(at, i32(1))
    for phi, first, later in ((at, i32(0), following), (y, fn.args[1], fixed)):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, loop)
    b.cbranch(b.icmp_unsigned("<", following, i32(lanes)), loop, done)
    b.position_at_end(done)
    b.ret(fixed)
    return fn


def _call_far(b: ir.IRBuilder, far: ir.Function, fmt: Format, x: ir.Value) -> ir.Value:
    if fmt is F64:
        return b.call(far, [x])
    return b.fptrunc(b.call(far, [b.fpext(x, ir.DoubleType())]), fmt.flt)


def call(m: Machine, name: str, x: V) -> V:
    """A call the vectoriser can widen; float32's tan goes by way of float64."""
    if name == "tan" and m.fmt is F32:
        return m.at(F64).convert(call(m.at(F64), name, m.convert(x, F64)), F32)
    return V(m, m.builder.call(define(m.builder.module, name, m.fmt), [x.v]))


FUNCTIONS: dict[str, Callable[[Machine, V], V]] = {
    name: lambda m, x, name=name: call(m, name, x)  # type: ignore[misc]
    for name in ("sin", "cos", "tan")
}
