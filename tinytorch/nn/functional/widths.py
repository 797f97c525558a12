"""Half types compute in float32 and are rounded once, at the end.

Stage: eager.  In: a tensor.  Out: the same values in a type to compute in, and back.  Read next: ``norms``.
"""

from __future__ import annotations

from tinytorch import dtypes, ops
from tinytorch.tensor import Tensor


def wide(x: Tensor) -> Tensor:
    """Half types as float32, others as they are."""
    return ops.cast(x, dtype=dtypes.float32) if x.dtype.itemsize == 2 else x  # type: ignore[no-any-return]


def narrow(x: Tensor, like: Tensor) -> Tensor:
    """``x`` in the type of ``like``."""
    return x if x.dtype is like.dtype else ops.cast(x, dtype=like.dtype)  # type: ignore[no-any-return]
