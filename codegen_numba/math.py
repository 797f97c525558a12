"""Elementary functions as straight lines of arithmetic, which LLVM can run on whole vectors.

Stage: codegen_numba.  In: a ``Machine`` (where to write, float32 or float64) and an argument.  Out: the value.
No branches and no calls: special cases are selected, not jumped to, so a loop around them becomes SIMD code.  Errors
are below 2 ulp (``pow`` 4) on every input; NaN, infinities, signed zeros and subnormals come out as in NumPy.
Coefficients are minimax fits, rounded to their format.  Where float32 has no version of its own, the float64 one is
used.  Read next: ``trig`` (which needs one branch, for huge arguments), ``joined_math``, ``intrinsics``.
"""

from __future__ import annotations

from math import inf, nan

from codegen_numba.llvm import F32, F64, Machine, V

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
# ln 2 in two parts; the first has zeros at its end, so that k * LN2_HI is exact
LN2_HI = {F32: 0.693145751953125, F64: 6.93147180369123816490e-01}
LN2_LO = {F32: 1.428606765330187e-06, F64: 1.90821492927058770002e-10}
# log2(e), log10(e) and log10(2) in two parts
LOG2E_HI = {F32: 1.4426950216293335, F64: 1.4426950408889634}
LOG2E_LO = {F32: 1.925963033500011e-08, F64: 2.0355273740931033e-17}
LOG10E_HI = {F32: 0.4342944920063019, F64: 0.4342944819032518}
LOG10E_LO = {F32: -1.0103049952192578e-08, F64: 1.098319650216765e-17}
LOG10_2_HI = {F32: 0.301025390625, F64: 0.30102999566395283}
LOG10_2_LO = {F32: 4.605039066518657e-06, F64: 2.8363394551044964e-14}
PI_HI, PI_LO = 3.141592653589793, 1.2246467991473532e-16

# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2
EXP = {
    F32: (0.5, 0.16666540503501892, 0.04166661575436592, 0.008367009460926056, 0.0013916767202317715),
    F64: (
        0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333322012, 0.0013888888888867476,
        0.00019841269885352743, 2.4801587359688713e-05, 2.755724483310003e-06, 2.755724328093462e-07,
        2.510886439399169e-08, 2.09243304630895e-09,
    ),
}  # fmt: skip
# float32: (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) - 1 <= f <= sqrt(2) - 1
LOG_F32 = (
    0.33333316445350647, -0.2500063180923462, 0.20002277195453644, -0.16632920503616333, 0.14187009632587433,
    -0.13001494109630585, 0.1273195594549179, -0.08437732607126236, 0.008904595859348774,
)  # fmt: skip
# float64: (log((1 + s) / (1 - s)) - 2 s) / s^3, a polynomial in s^2, where s = f / (2 + f)
LOG_F64 = (
    0.6666666666666666, 0.40000000000004765, 0.2857142856946436, 0.2222222259931322, 0.18181778925487455,
    0.15386965826572369, 0.13252627163890326, 0.13230750637620434,
)  # fmt: skip
# (atan(x) - x) / x^3, in x^2, on |x| <= tan(pi / 8)
ATAN = (
    -0.3333333333333333, 0.1999999999999853, -0.14285714285475654, 0.11111111092784881, -0.09090908288503034,
    0.0769228563357697, -0.06666264809023845, 0.0587735972029208, -0.0522039606848926, 0.04511023539931408,
    -0.033636122354287624, 0.015348574899785132,
)  # fmt: skip
# (asin(x) - x) / x^3, in x^2, on |x| <= 1/2
ASIN = (
    0.16666666666666705, 0.0749999999998258, 0.04464285716525657, 0.03038194309378198, 0.022372205433444065,
    0.01735176507369857, 0.01397916563968255, 0.011411231813098785, 0.010716987792924624, 0.003926606651493556,
    0.021211429928398213, -0.02034663380452777, 0.03224814559849559,
)  # fmt: skip
# (sinh(x) - x) / x^3, in x^2, on |x| <= 1
SINH = (
    0.16666666666666669, 0.00833333333333316, 0.00019841269841425698, 2.7557319158564053e-06, 2.505212294846712e-08,
    1.605727171996331e-10, 7.758447080764257e-13,
)  # fmt: skip
# (tanh(x) - x) / x^3, in x^2, on |x| <= 0.625
TANH = {
    F32: (
        -0.3333333134651184, 0.13333217799663544, -0.05394751578569412, 0.02170206978917122, -0.008175849914550781,
        0.002138185780495405,
    ),
    F64: (
        -0.33333333333333326, 0.13333333333331798, -0.05396825396701852, 0.021869488491565284, -0.008863234633550824,
        0.00359211686620146, -0.0014557428546601104, 0.0005895185352375335, -0.00023718622515635294,
        9.184847116678491e-05, -3.0464801497336286e-05, 6.158904011842317e-06,
    ),
}  # fmt: skip
# erf(x) / x - 1, in x^2, on |x| <= 1
ERF_NEAR = {
    F32: (
        0.12837912142276764, -0.37612324953079224, 0.11280178278684616, -0.026711352169513702, 0.0049176509492099285,
        -0.0005631939275190234,
    ),
    F64: (
        0.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.026866170645129868, 0.005223977625423609,
        -0.0008548327021955954, 0.00012055332903809986, -1.4925647594433928e-05, 1.6462045979507708e-06,
        -1.6364649539928856e-07, 1.4792469562108684e-08, -1.2164968259266833e-09, 8.71046452288609e-11,
        -4.233128889138398e-12,
    ),
}  # fmt: skip
# float32: log2(1 - erf(x)) on 1 <= x <= 4, where an error counts for less the smaller the power is
ERF_FAR_F32 = (
    -0.0037786560133099556, -1.612386703491211, -0.9438688158988953, -0.12811098992824554, 0.021397870033979416,
    -0.001669526332989335,
)  # fmt: skip
# float32: -2^r on |r| <= 1/2, good to 22 bits
ERF_EXP2_F32 = (
    -1.0, -0.6931470036506653, -0.24022246897220612, -0.0555071085691452, -0.009671292267739773, -0.0013269535265862942,
)  # fmt: skip
# float64: (1 - erf(x)) exp(x^2) on 1 <= x <= 6, in (x - 3) / (x + 3)
ERF_FAR_F64 = (
    0.17900115118138996, -0.3262335600430368, 0.24560380171233628, -0.15011593650093202, 0.07166583719352247,
    -0.02439249935923534, 0.00426913628689985, 0.0007077487408277779, -0.0005970374687523796, 4.539111518259226e-05,
    6.45439953188173e-05, -1.166073983197967e-05, -5.925165143025497e-06, 4.536436021141303e-06,
    3.1486956861084065e-06, 6.387665579658014e-07,
)  # fmt: skip


# --- exponentials ----------------------------------------------------------------------------------------------------
def clamp(m: Machine, x: V, low: float, high: float) -> V:
    """NaN passes: a comparison with it is false."""
    x = m.select(x < low, low, x)
    return m.select(x > high, high, x)


def _exp_near_one(m: Machine, x: V, kf: V) -> V:
    """``exp(x - kf * ln 2)``, which is near one."""
    r = m.mad(kf, -LN2_LO[m.fmt], m.mad(kf, -LN2_HI[m.fmt], x))
    square = r * r
    return m.mad(square, m.pairs(r, square, EXP[m.fmt]), r) + 1.0


def _exp_parts(m: Machine, x: V) -> tuple[V, V]:
    """``exp(x) = p * 2**k`` with ``p`` near one."""
    kf, k = m.round_to_int(x, LOG2E)
    return _exp_near_one(m, x, kf), k


def exp(m: Machine, x: V) -> V:
    low, high = (-104.0, 89.0) if m.fmt is F32 else (-746.0, 710.0)
    x = clamp(m, x, low, high)
    kf, scale = m.round_to_scale(x, LOG2E)
    return scale(_exp_near_one(m, x, kf))


