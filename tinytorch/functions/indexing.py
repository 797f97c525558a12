"""``x[...]`` and its kin: ints, slices, None, Ellipsis, bool and integer tensors, mixed; reading and writing.

Stage: eager.  In: an index as Python hands it over.  Out: a view where only ints, slices, None and Ellipsis occur,
else one call of ``ops.index`` (or ``index_put``) on such a view.  Read next: ``ops.index``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinytorch import dispatch, dtypes, ops
from tinytorch.functions import creation
from tinytorch.functions.args import is_int, is_number, need_tensor, wrap_dim
from tinytorch.functions.pointwise import check_number, into
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor


class Place(NamedTuple):
    """A view of the tensor and the index tensors still to be applied, for neighbouring dimensions from ``dim``."""

    view: Tensor
    indices: tuple[Tensor, ...]
    dim: int


# --- reading and writing ----------------------------------------------------------------------------------------------
def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]``."""
    kind = type(index)
    if kind is int:
        return _int(x, 0, index)
    if kind is Tensor and index.dtype is dtypes.bool_ and not index.ndim:
        index = (index,)
    place = locate(x, index)
    if not place.indices:
        return (
            place.view
            if place.view is not x
            else ops.view(x, shape=tuple(x.shape))
            if x.is_contiguous()
            else _all(x)
        )
    return ops.index(place.view, *place.indices, dim=place.dim)


def _all(x: Tensor) -> Tensor:
    return ops.permute(x, dims=tuple(range(x.ndim)))


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``, value broadcast and cast to the type of x."""
    mask = _single_mask(x, index)
    if mask is not None and (is_number(value) or (isinstance(value, Tensor) and value.numel() == 1)):
        _fill_masked(x, mask, value)
        return
    place = locate(x, index)
    value = _as_value(x, value)
    if not place.indices:
        place.view.copy_(_squeeze_front(value, place.view.ndim))
        return
    value = ops.cast(value, dtype=x.dtype) if value.dtype is not x.dtype else value
    value = value.to(x.device) if value.device is not x.device else value
    wanted = place.view.ndim - len(place.indices) + max(i.ndim for i in place.indices)
    value = _squeeze_front(value, wanted)
    put = ops.index_put(place.view, value, *place.indices, dim=place.dim, accumulate=False)
    place.view._assign(put)


def _as_value(x: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if is_number(value):
        check_number(x.dtype, value)
        return ops.full(shape=(), value=value, dtype=x.dtype, device=x.device)
    return creation.tensor(value, dtype=x.dtype, device=x.device)


def _squeeze_front(value: Tensor, ndim: int) -> Tensor:
    """Leading dimensions of size 1 beyond ``ndim`` do not count."""
    while value.ndim > ndim and type(value.shape[0]) is int and value.shape[0] == 1:
        value = value.squeeze(0)
    return value


def _single_mask(x: Tensor, index: Any) -> Tensor | None:
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, Tensor) and index.dtype in (dtypes.bool_, dtypes.uint8) and 0 < index.ndim <= x.ndim:
        return index
    return None


def _fill_masked(x: Tensor, mask: Tensor, value: Any) -> None:
    """A mask with one value needs no search: ``where``."""
    _check_mask(x, mask, 0)
    mask = ops.ne(mask, 0) if mask.dtype is dtypes.uint8 else mask
    for _ in range(x.ndim - mask.ndim):
        mask = mask.unsqueeze(-1)
    value = _as_value(x, value)
    value = value.reshape(()) if value.ndim else value
    x._assign(ops.where(mask, value.to(x.dtype), x))


# --- finding the place ------------------------------------------------------------------------------------------------
def locate(x: Tensor, index: Any) -> Place:
    """Apply what makes views; gather what needs ``ops.index``."""
    items = _items(index)
    used = sum(_uses(i) for i in items)
    if used > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    if not any(i is Ellipsis for i in items):
        items = [*items, Ellipsis]
    found: list[Tensor | None] = []  # one per dimension of the view so far
    original = x
    dim = 0
    position = 0  # in the tensor as it was, for messages
    for item in items:
        if isinstance(item, Tensor) and not item.ndim and item.dtype.kind in "iu" and _known(item):
            item = item.item()  # PyTorch makes it an int too: the result is a view
        if type(item) is int or is_int(item):
            x = _int(x, dim, item, position)
        elif isinstance(item, slice):
            x = _slice(x, dim, item)
            found.append(None)
            dim += 1
        elif item is None:
            x = ops.unsqueeze(x, dim=dim)
            found.append(None)
            dim += 1
        elif item is Ellipsis:
            skip = original.ndim - used
            found += [None] * skip
            dim += skip
            position += skip
        elif isinstance(item, bool):
            x = ops.unsqueeze(x, dim=dim)
            found.append(_constant(x, [0] if item else []))
            dim += 1
        else:
            x, parts = _tensors(x, dim, item)
            found += parts
            dim += len(parts)
        position += _uses(item)
    return _adjacent(x, found)


def _items(index: Any) -> list[Any]:
    if isinstance(index, list) and len(index) < 32 and any(_like_tuple(i) for i in index):
        return (
            index  # PyTorch's rule: a list that holds sequences, tensors, slices or None is meant as a tuple
        )
    return list(index) if isinstance(index, tuple) else [index]


def _known(item: Tensor) -> bool:
    return (
        item.dtype is not dtypes.uint8
        and dispatch.current.interpreter is None
        and not hasattr(item._data, "is_fake")
    )


def _like_tuple(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice | list | tuple | Tensor)


def _uses(item: Any) -> int:
    """How many dimensions of the tensor an item takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor) and item.dtype in (dtypes.bool_, dtypes.uint8):
        return item.ndim
    if isinstance(item, np.ndarray) and item.dtype == bool:
        return item.ndim
    if isinstance(item, list):
        return _uses(creation.tensor(item)) if item and isinstance(item[0], bool | list) else 1
    return 1


