"""Contractions: matrix products, left to BLAS.

Stage: eager, read by all.  In: two tensors of at least two dimensions, equal batch dimensions.  Out: their product.
Broadcasting, vectors and einsum are composed over this one row in ``composite``.  Read next: ``indexing``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.ops.opdef import TABLE, Meta, Op


def _matmul_infer(x: Meta, y: Meta) -> Meta:
    if x.dtype is not y.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {x.dtype.name} != {y.dtype.name}")
    if x.shape[-1] != y.shape[-2]:
        a, b = ("x".join(str(s) for s in m.shape[-2:]) for m in (x, y))
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({a} and {b})")
    if len(x.shape) != len(y.shape) or any(p != q for p, q in zip(x.shape[:-2], y.shape[:-2], strict=True)):
        raise RuntimeError(f"Expected equal batch dimensions, got {list(x.shape)} and {list(y.shape)}")
    return Meta((*x.shape[:-1], y.shape[-1]), x.dtype)


def _matmul_kernel(xp: Any, x: Any, y: Any) -> Any:
    """Half types multiply in float32 and round once."""
    half = x.dtype.itemsize == 2 and x.dtype.kind in "fV"
    if half and (xp.__name__ == "numpy" or (x.ndim > 2 and x.dtype.kind == "V")):  # CuPy has no batches of bfloat16
        wide = dtypes.float32.np
        return xp.matmul(x.astype(wide), y.astype(wide)).astype(x.dtype)
    return xp.matmul(x, y)


def transpose(x: Any) -> Any:
    """The last two dimensions exchanged."""
    n = x.ndim
    return TABLE["permute"](x, dims=(*range(n - 2), n - 1, n - 2))


def _lies_transposed(t: Any) -> bool:
    """Are the columns of ``t`` what is contiguous?"""
    rows, cols = t.stride()[-2:]
    return bool(rows == 1 and cols != 1 and cols == t.shape[-2])


def _conj(t: Any) -> Any:
    return TABLE["conj"](t) if t.dtype.is_complex else t


def _matmul_vjp(out: Any, x: Any, y: Any) -> Any:
    """Each cotangent lies in memory as its operand does, so that a weight used transposed gets a gradient that lies
    like the weight (and an optimizer walks both in one flat loop)."""
    turn_x, turn_y = _lies_transposed(x), _lies_transposed(y)
    return (
        lambda g: transpose(matmul(_conj(y), transpose(g))) if turn_x else matmul(g, transpose(_conj(y))),
        lambda g: transpose(matmul(transpose(g), _conj(x))) if turn_y else matmul(transpose(_conj(x)), g),
    )


matmul = Op(
    name="matmul", kind="contract", infer=_matmul_infer, kernel=_matmul_kernel, vjp=_matmul_vjp, recompute="save"
)