def exp2(m: Machine, x: V) -> V:
    low, high = (-151.0, 129.0) if m.fmt is F32 else (-1076.0, 1025.0)
    x = clamp(m, x, low, high)
    kf, k = m.round_to_int(x, 1.0)
    r = (x - kf) * LN2
    return m.ldexp(m.mad(r * r, m.poly(r, EXP[m.fmt]), r) + 1.0, k)


def expm1(m: Machine, x: V) -> V:
    low, high, most = (-20.0, 89.0, 100) if m.fmt is F32 else (-40.0, 710.0, 1000)
    kf, k = m.round_to_int(clamp(m, x, low, high), LOG2E)
    r = m.mad(kf, -LN2_LO[m.fmt], m.mad(kf, -LN2_HI[m.fmt], clamp(m, x, low, high)))
    p = m.mad(r * r, m.poly(r, EXP[m.fmt]), r)
    one = 1.0 - m.power_of_two(0 - m.select(k > most, most, k))  # exact, or of no account
    return m.copysign(m.ldexp(p + one, k), x)


# --- logarithms ------------------------------------------------------------------------------------------------------
def _split(m: Machine, x: V) -> tuple[V, V]:
    """``x = mantissa * 2**k`` with the mantissa in [sqrt(1/2), sqrt(2)), for positive normal ``x``."""
    bits = m.to_bits(x)
    k = (bits - _SQRT_HALF_BITS[m.fmt]) >> m.fmt.mantissa
    return m.from_bits(bits - (k << m.fmt.mantissa)), k


_SQRT_HALF_BITS = {F32: 0x3F3504F3, F64: 0x3FE6A09E667F3BCD}


def _split_any(m: Machine, x: V) -> tuple[V, V]:
    """The same for positive subnormal ``x`` too."""
    least, up = (2.0**-126, 24) if m.fmt is F32 else (2.0**-1022, 54)
    small = x < least
    mantissa, k = _split(m, m.select(small, x * 2.0**up, x))
    return mantissa, k - m.select(small, m.constant(up, k.v.type), m.constant(0, k.v.type))


def _log_tail(m: Machine, f: V) -> V:
    """``log(1 + f) - f``, for ``f`` as ``_split`` leaves it."""
    if m.fmt is F32:
        square = f * f
        return m.mad(square * f, m.poly(f, LOG_F32), square * -0.5)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return m.mad(s, half + z * m.poly(z, LOG_F64), -half)


def _log_special(m: Machine, x: V, y: V) -> V:
    y = m.select(x < inf, y, x)  # inf and NaN are their own logarithms
    y = m.select(x < 0.0, nan, y)
    return m.select(x == 0.0, -inf, y)


def log(m: Machine, x: V) -> V:
    mantissa, k = _split_any(m, x)
    kf, f = m.int_to_float(k), mantissa - 1.0
    y = m.mad(kf, LN2_LO[m.fmt], _log_tail(m, f)) + f
    return _log_special(m, x, m.mad(kf, LN2_HI[m.fmt], y))


def log1p(m: Machine, x: V) -> V:
    """The rounding error of ``1 + x`` is added back to the mantissa."""
    u = x + 1.0
    back = u - 1.0
    lost = (1.0 - (u - back)) + (x - back)
    mantissa, k = _split(m, u)
    top = 60 if m.fmt is F32 else 500
    f = (mantissa - 1.0) + m.select(k < top, lost * m.power_of_two(0 - k), 0.0)
    kf = m.int_to_float(k)
    y = m.mad(kf, LN2_HI[m.fmt], m.mad(kf, LN2_LO[m.fmt], _log_tail(m, f)) + f)
    y = m.select(x < inf, y, x)
    y = m.select(x < -1.0, nan, y)
    return m.copysign(m.select(x == -1.0, -inf, y), x)


