"""Pooling: the largest or the mean of each window.

Stage: eager.  In: (N, C, *sizes) or (C, *sizes).  Out: smaller sizes.  A window of few elements is written as that many
strided views combined one by one, which compiles to one kernel with no window ever stored; the first of equal maxima
wins, and gets the gradient, as in PyTorch.  Mirrors ``torch.nn.functional``.  Read next: ``resize``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.nn.functional.conv import Size, as_tuple
from tinytorch.nn.functional.pads import pad
from tinytorch.tensor import Tensor


def _count(size: Any, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Any:
    """Windows along one dimension; with ``ceil_mode`` also one that starts inside and ends outside."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


class _Windows:
    """The geometry of one pooling call over the last ``n`` dimensions."""

    def __init__(
        self, name: str, n: int, input: Tensor, kernel: Size, stride: Any, padding: Size, dilation: Size, ceil: bool
    ) -> None:
        if input.dim() not in (n + 1, n + 2):
            raise RuntimeError(f"{name}: Expected {n + 1}D or {n + 2}D (batch mode) tensor, got {input.dim()}D")
        self.n = n
        self.kernel = as_tuple(kernel, n)
        self.stride = self.kernel if stride is None or stride == [] else as_tuple(stride, n)
        self.padding, self.dilation = as_tuple(padding, n), as_tuple(dilation, n)
        for k, p in zip(self.kernel, self.padding, strict=True):
            if p > k // 2:
                raise RuntimeError(f"{name}: pad should be at most half of effective kernel size, but got pad={p} and kernel_size={k}")
        self.sizes = tuple(input.shape[-n:])
        parts = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        self.counts = tuple(_count(*part, ceil) for part in parts)
        for c in self.counts:
            if isinstance(c, int) and c <= 0:
                raise RuntimeError(f"{name}: Given input size {list(input.shape)}, the calculated output size is too small")

    def padded(self, input: Tensor, value: float) -> Tensor:
        """The input with its border, and what ``ceil_mode`` looks at beyond."""
        sizes: list[Any] = []
        geometry = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.counts, strict=True)
        for size, k, st, p, d, count in reversed(list(geometry)):
            sizes += [p, max((count - 1) * st + d * (k - 1) + 1 - size - p, 0)]
        return pad(input, sizes, value=value) if any(sizes) else input

    def views(self, x: Tensor) -> Any:
        """(offset, view) per place in the window: the view holds that place of every window."""
        for offset in itertools.product(*(range(k) for k in self.kernel)):
            view = x
            first = x.dim() - self.n
            for i, (o, d, st, count) in enumerate(zip(offset, self.dilation, self.stride, self.counts, strict=True)):
                start = o * d
                stop = start + (count - 1) * st + 1
                view = ops.slice(view, dim=first + i, start=start, stop=stop, step=st)
            yield offset, view


# --- maxima -----------------------------------------------------------------------------------------------------------
def _lowest(x: Tensor) -> float:
    return -math.inf if x.dtype.is_floating_point else dtypes.iinfo(x.dtype).min