def _constant(x: Tensor, values: Any) -> Tensor:
    return creation.tensor(values, dtype=dtypes.int64, device=x.device)


def _int(x: Tensor, dim: int, index: Any, shown: int = 0) -> Tensor:
    if not x.ndim:
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a "
            "0-dim tensor to a number"
        )
    size = x._data.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {shown} with size {size}")
    return ops.select(x, dim=dim, index=index + size if index < 0 else index)


def _slice(x: Tensor, dim: int, s: slice) -> Tensor:
    """Bounds clamped as Python clamps them, on ints that may be symbolic."""
    if not x.ndim:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    size = x._data.shape[dim]
    step = 1 if s.step is None else _index_int(s.step)
    if step <= 0:
        raise ValueError("step must be greater than zero")
    if s.start is None and s.stop is None and step == 1:
        return x
    start = 0 if s.start is None else _clamp(_index_int(s.start), size)
    stop = size if s.stop is None else _clamp(_index_int(s.stop), size)
    if stop < start:
        stop = start
    return ops.slice(x, dim=dim, start=start, stop=stop, step=step)


def _index_int(i: Any) -> Any:
    if is_int(i):
        return i
    if isinstance(i, Tensor) and i.numel() == 1 and i.dtype.kind in "iu":
        return i.item()
    if hasattr(i, "__index__"):
        return i.__index__()
    raise TypeError("slice indices must be integers or None or have an __index__ method")


def _clamp(i: Any, size: Any) -> Any:
    if i < 0:
        i = i + size
        return i if i > 0 else 0
    return i if i < size else size


