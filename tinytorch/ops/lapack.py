"""Rows that LAPACK computes: inverse, determinant, Cholesky factor, of batches of square matrices.

Stage: eager, read by all; no stage lowers them.  Rules after Giles, "Collected matrix derivative results for forward
and reverse mode algorithmic differentiation" (2008).  Read next: ``functions.decompositions``.
"""

from __future__ import annotations

from typing import Any

from tinytorch.ops.contract import matmul, transpose
from tinytorch.ops.opdef import TABLE, Meta, Op
from tinytorch.ops.pointwise import conj_of


class LinAlgError(RuntimeError):
    """A matrix that has no inverse, or no such factor.  Mirrors ``torch.linalg.LinAlgError``."""


def _infer(name: str, rank: int) -> Any:
    """``rank``: dimensions that each matrix leaves in the result."""

    def infer(x: Meta) -> Meta:
        if x.dtype.kind not in "fc":
            raise RuntimeError(f"linalg.{name}: Expected a floating point or complex tensor as input. Got {x.dtype.title}")
        if x.dtype.itemsize == 2:
            raise RuntimeError(f"linalg.{name}: Low precision dtypes not supported. Got {x.dtype.title}")
        return Meta(x.shape if rank else x.shape[:-2], x.dtype)

    return infer


def _computed(name: str, compute: Any) -> Any:
    def kernel(xp: Any, x: Any) -> Any:
        try:
            return xp.asarray(compute(xp, x))
        except xp.linalg.LinAlgError as e:
            raise LinAlgError(f"linalg.{name}: The computation could not be completed: {e}") from None

    return kernel


def _adjoint(x: Any) -> Any:
    return transpose(conj_of(x))


def _inverse_vjp(out: Any, x: Any) -> Any:
    def of_x(g: Any) -> Any:
        turned = _adjoint(out)
        return TABLE["neg"](matmul(matmul(turned, g), turned))

    return (of_x,)


inverse = Op(
    name="inverse",
    kind="extern",
    checks=True,
    infer=_infer("inv", 2),
    kernel=_computed("inv", lambda xp, x: xp.linalg.inv(x)),
    vjp=_inverse_vjp,
    recompute="save",
)


def _det_vjp(out: Any, x: Any) -> Any:
    def of_x(g: Any) -> Any:
        scale = TABLE["mul"](g, conj_of(out)).unsqueeze(-1).unsqueeze(-1)
        return TABLE["mul"](scale, _adjoint(inverse(x)))

    return (of_x,)


det = Op(
    name="det",
    kind="extern",
    checks=True,
    infer=_infer("det", 0),
    kernel=_computed("det", lambda xp, x: xp.linalg.det(x)),
    vjp=_det_vjp,
    recompute="save",
)


def _cholesky_vjp(out: Any, x: Any) -> Any:
    """With P the lower triangle of L^H g and half its diagonal: the symmetric part of L^-H P L^-1."""

    def of_x(g: Any) -> Any:
        p = matmul(_adjoint(out), g).tril()
        half = TABLE["sub"](p, TABLE["mul"](p.diagonal(0, -2, -1).diag_embed(), 0.5))
        back = inverse(out)
        whole = matmul(matmul(_adjoint(back), half), back)
        return TABLE["mul"](TABLE["add"](whole, _adjoint(whole)), 0.5)

    return (of_x,)


cholesky = Op(
    name="cholesky",
    kind="extern",
    checks=True,
    infer=_infer("cholesky", 2),
    kernel=_computed("cholesky", lambda xp, x: xp.linalg.cholesky((x + xp.conj(xp.swapaxes(x, -1, -2))) / 2)),
    vjp=_cholesky_vjp,
    recompute="save",
)
