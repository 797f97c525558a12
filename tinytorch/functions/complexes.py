"""Complex numbers: parts, conjugates, and making them from reals.

Stage: eager.  In: tensors.  Out: tensors.  Mirrors ``torch.real``, ``imag``, ``conj``, ``complex``, ``polar``.
"""

from __future__ import annotations

from tinytorch import ops
from tinytorch.tensor import Tensor


def real(input: Tensor) -> Tensor:
    """The real part."""
    return ops.real(input) if input.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part; RuntimeError for real tensors."""
    if not input.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return ops.imag(input)


def conj(input: Tensor) -> Tensor:
    return ops.conj(input) if input.dtype.is_complex else input


def complex(real: Tensor, imag: Tensor) -> Tensor:  # noqa: A001
    """real + i * imag."""
    dtype = real.dtype.to_complex()
    return ops.add(ops.cast(real, dtype=dtype), ops.mul(ops.cast(imag, dtype=dtype), 1j))


def polar(abs: Tensor, angle: Tensor) -> Tensor:  # noqa: A002
    """abs * (cos(angle) + i * sin(angle))."""
    return complex(ops.mul(abs, ops.cos(angle)), ops.mul(abs, ops.sin(angle)))
