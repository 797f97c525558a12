"""Reductions, scans and order: ``sum``, ``mean``, ``var``, ``max``, ``cumsum``, ``sort``, ``topk``, ``norm``, ...

Stage: eager.  In: a tensor, dimensions, ``keepdim``.  Out: tensors, from the rows of ``ops.reduce`` and ``ops.index``.
Half types are averaged in float32 and rounded once.  Read next: ``functions.shape``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tinytorch import dtypes, ops
from tinytorch.dtypes import DType
from tinytorch.functions.args import is_int, is_number, need_tensor, wrap_dim, wrap_dims
from tinytorch.functions.pointwise import into
from tinytorch.tensor import Tensor


class MinMax(NamedTuple):
    """What ``max(dim)``, ``sort``, ``topk``, ... return."""

    values: Tensor
    indices: Tensor


def count(x: Tensor, dims: tuple[int, ...]) -> Any:
    """How many elements meet in one result."""
    n: Any = 1
    for d in dims:
        n = n * x.shape[d]
    return n


def cast(x: Tensor, dtype: DType | None) -> Tensor:
    wanted = dtypes.typed(dtype, x.dtype)
    return x if x.dtype is wanted else ops.cast(x, dtype=wanted)


def widen(x: Tensor) -> Tensor:
    """Half types as float32, for composites that round once at the end."""
    return ops.cast(x, dtype=dtypes.float32) if x.dtype.itemsize == 2 and x.dtype.is_floating_point else x


# --- sums -------------------------------------------------------------------------------------------------------------
def sum(  # noqa: A001
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum over ``dim`` (int, tuple; None: all); integers and bools sum as int64.  Mirrors ``torch.sum``."""
    need_tensor("sum", input)
    return into(out, ops.sum(cast(input, dtype), dim=wrap_dims(dim, input.ndim), keepdim=keepdim))


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Sum with NaN counted as zero."""
    return sum(
        ops.where(ops.isnan(input), 0, input) if input.dtype.is_floating_point else input,
        dim,
        keepdim,
        dtype=dtype,
    )


def mean(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Mean over ``dim``; of floating types only.  Mirrors ``torch.mean``."""
    need_tensor("mean", input)
    x = cast(input, dtype)
    if x.dtype.kind not in "fc":
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {x.dtype.title}"
        )
    dims = wrap_dims(dim, x.ndim)
    total = ops.sum(widen(x), dim=dims, keepdim=keepdim)
    return into(out, cast(ops.div(total, count(x, dims)), x.dtype))


def prod(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    out: Any = None,
) -> Tensor:
    """Product over one dimension or all.  Mirrors ``torch.prod``."""
    need_tensor("prod", input)
    return into(out, ops.prod(cast(input, dtype), dim=wrap_dims(dim, input.ndim), keepdim=keepdim))


