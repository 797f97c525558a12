"""Reduction rows: many elements in, one out.

Stage: eager, read by all.  In: a tensor, ``dim`` (a tuple of non-negative ints; all of them for a full reduction) and
``keepdim``.  Out: a tensor.  ``body`` names the combine (``compiler.loop.ir.COMBINES``).  Read next: ``views``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import TABLE, Meta, Op, Shape


def reduced_shape(shape: Shape, dim: tuple[int, ...], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if i in dim else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in dim)


def restore(g: Any, shape: Shape, dim: tuple[int, ...], keepdim: bool) -> Any:
    """A reduced value spread over the reduced dimensions again."""
    if not keepdim:
        g = TABLE["view"](g, shape=reduced_shape(shape, dim, True))
    return TABLE["expand"](g, shape=tuple(shape))


def _sum_dtype(dtype: DType) -> DType:
    return dtypes.int64 if dtype.kind in "iub" else dtype


def _sum_kernel(xp: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    """NumPy sums pairwise along the contiguous axis; half types accumulate in float32."""
    out = _sum_dtype(dtypes.from_numpy(x.dtype)).np
    wide = dtypes.float32.np if out.itemsize == 2 else out
    return xp.asarray(xp.sum(x, axis=dim, keepdims=keepdim, dtype=wide)).astype(out, copy=False)


def _sum_vjp(out: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    shape = tuple(x.shape)
    return (lambda g: restore(g, shape, dim, keepdim),)


sum_ = Op(
    name="sum",
    kind="reduce",
    body="add",
    infer=lambda x, dim, keepdim: Meta(reduced_shape(x.shape, dim, keepdim), _sum_dtype(x.dtype)),
    kernel=_sum_kernel,
    vjp=_sum_vjp,
    doc="integers and bools sum as int64",
)


def _extreme(name: str, combine: str) -> Op:
    def infer(x: Meta, dim: tuple[int, ...], keepdim: bool) -> Meta:
        for d in dim:
            if isinstance(x.shape[d], int) and x.shape[d] == 0:
                raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
        return Meta(reduced_shape(x.shape, dim, keepdim), x.dtype)

    def vjp(out: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
        shape = tuple(x.shape)

        def of_x(g: Any) -> Any:
            """Equal extremes share the cotangent, as in PyTorch's amax."""
            chosen = TABLE["cast"](TABLE["eq"](x, restore(out, shape, dim, keepdim)), dtype=g.dtype)
            count = TABLE["sum"](chosen, dim=dim, keepdim=True)
            spread = restore(g, shape, dim, keepdim)
            return TABLE["div"](TABLE["mul"](spread, chosen), count)

        return (of_x,)

    def kernel(xp: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
        return getattr(xp, combine)(x, axis=dim, keepdims=keepdim)

    return Op(name=name, kind="reduce", body=combine, infer=infer, kernel=kernel, vjp=vjp)


amax = _extreme("amax", "max")
amin = _extreme("amin", "min")
