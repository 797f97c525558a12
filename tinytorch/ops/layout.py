"""Rows about memory itself: any strided look at it, and a slice laid over what was there.

Stage: eager, read by all.  ``as_strided`` is how compiled code sees inputs that overlap; ``slice_scatter`` is what a
write to a slice is as a function.  Read next: ``indexing``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.ops.opdef import TABLE, Meta, Op, Shape
from tinytorch.ops.views import contiguous_strides, numel


# --- as_strided -------------------------------------------------------------------------------------------------------
def _as_strided_infer(x: Meta, shape: Shape, stride: Shape, offset: Any) -> Meta:
    if len(shape) != len(stride):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(stride)} and {list(shape)}")
    return Meta(tuple(shape), x.dtype, tuple(stride), offset)


def _as_strided_kernel(xp: Any, x: Any, shape: Shape, stride: Shape, offset: Any) -> Any:
    """Out-of-bounds looks raise: NumPy's own ``as_strided`` would read what lies there."""
    first, last = offset, offset
    for n, s in zip(shape, stride, strict=True):
        first, last = first + min(0, (n - 1) * s), last + max(0, (n - 1) * s)
    span = 1 + sum((n - 1) * abs(s // x.itemsize) for n, s in zip(x.shape, x.strides, strict=True)) if x.size else 0
    if 0 not in shape and not 0 <= first <= last < span:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(stride)}, offset {offset} reach outside of {span} elements"
        )
    flat = xp.lib.stride_tricks.as_strided(x, (max(span - offset, 0),), (x.itemsize,)) if offset == 0 else (
        xp.lib.stride_tricks.as_strided(x, (span,), (x.itemsize,))[offset:]
    )  # fmt: skip
    return xp.lib.stride_tricks.as_strided(flat, tuple(shape), tuple(s * x.itemsize for s in stride))


def _as_strided_vjp(out: Any, x: Any, shape: Shape, stride: Shape, offset: Any) -> Any:
    before, device = tuple(x.shape), x.device
    if x.stride() != contiguous_strides(before):
        raise RuntimeError("as_strided: the gradient is known for contiguous tensors only")

    def of_x(g: Any) -> Any:
        numbers = TABLE["iota"](size=numel(before), dtype=dtypes.int64, device=device)
        places = as_strided(numbers, shape=shape, stride=stride, offset=offset)
        zeros = TABLE["full"](shape=(numel(before),), value=0, dtype=g.dtype, device=device)
        return TABLE["view"](TABLE["index_add"](zeros, places, g, dim=0), shape=before)

    return (of_x,)


as_strided = Op(
    name="as_strided",
    kind="view",
    infer=_as_strided_infer,
    kernel=_as_strided_kernel,
    vjp=_as_strided_vjp,
    recompute="free",
    doc="memory from x's first element on, in elements; it has no body: what it shows depends on how x lies",
)


# --- slice_scatter ----------------------------------------------------------------------------------------------------
def _slice_scatter_infer(x: Meta, src: Meta, dim: int, start: Any, stop: Any, step: int) -> Meta:
    if len(x.shape) != len(src.shape) or x.dtype is not src.dtype:
        raise RuntimeError(f"slice_scatter: {src} does not fit into {x}")
    return Meta(x.shape, x.dtype)


def _slice_scatter_kernel(xp: Any, x: Any, src: Any, dim: int, start: Any, stop: Any, step: int) -> Any:
    out = xp.array(x, order="C")
    out[(slice(None),) * dim + (slice(start, stop, step),)] = src
    return out


def _slice_scatter_vjp(out: Any, x: Any, src: Any, **p: Any) -> Any:
    shape = tuple(src.shape)

    def of_x(g: Any) -> Any:
        return slice_scatter(g, TABLE["full"](shape=shape, value=0, dtype=g.dtype, device=g.device), **p)

    return of_x, lambda g: TABLE["slice"](g, **p)


slice_scatter = Op(
    name="slice_scatter",
    kind="index",
    infer=_slice_scatter_infer,
    kernel=_slice_scatter_kernel,
    vjp=_slice_scatter_vjp,
    doc="x with src in the slice's place, as torch.slice_scatter; start, stop and step as in ``slice``",
)
