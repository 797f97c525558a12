"""``tinytorch.linalg``: norms, products and what LAPACK gives.  Mirrors the common part of ``torch.linalg``."""

from __future__ import annotations

import math
from typing import Any

from tinytorch import ops
from tinytorch.dtypes import DType
from tinytorch.functions.decompositions import cholesky, det, solve
from tinytorch.functions.decompositions import inverse as inv
from tinytorch.functions.linalg import matmul
from tinytorch.functions.reduction import norm as _norm
from tinytorch.functions.shape import diagonal
from tinytorch.ops.lapack import LinAlgError
from tinytorch.tensor import Tensor

__all__ = [
    "LinAlgError",
    "cholesky",
    "det",
    "diagonal",
    "inv",
    "matmul",
    "matrix_norm",
    "norm",
    "solve",
    "vector_norm",
]


def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:  # noqa: A002
    """(sum |x|**ord) ** (1/ord), over all elements or ``dim``."""
    return _norm(x, ord, dim, keepdim, dtype)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:  # noqa: A002, N803
    """Frobenius, or the largest absolute column (1) or row (inf) sum."""
    if ord == "fro":
        return _norm(A, 2, dim, keepdim)
    rows, cols = (d % A.ndim for d in dim)
    if abs(ord) not in (1, math.inf):
        raise NotImplementedError(
            f"linalg.matrix_norm: ord={ord!r} is not supported (there: 'fro', 1, -1, inf, -inf)"
        )
    summed, kept = (rows, cols) if abs(ord) == 1 else (cols, rows)
    sums = ops.sum(ops.abs(A), dim=(summed,), keepdim=True)
    found = (ops.amax if ord > 0 else ops.amin)(sums, dim=(kept,), keepdim=True)
    return found if keepdim else found.squeeze((rows, cols))


def norm(
    A: Tensor,  # noqa: N803
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Of the flattened tensor, of vectors along ``dim``, or of matrices along two dims."""
    if isinstance(dim, tuple | list) and len(dim) == 2 and ord is not None:
        return matrix_norm(A, ord, tuple(dim), keepdim)
    return _norm(A, 2 if ord in (None, "fro") else ord, dim, keepdim, dtype)
