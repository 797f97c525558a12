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
    """The inverse of each matrix; LinAlgError where there is none.  As LAPACK gives it, column by column."""
    _square("inv", input)
    return into(out, ops.inverse(input.mT).mT)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803 - PyTorch's names
    """X with A @ X = B, its columns one after the other in memory; ``left=False``: X @ A = B, by rows."""
    _square("solve", A)
    vector = B.ndim == 1 or tuple(B.shape) == tuple(A.shape[:-1])
    b = B.unsqueeze(-1) if vector else B
    if b.shape[-2 if left else -1] != A.shape[-1]:
        sizes = f"{A.shape[-2]}x{A.shape[-1]} and {b.shape[-2]}x{b.shape[-1]}"
        form = "AX = B" if left else "XA = B"
        raise RuntimeError(f"linalg.solve: Incompatible shapes of A and B for the equation {form} ({sizes})")
    if not left:
        return ops.matmul(*_same_batch(b, ops.inverse(A)))
    found = ops.matmul(*_same_batch(b.mT, ops.inverse(A.mT))).mT
    if not vector:
        return found
    found = found.squeeze(-1)
    return found.mT.contiguous().mT if found.ndim > 1 else found


def _same_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def det(A: Tensor) -> Tensor:  # noqa: N803
    """The determinant of each matrix."""
    _square("det", A)
    return ops.det(A)


def cholesky(A: Tensor) -> Tensor:  # noqa: N803
    """L, lower triangular, with L @ L.T = A for a positive definite A; column by column."""
    _square("cholesky", A)
    return ops.cholesky(A).mT.contiguous().mT