def _tensors(x: Tensor, dim: int, item: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Integer tensors for the dimensions that an index tensor (list, array) takes; masks give their nonzero places."""
    if isinstance(item, tuple | list | range):
        item = creation.tensor(list(item), device=x.device)
        if item.numel() == 0:
            item = ops.cast(item, dtype=dtypes.int64)
    elif isinstance(item, np.ndarray):
        item = creation.from_numpy(np.ascontiguousarray(item)).to(x.device)
    if isinstance(item, str):
        raise TypeError("new(): invalid data type 'str'")
    if not isinstance(item, Tensor):
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
            f"(got {type(item).__name__})"
        )
    if item.dtype in (dtypes.bool_, dtypes.uint8):
        if not item.ndim:
            x = ops.unsqueeze(x, dim=dim)
            return x, [item.reshape(1).nonzero().squeeze(1)]
        _check_mask(x, item, dim)
        return x, list(item.nonzero().unbind(1))
    if item.dtype.kind not in "iu":
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    item = item if item.dtype is dtypes.int64 else ops.cast(item, dtype=dtypes.int64)
    return x, [item.to(x.device) if item.device is not x.device else item]


def _check_mask(x: Tensor, mask: Tensor, dim: int) -> None:
    for d, size in enumerate(mask.shape):
        if x.shape[dim + d] != size:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match the shape of the indexed tensor "
                f"{list(x.shape)} at index {dim + d}"
            )


def _adjacent(x: Tensor, found: list[Tensor | None]) -> Place:
    """Indexed dimensions side by side: moved to the front if something stands between them, as in PyTorch."""
    at = [d for d, i in enumerate(found) if i is not None]
    indices = tuple(i for i in found if i is not None)
    if not at:
        return Place(x, (), 0)
    if at[-1] - at[0] + 1 == len(at):
        return Place(x, indices, at[0])
    rest = [d for d in range(x.ndim) if d not in at]
    return Place(ops.permute(x, dims=(*at, *rest)), indices, 0)


# --- functions --------------------------------------------------------------------------------------------------------
def gather(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """out[i][j] = input[index[i][j]][j] for dim 0.  Mirrors ``torch.gather``."""
    need_tensor("gather", input)
    return into(out, ops.gather(input, as_index(index), dim=wrap_dim(dim, input.ndim)))


def as_index(index: Tensor) -> Tensor:
    """int32 indices are taken as int64; other types are the row's error."""
    return ops.cast(index, dtype=dtypes.int64) if index.dtype is dtypes.int32 else index


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return ops.gather(input.reshape(-1), indices.reshape(-1), dim=0)
    return gather(input, dim, indices)


def _source(x: Tensor, index: Tensor, src: Any) -> Tensor:
    if isinstance(src, Tensor):
        return src
    return ops.expand(ops.full(shape=(), value=src, dtype=x.dtype, device=x.device), shape=tuple(index.shape))


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, reduce: str | None = None, value: Any = None
) -> Tensor:
    """``input`` with ``src`` (a tensor or number) written at ``index`` along ``dim``.  Mirrors ``torch.scatter``."""
    d, index = wrap_dim(dim, input.ndim), as_index(index)
    source = _source(input, index, value if src is None else src)
    if reduce is None:
        return ops.scatter(input, index, source, dim=d)
    if reduce == "add":
        return ops.scatter_add(input, index, source, dim=d)
    if reduce == "multiply":
        return ops.scatter_reduce(input, index, source, dim=d, reduce="prod", include_self=True)
    raise RuntimeError("reduce argument must be either add or multiply.")


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input`` with ``src`` added at ``index``.  Mirrors ``torch.scatter_add``."""
    return ops.scatter_add(input, as_index(index), src, dim=wrap_dim(dim, input.ndim))


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``input`` joined with ``src`` at ``index`` by sum, prod, mean, amax or amin.  Mirrors ``torch.scatter_reduce``."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    d, index = wrap_dim(dim, input.ndim), as_index(index)
    if reduce in ("sum", "mean"):
        start = input if include_self else ops.scatter(input, index, _source(input, index, 0), dim=d)
        total = ops.scatter_add(start, index, src, dim=d)
        if reduce == "sum":
            return total
        ones = _source(input, index, 1)
        base = creation.ones_like(input) if include_self else creation.zeros_like(input)
        count = ops.clamp_min(ops.scatter_add(base, index, ones, dim=d), 1)
        return ops.div(total, count) if input.dtype.is_floating_point else ops.floordiv(total, count)
    return ops.scatter_reduce(input, index, src, dim=d, reduce=reduce, include_self=include_self)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices along ``dim``.  Mirrors ``torch.index_select``."""
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype.kind not in "iu":
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    d = wrap_dim(dim, input.ndim)
    x = input if input.ndim else input.reshape(1)
    got = ops.index_select(x, index.reshape(-1), dim=d)
    return got if input.ndim else got.reshape(())


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """``input`` with ``alpha * source`` added at slices.  Mirrors ``torch.index_add``."""
    d = wrap_dim(dim, input.ndim)
    source = source if type(alpha) is int and alpha == 1 else ops.mul(source, alpha)
    return ops.index_add(input, index.to(dtypes.int64), source, dim=d)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``input`` with slices replaced."""
    return ops.index_put(input, source, index, dim=wrap_dim(dim, input.ndim), accumulate=False)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """``input`` with slices set to one number."""
    fill = value.to(input.dtype) if isinstance(value, Tensor) else _as_value(input, value)
    return ops.index_put(input, fill, index, dim=wrap_dim(dim, input.ndim), accumulate=False)


def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """``input`` with ``values`` written (or added) at ``input[indices]``.  Mirrors ``torch.index_put``."""
    place = locate(input, tuple(slice(None) if i is None else i for i in indices))
    if place.view is not input:
        raise RuntimeError("index_put: index tensors must stand side by side")
    return ops.index_put(input, values, *place.indices, dim=place.dim, accumulate=accumulate)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements under the mask, flat; the shape depends on data."""
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return getitem(input.expand(*shape), mask.expand(*shape))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``input`` with the elements under the mask replaced by ``source``'s in order."""
    mask = mask.expand(*input.shape)
    order = ops.clamp_min(ops.sub(ops.cumsum(mask.reshape(-1), dim=0), 1), 0)
    taken = ops.index_select(source.reshape(-1), order, dim=0).reshape(input.shape)
    return ops.where(mask, taken, input)


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor."""
    return ops.index(input.reshape(-1), index, dim=0)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Places of elements that are not 0: int64 [found, dims], or one tensor per dimension."""
    found = ops.nonzero(input)
    if not as_tuple:
        return found
    return (
        found.unbind(1)
        if input.ndim
        else (found.reshape(-1) if found.numel() else nonzero(input.reshape(1)).reshape(-1),)
    )


