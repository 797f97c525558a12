"""Images to other sizes: interpolation, and moving pixels between channels and space.

Stage: eager.  In: (N, C, *sizes).  Out: other sizes.  Each dimension is resized by itself: rows are looked up at computed
places and mixed with computed weights.  Mirrors ``torch.nn.functional``.  Read next: ``nn.resize``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.nn.functional.conv import as_tuple
from tinytorch.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from tinytorch.tensor import Tensor


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """To ``size``, or by ``scale_factor``.

    mode: nearest, nearest-exact, linear (3-d input), bilinear (4-d), trilinear (5-d), bicubic (4-d), area.
    """
    n = input.dim() - 2
    if antialias and mode not in _FILTERS:
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    if _NEEDS.get(mode, n) != n:
        raise NotImplementedError(f"Got {n + 2}D input, but {mode} mode needs {_NEEDS[mode] + 2}D input")
    sizes, scales = _sizes(input, size, scale_factor, n, recompute_scale_factor)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](input, sizes)
    resize = partial(_filtered, mode=mode) if antialias else _MODES.get(mode)
    if resize is None:
        raise NotImplementedError(f"F.interpolate: mode {mode!r} is not supported")
    for i in range(n):
        input = resize(input, i + 2, sizes[i], scales[i], bool(align_corners))
    return input


_NEEDS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}


def _sizes(
    input: Tensor, size: Any, scale_factor: Any, n: int, recompute: bool | None
) -> tuple[list[Any], list[float | None]]:
    """Output sizes, and the scales to compute places with (None: from the sizes)."""
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined" if size else "either size or scale_factor should be defined")
    for given in (size, scale_factor):
        if isinstance(given, tuple | list) and len(given) != n:
            raise ValueError(
                f"Input and output must have the same number of spatial dimensions, but got input with spatial dimensions "
                f"of {list(input.shape[2:])} and {'output size' if given is size else 'scale factor'} of {list(given)}."
            )
    if size is not None:
        return list(as_tuple(size, n)), [None] * n
    factors = as_tuple(scale_factor, n)
    sizes = [math.floor(s * f) for s, f in zip(input.shape[2:], factors, strict=True)]
    return sizes, [None if recompute else float(f) for f in factors]


def _ratio(old: Any, new: Any, scale: float | None, align_corners: bool) -> float:
    """Input places per output place."""
    if align_corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else old / new


def _places(x: Tensor, count: Any) -> Tensor:
    dtype = x.dtype if x.dtype is dtypes.float64 else dtypes.float32
    return ops.cast(ops.iota(size=count, device=x.device), dtype=dtype)


def _nearest(x: Tensor, dim: int, new: Any, scale: float | None, align_corners: bool, shift: float = 0.0) -> Tensor:
    old = x.shape[dim]
    if old == new and scale is None:
        return x
    at = ops.floor((_places(x, new) + shift) * _ratio(old, new, scale, False))
    return ops.index_select(x, ops.minimum(ops.cast(at, dtype=dtypes.int64), old - 1), dim=dim)  # type: ignore[no-any-return]


def _nearest_exact(x: Tensor, dim: int, new: Any, scale: float | None, align_corners: bool) -> Tensor:
    return _nearest(x, dim, new, scale, align_corners, 0.5)


def _source(x: Tensor, old: Any, new: Any, scale: float | None, align_corners: bool) -> Tensor:
    """Where in the input each output place lies."""
    ratio = _ratio(old, new, scale, align_corners)
    at = _places(x, new)
    return at * ratio if align_corners else (at + 0.5) * ratio - 0.5


def _along(weights: Tensor, dim: int, x: Tensor) -> Tensor:
    shape = tuple(-1 if d == dim else 1 for d in range(x.dim()))
    return weights.reshape(shape) if x.dtype.itemsize < 4 else ops.cast(weights, dtype=x.dtype).reshape(shape)


def _mix(x: Tensor, dim: int, first: Tensor, weights: list[Tensor]) -> Tensor:
    """The sum of the rows from ``first`` on, with these weights; rows outside are the border's."""
    total: Any = None
    for i, weight in enumerate(weights):
        place = ops.minimum(ops.maximum(first + i, 0), x.shape[dim] - 1)
        part = ops.index_select(x, place, dim=dim) * _along(weight, dim, x)
        total = part if total is None else total + part
    return total if total.dtype is x.dtype else ops.cast(total, dtype=x.dtype)  # type: ignore[no-any-return]


