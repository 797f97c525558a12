"""What NumPy's ufuncs can do and CuPy's cannot (yet): unbuffered updates of some types, accumulation, order of bfloat16.

Stage: eager.  In: an array module and arrays.  Out: what NumPy gives.  On NumPy every function here is NumPy's own.
Types that CuPy cannot update atomically go through a wider one; what has no wider one goes through the host.
Read next: ``ops.indexing``, ``ops.reduce``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: types whose atomic updates CuPy has, by ufunc
_ATOMIC = {
    "add": ("int32", "int64", "float16", "float32", "float64", "uint32", "uint64"),
    "maximum": ("int32", "int64", "uint32", "uint64"),
    "minimum": ("int32", "int64", "uint32", "uint64"),
}
_WIDER = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "int16": "int32", "uint8": "int32", "bool": "int32"}
#: the bits of infinity
_LARGEST = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def update_at(xp: Any, ufunc: str, out: Any, place: Any, values: Any) -> None:
    """``ufunc.at(out, place, values)``: equal places meet one after another."""
    if xp is np:
        getattr(np, ufunc).at(out, place, values)
        return
    name = out.dtype.name
    if name in _LARGEST and ufunc in ("maximum", "minimum"):
        _extreme_at(xp, ufunc, out, place, values)
    elif name in _ATOMIC.get(ufunc, ()):
        getattr(xp, ufunc).at(out, place, values)
    elif ufunc in _ATOMIC and name in _WIDER:
        wide = out.astype(_WIDER[name])
        getattr(xp, ufunc).at(wide, place, values.astype(wide.dtype))
        out[...] = wide.astype(out.dtype)
    else:
        host = xp.asnumpy(out)
        at = tuple(xp.asnumpy(p) if isinstance(p, xp.ndarray) else p for p in place)
        getattr(np, ufunc).at(host, at, xp.asnumpy(values))
        out[...] = xp.asarray(host)


def _extreme_at(xp: Any, ufunc: str, out: Any, place: Any, values: Any) -> None:
    """Of floating-point numbers, by integers in their order: CuPy's own passes NaN over, rounds float64 to float32 on the way
    and takes subnormal numbers for zeros."""
    bits = np.dtype(f"int{8 * out.dtype.itemsize}")
    top, low = np.iinfo(bits).max, np.iinfo(bits).min
    top, wins = bits.type(top), bits.type(top if ufunc == "maximum" else low)  # who wins is NaN as a float

    def turned(x: Any) -> Any:
        """Order of integers to order of numbers, and back: negative ones the other way round."""
        return xp.where(x < 0, x ^ top, x)

    def key(x: Any) -> Any:
        whole = x.view(bits)
        ordered = xp.where((whole & top) > _LARGEST[out.dtype.name], wins, turned(whole))
        return ordered if out.dtype.itemsize > 2 else ordered.astype("int32")

    best = key(out)
    getattr(xp, ufunc).at(best, place, key(values))
    out[...] = turned(best.astype(bits)).view(out.dtype)


def accumulate(xp: Any, ufunc: str, x: Any, axis: int) -> Any:
    """``ufunc.accumulate``; on CuPy by doubling: after step k every element has joined 2**k of its predecessors."""
    if xp is np:
        return getattr(np, ufunc).accumulate(x, axis=axis)
    join = getattr(xp, ufunc)
    out = xp.array(x)
    n, step = x.shape[axis], 1
    ahead: list[Any] = [slice(None)] * x.ndim
    behind = list(ahead)
    while step < n:
        ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
        joined = join(out[tuple(behind)], out[tuple(ahead)])
        out[tuple(ahead)] = joined
        step *= 2
    return out


def argsort(xp: Any, x: Any, axis: int) -> Any:
    """Stable; NaN last."""
    if xp is not np and x.dtype.itemsize == 2 and x.dtype.kind not in "iu":
        x = x.astype(xp.float32)
    return xp.argsort(x, axis, kind="stable")


def floor_divide(xp: Any, x: Any, y: Any) -> Any:
    """Python's ``//`` on floats, by fmod: exact also at infinities and where the quotient is not."""
    if x.dtype.kind not in "fV":
        return xp.floor_divide(x, y)
    rest = xp.fmod(x, y)
    quotient = (x - rest) / y - ((rest != 0) & ((y < 0) != (rest < 0))).astype(x.dtype)
    low = xp.floor(quotient)
    low = xp.where(quotient - low > 0.5, low + 1, low)
    low = xp.where(quotient == 0, xp.copysign(xp.zeros_like(low), x / y), low)
    return xp.where(y == 0, x / y, low).astype(x.dtype)


def remainder(xp: Any, x: Any, y: Any) -> Any:
    """Python's ``%`` on floats: the sign of the divisor."""
    if x.dtype.kind not in "fV":
        return xp.remainder(x, y)
    rest = xp.fmod(x, y)
    turned = xp.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)
    return xp.where(turned == 0, xp.copysign(turned, y), turned).astype(x.dtype)


#: ufuncs that CuPy computes otherwise
OTHERWISE = {"floor_divide": floor_divide, "remainder": remainder}