def _log_times(m: Machine, x: V, hi: float, lo: float) -> tuple[V, V, V]:
    """``(k, a, b)`` with ``log(mantissa) * (hi + lo) = a + b``, ``b`` small."""
    mantissa, k = _split_any(m, x)
    f = mantissa - 1.0
    tail = _log_tail(m, f)
    top = f + tail
    rest = (f - top) + tail
    a = top * hi
    b = m.fma(top, hi, -a) + (rest * hi + top * lo)
    return m.int_to_float(k), a, b


def log2(m: Machine, x: V) -> V:
    kf, a, b = _log_times(m, x, LOG2E_HI[m.fmt], LOG2E_LO[m.fmt])
    y = kf + a
    return _log_special(m, x, y + (((kf - y) + a) + b))


def log10(m: Machine, x: V) -> V:
    kf, a, b = _log_times(m, x, LOG10E_HI[m.fmt], LOG10E_LO[m.fmt])
    whole = kf * LOG10_2_HI[m.fmt]
    y = whole + a
    return _log_special(m, x, y + (((whole - y) + a) + (b + kf * LOG10_2_LO[m.fmt])))


# --- power -----------------------------------------------------------------------------------------------------------
def pow(m: Machine, x: V, y: V) -> V:
    if m.fmt is F32:
        w = m.at(F64)
        wx, wy = m.convert(x, F64), m.convert(y, F64)
        return w.convert(_pow_special(w, wx, wy, _pow_f32(w, w.abs(wx), wy)), F32)
    return _pow_special(m, x, y, _pow_f64(m, m.abs(x), y))


def _pow_f32(m: Machine, x: V, y: V) -> V:
    """float64 holds the logarithm of a float32 with bits to spare."""
    mantissa, k = _split(m, x)  # float32's subnormals are normal here
    f = mantissa - 1.0
    return exp2(m, y * m.mad(_log_tail(m, f) + f, LOG2E, m.int_to_float(k)))


def _pow_f64(m: Machine, x: V, y: V) -> V:
    """``exp2(y * log2(x))`` with the logarithm and the product kept in two parts (their sum has ~100 bits)."""
    hi, lo = _log2_two_parts(m, x)
    product = y * hi
    rest = m.fma(y, hi, -product) + y * lo
    fits = m.abs(product) < 1100.0
    product = clamp(m, product, -1100.0, 1100.0)
    kf, k = m.round_to_int(product, 1.0)
    r = ((product - kf) + m.select(fits, rest, 0.0)) * LN2
    return m.ldexp(m.mad(r * r, m.poly(r, EXP[F64]), r) + 1.0, k)


def _log2_two_parts(m: Machine, x: V) -> tuple[V, V]:
    mantissa, k = _split_any(m, x)
    f = mantissa - 1.0
    d = f + 2.0
    s = f / d
    s_lo = (m.fma(-s, d, f) - s * (f - (d - 2.0))) / d  # f / (2 + f) = s + s_lo
    z = s * s
    z_lo = m.fma(s, s, -z) + s * s_lo * 2.0
    tail = z * m.poly(z, LOG_F64[1:])
    c = tail + LOG_F64[0]
    c_lo = (LOG_F64[0] - c) + tail + 3.700743415417188e-17  # what the double 2/3 lacks
    u = z * c
    u_lo = m.fma(z, c, -u) + (z * c_lo + z_lo * c)
    v = u + 2.0
    v_lo = (2.0 - v) + u + u_lo
    w = s * v  # log(mantissa) = w + w_lo
    w_lo = m.fma(s, v, -w) + (s * v_lo + s_lo * v)
    a = w * LOG2E_HI[F64]
    a_lo = m.fma(w, LOG2E_HI[F64], -a) + (w * LOG2E_LO[F64] + w_lo * LOG2E_HI[F64])
    kf = m.int_to_float(k)
    hi = kf + a
    lo = (kf - hi) + a + a_lo
    top = hi + lo
    return top, (hi - top) + lo