def _max_pool(
    n: int,
    input: Tensor,
    kernel_size: Size,
    stride: Any,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    w = _Windows(f"max_pool{n}d", n, input, kernel_size, stride, padding, dilation, ceil_mode)
    best: Any = None
    place: Any = None
    for offset, view in w.views(w.padded(input, _lowest(input))):
        at = _flat_index(w, offset, input) if return_indices else None
        if best is None:
            best, place = view, at
            continue
        wins = (view > best) | ops.isnan(view) if view.dtype.is_floating_point else view > best
        best = ops.where(wins, view, best)
        if return_indices:
            place = ops.where(wins, at, place)
    best = best.clone() if best._base is not None else best
    return (best, place.expand(best.shape).contiguous()) if return_indices else best


def _flat_index(w: _Windows, offset: tuple[int, ...], input: Tensor) -> Tensor:
    """Where in the input's last dimensions, counted flat, each window has its element at ``offset``."""
    flat: Any = None
    parts = zip(offset, w.counts, w.stride, w.padding, w.dilation, w.sizes, strict=True)
    for o, count, st, p, d, size in parts:
        along = ops.iota(size=count, device=input.device) * st + (o * d - p)
        flat = along if flat is None else flat.unsqueeze(-1) * size + along
    return flat  # type: ignore[no-any-return]


def max_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window; with ``return_indices`` also where in H W it was."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _max_unpool(n: int, input: Tensor, indices: Tensor, kernel_size: Size, stride: Any, padding: Size, output_size: Any) -> Tensor:
    kernel = as_tuple(kernel_size, n)
    step = kernel if stride is None else as_tuple(stride, n)
    default = [(s - 1) * st - 2 * p + k for s, st, p, k in zip(input.shape[-n:], step, as_tuple(padding, n), kernel)]
    sizes = default if output_size is None else list(output_size)[-n:]
    lead = input.shape[:-n]
    out = input.new_zeros(*lead, math.prod(sizes))
    flat = (*lead, math.prod(input.shape[-n:]))
    out = out.scatter(-1, indices.reshape(flat), input.reshape(flat))
    return out.reshape(*lead, *sizes)


def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Any = None, padding: Size = 0, output_size: Any = None) -> Tensor:
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Any = None, padding: Size = 0, output_size: Any = None) -> Tensor:
    """Values back to the places that ``max_pool2d`` found, zeros elsewhere."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Any = None, padding: Size = 0, output_size: Any = None) -> Tensor:
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


# --- means ------------------------------------------------------------------------------------------------------------
def _sum_pool(w: _Windows, input: Tensor) -> Tensor:
    """The sum of each window; windows that tile the input are one reduction."""
    tiles = all(
        k == st and p == 0 and d == 1 and isinstance(s, int) and s == k * c
        for k, st, p, d, s, c in zip(w.kernel, w.stride, w.padding, w.dilation, w.sizes, w.counts)
    )
    if tiles:
        lead = input.dim() - w.n
        pairs = [size for c, k in zip(w.counts, w.kernel) for size in (c, k)]
        return input.reshape(*input.shape[:lead], *pairs).sum(tuple(range(lead + 1, lead + 2 * w.n, 2)))
    total: Any = None
    for _, view in w.views(w.padded(input, 0.0)):
        total = view if total is None else total + view
    return total  # type: ignore[no-any-return]


def _avg_pool(
    n: int,
    input: Tensor,
    kernel_size: Size,
    stride: Any,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    w = _Windows(f"avg_pool{n}d", n, input, kernel_size, stride, padding, 1, ceil_mode)
    total = _sum_pool(w, input)
    if divisor_override is not None:
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        return total / divisor_override
    if not ceil_mode and (count_include_pad or not any(w.padding)):
        return total / math.prod(w.kernel)
    return total / _counted(w, input, count_include_pad)


def _counted(w: _Windows, input: Tensor, include_pad: bool) -> Tensor:
    """How many elements each window counts: those inside the input, or inside its border."""
    counts: Any = None
    for size, k, st, p, count in zip(w.sizes, w.kernel, w.stride, w.padding, w.counts):
        start = ops.iota(size=count, device=input.device) * st - p
        stop = ops.minimum(start + k, size + p)
        if not include_pad:
            start, stop = ops.maximum(start, 0), ops.minimum(stop, size)
        along = stop - start
        counts = along if counts is None else counts.unsqueeze(-1) * along
    return ops.cast(counts, dtype=input.dtype)  # type: ignore[no-any-return]


def avg_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window, borders of zeros counted unless ``count_include_pad`` is off."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Any = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: int, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Size, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def _lp_pool(n: int, input: Tensor, norm_type: float, kernel_size: Size, stride: Any, ceil_mode: bool) -> Tensor:
    w = _Windows(f"lp_pool{n}d", n, input, kernel_size, stride, 0, 1, ceil_mode)
    return _sum_pool(w, input.abs() ** norm_type) ** (1 / norm_type)


# --- to a given size --------------------------------------------------------------------------------------------------
def _target(input: Tensor, output_size: Any, n: int) -> tuple[Any, ...]:
    return tuple(
        size if want is None else want for want, size in zip(as_tuple(output_size, n), input.shape[-n:], strict=True)
    )


def _adaptive(input: Tensor, n: int, output_size: Any, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Reduce one dimension after the other to its wanted size."""
    for i, want in enumerate(_target(input, output_size, n)):
        input = _adaptive_dim(input, input.dim() - n + i, want, reduce)
    return input


def _adaptive_dim(x: Tensor, dim: int, want: int, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    size = x.shape[dim]
    if want == size:
        return x
    if size % want == 0:
        return reduce(x.reshape(*x.shape[:dim], want, size // want, *x.shape[dim + 1 :]), dim + 1)
    parts = []
    for i in range(want):
        start, stop = i * size // want, -(-(i + 1) * size // want)
        parts.append(reduce(ops.slice(x, dim=dim, start=start, stop=stop, step=1), dim).unsqueeze(dim))
    return ops.cat(*parts, dim=dim)  # type: ignore[no-any-return]


def _mean(x: Tensor, dim: int) -> Tensor:
    return x.mean(dim)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(input, 1, output_size, _mean)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows as even as can be, so that the result has ``output_size``; None keeps a dimension."""
    return _adaptive(input, 2, output_size, _mean)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(input, 3, output_size, _mean)


def _adaptive_max(input: Tensor, n: int, output_size: Any, return_indices: bool) -> Any:
    if not return_indices:
        return _adaptive(input, n, output_size, lambda x, dim: x.max(dim)[0])
    want, sizes = _target(input, output_size, n), input.shape[-n:]
    lead = input.shape[:-n]
    values, places = [], []
    for cell in itertools.product(*(range(w) for w in want)):
        bounds = [(i * s // w, -(-(i + 1) * s // w)) for i, s, w in zip(cell, sizes, want, strict=True)]
        part = input[(..., *(slice(a, b) for a, b in bounds))]
        value, flat = part.reshape(*lead, math.prod(b - a for a, b in bounds)).max(-1)
        values.append(value)
        places.append(_unflatten(flat, bounds, sizes))
    shape = (*lead, *want)
    return ops.cat(*(v.unsqueeze(-1) for v in values), dim=len(lead)).reshape(shape), ops.cat(
        *(p.unsqueeze(-1) for p in places), dim=len(lead)
    ).reshape(shape)


def _unflatten(flat: Tensor, bounds: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Tensor:
    """A place inside the box ``bounds``, counted flat, as a place inside ``sizes``."""
    place: Any = 0
    rest = math.prod(b - a for a, b in bounds)
    for (a, b), size in zip(bounds, sizes, strict=True):
        rest //= b - a
        place = place * size + (flat // rest % (b - a) + a)
    return place  # type: ignore[no-any-return]


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    return _adaptive_max(input, 1, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    return _adaptive_max(input, 2, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    return _adaptive_max(input, 3, output_size, return_indices)
