"""Tensors put together from small parts, and differences of neighbours: functions of the functions of ``shape``.

Stage: eager.  Mirrors ``torch``'s functions of these names.  Read next: ``reduction``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes, ops
from tinytorch.functions.args import is_int
from tinytorch.functions.creation import tensor
from tinytorch.functions.shape import cat, diag_embed, narrow, tensor_split
from tinytorch.tensor import Tensor


def _at_least(n: int, tensors: Any, widen: Any) -> Any:
    many = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    found = tuple(widen(t) if t.ndim < n else t for t in many)
    return found if many is not tensors or len(found) != 1 else found[0]


def atleast_1d(*tensors: Any) -> Any:
    """0-d tensors as 1-d ones."""
    return _at_least(1, tensors, lambda t: t.reshape(1))


def atleast_2d(*tensors: Any) -> Any:
    """Tensors of fewer dimensions as rows."""
    return _at_least(2, tensors, lambda t: t.reshape(1, -1))


def atleast_3d(*tensors: Any) -> Any:
    """Vectors as (1, n, 1), matrices as (m, n, 1)."""
    return _at_least(3, tensors, lambda t: t.unsqueeze(-1) if t.ndim == 2 else t.reshape(1, -1, 1))


def column_stack(tensors: Any) -> Tensor:
    """Side by side, vectors as columns."""
    return cat([t.reshape(t.numel(), 1) if t.ndim < 2 else t for t in tensors], 1)


def dstack(tensors: Any) -> Tensor:
    """Behind each other, along the third dimension."""
    return cat(list(atleast_3d(list(tensors)) if len(tensors) > 1 else [atleast_3d(tensors[0])]), 2)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Columns apart; of a vector its elements."""
    return _evenly("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Rows apart."""
    return _evenly("vsplit", input, indices_or_sections, 0, 2)


def _evenly(name: str, x: Tensor, parts: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if x.ndim < least:
        raise RuntimeError(f"torch.{name} requires a tensor with at least {least} dimension{'s' * (least > 1)}, but got a tensor with {x.ndim} dimensions!")
    if is_int(parts) and (parts <= 0 or x.shape[dim] % parts):
        raise RuntimeError(
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension {x.shape[dim]} is not "
            f"divisible by the split_size {parts}!"
        )
    return tensor_split(x, parts, dim)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The area under ``y`` at the places ``x``, or at places ``dx`` apart."""
    n = y.shape[dim]
    if n == 0:
        return y.sum(dim)
    pairs = narrow(y, dim, 0, n - 1) + narrow(y, dim, 1, n - 1)
    if x is None:
        return pairs.sum(dim) * (dx / 2)
    if x.ndim == 1:
        widths = diff(x).reshape([n - 1 if d == dim % y.ndim else 1 for d in range(y.ndim)])
    else:
        widths = diff(x.reshape((1,) * (y.ndim - x.ndim) + tuple(x.shape)), dim=dim)
    return (pairs * widths).sum(dim) / 2


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Which elements are among the others."""
    device = next((t.device for t in (elements, test_elements) if isinstance(t, Tensor)), None)
    x, among = (t if isinstance(t, Tensor) else tensor(t, device=device) for t in (elements, test_elements))
    found = ops.any(ops.eq(x.unsqueeze(-1), among.reshape(-1)), dim=(x.ndim,), keepdim=False)
    return ops.logical_not(found) if invert else found


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements on its diagonal."""
    return diag_embed(input.reshape(-1), offset)


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere."""
    blocks = [atleast_2d(t) for t in tensors]
    width, rows, start = sum(b.shape[1] for b in blocks), [], 0
    for b in blocks:
        place = {"dim": 1, "size": width, "start": start, "stop": start + b.shape[1], "step": 1}
        rows.append(ops.slice_backward(b, **place))
        start += b.shape[1]
    return cat(rows, 0)


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Each element less the one before it, ``n`` times over."""
    x = cat([t for t in (prepend, input, append) if t is not None], dim) if prepend is not None or append is not None else input
    for _ in range(n):
        if x.shape[dim] == 0:
            break
        after, before = narrow(x, dim, 1, x.shape[dim] - 1), narrow(x, dim, 0, x.shape[dim] - 1)
        x = ops.bit_xor(after, before) if x.dtype is dtypes.bool_ else ops.sub(after, before)
    return x