def _pow_special(m: Machine, x: V, y: V, r: V) -> V:
    ax = m.abs(x)
    extreme = (ax == 0.0) | (ax == inf)
    grows = (ax > 1.0) ^ (y < 0.0)
    r = m.select(extreme | (m.abs(y) == inf), m.select(grows, inf, 0.0), r)
    whole = m.trunc(y) == y
    half = y * 0.5
    odd = whole & (m.trunc(half) != half)
    r = m.select((x < 0.0) & (whole ^ m.constant(1, whole.v.type)) & (ax != inf), nan, r)
    r = m.select(odd, m.copysign(r, x), r)
    r = m.select(x.is_nan() | y.is_nan(), nan, r)
    one = (y == 0.0) | (x == 1.0) | ((ax == 1.0) & (m.abs(y) == inf))
    return m.select(one, 1.0, r)


# --- hyperbolic ------------------------------------------------------------------------------------------------------
def tanh(m: Machine, x: V) -> V:
    a = m.abs(x)
    z = a * a
    near = m.mad(a * z, m.poly(z, TANH[m.fmt]), a)
    p, k = _exp_parts(m, m.select(a > 20.0, 40.0, a + a))
    far = 1.0 - 2.0 / (m.from_bits(m.to_bits(p) + (k << m.fmt.mantissa)) + 1.0)
    return m.copysign(m.select(a <= 0.625, near, m.select(x.is_nan(), x, far)), x)


