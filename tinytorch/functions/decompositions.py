"""Solving and factoring, left to LAPACK: ``inverse``, ``solve``, ``det``, ``cholesky``.

Stage: eager.  In: square matrices, or batches of them.  Out: tensors, through the rows of ``ops.lapack``.
Mirrors ``torch.linalg`` for these names.  Read next: ``ops.lapack``.
"""

from __future__ import annotations

from tinytorch import ops
from tinytorch.functions.args import need_tensor
from tinytorch.functions.pointwise import into
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor


def _square(name: str, x: Tensor) -> None:
    need_tensor(name, x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {' by '.join(map(str, x.shape[-2:]))} matrices"
        )


def inverse(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The inverse of each matrix; LinAlgError where there is none."""
    _square("inv", input)
    return into(out, ops.inverse(input))


def solve(A: Tensor, B: Tensor) -> Tensor:  # noqa: N803 - PyTorch's names
    """X with A @ X = B."""
    _square("solve", A)
    vector = B.ndim == 1 or B.ndim == A.ndim - 1
    found = ops.matmul(*_same_batch(ops.inverse(A), B.unsqueeze(-1) if vector else B))
    return found.squeeze(-1) if vector else found


def _same_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def det(A: Tensor) -> Tensor:  # noqa: N803
    """The determinant of each matrix."""
    _square("det", A)
    return ops.det(A)


def cholesky(A: Tensor) -> Tensor:  # noqa: N803
    """L, lower triangular, with L @ L.T = A for a positive definite A."""
    _square("cholesky", A)
    return ops.cholesky(A)
