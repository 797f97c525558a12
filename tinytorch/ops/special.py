"""Functions that NumPy lacks: erf, and a ``where`` of random conditions, on whole arrays.

Stage: eager.  In, out: arrays.  Read next: ``spell_numpy``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Chebyshev fits made with mpmath, highest power first.  For |x| < 1: erf(x) / x as a polynomial in x**2.  Beyond:
# erfc(x) * exp(x**2) in t = (x - k) / (x + k), which maps the whole range to a short interval.
_ERF32 = (
    -9.667044571486996e-06, 0.00011265959025606609, -0.0008484080405535107, 0.005221031807858023,
    -0.026865430727670243, 0.11283782495236845, -0.3761263846802871, 1.1283791670615435,
)  # fmt: skip
_ERFC32 = (
    6.637980987588087e-05, -0.0009373964072137776, -0.0008510535306780854, 0.006993574554623805, 0.003733122393799068,
    -0.07897845434111954, 0.24165818990274435, -0.4271858485357617, 0.2553956763229099,
)  # fmt: skip
_ERF64 = (
    5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, -1.6350312701054695e-07,
    1.6461000484121368e-06, -1.4925595266831182e-05, 0.0001205533111164271, -0.000854832698083379,
    0.0052239776248180145, -0.026866170645076792, 0.11283791670954879, -0.3761263890318375, 1.1283791670955126,
)  # fmt: skip
_ERFC64 = (
    -5.268754358611536e-08, 6.023739069612537e-08, 3.852788842266889e-07, 8.437733695417705e-08,
    -1.8153747236957426e-06, -2.300044945205947e-06, 7.554944060575972e-06, 1.8614755740620222e-05,
    -3.4182479158407944e-05, -0.00012887719743195293, 0.00022838039345391708, 0.0008759154514255455,
    -0.0026423659647912615, -0.003993701165892015, 0.03992253907559317, -0.12503305237882892, 0.2517131932174492,
    -0.37173673394897333, 0.2108063640611436,
)  # fmt: skip


_BITS: dict[str, Any] = {"f": np.int32, "d": np.int64}
#: elements from which on it pays, and elements in a block
_MANY = 1 << 13


def select(xp: Any, c: Any, x: Any, y: Any) -> Any:
    """``xp.where``.  NumPy's own branches at every element; where conditions are random, masking out bits is five times faster."""
    dtype = getattr(x if getattr(x, "shape", ()) else y, "dtype", None)
    if xp is not np or np.size(c) < _MANY or dtype is None or dtype.char not in _BITS or not c.flags.c_contiguous:
        return xp.where(c, x, y)
    if any(getattr(v, "dtype", dtype) != dtype or getattr(v, "shape", ()) not in ((), c.shape) for v in (x, y)):
        return xp.where(c, x, y)
    if not all(getattr(v, "flags", c.flags).c_contiguous for v in (x, y)):
        return xp.where(c, x, y)
    bits = _BITS[dtype.char]
    a, b = (np.asarray(v, dtype).view(bits).reshape(-1) for v in (x, y))
    out, mask = np.empty(c.shape, bits), c.view(np.int8).reshape(-1)
    flat = out.reshape(-1)
    for i in range(0, c.size, _MANY):
        part, into = slice(i, i + _MANY), flat[i : i + _MANY]
        into[...] = np.negative(mask[part])  # all bits, or none
        p, q = (v if v.size == 1 else v[part] for v in (a, b))
        np.bitwise_and(into, np.bitwise_xor(p, q), out=into)
        np.bitwise_xor(into, q, out=into)
    return out.view(dtype)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    acc = x * coefficients[0]
    acc += coefficients[1]
    for c in coefficients[2:]:
        acc *= x
        acc += c
    return acc


def erf(xp: Any, x: Any) -> Any:
    """The error function: absolute error below 1e-7 (float32), 2e-16 (float64); NaN stays, erf(-0.0) is -0.0."""
    if xp is not np:
        from cupyx.scipy.special import erf as device_erf

        return device_erf(x)
    x = np.asarray(x)
    if x.dtype.itemsize < 4:
        return erf(xp, x.astype(np.float32)).astype(x.dtype)
    single = x.dtype == np.float32
    near, far, k = (_ERF32, _ERFC32, 2.0) if single else (_ERF64, _ERFC64, 2.5)
    size = np.abs(x)
    inside = x * _horner(near, np.minimum(size, 1) ** 2)
    clipped = np.minimum(size, 4.2 if single else 6.0)
    tail = _horner(far, (clipped - k) / (clipped + k)) * np.exp(-clipped * clipped)
    outside = np.copysign(1 - tail, x)
    return select(np, size < 1, inside, outside).astype(x.dtype, copy=False)
