"""Reduction rows: many elements in, one out.

Stage: eager, read by all.  In: a tensor, ``dim`` (a tuple of non-negative ints; all of them for a full reduction) and
``keepdim``.  Out: a tensor.  ``body`` names the combine (``compiler.loop.ir.COMBINES``).  Read next: ``views``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops.cupy_gaps import accumulate
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


# --- prod, any, all ---------------------------------------------------------------------------------------------------
def _prod_kernel(xp: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    out = _sum_dtype(dtypes.from_numpy(x.dtype)).np
    wide = dtypes.float32.np if out.itemsize == 2 else out
    return xp.asarray(xp.prod(x, axis=dim, keepdims=keepdim, dtype=wide)).astype(out, copy=False)


def _prod_vjp(out: Any, x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    """Products of the others, exact also where factors are zero: exclusive products from both sides."""
    shape = tuple(x.shape)

    def of_x(g: Any) -> Any:
        return TABLE["mul"](restore(g, shape, dim, keepdim), _products_of_others(x, dim))

    return (of_x,)


def _products_of_others(x: Any, dim: tuple[int, ...]) -> Any:
    rest = tuple(d for d in range(x.ndim) if d not in dim)
    moved = TABLE["permute"](x, dims=(*rest, *dim))
    kept = tuple(moved.shape[: len(rest)])
    n: Any = 1
    for size in moved.shape[len(rest) :]:
        n = n * size
    if type(n) is int and n == 0:
        return x
    flat = moved.reshape(*kept, n)
    ones = TABLE["full"](shape=(*kept, 1), value=1, dtype=x.dtype, device=x.device)
    at = len(kept)
    before = TABLE["cumprod"](TABLE["cat"](ones, flat.narrow(at, 0, n - 1), dim=at), dim=at) if n > 1 else ones
    turned = TABLE["flip"](flat, dims=(at,))
    after = TABLE["cumprod"](TABLE["cat"](ones, turned.narrow(at, 0, n - 1), dim=at), dim=at) if n > 1 else ones
    others = TABLE["mul"](before, TABLE["flip"](after, dims=(at,)))
    back = tuple(sorted(range(x.ndim), key=(*rest, *dim).__getitem__))
    return TABLE["permute"](others.reshape(*moved.shape), dims=back)


prod = Op(
    name="prod",
    kind="reduce",
    body="mul",
    infer=lambda x, dim, keepdim: Meta(reduced_shape(x.shape, dim, keepdim), _sum_dtype(x.dtype)),
    kernel=_prod_kernel,
    vjp=_prod_vjp,
)


def _logical(name: str, combine: str) -> Op:
    return Op(
        name=name,
        kind="reduce",
        body=combine,
        infer=lambda x, dim, keepdim: Meta(reduced_shape(x.shape, dim, keepdim), dtypes.bool_),
        kernel=lambda xp, x, dim, keepdim: xp.asarray(getattr(xp, name)(x, axis=dim, keepdims=keepdim)),
        doc="elements count as true when not 0; the result is bool",
    )


any_ = _logical("any", "or")
all_ = _logical("all", "and")


# --- argmax, argmin ---------------------------------------------------------------------------------------------------
def _arg(name: str, combine: str) -> Op:
    def infer(x: Meta, dim: int, keepdim: bool) -> Meta:
        if len(x.shape) and isinstance(x.shape[dim], int) and x.shape[dim] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")
        return Meta(reduced_shape(x.shape, (dim,), keepdim), dtypes.int64)

    def kernel(xp: Any, x: Any, dim: int, keepdim: bool) -> Any:
        if not x.ndim:
            return xp.zeros((), xp.int64)
        return xp.asarray(getattr(xp, name)(x, axis=dim, keepdims=keepdim)).astype(xp.int64, copy=False)

    return Op(name=name, kind="reduce", body=combine, infer=infer, kernel=kernel, doc="the first of equals, the first NaN")


argmax = _arg("argmax", "argmax")
argmin = _arg("argmin", "argmin")


# --- variance ---------------------------------------------------------------------------------------------------------
def count_of(shape: Shape, dim: tuple[int, ...]) -> Any:
    n: Any = 1
    for d in dim:
        n = n * shape[d]
    return n


def _var_kernel(xp: Any, x: Any, dim: tuple[int, ...], keepdim: bool, correction: float) -> Any:
    """Two passes: the mean, then the squares around it."""
    wide = x.astype(dtypes.float32.np) if x.dtype.itemsize == 2 else x
    n = count_of(x.shape, dim)
    mean = xp.mean(wide, axis=dim, keepdims=True) if n else xp.nan
    away = wide - mean
    total = xp.sum((away * away.conj()).real if x.dtype.kind == "c" else away * away, axis=dim, keepdims=keepdim)
    left = max(n - correction, 0)
    scale = total.dtype.type(left)
    return xp.asarray(total / scale).astype(dtypes.from_numpy(x.dtype).to_real().np, copy=False)


def _var_vjp(out: Any, x: Any, dim: tuple[int, ...], keepdim: bool, correction: float) -> Any:
    shape = tuple(x.shape)
    n = count_of(shape, dim)

    def of_x(g: Any) -> Any:
        away = TABLE["sub"](x, TABLE["div"](TABLE["sum"](x, dim=dim, keepdim=True), n))
        left = n - correction
        scale = 2.0 / left if not isinstance(left, int | float) or left > 0 else float("nan")
        return TABLE["mul"](restore(g, shape, dim, keepdim), TABLE["mul"](away, scale))

    return (of_x,)


var = Op(
    name="var",
    kind="reduce",
    body="welford",
    infer=lambda x, dim, keepdim, correction: Meta(reduced_shape(x.shape, dim, keepdim), x.dtype.to_real()),
    kernel=_var_kernel,
    vjp=_var_vjp,
    doc="sum of squares around the mean, divided by max(count - correction, 0)",
)


# --- scans ------------------------------------------------------------------------------------------------------------
def _scan_kernel(ufunc: str) -> Any:
    def kernel(xp: Any, x: Any, dim: int) -> Any:
        out = _sum_dtype(dtypes.from_numpy(x.dtype)).np
        if not x.ndim:
            return x.astype(out)
        wide = dtypes.float32.np if out.itemsize == 2 else out
        made = getattr(xp, ufunc)(x, axis=dim, dtype=wide)
        if ufunc == "cumsum" and wide.kind in "fc":
            made = _from_zero(xp, made, dim)
        return made.astype(out, copy=False)

    return kernel


def _from_zero(xp: Any, sums: Any, dim: int) -> Any:
    """Sums start from 0.0, as those of ``sum`` do; NumPy's scan starts from its first element, which -0.0 shows."""
    first = sums[(slice(None),) * (dim % sums.ndim) + (slice(0, 1),)]
    if xp is not np or (first == 0).any():
        sums += 0.0
    return sums


