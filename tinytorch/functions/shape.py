"""Views, copies of shape, joining and parting: ``reshape``, ``transpose``, ``cat``, ``split``, ``tril``, ...

Stage: eager.  In: tensors and ints (maybe symbolic).  Out: views wherever PyTorch gives views.  Read next:
``functions.indexing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.functions.args import is_int, need_tensor, sizes, wrap_dim
from tinytorch.functions.pointwise import into, number_in
from tinytorch.ops import views
from tinytorch.tensor import Tensor


# --- view, reshape ----------------------------------------------------------------------------------------------------
def infer_size(shape: tuple[Any, ...], numel: Any) -> tuple[Any, ...]:
    """Replace one -1; RuntimeError when the rest does not divide ``numel``."""
    holes = [i for i, s in enumerate(shape) if type(s) is int and s == -1]
    if not holes:
        return shape
    if len(holes) > 1:
        raise RuntimeError("only one dimension can be inferred")
    rest: Any = 1
    for i, s in enumerate(shape):
        if i != holes[0]:
            rest = rest * s
    if rest == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension size -1 "
            "can be any value and is ambiguous"
        )
    if numel % rest != 0:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return (*shape[: holes[0]], numel // rest, *shape[holes[0] + 1 :])


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """A view where strides allow, else a copy.  Mirrors ``torch.reshape``."""
    target = infer_size(sizes(shape), input.numel())
    if views.view_strides(tuple(input.shape), input.stride(), target) is None:
        if views.numel(target) == input.numel():
            input = ops.contiguous(input)
    return ops.view(input, shape=target)


def view(input: Tensor, *shape: Any) -> Tensor:
    """The same memory in another shape; RuntimeError where strides forbid.  ``view(dtype)`` of the same width."""
    if len(shape) == 1 and isinstance(shape[0], dtypes.DType):
        return view_dtype(input, shape[0])
    return ops.view(input, shape=infer_size(sizes(shape), input.numel()))


def view_dtype(input: Tensor, dtype: dtypes.DType) -> Tensor:
    """The same bytes read as another type of the same width."""
    if dtype is input.dtype:
        return input
    return ops.bitcast(input, dtype=dtype)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    return view(input, *other.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    return reshape(input, *other.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions from start to end as one."""
    need_tensor("flatten", input)
    if not input.ndim:
        return input.reshape(1)
    start, end = wrap_dim(start_dim, input.ndim), wrap_dim(end_dim, input.ndim)
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if start == end:
        return input
    shape = tuple(input.shape)
    return reshape(input, *shape[:start], views.numel(shape[start : end + 1]), *shape[end + 1 :])


def ravel(input: Tensor) -> Tensor:
    return reshape(input, -1)


def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """One dimension as several."""
    d = wrap_dim(dim, input.ndim)
    shape = tuple(input.shape)
    inner = infer_size(tuple(sizes), shape[d])
    if views.numel(inner) != shape[d]:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} ({shape[d]}) "
            "in the input tensor"
        )
    return view(input, *shape[:d], *inner, *shape[d + 1 :])


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new dimension of size 1 at ``dim``."""
    d = wrap_dim(dim, input.ndim + 1)
    return ops.unsqueeze(input, dim=d)


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Without the dimensions of size 1 (or those of ``dim`` that are)."""
    shape = tuple(input.shape)
    if dim is None:
        gone = set(range(len(shape)))
    elif isinstance(dim, tuple | list):
        gone = {wrap_dim(d, len(shape)) for d in dim}
    else:
        gone = {wrap_dim(dim, len(shape))}
    drop = tuple(i for i, s in enumerate(shape) if i in gone and type(s) is int and s == 1)
    return ops.squeeze(input, dims=drop)


