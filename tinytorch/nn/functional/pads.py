"""``pad``: constant, reflected, replicated or circular borders.

Stage: eager.  In: a tensor and (before, after) sizes from the last dimension on.  Out: a larger (or cropped) tensor.
A zero border is the transpose of a slice, a row that backward needs anyway; the other modes look up rows at places
computed by index arithmetic.  Mirrors ``torch.nn.functional.pad``.  Read next: ``conv``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.tensor import Tensor


def pad(input: Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Tensor:
    """``pad`` = (left, right, top, bottom, ...): the last dimension first.  Negative sizes crop, in constant mode."""
    pairs = _pairs(input, pad)
    if mode == "constant":
        return _constant(input, pairs, value)
    if mode not in _PLACES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    for dim, (before, after) in pairs:
        if before or after:
            input = _look_up(input, dim, before, after, mode)
    return input


def _pairs(input: Tensor, pad: Sequence[Any]) -> list[tuple[int, tuple[Any, Any]]]:
    """(dimension, (before, after)) for each padded dimension."""
    if len(pad) % 2:
        raise ValueError("Padding length must be divisible by 2")
    if len(pad) // 2 > input.dim():
        raise ValueError(
            f"Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {input.dim()}"
        )
    return [(input.dim() - 1 - i, (pad[2 * i], pad[2 * i + 1])) for i in range(len(pad) // 2)]


def _constant(input: Tensor, pairs: list[tuple[int, tuple[Any, Any]]], value: float | None) -> Tensor:
    out = _zeros_around(input, pairs)
    if not value:
        return out if out is not input else input.clone()
    inside = ops.full(shape=tuple(input.shape), value=True, dtype=dtypes.bool_, device=input.device)
    return ops.where(_zeros_around(inside, pairs), out, value)


def _zeros_around(x: Tensor, pairs: list[tuple[int, tuple[Any, Any]]]) -> Tensor:
    for dim, (before, after) in pairs:
        size = x.shape[dim]
        total = size + before + after
        if total < 0:
            raise RuntimeError(f"pad: dimension {dim} of size {size} would have size {total}")
        start, stop = max(-before, 0), size - max(-after, 0)
        if start or stop != size:
            x = ops.slice(x, dim=dim, start=start, stop=stop, step=1)
        if before > 0 or after > 0:
            left = max(before, 0)
            x = ops.slice_backward(x, dim=dim, size=total, start=left, stop=left + x.shape[dim], step=1)
    return x


# --- other modes ------------------------------------------------------------------------------------------------------
def _reflect(i: Tensor, size: Any) -> Tensor:
    return (size - 1) - ops.abs((size - 1) - ops.abs(i))


def _replicate(i: Tensor, size: Any) -> Tensor:
    return ops.minimum(ops.maximum(i, 0), size - 1)


def _circular(i: Tensor, size: Any) -> Tensor:
    return ops.mod(i, size)


#: mode -> from places in the padded dimension, counted from the first unpadded one, to places in the input
_PLACES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reflect": _reflect, "replicate": _replicate, "circular": _circular,
}  # fmt: skip


def _look_up(x: Tensor, dim: int, before: Any, after: Any, mode: str) -> Tensor:
    size = x.shape[dim]
    if mode == "reflect" and (before >= size or after >= size):
        raise RuntimeError(
            f"Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {dim} of input {list(x.shape)}"
        )
    if mode == "circular" and (before > size or after > size):
        raise RuntimeError("Padding value causes wrapping around more than once.")
    places = ops.iota(size=size + before + after, device=x.device) - before
    return ops.index_select(x, _PLACES[mode](places, size), dim=dim)
