"""Complex numbers: parts, conjugates, and making them from reals.

Stage: eager.  In: tensors.  Out: tensors.  Mirrors ``torch.real``, ``imag``, ``conj``, ``complex``, ``polar``.
"""

from __future__ import annotations

import math

from tinytorch import dtypes, ops
from tinytorch.tensor import Tensor


def real(input: Tensor) -> Tensor:
    """The real part."""
    return ops.real(input) if input.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part; RuntimeError for real tensors."""
    if not input.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return ops.imag(input)


def angle(input: Tensor) -> Tensor:
    """The angle from the positive reals: pi for negative real numbers."""
    if input.dtype.is_complex:
        return ops.atan2(ops.imag(input), ops.real(input))
    x = input if input.dtype.is_floating_point else ops.cast(input, dtype=dtypes.get_default_dtype())
    return ops.where(ops.lt(x, 0), math.pi, ops.where(ops.ne(x, x), x, 0.0))  # type: ignore[no-any-return]


def conj(input: Tensor) -> Tensor:
    return ops.conj(input) if input.dtype.is_complex else input


def complex(real: Tensor, imag: Tensor) -> Tensor:  # noqa: A001
    """real + i * imag."""
    dtype = real.dtype.to_complex()
    return ops.add(ops.cast(real, dtype=dtype), ops.mul(ops.cast(imag, dtype=dtype), 1j))


def polar(abs: Tensor, angle: Tensor) -> Tensor:  # noqa: A002
    """abs * (cos(angle) + i * sin(angle))."""
    return complex(ops.mul(abs, ops.cos(angle)), ops.mul(abs, ops.sin(angle)))