def any(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:  # noqa: A001
    """Whether any element is not 0; uint8 stays uint8, all else gives bool.  Mirrors ``torch.any``."""
    need_tensor("any", input)
    found = ops.any(input, dim=wrap_dims(dim, input.ndim), keepdim=keepdim)
    return into(out, cast(found, dtypes.uint8) if input.dtype is dtypes.uint8 else found)


def all(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:  # noqa: A001
    """Whether all elements are not 0.  Mirrors ``torch.all``."""
    need_tensor("all", input)
    found = ops.all(input, dim=wrap_dims(dim, input.ndim), keepdim=keepdim)
    return into(out, cast(found, dtypes.uint8) if input.dtype is dtypes.uint8 else found)


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    return sum(ops.ne(input, 0), dim)


# --- spread -----------------------------------------------------------------------------------------------------------
def _var_arguments(dim: Any, unbiased: bool | None, correction: Any) -> tuple[Any, Any]:
    """PyTorch's two overloads: var(unbiased) and var(dim, unbiased), or correction=."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    return dim, correction


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Tensor:
    """Variance with ``correction`` (default 1) taken off the count.  Mirrors ``torch.var``."""
    need_tensor("var", input)
    if input.dtype.kind not in "fc":
        raise RuntimeError("std and var only support floating point and complex dtypes")
    dim, correction = _var_arguments(dim, unbiased, correction)
    return ops.var(input, dim=wrap_dims(dim, input.ndim), keepdim=keepdim, correction=correction)


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Tensor:
    """Square root of ``var``; its gradient is 0 where the deviation is."""
    if input.dtype.kind not in "fc":
        raise RuntimeError("std and var only support floating point and complex dtypes")
    return ops.sqrt_or_zero(var(input, dim, unbiased, keepdim, correction=correction))


def var_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    dims = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, dims, keepdim)


def std_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    dims = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, dims, keepdim)


# --- extremes ---------------------------------------------------------------------------------------------------------
def amax(input: Tensor, dim: Any = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Largest over dims; equal ones share the gradient.  Mirrors ``torch.amax``."""
    return into(out, ops.amax(input, dim=wrap_dims(dim, input.ndim), keepdim=keepdim))


def amin(input: Tensor, dim: Any = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Smallest over dims; equal ones share the gradient.  Mirrors ``torch.amin``."""
    return into(out, ops.amin(input, dim=wrap_dims(dim, input.ndim), keepdim=keepdim))


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = () if dim is None else dim
    return amin(input, dims, keepdim), amax(input, dims, keepdim)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first largest (a NaN counts as largest); of the flattened tensor if ``dim`` is None."""
    return _arg(ops.argmax, input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first smallest (a NaN counts as smallest)."""
    return _arg(ops.argmin, input, dim, keepdim)


def _arg(op: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    need_tensor(op.name, x)
    if dim is not None:
        return op(x, dim=wrap_dim(dim, x.ndim), keepdim=keepdim)
    if x.numel() == 0:
        raise IndexError(
            f"{op.name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
        )
    found = op(x.reshape(-1), dim=0, keepdim=False)
    return found.reshape((1,) * x.ndim) if keepdim else found


def pick(x: Tensor, index: Tensor, dim: int, keepdim: bool) -> MinMax:
    """Values at the (kept) index along ``dim``."""
    values = ops.gather(x, index, dim=dim) if x.ndim else x
    if keepdim or not x.ndim:
        return MinMax(values, index)
    return MinMax(values.squeeze(dim), index.squeeze(dim))


def _extreme(name: str, arg: Any, full: Any, pairwise: Any, x: Tensor, dim: Any, keepdim: bool) -> Any:
    need_tensor(name, x)
    if isinstance(dim, Tensor):
        return pairwise(x, dim)
    if dim is None:
        if x.numel() == 0:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        return full(x, dim=tuple(range(x.ndim)), keepdim=False)
    d = wrap_dim(dim, x.ndim)
    if x.ndim and is_int(x.shape[d]) and type(x.shape[d]) is int and x.shape[d] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    return pick(x, arg(x, dim=d, keepdim=True), d, keepdim)


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:  # noqa: A001
    """Of all; of a dimension (values and indices); or of two tensors.  Mirrors ``torch.max``."""
    return _outs(out, _extreme("max", ops.argmax, ops.amax, ops.maximum, input, dim, keepdim))


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:  # noqa: A001
    """Of all; of a dimension (values and indices); or of two tensors.  Mirrors ``torch.min``."""
    return _outs(out, _extreme("min", ops.argmin, ops.amin, ops.minimum, input, dim, keepdim))


def _outs(out: Any, result: Any) -> Any:
    if out is None:
        return result
    if isinstance(out, Tensor):
        return into(out, result)
    return MinMax(into(out[0], result[0]), into(out[1], result[1]))


# --- scans ------------------------------------------------------------------------------------------------------------
def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None, out: Tensor | None = None) -> Tensor:
    """Running sum; integers as int64.  Mirrors ``torch.cumsum``."""
    need_tensor("cumsum", input)
    return into(out, ops.cumsum(cast(input, dtype), dim=wrap_dim(dim, input.ndim)))


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None, out: Tensor | None = None) -> Tensor:
    """Running product; integers as int64.  Mirrors ``torch.cumprod``."""
    need_tensor("cumprod", input)
    return into(out, ops.cumprod(cast(input, dtype), dim=wrap_dim(dim, input.ndim)))


def cummax(input: Tensor, dim: int) -> MinMax:
    """Running maximum and where it stood (the last of equals); NaN stays.  Mirrors ``torch.cummax``."""
    d = wrap_dim(dim, input.ndim)
    index = ops.cumargmax(input, dim=d)
    return MinMax(ops.gather(input, index, dim=d) if input.ndim else input.clone(), index)


def cummin(input: Tensor, dim: int) -> MinMax:
    """Running minimum and where it stood (the last of equals); NaN stays.  Mirrors ``torch.cummin``."""
    d = wrap_dim(dim, input.ndim)
    index = ops.cumargmin(input, dim=d)
    return MinMax(ops.gather(input, index, dim=d) if input.ndim else input.clone(), index)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp."""
    return ops.logcumsumexp(input, dim=wrap_dim(dim, input.ndim))


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow.  Mirrors ``torch.logsumexp``."""
    need_tensor("logsumexp", input)
    if input.dtype.kind in "iub":
        input = ops.cast(input, dtype=dtypes.get_default_dtype())
    dims = wrap_dims(dim, input.ndim)
    x = widen(input)
    if x.numel() == 0:
        return cast(ops.log(ops.sum(ops.exp(x), dim=dims, keepdim=keepdim)), input.dtype)
    high = ops.amax(x.detach(), dim=dims, keepdim=True)
    high = ops.where(ops.eq(ops.abs(high), math.inf), 0.0, high)
    total = ops.log(ops.sum(ops.exp(ops.sub(x, high)), dim=dims, keepdim=keepdim))
    return cast(ops.add(total, high if keepdim else high.reshape(total.shape)), input.dtype)


# --- order ------------------------------------------------------------------------------------------------------------
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> MinMax:
    """Sorted values and their indices, always stable; NaN counts as the largest.  Mirrors ``torch.sort``."""
    d = wrap_dim(dim, input.ndim)
    index = ops.argsort(input, dim=d, descending=descending)
    return pick(input, index, d, True)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return ops.argsort(input, dim=wrap_dim(dim, input.ndim), descending=descending)


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> MinMax:  # noqa: A002
    """The ``k`` largest (or smallest) along ``dim``, in order.  Mirrors ``torch.topk``."""
    d = wrap_dim(dim, input.ndim)
    if not 0 <= k <= (input.shape[d] if input.ndim else 1):
        raise RuntimeError("selected index k out of range")
    index = ops.argsort(input, dim=d, descending=largest)
    return pick(input, index.narrow(d, 0, k).contiguous() if input.ndim else index, d, True)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> MinMax:
    """The k-th smallest (from 1) along ``dim``."""
    d = wrap_dim(dim, input.ndim)
    if not 1 <= k <= (input.shape[d] if input.ndim else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {d}")
    index = ops.argsort(input, dim=d, descending=False)
    return pick(input, index.narrow(d, k - 1, 1).contiguous() if input.ndim else index, d, keepdim)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median; NaN if there is one.  Mirrors ``torch.median``."""
    if dim is None:
        if input.numel() == 0:
            return input.sum() + math.nan if input.dtype.is_floating_point else input.new_full((), np.iinfo(input.dtype.np).min)
        return kthvalue(input.reshape(-1), (input.numel() + 1) // 2).values
    d = wrap_dim(dim, input.ndim)
    return kthvalue(input, ((input.shape[d] if input.ndim else 1) + 1) // 2, d, keepdim)


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """The values below which the shares ``q`` (a number, or a 1-d tensor: then the first dimension of the result) lie.

    Between two values: "linear", "lower", "higher", "nearest" or "midpoint"; NaN where there is one.
    Mirrors ``torch.quantile``.
    """
    return _quantile(input, q, dim, keepdim, interpolation, skip=False)


def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """``quantile`` of what is no NaN; NaN where nothing is left.  Mirrors ``torch.nanquantile``."""
    return _quantile(input, q, dim, keepdim, interpolation, skip=True)


def _quantile(x: Tensor, q: Any, dim: int | None, keepdim: bool, how: str, skip: bool) -> Tensor:
    name = "nanquantile" if skip else "quantile"
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if how not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {how}"
        )
    if not x.numel():
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if isinstance(q, Tensor):
        if q.ndim > 1 or q.dtype is not x.dtype:
            raise RuntimeError(f"{name}() q must be a scalar or 1D tensor of the input tensor's dtype")
    elif not 0 <= q <= 1:
        raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
    else:
        q = ops.full(shape=(), value=q, dtype=x.dtype, device=x.device)
    single, shape = not q.ndim, list(x.shape)
    if dim is None:
        rows, kept = x.reshape(-1), [1] * x.ndim
    else:
        d = wrap_dim(dim, x.ndim)
        rows = x.movedim(d, -1) if x.ndim else x.reshape(1)
        kept = [1 if i == d else s for i, s in enumerate(shape)]
    rows = sort(rows, -1).values  # NaN last
    n = rows.shape[-1]
    nans = ops.isnan(rows)
    present = (n - nans.sum(-1, keepdim=True)) if skip else ops.full(shape=(1,), value=n, dtype=dtypes.int64)
    at = q.reshape(-1) * (present - 1).clamp_min(0).to(x.dtype)
    at = ops.round(at) if how == "nearest" else at
    low, high = ops.floor(at), ops.ceil(at)
    low, high = (high if how == "higher" else low), (low if how == "lower" else high)
    places = [p.to(dtypes.int64).expand(*rows.shape[:-1], q.numel()) for p in (low, high)]
    a, b = (ops.gather(rows, p, dim=rows.ndim - 1) for p in places)
    out = a + (b - a) * (0.5 if how == "midpoint" else at - low)
    if not skip:
        out = ops.where(nans.any(-1, keepdim=True), float("nan"), out)
    if single:
        out = out[..., 0]
        return out.reshape(kept) if keepdim else out
    out = out.movedim(-1, 0)
    return out.reshape(-1, *kept) if keepdim else out


# --- norms ------------------------------------------------------------------------------------------------------------
def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    """(sum |x|**p) ** (1/p) over ``dim``; p is a number, inf, -inf, 0 or "fro".  Mirrors ``torch.norm``."""
    x = cast(input, dtype)
    if x.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {x.dtype.title}"
        )
    kind, dims = x.dtype.to_real(), wrap_dims(dim, x.ndim)
    x = widen(x)
    p = 2 if p in ("fro", None) else p
    if not is_number(p):
        raise RuntimeError(f"norm: unsupported p = {p!r}")
    size = ops.abs(x)
    if p == math.inf:
        found = ops.amax(size, dim=dims, keepdim=keepdim)
    elif p == -math.inf:
        found = ops.amin(size, dim=dims, keepdim=keepdim)
    elif p == 0:
        found = ops.sum(ops.cast(ops.ne(x, 0), dtype=size.dtype), dim=dims, keepdim=keepdim)
    elif p == 1:
        found = ops.sum(size, dim=dims, keepdim=keepdim)
    elif p == 2:
        found = ops.sqrt_or_zero(
            ops.sum(ops.square(x if x.dtype.is_floating_point else size), dim=dims, keepdim=keepdim)
        )
    else:
        size = ops.where(
            ops.eq(x, 0), 0.0, size
        )  # no gradient from elements that are 0, where |x| ** p is steep
        found = ops.pow(ops.sum(ops.pow(size, p), dim=dims, keepdim=keepdim), 1.0 / p)
    return cast(found, kind)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return norm(ops.sub(input, other), p)


def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """[..., P, M], [..., R, M] -> [..., P, R], the p-norm of every difference.  Mirrors ``torch.cdist``.

    By differences always (``compute_mode`` only says how fast): nothing cancels.
    """
    for i, x in enumerate((x1, x2), 1):
        if not x.dtype.is_floating_point:
            raise RuntimeError(f"cdist only supports floating-point dtypes, X{i} got: {x.dtype.title}")
        if x.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, X{i} got: {x.ndim}D")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    return norm(ops.sub(x1.unsqueeze(-2), x2.unsqueeze(-3)), p, -1)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The mean of what is not NaN."""
    total = nansum(input, dim, keepdim, dtype=dtype)
    count = ops.cast(ops.logical_not(ops.isnan(input)), dtype=total.dtype)
    return ops.div(total, sum(count, dim, keepdim))  # type: ignore[no-any-return]
