"""Words that stand for several as straight lines of arithmetic (``joined`` and ``shares`` say where they are written).

Stage: codegen_numba.  In: a ``Machine`` and arguments.  Out: the value.  As in ``math``, where each step alone is within
2 ulp.  Together they take fewer steps and lose fewer digits: no sum is formed of what was rounded and nearly cancels.
Read next: ``joined``, ``shares``.
"""

from __future__ import annotations

from codegen_numba.llvm import F32, F64, Machine, V
from codegen_numba.math import EXP, LN2_HI, LN2_LO, LOG2E, clamp, erf

# log2(1 - erf(x)) on 0 <= x <= 4, where an error counts for less the smaller the power is; it goes on falling beyond
ERFC_LOG2 = (
    -1.6279093027114868, -0.9184063076972961, -0.1485273241996765, 0.02834988199174404, -0.0008808555430732667,
    -0.0014263252960518003, 0.0004264987073838711, -4.309200812713243e-05,
)  # fmt: skip
# 2^r on |r| <= 1/2
EXP2 = (
    1.0, 0.6931471824645996, 0.24022648248340607, 0.05550338327884674, 0.00961855985224247, 0.001339728245511651,
    0.00015322549734264612,
)  # fmt: skip


def logistic(m: Machine, x: V) -> V:
    """``1 / (1 + exp(-x))`` as ``0.5 / (0.5 + p * 2**(k - 1))``: the power is a normal number, or infinite beside what
    is beyond the format."""
    low, high = (-89.2, 80.0) if m.fmt is F32 else (-710.3, 700.0)
    x = clamp(m, x, low, high)
    kf, power = m.round_to_power(x, -LOG2E, down=1)
    r = m.mad(kf, LN2_LO[m.fmt], m.mad(kf, LN2_HI[m.fmt], x))  # exp(-r) = 1 - r + r^2 (...)
    square = r * r
    signs = [c if n % 2 == 0 else -c for n, c in enumerate(EXP[m.fmt])]
    p = m.mad(square, m.pairs(r, square, signs), -r) + 1.0
    return 0.5 / m.mad(p, power, 0.5)


def erf_plus_one(m: Machine, x: V) -> V:
    """``1 + erf(x)``, by ``q = 1 - erf(|x|)`` as a power of two: that is ``q`` for negative ``x``, else ``2 - q``.  Within
    2 ulp from a half on; below, where float32 has digits that a sum of one and a function cannot have, within 2**-23."""
    if m.fmt is F64:
        return erf(m, x) + 1.0
    a = m.abs(x)
    t = a * m.poly(a, ERFC_LOG2)
    t = m.select(t < -127.0, -127.0, t)  # the bits of 2**-127 are those of 0
    kf, power = m.round_to_power(t, 1.0)
    r = t - kf
    p = m.pairs(r, r * r, EXP2)
    signed = m.from_bits(m.to_bits(power) | (~m.to_bits(x) & -(1 << 31)))  # minus for positive x
    return m.mad(p, signed, m.with_sign(m.constant(1.0), x) + 1.0)


def share(m: Machine, x: V, total: V) -> V:
    """``x / total`` for ``0 <= x <= 1 <= total``, by the total's reciprocal, which a loop computes once, and what that
    leaves over (Markstein): what a division gives, or next to it where the quotient is below 2**-100."""
    inverse = 1.0 / total
    quotient = x * inverse
    return m.fma(-m.fma(quotient, total, -x), inverse, quotient)