def _linear(x: Tensor, dim: int, new: Any, scale: float | None, align_corners: bool) -> Tensor:
    old = x.shape[dim]
    if old == new and scale is None:
        return x
    at = _source(x, old, new, scale, align_corners)
    at = at if align_corners else ops.maximum(at, 0.0)
    below = ops.floor(at)
    share = at - below
    return _mix(x, dim, ops.cast(below, dtype=dtypes.int64), [1 - share, share])


def _cubic(x: Tensor, dim: int, new: Any, scale: float | None, align_corners: bool) -> Tensor:
    """Keys' cubic convolution (1981) with a = -0.75."""
    old = x.shape[dim]
    if old == new and scale is None:
        return x
    at = _source(x, old, new, scale, align_corners)
    below = ops.floor(at)
    t = at - below
    near: Callable[[Tensor], Tensor] = lambda d: (1.25 * d - 2.25) * d * d + 1  # noqa: E731
    far: Callable[[Tensor], Tensor] = lambda d: ((-0.75 * d + 3.75) * d - 6) * d + 3  # noqa: E731
    return _mix(x, dim, ops.cast(below, dtype=dtypes.int64) - 1, [far(t + 1), near(t), near(1 - t), far(2 - t)])


# --- with a filter as wide as the step --------------------------------------------------------------------------------
def _triangle(d: Tensor) -> Tensor:
    return ops.maximum(1 - d, 0.0)  # type: ignore[no-any-return]


def _keys(d: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.5."""
    near, far = (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2
    return ops.where(d < 1, near, ops.where(d < 2, far, 0.0))  # type: ignore[no-any-return]


#: mode -> (how far the filter reaches at a step of one, the filter of distances)
_FILTERS: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {"bilinear": (1.0, _triangle), "bicubic": (2.0, _keys)}


def _filtered(x: Tensor, dim: int, new: Any, scale: float | None, align_corners: bool, mode: str) -> Tensor:
    """Each output is a mean of all input under a filter that shrinking makes wider: nothing is stepped over."""
    old = x.shape[dim]
    if old == new and scale is None:
        return x
    reach, weigh = _FILTERS[mode]
    ratio = _ratio(old, new, scale, align_corners)
    step = max(ratio, 1.0)
    centre = ((_places(x, new) + 0.5) * ratio).unsqueeze(1)
    place = _places(x, old)
    first = ops.maximum(ops.trunc(centre - reach * step + 0.5), 0.0)
    inside = (place >= first) & (place < ops.trunc(centre + reach * step + 0.5))
    weights = ops.where(inside, weigh(ops.abs((place + 0.5 - centre) * (1 / step))), 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    mixed = (x if x.dtype is weights.dtype else ops.cast(x, dtype=weights.dtype)).transpose(dim, -1) @ weights.t()
    mixed = mixed.transpose(dim, -1).contiguous()
    return mixed if mixed.dtype is x.dtype else ops.cast(mixed, dtype=x.dtype)  # type: ignore[no-any-return]


_MODES: dict[str, Callable[..., Tensor]] = {
    "nearest": _nearest, "nearest-exact": _nearest_exact, "linear": _linear, "bilinear": _linear,
    "trilinear": _linear, "bicubic": _cubic,
}  # fmt: skip


# --- channels and space -----------------------------------------------------------------------------------------------
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(*, C r², H, W) to (*, C, H r, W r) (Shi et al., 2016)."""
    *lead, c, h, w = input.shape
    r = upscale_factor
    if c % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={c} is not divisible by {r * r}"
        )
    x = input.reshape(*lead, c // (r * r), r, r, h, w)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.permute(*order).reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(*, C, H r, W r) to (*, C r², H, W)."""
    *lead, c, h, w = input.shape
    r = downscale_factor
    if h % r or w % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but input has {h} and {w}"
        )
    x = input.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.permute(*order).reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels dealt out among groups (Zhang et al., 2017)."""
    n, c, *rest = input.shape
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)