# --- permute, expand --------------------------------------------------------------------------------------------------
def permute(input: Tensor, *dims: Any) -> Tensor:
    """Dimensions in another order."""
    order = sizes(dims)
    if len(order) != input.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(order)}"
        )
    return ops.permute(input, dims=tuple(wrap_dim(d, input.ndim) for d in order))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    a, b = wrap_dim(dim0, input.ndim), wrap_dim(dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = b, a
    return ops.permute(input, dims=tuple(order))


swapaxes = swapdims = transpose


def t(input: Tensor) -> Tensor:
    """A matrix transposed; fewer dimensions pass."""
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return ops.permute(input, dims=tuple(reversed(range(input.ndim))))


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Dimensions moved to new places, the others kept in order."""
    src = [wrap_dim(d, input.ndim) for d in ((source,) if is_int(source) else source)]
    dst = [wrap_dim(d, input.ndim) for d in ((destination,) if is_int(destination) else destination)]
    order = [-1] * input.ndim
    for s, d in zip(src, dst, strict=True):
        order[d] = s
    rest = iter(d for d in range(input.ndim) if d not in src)
    return ops.permute(input, dims=tuple(next(rest) if o < 0 else o for o in order))


moveaxis = movedim


def expand(input: Tensor, *shape: Any) -> Tensor:
    """Size-1 dimensions repeated without copying; -1 keeps a size."""
    target = list(sizes(shape))
    extra = len(target) - input.ndim
    for i, s in enumerate(target):
        if type(s) is int and s == -1:
            if i < extra:
                raise RuntimeError(
                    f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {i}"
                )
            target[i] = input.shape[i - extra]
    return ops.expand(input, shape=tuple(target))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    return expand(input, *other.shape)


def broadcast_to(input: Tensor, size: Any) -> Tensor:
    return expand(input, *size)


def broadcast_shapes(*shapes: Any) -> Any:
    from tinytorch.ops.opdef import broadcast_shapes as rule
    from tinytorch.tensor import Size

    found = [(s,) if is_int(s) else tuple(s) for s in shapes]
    try:
        return Size(rule(*found))
    except RuntimeError as e:
        raise RuntimeError(
            f"Attempting to broadcast a dimension of mismatching length: shapes {found}: {e}"
        ) from None


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    shape = broadcast_shapes(*[t.shape for t in tensors])
    return tuple(expand(t, *shape) for t in tensors)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal, as the last dimension."""
    a, b = wrap_dim(dim1, input.ndim), wrap_dim(dim2, input.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return ops.diagonal(input, offset=offset, dim1=a, dim2=b)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix (a copy), or the matrix with this diagonal."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return ops.clone(ops.diagonal(input, offset=diagonal, dim1=0, dim2=1))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension on their diagonal."""
    n = input.ndim + 1
    a, b = wrap_dim(dim1, n), wrap_dim(dim2, n)
    side = input.shape[-1] + abs(offset)
    rest = iter(input.shape[:-1])
    shape = tuple(side if d in (a, b) else next(rest) for d in range(n))
    return ops.diagonal_backward(input, shape=shape, offset=offset, dim1=a, dim2=b)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of windows of ``size`` every ``step`` along a dimension."""
    return ops.unfold(input, dim=wrap_dim(dimension, input.ndim), size=size, step=step)


# --- parts ------------------------------------------------------------------------------------------------------------
def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """``length`` slices from ``start``."""
    d = wrap_dim(dim, input.ndim)
    size = input.shape[d]
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if isinstance(start, Tensor):
        start = start.item()
    if not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    if start < 0:
        start = start + size
    if start + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return ops.slice(input, dim=d, start=start, stop=start + length, step=1)


def select(input: Tensor, dim: int, index: Any) -> Tensor:
    """One slice, without its dimension."""
    if not input.ndim:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, input.ndim)
    size = input.shape[d]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input.shape)} at dimension {d}"
        )
    return ops.select(input, dim=d, index=index + size if index < 0 else index)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices along a dimension."""
    d = wrap_dim(dim, input.ndim)
    return tuple(ops.select(input, dim=d, index=i) for i in range(input.shape[d]))


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of ``split_size`` slices each (the last may be smaller), or of the given sizes.  Mirrors ``torch.split``."""
    d = wrap_dim(dim, tensor.ndim)
    size = tensor.shape[d]
    if is_int(split_size_or_sections):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size != 0):
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
        if step == 0 or size == 0:
            return (narrow(tensor, d, 0, 0),)
        count = (size + step - 1) // step
        parts = [step] * (int(count) - 1)
        parts.append(size - step * (int(count) - 1))
    else:
        parts = list(split_size_or_sections)
        total: Any = 0
        for p in parts:
            total = total + p
        if total != size:
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension {dim}), "
                f"but got split_sizes={parts}"
            )
    out, start = [], 0
    for p in parts:
        out.append(ops.slice(tensor, dim=d, start=start, stop=start + p, step=1))
        start = start + p
    return tuple(out)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` views of equal size (the last may be smaller)."""
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    d = wrap_dim(dim, input.ndim)
    size = input.shape[d]
    step = (size + chunks - 1) // chunks
    if step == 0:
        return tuple(narrow(input, d, 0, 0) for _ in range(chunks))
    return split(input, step, d)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """At the given places, or in sections as equal as can be."""
    d = wrap_dim(dim, input.ndim)
    size = input.shape[d]
    if is_int(indices_or_sections):
        n = indices_or_sections
        cuts = [i * (size // n) + min(i, size % n) for i in range(1, n)]
    else:
        cuts = [c + size if c < 0 else min(c, size) for c in indices_or_sections]
    edges = [0, *cuts, size]
    return tuple(narrow(input, d, a, max(b - a, 0)) for a, b in itertools.pairwise(edges))


# --- joining ----------------------------------------------------------------------------------------------------------
def cat(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """One after another along ``dim``; empty 1-d tensors are skipped.  Mirrors ``torch.cat``."""
    tensors = list(tensors)
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    for i, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(x).__name__}")
        if not x.ndim:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    kept = [
        x for x in tensors if not (x.ndim == 1 and type(x.shape[0]) is int and x.shape[0] == 0)
    ] or tensors[:1]
    return into(out, ops.cat(*kept, dim=wrap_dim(dim, kept[0].ndim)))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Side by side along a new dimension.  Mirrors ``torch.stack``."""
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    first = tensors[0]
    for i, x in enumerate(tensors):
        if tuple(x.shape) != tuple(first.shape):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    d = wrap_dim(dim, first.ndim + 1)
    return into(out, ops.cat(*[ops.unsqueeze(x, dim=d) for x in tensors], dim=d))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    tensors = [x.reshape(1) if not x.ndim else x for x in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    return cat([x.reshape(1, -1) if x.ndim < 2 else x for x in tensors], 0)


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """Tiles: ``repeats`` times along each dimension, new ones in front.  Mirrors ``torch.Tensor.repeat``."""
    times = sizes(repeats)
    extra = len(times) - input.ndim
    if extra < 0:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    shape = (1,) * extra + tuple(input.shape)
    x = input.reshape([n for s in shape for n in (1, s)])
    x = expand(x, *[n for r, s in zip(times, shape, strict=True) for n in (r, s)])
    return ops.contiguous(x).view([r * s for r, s in zip(times, shape, strict=True)])


def tile(input: Tensor, dims: Any) -> Tensor:
    return repeat(input, *((1,) * (input.ndim - len(dims))), *dims)


def repeat_interleave(
    input: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each slice ``repeats`` times in a row.  A tensor of repeats makes the shape depend on data."""
    if dim is None:
        input, dim = input.reshape(-1), 0
    d = wrap_dim(dim, input.ndim)
    shape = tuple(input.shape)
    if is_int(repeats):
        x = expand(unsqueeze(input, d + 1), *shape[: d + 1], repeats, *shape[d + 1 :])
        return ops.contiguous(x).view(*shape[:d], shape[d] * repeats, *shape[d + 1 :])
    ends = repeats.reshape(-1).expand(shape[d]).cumsum(0)
    total = int(ends[-1].item()) if output_size is None and shape[d] else output_size or 0
    places = ops.iota(size=total, device=input.device)
    index = (places.unsqueeze(1) >= ends.unsqueeze(0)).sum(1)
    return ops.index_select(input, index, dim=d)


def flip(input: Tensor, *dims: Any) -> Tensor:
    """A copy with dimensions reversed."""
    return ops.flip(input, dims=tuple(wrap_dim(d, input.ndim) for d in sizes(dims)) if input.ndim else ())


def fliplr(input: Tensor) -> Tensor:
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    return flip(input, 0)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along dimensions, those that leave coming in at the other end."""
    if dims is None or dims == ():
        return roll(input.reshape(-1), shifts, 0).reshape(input.shape)
    for shift, dim in zip(*((x,) if is_int(x) else x for x in (shifts, dims)), strict=True):
        d = wrap_dim(dim, input.ndim)
        size = input.shape[d]
        at = (size - shift) % size if size else 0
        input = cat([narrow(input, d, at, size - at), narrow(input, d, 0, at)], d)
    return input


def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    a, b = dims
    k %= 4
    if k == 0:
        return input.clone()
    if k == 2:
        return flip(input, a, b)
    return flip(transpose(input, a, b), a) if k == 1 else transpose(flip(input, a), a, b)


# --- triangles, grids -------------------------------------------------------------------------------------------------
def _triangle(input: Tensor, keep: Any) -> Tensor:
    if input.ndim < 2:
        raise RuntimeError("tril: input tensor must have at least 2 dimensions")
    rows = ops.iota(size=input.shape[-2], device=input.device).unsqueeze(1)
    cols = ops.iota(size=input.shape[-1], device=input.device)
    return ops.where(keep(cols, rows), input, number_in(input.dtype, 0))


def tril(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """On and below the ``diagonal``-th diagonal, zeros elsewhere."""
    return into(out, _triangle(input, lambda c, r: ops.le(c, ops.add(r, diagonal))))


def triu(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """On and above the ``diagonal``-th diagonal, zeros elsewhere."""
    return into(out, _triangle(input, lambda c, r: ops.ge(c, ops.add(r, diagonal))))


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid, one tensor per axis, as views; "xy" exchanges the first two dimensions."""
    if len(tensors) == 1 and isinstance(tensors[0], tuple | list):
        tensors = tuple(tensors[0])
    if indexing == "xy" and len(tensors) > 1:
        first, second, *rest = tensors
        grids = meshgrid(second, first, *rest)
        return (grids[1], grids[0], *grids[2:])
    n = len(tensors)
    shape = [x.numel() for x in tensors]
    return tuple(
        expand(x.reshape([shape[i] if d == i else 1 for d in range(n)]), *shape)
        for i, x in enumerate(tensors)
    )


def cartesian_prod(*tensors: Tensor) -> Tensor:
    return stack([g.reshape(-1) for g in meshgrid(*tensors)], 1)


# --- complex as pairs -------------------------------------------------------------------------------------------------
def view_as_real(input: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, the same memory."""
    if not input.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return ops.view_as_real(input)


def view_as_complex(input: Tensor) -> Tensor:
    """Pairs of reals as complex numbers, the same memory."""
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(
            "view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar type: "
            f"{input.dtype.title}"
        )
    if not input.ndim or input.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    return ops.view_as_complex(input)
