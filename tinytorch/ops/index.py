"""Index rows: reads and writes at computed places.

Stage: eager, read by all.  In: tensors, some of integers.  Out: fresh tensors.  Read next: ``composite``.
"""

from __future__ import annotations

from typing import Any

from tinytorch.ops.opdef import TABLE, Meta, Op


# --- the transpose of a slice -----------------------------------------------------------------------------------------
def _slice_backward_kernel(xp: Any, g: Any, dim: int, size: Any, start: Any, stop: Any, step: int) -> Any:
    out = xp.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), g.dtype)
    out[(slice(None),) * dim + (slice(start, stop, step),)] = g
    return out


slice_backward = Op(
    name="slice_backward",
    kind="index",
    infer=lambda g, dim, size, start, stop, step: Meta((*g.shape[:dim], size, *g.shape[dim + 1 :]), g.dtype),
    kernel=_slice_backward_kernel,
    vjp=lambda out, g, **p: (lambda gg: TABLE["slice"](gg, dim=p["dim"], start=p["start"], stop=p["stop"], step=p["step"]),),
    doc="zeros of the sliced tensor's size with g in the slice's place",
)


# --- gather and its transpose -----------------------------------------------------------------------------------------
def check_index(xp: Any, index: Any, size: int, name: str) -> Any:
    """Python's meaning of negative indices; IndexError for those out of range."""
    if index.size and (int(index.max()) >= size or int(index.min()) < -size):
        bad = int(index.max()) if int(index.max()) >= size else int(index.min())
        raise IndexError(f"{name}: index {bad} is out of bounds for dimension with size {size}")
    return index


def _gather_kernel(xp: Any, x: Any, index: Any, dim: int) -> Any:
    if index.size and int(index.min()) < 0:
        raise IndexError(f"gather: index {int(index.min())} is out of bounds for dimension with size {x.shape[dim]}")
    check_index(xp, index, x.shape[dim], "gather")
    region = tuple(slice(None) if d == dim else slice(0, index.shape[d]) for d in range(x.ndim))
    return xp.take_along_axis(x[region], index, dim)


def _gather_vjp(out: Any, x: Any, index: Any, dim: int) -> Any:
    shape = tuple(x.shape)
    return (lambda g: scatter_add(TABLE["full"](shape=shape, value=0, dtype=g.dtype, device=g.device), index, g, dim=dim), None)


gather = Op(
    name="gather",
    kind="index",
    infer=lambda x, index, dim: Meta(tuple(index.shape), x.dtype),
    kernel=_gather_kernel,
    vjp=_gather_vjp,
    doc="out[i][j] = x[index[i][j]][j] for dim 0, as torch.gather",
)


def _scatter_add_kernel(xp: Any, x: Any, index: Any, src: Any, dim: int) -> Any:
    out = x.copy()
    check_index(xp, index, x.shape[dim], "scatter_add")
    grid = list(xp.indices(index.shape, sparse=True))
    grid[dim] = index
    region = tuple(slice(0, n) for n in index.shape)
    if xp.__name__ == "cupy":
        import cupyx

        cupyx.scatter_add(out, tuple(grid), src[region])
    else:
        xp.add.at(out, tuple(grid), src[region])
    return out


scatter_add = Op(
    name="scatter_add",
    kind="index",
    infer=lambda x, index, src, dim: Meta(x.shape, x.dtype),
    kernel=_scatter_add_kernel,
    vjp=lambda out, x, index, src, dim: (lambda g: g, None, lambda g: gather(g, index, dim=dim)),
    doc="x with src added at index along dim, as torch.scatter_add",
)

copy_slices = Op(
    name="copy_slices",
    kind="extern",
    infer=lambda x, src: x,
    doc="the tape's name for a write through a view; never run",
)