def _reverse_cumsum(g: Any, dim: int) -> Any:
    return TABLE["flip"](cumsum(TABLE["flip"](g, dims=(dim,)), dim=dim), dims=(dim,)) if g.ndim else g


def _cumprod_vjp(out: Any, x: Any, dim: int) -> Any:
    """Where no factor is zero: reverse cumsum of g * out, divided by x.  At zeros the general rule, quadratic in size."""
    if not x.ndim:
        return (lambda g: g,)

    def of_x(g: Any) -> Any:
        n = x.shape[dim]
        rows = []
        ones = TABLE["full"](shape=(), value=1, dtype=x.dtype, device=x.device)
        for k in range(n):  # d out[j] / d x[k] for j >= k: the product of all up to j but the k-th
            place = TABLE["eq"](TABLE["iota"](size=n, device=x.device), k)
            lined = place.reshape(*(n if d == dim else 1 for d in range(x.ndim)))
            without = cumprod(TABLE["where"](lined, ones, x), dim=dim)
            tail = TABLE["mul"](g, without).narrow(dim, k, n - k)
            rows.append(TABLE["sum"](tail, dim=(dim,), keepdim=True))
        return TABLE["cat"](*rows, dim=dim) if rows else g

    return (of_x,)


def _scan_infer(x: Meta, dim: int) -> Meta:
    return Meta(x.shape, _sum_dtype(x.dtype))


cumsum = Op(
    name="cumsum",
    kind="scan",
    body="add",
    infer=_scan_infer,
    kernel=_scan_kernel("cumsum"),
    vjp=lambda out, x, dim: (lambda g: _reverse_cumsum(g, dim),),
)
cumprod = Op(
    name="cumprod", kind="scan", body="mul", infer=_scan_infer, kernel=_scan_kernel("cumprod"), vjp=_cumprod_vjp
)


def _cumarg_kernel(keeps: str) -> Any:
    """Indices of the running extreme: each one that is not beaten takes over; after a NaN only another NaN does."""

    def kernel(xp: Any, x: Any, dim: int) -> Any:
        if not x.ndim:
            return xp.zeros((), xp.int64)
        best = accumulate(xp, keeps, x, dim)
        place = xp.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        new = (x == best) | (x != x)
        return accumulate(xp, "maximum", xp.where(new, place, 0), dim).astype(xp.int64)

    return kernel


def _cumarg(name: str, keeps: str, combine: str) -> Op:
    return Op(
        name=name,
        kind="extern",
        body=combine,
        infer=lambda x, dim: Meta(x.shape, dtypes.int64),
        kernel=_cumarg_kernel(keeps),
        doc="where the running extreme stands, the last of equals",
    )


cumargmax = _cumarg("cumargmax", "maximum", "argmax")
cumargmin = _cumarg("cumargmin", "minimum", "argmin")


def _logcumsumexp_kernel(xp: Any, x: Any, dim: int) -> Any:
    if not x.ndim:
        return x.copy()
    wide = x.astype(dtypes.float32.np) if x.dtype.itemsize == 2 else x
    return accumulate(xp, "logaddexp", wide, dim).astype(x.dtype, copy=False)


def _logcumsumexp_vjp(out: Any, x: Any, dim: int) -> Any:
    """d out[j] / d x[i] = exp(x[i] - out[j]) for i <= j."""

    def of_x(g: Any) -> Any:
        weighed = TABLE["mul"](g, TABLE["exp"](TABLE["neg"](out)))
        return TABLE["mul"](TABLE["exp"](x), _reverse_cumsum(weighed, dim))

    return (of_x,)


logcumsumexp = Op(
    name="logcumsumexp",
    kind="extern",
    infer=lambda x, dim: Meta(x.shape, x.dtype),
    kernel=_logcumsumexp_kernel,
    vjp=_logcumsumexp_vjp,
)
