"""Comparing tensors in tests.  Mirrors ``torch.testing``.

Stage: tests.  In: two tensors, or trees of them.  Out: nothing, or an AssertionError that says what differs, where, and
by how much.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.functions import creation
from tinytorch.functions.random import integers, uniform_draw
from tinytorch.tensor import Tensor

#: type -> (rtol, atol), as PyTorch has them
TOLERANCE = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False,
    check_device: bool = True, check_dtype: bool = True, check_stride: bool = False, msg: str | None = None, **_: Any,
) -> None:  # fmt: skip
    """Raise AssertionError unless shapes, types and devices agree and |a - b| <= atol + rtol * |b|."""
    if (rtol is None) != (atol is None):
        raise ValueError("rtol and atol must both be specified or both be unspecified")
    found = _difference(actual, expected, rtol, atol, equal_nan, check_device, check_dtype, check_stride, "")
    if found:
        raise AssertionError(msg or found)


def _difference(
    a: Any, b: Any, rtol: Any, atol: Any, nan: bool, device: bool, dtype: bool, stride: bool, at: str
) -> str:
    more = (rtol, atol, nan, device, dtype, stride)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        if len(a) != len(b):
            return f"The length of the sequences mismatch: {len(a)} != {len(b)}{at}"
        return next(
            (
                d
                for i, (x, y) in enumerate(zip(a, b, strict=True))
                if (d := _difference(x, y, *more, f"{at}[{i}]"))
            ),
            "",
        )
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"The keys of the mappings do not match: {set(a) ^ set(b)}{at}"
        return next((d for k in a if (d := _difference(a[k], b[k], *more, f"{at}[{k!r}]"))), "")
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a, b = creation.as_tensor(a), creation.as_tensor(b)
    elif not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return f"Expected two tensors or two numbers, got {type(a).__name__} and {type(b).__name__}{at}"
    return _tensors(a, b, *more, f"\n\nThe failure occurred for item {at}" if at else "")


def _tensors(
    a: Tensor, b: Tensor, rtol: Any, atol: Any, nan: bool, device: bool, dtype: bool, stride: bool, at: str
) -> str:
    if tuple(a.shape) != tuple(b.shape):
        return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}.{at}"
    if dtype and a.dtype is not b.dtype:
        return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}.{at}"
    if device and a.device is not b.device:
        return f"The values for attribute 'device' do not match: {a.device} != {b.device}.{at}"
    if stride and a.stride() != b.stride():
        return f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}.{at}"
    if rtol is None:
        pairs = [TOLERANCE.get(t.dtype.name, (0.0, 0.0)) for t in (a, b)]
        rtol, atol = (max(p[k] for p in pairs) for k in (0, 1))
    x, y = (_numbers(t) for t in (a, b))
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
        close = (x == y) | ((gap <= atol + rtol * np.abs(y)) & np.isfinite(y))
    if nan:
        close = close | ((x != x) & (y != y))
    if close.all():
        return ""
    wrong = ~close
    gap = np.where(wrong, gap, -1)
    place = tuple(
        int(i) for i in np.unravel_index(int(np.nanargmax(np.where(gap != gap, np.inf, gap))), gap.shape)
    )
    return (
        f"Tensor-likes are not close!\n\nMismatched elements: {int(wrong.sum())} / {wrong.size} "
        f"({100 * wrong.mean():.1f}%)\nGreatest absolute difference: {gap[place]} at index {place} (up to {atol} allowed): "
        f"{x[place]} and {y[place]} (up to {rtol} relative allowed){at}"
    )


def _numbers(t: Tensor) -> Any:
    data = t.detach().cpu()
    if t.dtype.is_complex:
        return np.asarray(data.to(dtypes.complex128).numpy())
    if t.dtype is dtypes.int64:
        return np.asarray(data.numpy())
    return np.asarray(data.to(dtypes.float64).numpy())


def make_tensor(
    *shape: Any, dtype: DType, device: Any = None, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """Random values in [low, high): -9 to 9 by default.  Mirrors ``torch.testing.make_tensor``."""
    size = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    size = (*size[:-1], size[-1] * 2) if noncontiguous and size else size
    place = creation.place(device)
    if dtype is dtypes.bool_:
        t = integers(size, 0, 2, place, None).to(dtype)
    elif dtype.kind in "iu":
        least = 0 if dtype.kind == "u" else -9
        t = integers(
            size, int(least if low is None else low), int(10 if high is None else high), place, None
        ).to(dtype)
    else:
        low, high = -9 if low is None else low, 9 if high is None else high
        real = dtypes.float64 if dtype in (dtypes.float64, dtypes.complex128) else dtypes.float32
        t = (uniform_draw(size, real, place, None) * (high - low) + low).to(dtype)
    t = t[..., ::2] if noncontiguous and size else t
    return t.requires_grad_(requires_grad)