def argwhere(input: Tensor) -> Tensor:
    return ops.nonzero(input)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Any = None,
) -> Any:  # noqa: A002
    """The different elements in order; the shape depends on data."""
    values, inverse, counts = ops.unique(input)
    out = [values] + ([inverse] if return_inverse else []) + ([counts] if return_counts else [])
    return out[0] if len(out) == 1 else tuple(out)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer occurs (or its weights added)."""
    size = max(minlength, int(input.max().item()) + 1 if input.numel() else 0)
    ones = (
        creation.ones(input.shape[0], dtype=dtypes.int64, device=input.device) if weights is None else weights
    )
    return ops.index_add(
        creation.zeros(size, dtype=ones.dtype, device=input.device), input.to(dtypes.int64), ones, dim=0
    )


def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Where each value would be put to keep the last dimension in order."""
    v = input if isinstance(input, Tensor) else creation.tensor(input, dtype=sorted_sequence.dtype)
    s = sorted_sequence
    compare = ops.le if right else ops.lt
    if s.ndim == 1:
        found = compare(s, v.unsqueeze(-1)).sum(-1)
    else:
        found = compare(s.unsqueeze(-2), v.unsqueeze(-1)).sum(-1)
    return found.to(dtypes.int32) if out_int32 else found


def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)
