"""Images looked at through a grid of places: affine grids, and sampling at them.

Stage: eager.  In: (N, C, H, W) and (N, H', W', 2) places from -1 to 1.  Out: (N, C, H', W') (Jaderberg et al., Spatial
Transformer Networks, 2015).  Mirrors ``torch.nn.functional``.  Read next: ``resize``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.functions.creation import linspace
from tinytorch.tensor import Tensor


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places that the affine maps ``theta`` (N, 2, 3) give for an output of ``size`` (N, C, H, W)."""
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (2, 3) or len(size) != 4:
        raise NotImplementedError("F.affine_grid: theta must be (N, 2, 3) and size (N, C, H, W)")
    n, _, h, w = size
    ys, xs = (_centres(count, theta, bool(align_corners)) for count in (h, w))
    x, y = xs.reshape(1, w).expand(h, w), ys.reshape(h, 1).expand(h, w)
    base = ops.cat(*(t.unsqueeze(-1) for t in (x, y, x * 0 + 1)), dim=2).reshape(1, h * w, 3)
    return (base @ theta.transpose(1, 2)).reshape(n, h, w, 2)


def _centres(count: int, like: Tensor, align_corners: bool) -> Tensor:
    """Of ``count`` pixels between -1 and 1; with ``align_corners`` the outer ones lie on these."""
    if count <= 1:
        return ops.full(shape=(count,), value=0.0, dtype=like.dtype, device=like.device)  # type: ignore[no-any-return]
    steps = linspace(-1, 1, count, dtype=like.dtype, device=like.device)
    return steps if align_corners else steps * ((count - 1) / count)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """``input`` at the places of ``grid``: bilinear or nearest; outside it is zero, its border, or its reflection."""
    if input.dim() != 4 or grid.dim() != 4:
        raise NotImplementedError("F.grid_sample: only 4-d input is supported")
    if grid.shape[-1] != 2:
        raise RuntimeError(f"grid_sampler(): expected grid to have size 2 in last dimension, but got grid with sizes {list(grid.shape)}")
    if mode not in ("bilinear", "nearest"):
        raise NotImplementedError(f"F.grid_sample: mode {mode!r} is not supported")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: '{padding_mode}'")
    aligned = bool(align_corners)
    h, w = input.shape[2:]
    x, y = (_place(grid[..., i], size, padding_mode, aligned) for i, size in enumerate((w, h)))
    if mode == "nearest":
        found = _at(input, ops.round(x), ops.round(y))
        return found + (x * 0 + y * 0).unsqueeze(1) if grid.requires_grad else found  # its gradient is zero, not none
    left, top = ops.floor(x.detach()), ops.floor(y.detach())
    right, below = x - left, y - top
    total: Any = None
    for dy, of_row in ((0, 1 - below), (1, below)):
        for dx, of_column in ((0, 1 - right), (1, right)):
            part = _at(input, left + dx, top + dy) * (of_row * of_column).unsqueeze(1)
            total = part if total is None else total + part
    return total  # type: ignore[no-any-return]


def _place(at: Tensor, size: int, padding_mode: str, aligned: bool) -> Tensor:
    """Coordinates from -1 to 1 as places among ``size`` pixels."""
    x = (at + 1) * ((size - 1) / 2) if aligned else ((at + 1) * size - 1) * 0.5
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        if span <= 0:
            return x * 0
        away = ops.abs(x - low)
        turns = ops.floor(away.detach() / span)
        rest = away - turns * span
        x = ops.where(turns - 2 * ops.floor(turns * 0.5) == 0, rest, span - rest) + low
    return x if padding_mode == "zeros" else x.clamp(0, size - 1)


def _at(input: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The pixels (N, C, H', W') at whole places; zero outside."""
    n, c, h, w = input.shape
    inside = (x >= 0) & (x <= w - 1) & (y >= 0) & (y <= h - 1)
    column, row = (ops.cast(ops.where(inside, t.detach(), 0.0), dtype=dtypes.int64) for t in (x, y))
    place = (row * w + column).reshape(n, 1, math.prod(x.shape[1:])).expand(n, c, -1)
    found = input.reshape(n, c, h * w).gather(2, place).reshape(n, c, *x.shape[1:])
    return ops.where(inside.unsqueeze(1), found, 0.0)  # type: ignore[no-any-return]
