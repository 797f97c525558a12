"""Convolutions in one, two and three dimensions, plain and transposed.

Stage: eager.  In: (N, C, *sizes) or (C, *sizes), weight, bias.  Out: the same with other channels and sizes.
Mirrors ``torch.nn.functional``.  Read next: ``ops.convolution``, the rows that do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytorch import ops
from tinytorch.amp.policy import lower
from tinytorch.nn.functional.pads import pad
from tinytorch.ops.convolution import conv, conv_input
from tinytorch.tensor import Tensor

Size = int | Sequence[int]


def as_tuple(value: Any, n: int) -> tuple[Any, ...]:
    """One number per dimension: an int stands for all."""
    if isinstance(value, tuple | list):
        return tuple(value) * n if len(value) == 1 else tuple(value)
    return (value,) * n


def same_padding(kernel: Sequence[Any], dilation: Sequence[int]) -> list[tuple[Any, Any]]:
    """(before, after) per dimension so that the size stays; the odd one goes after."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in totals]


def _conv(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Size, padding: Any, dilation: Size, groups: int
) -> Tensor:
    batched = input.dim() == n + 2
    if input.dim() == n + 1:
        input = input.unsqueeze(0)
    stride, dilation = as_tuple(stride, n), as_tuple(dilation, n)
    if isinstance(padding, str):
        input, padding = _by_name(input, weight, padding, stride, dilation)
    out: Tensor = conv(input, weight, stride=stride, padding=as_tuple(padding, n), dilation=dilation, groups=groups)
    return _finish(out, bias, batched)


def _by_name(input: Tensor, weight: Tensor, padding: str, stride: Any, dilation: Any) -> tuple[Tensor, Any]:
    """``padding="same"`` or ``"valid"`` as sizes; an uneven "same" is padded here."""
    if padding == "valid":
        return input, 0
    if padding != "same":
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    if any(s != 1 for s in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    pairs = same_padding(weight.shape[2:], dilation)
    if all(a == b for a, b in pairs):
        return input, tuple(a for a, _ in pairs)
    return pad(input, [size for pair in reversed(pairs) for size in pair]), 0


def _finish(out: Tensor, bias: Tensor | None, batched: bool) -> Tensor:
    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] != out.shape[1]:
            raise RuntimeError(f"expected bias to be 1-dimensional with {out.shape[1]} elements, but got bias of size {list(bias.shape)} instead")
        out = out + bias.reshape(-1, *(1,) * (out.dim() - 2))
    return out if batched else out.squeeze(0)


@lower
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """(N, C, L) with weight (O, C / groups, K) gives (N, O, L')."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


@lower
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """(N, C, H, W) with weight (O, C / groups, KH, KW) gives (N, O, H', W')."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


@lower
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """(N, C, D, H, W) with weight (O, C / groups, KD, KH, KW) gives (N, O, D', H', W')."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Tensor:
    batched = input.dim() == n + 2
    if input.dim() == n + 1:
        input = input.unsqueeze(0)
    stride, padding, dilation = as_tuple(stride, n), as_tuple(padding, n), as_tuple(dilation, n)
    extra = as_tuple(output_padding, n)
    for e, s in zip(extra, stride, strict=True):
        if e >= s and e > 0:
            raise RuntimeError(f"output padding must be smaller than stride, but got output_padding {e} and stride {s}")
    size = tuple(
        (m - 1) * s - 2 * p + d * (k - 1) + e + 1
        for m, s, p, d, k, e in zip(input.shape[2:], stride, padding, dilation, weight.shape[2:], extra)
    )
    out: Tensor = conv_input(
        input, weight, size=size, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    return _finish(out, bias, batched)


@lower
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """(N, C, L) with weight (C, O / groups, K) gives (N, O, L'): the transpose of ``conv1d``."""
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@lower
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """(N, C, H, W) with weight (C, O / groups, KH, KW) gives (N, O, H', W'): the transpose of ``conv2d``."""
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@lower
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """(N, C, D, H, W) with weight (C, O / groups, KD, KH, KW): the transpose of ``conv3d``."""
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


# --- columns ----------------------------------------------------------------------------------------------------------
def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """(N, C, H, W) to (N, C KH KW, places): each window as a column."""
    batched = input.dim() == 4
    x = input if batched else input.unsqueeze(0)
    (kh, kw), (dh, dw) = as_tuple(kernel_size, 2), as_tuple(dilation, 2)
    (ph, pw), (sh, sw) = as_tuple(padding, 2), as_tuple(stride, 2)
    x = pad(x, (pw, pw, ph, ph)) if ph or pw else x
    x = ops.unfold(x, dim=2, size=dh * (kh - 1) + 1, step=sh)[..., ::dh]  # (N, C, oh, W, KH)
    x = ops.unfold(x, dim=3, size=dw * (kw - 1) + 1, step=sw)[..., ::dw]  # (N, C, oh, ow, KH, KW)
    n, c, oh, ow = x.shape[:4]
    out = x.permute(0, 1, 4, 5, 2, 3).reshape(n, c * kh * kw, oh * ow)
    return out if batched else out.squeeze(0)


def fold(
    input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """(N, C KH KW, places) to (N, C, H, W): columns added up where their windows are, the transpose of ``unfold``."""
    batched = input.dim() == 3
    x = input if batched else input.unsqueeze(0)
    (kh, kw), (dh, dw) = as_tuple(kernel_size, 2), as_tuple(dilation, 2)
    (ph, pw), (sh, sw) = as_tuple(padding, 2), as_tuple(stride, 2)
    h, w = as_tuple(output_size, 2)
    oh = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    n, c = x.shape[0], x.shape[1] // (kh * kw)
    if x.shape[1] != c * kh * kw or x.shape[2] != oh * ow:
        raise RuntimeError(
            f"Given output_size={(h, w)}, kernel_size={(kh, kw)}, expected input of size (N, C * {kh * kw}, {oh * ow}), "
            f"but got {list(input.shape)}"
        )
    x = x.reshape(n, c, kh, kw, oh, ow).permute(0, 1, 4, 5, 2, 3)
    x = _spread(_spread(x, 5, dw), 4, dh)
    x = ops.unfold_backward(x, shape=(n, c, oh, w + 2 * pw, x.shape[4]), dim=3, size=x.shape[5], step=sw)
    x = ops.unfold_backward(x, shape=(n, c, h + 2 * ph, w + 2 * pw), dim=2, size=x.shape[4], step=sh)
    out = x[:, :, ph : ph + h, pw : pw + w]
    return out if batched else out.squeeze(0)


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """Zeros between the elements along ``dim``: the transpose of taking every ``step``-th."""
    if step == 1:
        return x
    size = (x.shape[dim] - 1) * step + 1
    return ops.slice_backward(x, dim=dim, size=size, start=0, stop=size, step=step)  # type: ignore[no-any-return]
