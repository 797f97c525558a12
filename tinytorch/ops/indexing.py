"""Index rows: reads and writes at computed places.

Stage: eager, read by all.  In: tensors, some of integers.  Out: fresh tensors.  Rows that write take the tensor they
start from and give a new one; the in-place functions are these and a write.  Read next: ``composite``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.ops.cupy_gaps import argsort as stable_argsort
from tinytorch.ops.cupy_gaps import update_at
from tinytorch.ops.opdef import TABLE, Meta, Op, Shape, broadcast_shapes, elementwise_strides


def _zeros(shape: Shape, like: Any) -> Any:
    return TABLE["full"](shape=tuple(shape), value=0, dtype=like.dtype, device=like.device)


def _add_at(xp: Any, out: Any, place: Any, values: Any) -> None:
    update_at(xp, "add", out, place, values)


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


def _diagonal_backward_kernel(xp: Any, g: Any, shape: Shape, offset: int, dim1: int, dim2: int) -> Any:
    out = xp.zeros(tuple(shape), g.dtype)
    view: Any = TABLE["diagonal"].kernel
    view(xp, out, offset=offset, dim1=dim1, dim2=dim2)[...] = g
    return out


diagonal_backward = Op(
    name="diagonal_backward",
    kind="index",
    infer=lambda g, shape, offset, dim1, dim2: Meta(tuple(shape), g.dtype),
    kernel=_diagonal_backward_kernel,
    vjp=lambda out, g, shape, offset, dim1, dim2: (
        lambda gg: TABLE["diagonal"](gg, offset=offset, dim1=dim1, dim2=dim2),
    ),
    doc="zeros of ``shape`` with g on the diagonal",
)


def _unfold_backward_kernel(xp: Any, g: Any, shape: Shape, dim: int, size: int, step: int) -> Any:
    """Windows may overlap, so each place of the window is added by itself."""
    out = xp.zeros(tuple(shape), g.dtype)
    if not shape:
        return g.reshape(()) if size else out
    count = g.shape[dim]
    for k in range(size):
        out[(slice(None),) * dim + (slice(k, k + (count - 1) * step + 1, step),)] += g[..., k]
    return out


unfold_backward = Op(
    name="unfold_backward",
    kind="index",
    infer=lambda g, shape, dim, size, step: Meta(tuple(shape), g.dtype),
    kernel=_unfold_backward_kernel,
    vjp=lambda out, g, shape, dim, size, step: (lambda gg: TABLE["unfold"](gg, dim=dim, size=size, step=step),),
    doc="every window's cotangent added up where the window was",
)


# --- cat and flip: affine places --------------------------------------------------------------------------------------
def _cat_infer(*xs: Meta, dim: int) -> Meta:
    first = xs[0]
    total: Any = 0
    for x in xs:
        if len(x.shape) != len(first.shape):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first.shape)} and {len(x.shape)}")
        for d, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if d != dim and a != b:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {a} but got size {b} "
                    f"for tensor number {xs.index(x)} in the list."
                )
        total = total + x.shape[dim]
    dtype = first.dtype
    for x in xs[1:]:
        dtype = dtypes.promote_types(dtype, x.dtype)
    return Meta((*first.shape[:dim], total, *first.shape[dim + 1 :]), dtype)


def _cat_vjp(out: Any, *xs: Any, dim: int) -> Any:
    fns = []
    start: Any = 0
    for x in xs:
        stop = start + x.shape[dim]
        fns.append(lambda g, start=start, stop=stop: TABLE["slice"](g, dim=dim, start=start, stop=stop, step=1))
        start = stop
    return tuple(fns)


def _cat_kernel(xp: Any, *xs: Any, dim: int) -> Any:
    dtype = dtypes.from_numpy(xs[0].dtype)
    for x in xs[1:]:
        dtype = dtypes.promote_types(dtype, dtypes.from_numpy(x.dtype))
    return xp.concatenate([x.astype(dtype.np, copy=False) for x in xs], dim)


cat = Op(name="cat", kind="index", infer=_cat_infer, kernel=_cat_kernel, vjp=_cat_vjp, doc="one after another along dim")

flip: Op = Op(
    name="flip",
    kind="index",
    infer=lambda x, dims: Meta(x.shape, x.dtype, elementwise_strides(x.shape, [x])),
    kernel=lambda xp, x, dims: xp.array(xp.flip(x, dims), order="C"),
    body=lambda index, shape, dims: tuple(shape[d] - 1 - i if d in dims else i for d, i in enumerate(index)),
    vjp=lambda out, x, dims: (lambda g: flip(g, dims=dims),),
    doc="a copy, as in PyTorch",
)


# --- gather and its transpose -----------------------------------------------------------------------------------------
def check_index(xp: Any, index: Any, low: int, high: int, message: str) -> None:
    """IndexError unless ``low <= index < high``; ``{}`` in the message stands for the first bad index."""
    if index.size and (int(index.min()) < low or int(index.max()) >= high):
        bad = index[(index < low) | (index >= high)]
        raise IndexError(message.format(int(bad.reshape(-1)[0])))


def _gather_infer(x: Meta, index: Meta, dim: int) -> Meta:
    _check_along("gather", x, index, dim)
    return Meta(tuple(index.shape), x.dtype)


def _check_along(name: str, x: Meta, index: Meta, dim: int) -> None:
    if index.dtype is not dtypes.int64:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    if len(index.shape) != len(x.shape):
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {'input' if name == 'gather' else 'self'} tensor")
    for d, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and i > n:
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no larger than self "
                f"{list(x.shape)} apart from dimension {dim}"
            )


def _gather_kernel(xp: Any, x: Any, index: Any, dim: int) -> Any:
    if not x.ndim:
        x, shape = x.reshape(1), index.shape
        return xp.asarray(_gather_kernel(xp, x, index.reshape(-1), 0)).reshape(shape)
    size = x.shape[dim]
    check_index(xp, index, 0, size, f"index {{}} is out of bounds for dimension {dim} with size {size}")
    region = tuple(slice(None) if d == dim else slice(0, index.shape[d]) for d in range(x.ndim))
    return xp.take_along_axis(x[region], index, dim)


def _gather_vjp(out: Any, x: Any, index: Any, dim: int) -> Any:
    shape = tuple(x.shape)
    return (lambda g: scatter_add(_zeros(shape, g), index, g, dim=dim), None)


gather = Op(
    name="gather",
    kind="index",
    checks=True,
    infer=_gather_infer,
    kernel=_gather_kernel,
    vjp=_gather_vjp,
    doc="out[i][j] = x[index[i][j]][j] for dim 0, as torch.gather",
)


def _places(xp: Any, x: Any, index: Any, dim: int) -> Any:
    size = x.shape[dim]
    check_index(xp, index, 0, size, f"index {{}} is out of bounds for dimension {dim} with size {size}")
    rank = index.ndim  # CuPy has no sparse grids
    grid = [xp.arange(n).reshape((1,) * d + (n,) + (1,) * (rank - 1 - d)) for d, n in enumerate(index.shape)]
    grid[dim] = index
    return tuple(grid)


def _along(update: Any) -> Any:
    """The kernel that copies ``x`` and lets ``update(xp, out, places, values)`` write into it."""

    def kernel(xp: Any, x: Any, index: Any, src: Any, dim: int, **params: Any) -> Any:
        shape = x.shape
        if not x.ndim:
            x, index, src = x.reshape(1), index.reshape(-1), src.reshape(-1)
        out = xp.array(x, order="C")
        values = src[tuple(slice(0, n) for n in index.shape)]
        update(xp, out, _places(xp, x, index, dim), values, **params)
        return out.reshape(shape)

    return kernel


def _scatter_infer(name: str) -> Any:
    def infer(x: Meta, index: Meta, src: Meta, dim: int, **params: Any) -> Meta:
        _check_along(name, x, index, dim)
        if src.dtype is not x.dtype:
            raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
        for d, (i, n) in enumerate(zip(index.shape, src.shape, strict=True)):
            if i > n:
                raise RuntimeError(
                    f"Expected index {list(index.shape)} to be no larger than src {list(src.shape)} in dimension {d}"
                )
        return Meta(x.shape, x.dtype)

    return infer


def _grad_of_src(index: Any, dim: int, src: Any) -> Any:
    """gather, padded with zeros where ``src`` was larger than ``index``."""
    shape = tuple(src.shape)
    same = shape == tuple(index.shape)

    def of_src(g: Any) -> Any:
        got = gather(g, index, dim=dim)
        if same:
            return got
        for d, size in enumerate(shape):
            got = slice_backward(got, dim=d, size=size, start=0, stop=got.shape[d], step=1)
        return got

    return of_src


def _scatter_vjp(out: Any, x: Any, index: Any, src: Any, dim: int) -> Any:
    ishape = tuple(index.shape)
    return (
        lambda g: scatter(g, index, _zeros(ishape, g), dim=dim),
        None,
        _grad_of_src(index, dim, src),
    )


scatter = Op(
    name="scatter",
    kind="index",
    checks=True,
    infer=_scatter_infer("scatter"),
    kernel=_along(lambda xp, out, places, values: out.__setitem__(places, values)),
    vjp=_scatter_vjp,
    doc="x with src written at index along dim, as torch.scatter; the last of equal places wins",
)
scatter_add = Op(
    name="scatter_add",
    kind="index",
    checks=True,
    infer=_scatter_infer("scatter_add"),
    kernel=_along(_add_at),
    vjp=lambda out, x, index, src, dim: (lambda g: g, None, _grad_of_src(index, dim, src)),
    doc="x with src added at index along dim, as torch.scatter_add",
)


# --- whole slices: index_select and index_add -------------------------------------------------------------------------
def _index_select_kernel(xp: Any, x: Any, index: Any, dim: int) -> Any:
    check_index(xp, index, 0, x.shape[dim], "index out of range in self")
    return xp.take(x, index, axis=dim)


def _index_select_vjp(out: Any, x: Any, index: Any, dim: int) -> Any:
    shape = tuple(x.shape)
    return (lambda g: index_add(_zeros(shape, g), index, g, dim=dim), None)


index_select = Op(
    name="index_select",
    kind="index",
    checks=True,
    infer=lambda x, index, dim: Meta((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), x.dtype),
    kernel=_index_select_kernel,
    vjp=_index_select_vjp,
    doc="x's slices along dim at index, which may have any shape (embedding); negative indices raise",
)


def _index_add_infer(x: Meta, index: Meta, src: Meta, dim: int) -> Meta:
    want = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    if tuple(src.shape) != want:
        raise RuntimeError(f"index_add_(): expected source of shape {list(want)}, got {list(src.shape)}")
    if src.dtype is not x.dtype:
        raise RuntimeError("index_add_(): self and source expected to have the same dtype")
    return Meta(x.shape, x.dtype)


def _index_add_kernel(xp: Any, x: Any, index: Any, src: Any, dim: int) -> Any:
    check_index(xp, index, 0, x.shape[dim], "index out of range in self")
    out = xp.array(x, order="C")
    _add_at(xp, out, (slice(None),) * dim + (index,), src)
    return out


index_add = Op(
    name="index_add",
    kind="index",
    checks=True,
    infer=_index_add_infer,
    kernel=_index_add_kernel,
    vjp=lambda out, x, index, src, dim: (lambda g: g, None, lambda g: index_select(g, index, dim=dim)),
    doc="x with src's slices added at index along dim; index may have any shape",
)


# --- advanced indexing ------------------------------------------------------------------------------------------------
def _index_shape(indices: tuple[Meta, ...]) -> Shape:
    try:
        return broadcast_shapes(*[i.shape for i in indices])
    except RuntimeError:
        shapes = ", ".join(str(list(i.shape)) for i in indices)
        raise IndexError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None


def _index_infer(x: Meta, *indices: Meta, dim: int) -> Meta:
    return Meta((*x.shape[:dim], *_index_shape(indices), *x.shape[dim + len(indices) :]), x.dtype)


def _index_places(xp: Any, x: Any, indices: tuple[Any, ...], dim: int) -> Any:
    for d, i in enumerate(indices, dim):
        size = x.shape[d]
        check_index(xp, i, -size, size, f"index {{}} is out of bounds for dimension {d} with size {size}")
    return (slice(None),) * dim + tuple(indices)


def _index_vjp(out: Any, x: Any, *indices: Any, dim: int) -> Any:
    shape = tuple(x.shape)
    return (
        lambda g: index_put(_zeros(shape, g), g, *indices, dim=dim, accumulate=True),
        *(None for _ in indices),
    )


def _index_kernel(xp: Any, x: Any, *indices: Any, dim: int) -> Any:
    out = xp.ascontiguousarray(x[_index_places(xp, x, indices, dim)])
    shape = x.shape[:dim] + xp.broadcast(*indices).shape + x.shape[dim + len(indices) :]
    return out.reshape(-1).reshape(shape) if out.size else out.reshape(shape)  # with the strides of a new array


index = Op(
    name="index",
    kind="index",
    checks=True,
    infer=_index_infer,
    kernel=_index_kernel,
    vjp=_index_vjp,
    doc="x[:, i, j] for dim 1: integer tensors, broadcast together, for neighbouring dimensions; negative ones wrap",
)


def _index_put_infer(x: Meta, values: Meta, *indices: Meta, dim: int, accumulate: bool) -> Meta:
    want = _index_infer(x, *indices, dim=dim).shape
    try:
        fits = broadcast_shapes(values.shape, want) == tuple(want)
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(want)}"
        )
    if values.dtype is not x.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {x.dtype.title} for the destination and {values.dtype.title} for the source."
        )
    return Meta(x.shape, x.dtype)


def _index_put_kernel(xp: Any, x: Any, values: Any, *indices: Any, dim: int, accumulate: bool) -> Any:
    places = _index_places(xp, x, indices, dim)
    out = xp.array(x, order="C")
    if accumulate:
        _add_at(xp, out, places, values)
    else:
        out[places] = values
    return out


def _index_put_vjp(out: Any, x: Any, values: Any, *indices: Any, dim: int, accumulate: bool) -> Any:
    def of_x(g: Any) -> Any:
        return g if accumulate else index_put(g, _zeros((), g), *indices, dim=dim, accumulate=False)

    return (of_x, lambda g: index(g, *indices, dim=dim), *(None for _ in indices))


index_put = Op(
    name="index_put",
    kind="index",
    checks=True,
    infer=_index_put_infer,
    kernel=_index_put_kernel,
    vjp=_index_put_vjp,
    doc="x with values written (or added) where ``index`` would read; values broadcast",
)


# --- order and search: no lowering, NumPy's or CuPy's own -------------------------------------------------------------
def _argsort_kernel(xp: Any, x: Any, dim: int, descending: bool, stable: bool = True) -> Any:
    """Stable also when descending: the reversed order of the reversed array.  NaN counts as the largest."""
    if not x.ndim:
        return xp.zeros((), xp.int64)
    if not descending:
        return stable_argsort(xp, x, dim).astype(xp.int64)
    order = xp.flip(stable_argsort(xp, xp.flip(x, dim), dim), dim)
    return xp.ascontiguousarray(x.shape[dim] - 1 - order).astype(xp.int64)


argsort = Op(
    name="argsort",
    kind="extern",
    infer=lambda x, dim, descending, stable=True: Meta(x.shape, dtypes.int64),
    kernel=_argsort_kernel,
    recompute="save",
)


def _nonzero_infer(x: Meta) -> Meta:
    raise RuntimeError("nonzero: the shape of the result depends on the data")


nonzero = Op(
    name="nonzero",
    kind="extern",
    infer=_nonzero_infer,
    kernel=lambda xp, x: xp.stack(xp.nonzero(xp.atleast_1d(x))).astype(xp.int64)[: x.ndim].T,
    data_dependent=True,
    doc="int64 [found, dims]",
)

copy_slices = Op(
    name="copy_slices",
    kind="extern",
    infer=lambda x, src: x,
    doc="the tape's name for a write through a view; never run",
)



# --- scatter with a combine -------------------------------------------------------------------------------------------
def _scatter_reduce_update(xp: Any, out: Any, places: Any, values: Any, reduce: str, include_self: bool) -> None:
    ufunc = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}[reduce]
    if not include_self:  # the first value of each place replaces: start from the identity
        kind = out.dtype.kind
        if reduce == "prod":
            out[places] = 1
        elif kind in "iu":
            out[places] = xp.iinfo(out.dtype).min if reduce == "amax" else xp.iinfo(out.dtype).max
        else:
            out[places] = -xp.inf if reduce == "amax" else xp.inf
    update_at(xp, ufunc, out, places, values)


def _scatter_reduce_vjp(out: Any, x: Any, index: Any, src: Any, dim: int, reduce: str, include_self: bool) -> Any:
    """amax, amin: those equal to the result share its cotangent.  prod: the product of the others."""
    if reduce == "prod":
        return _scatter_prod_vjp(out, x, index, src, dim, include_self)

    def shares(g: Any) -> tuple[Any, Any, Any]:
        mine = TABLE["cast"](TABLE["eq"](x, out), dtype=g.dtype)
        if not include_self:
            mine = scatter(mine, index, _zeros(tuple(index.shape), g), dim=dim)
        theirs = TABLE["cast"](TABLE["eq"](src_in(src, index), gather(out, index, dim=dim)), dtype=g.dtype)
        count = scatter_add(mine, index, theirs, dim=dim)
        return mine, theirs, TABLE["div"](g, TABLE["where"](TABLE["eq"](count, 0), 1.0, count))

    def of_x(g: Any) -> Any:
        mine, _, part = shares(g)
        return TABLE["mul"](part, mine)

    def of_src(g: Any) -> Any:
        _, theirs, part = shares(g)
        return padded(TABLE["mul"](gather(part, index, dim=dim), theirs), src)

    return (of_x, None, of_src)


def _scatter_prod_vjp(out: Any, x: Any, index: Any, src: Any, dim: int, include_self: bool) -> Any:
    def of_x(g: Any) -> Any:
        ones = _zeros(tuple(x.shape), g) + 1.0
        others = scatter_reduce(ones, index, src, dim=dim, reduce="prod", include_self=True)
        g = TABLE["mul"](g, others)
        return g if include_self else scatter(g, index, _zeros(tuple(index.shape), g), dim=dim)

    def of_src(g: Any) -> Any:
        part = TABLE["div"](gather(TABLE["mul"](g, out), index, dim=dim), src_in(src, index))
        return padded(part, src)

    return (of_x, None, of_src)


def src_in(src: Any, index: Any) -> Any:
    """The part of ``src`` that ``index`` covers."""
    for d, size in enumerate(index.shape):
        if src.shape[d] != size:
            src = TABLE["slice"](src, dim=d, start=0, stop=size, step=1)
    return src


def padded(g: Any, src: Any) -> Any:
    for d, size in enumerate(src.shape):
        if g.shape[d] != size:
            g = slice_backward(g, dim=d, size=size, start=0, stop=g.shape[d], step=1)
    return g


scatter_reduce = Op(
    name="scatter_reduce",
    kind="index",
    checks=True,
    infer=_scatter_infer("scatter_reduce"),
    kernel=_along(_scatter_reduce_update),
    vjp=_scatter_reduce_vjp,
    doc="x joined with src at index along dim by prod, amax or amin, as torch.scatter_reduce",
)


def _unique_kernel(xp: Any, x: Any) -> Any:
    values, inverse, counts = xp.unique(x, return_inverse=True, return_counts=True)
    return values, inverse.reshape(x.shape).astype(xp.int64), counts.astype(xp.int64)


unique = Op(
    name="unique",
    kind="extern",
    infer=_nonzero_infer,
    kernel=_unique_kernel,
    data_dependent=True,
    outputs=3,
    doc="sorted different values, where each element's stands, how often each occurs",
)