def sinh(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(sinh, m, x)
    a = m.abs(x)
    z = a * a
    p, k = _exp_parts(m, clamp(m, a, 0.0, 720.0))
    far = m.ldexp(p, k - 1) - m.ldexp(1.0 / p, -1 - k)
    return m.copysign(m.select(a < 1.0, m.mad(a * z, m.poly(z, SINH), a), far), x)


def cosh(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(cosh, m, x)
    p, k = _exp_parts(m, clamp(m, m.abs(x), 0.0, 720.0))
    return m.ldexp(p, k - 1) + m.ldexp(1.0 / p, -1 - k)


def asinh(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(asinh, m, x)
    a = m.abs(x)
    z = m.select(a < 1e9, a * a, 0.0)
    near = log1p(m, a + z / (m.sqrt(z + 1.0) + 1.0))
    return m.copysign(m.select(a < 1e9, near, log(m, a) + LN2), x)


def acosh(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(acosh, m, x)
    t = x - 1.0
    w = m.mad(t, t, t * 2.0)
    root = m.sqrt(w)
    lost = m.fma(-root, root, w) / (root * 2.0)
    u = t + root
    near = log1p(m, u) + m.select(root > 0.0, ((root - (u - t)) + lost) / (u + 1.0), 0.0)
    return m.select(x < 1.0, nan, m.select(x < 1e9, near, log(m, x) + LN2))


def atanh(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(atanh, m, x)
    a = m.abs(x)
    near = m.mad(a * 2.0, a / (1.0 - a), a * 2.0)
    return m.copysign(0.5 * log1p(m, m.select(a < 0.5, near, (a * 2.0) / (1.0 - a))), x)


# --- inverse trigonometric -------------------------------------------------------------------------------------------
def atan(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(atan, m, x)
    a = m.abs(x)
    return m.copysign(_atan_ratio(m, a, m.constant(1.0)), x)


def _atan_ratio(m: Machine, y: V, x: V) -> V:
    """``atan(y / x)`` for ``x, y >= 0``: turned by pi/4 or pi/2 so that the polynomial sees |t| <= tan(pi/8)."""
    middle = y > x * 0.41421356237309503
    steep = y > x * 2.414213562373095
    num = m.select(steep, -x, m.select(middle, y - x, y))
    den = m.select(steep, y, m.select(middle, y + x, x))
    t = num / den
    z = t * t
    hi = m.select(steep, PI_HI / 2, m.select(middle, PI_HI / 4, 0.0))
    lo = m.select(steep, PI_LO / 2, m.select(middle, PI_LO / 4, 0.0))
    return hi + (m.mad(t * z, m.poly(z, ATAN), lo) + t)


def atan2(m: Machine, y: V, x: V) -> V:
    if m.fmt is F32:
        return _wide(atan2, m, y, x)
    ay, ax = m.abs(y), m.abs(x)
    both_inf, both_zero = (ax == inf) & (ay == inf), (ax == 0.0) & (ay == 0.0)
    big = (ax > 2.0**1000) | (ay > 2.0**1000)
    small = (ax < 2.0**-900) & (ay < 2.0**-900)
    scale = m.select(big, 2.0**-60, m.select(small, 2.0**110, 1.0))
    ny = m.select(both_inf, 1.0, ay * scale)
    nx = m.select(both_inf | both_zero, 1.0, ax * scale)
    r = _atan_ratio(m, ny, nx)
    negative = m.to_bits(x) < 0
    return m.copysign(m.select(negative, PI_HI - (r - PI_LO), r), y)


def _asin_parts(m: Machine, x: V) -> tuple[V, V, V]:
    """``(far, s, rest)``: asin of |x| up to 1/2, beyond it of sqrt((1 - |x|) / 2), as the sum of two."""
    a = m.abs(x)
    far = a > 0.5
    z = m.select(far, (1.0 - a) * 0.5, a * a)
    root = m.sqrt(z)
    lost = m.select(root > 0.0, m.fma(-root, root, z) / (root + root), 0.0)
    s = m.select(far, root, a)
    return far, s, m.mad(s * z, m.poly(z, ASIN), m.select(far, lost, 0.0))


def asin(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(asin, m, x)
    far, s, rest = _asin_parts(m, x)
    top = PI_HI / 2 - s * 2.0
    turned = top + (((PI_HI / 2 - top) - s * 2.0) + (PI_LO / 2 - rest * 2.0))
    return m.copysign(m.select(far, turned, s + rest), x)


def acos(m: Machine, x: V) -> V:
    if m.fmt is F32:
        return _wide(acos, m, x)
    far, s, rest = _asin_parts(m, x)
    near = PI_HI / 2 - (m.copysign(s + rest, x) - PI_LO / 2)
    twice = (s + rest) * 2.0
    return m.select(far, m.select(x < 0.0, PI_HI - (twice - PI_LO), twice), near)


# --- erf -------------------------------------------------------------------------------------------------------------
def erf(m: Machine, x: V) -> V:
    a = m.abs(x)
    z = a * a
    near = m.mad(a, m.poly(z, ERF_NEAR[m.fmt]), a)
    if m.fmt is F32:
        b = m.select(a > 4.0, 4.0, a)
        t = m.pairs(b, b * b, ERF_FAR_F32)
        kf, power = m.round_to_power(t, 1.0)
        r = t - kf
        far = m.mad(m.pairs(r, r * r, ERF_EXP2_F32), power, 1.0)
        return m.with_sign(m.select(a <= 1.0, near, far), x)
    b = m.select(a > 6.0, 6.0, a)
    t = (b - 3.0) / (b + 3.0)
    far = 1.0 - _exp_simple(m, -(b * b)) * m.poly(t, ERF_FAR_F64)
    return m.copysign(m.select(a <= 1.0, near, m.select(x.is_nan(), x, far)), x)


def _exp_simple(m: Machine, x: V) -> V:
    """``exp`` where the result is a normal number."""
    p, k = _exp_parts(m, x)
    return m.from_bits(m.to_bits(p) + (k << m.fmt.mantissa))


def _wide(function: object, m: Machine, *args: V) -> V:
    """float32 by way of float64."""
    w = m.at(F64)
    return w.convert(function(w, *(m.convert(a, F64) for a in args)), F32)  # type: ignore[operator]


UNARY = {
    f.__name__: f
    for f in (
        exp, exp2, expm1, log, log2, log10, log1p, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, erf,
    )
}  # fmt: skip
BINARY = {f.__name__: f for f in (pow, atan2)}
