"""Normalisations: subtract a mean, divide by a deviation, scale and shift.

Stage: eager.  In: a tensor and learned scale and shift.  Out: the same shape.  Half types are normalised in float32 and
rounded once at the end.  Variance takes two passes, so it does not cancel.  Mirrors ``torch.nn.functional``.
Read next: ``losses``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytorch import dtypes, ops, tape
from tinytorch.amp.policy import full
from tinytorch.nn.functional.pads import pad
from tinytorch.nn.functional.widths import narrow, wide
from tinytorch.tensor import Tensor


def mean_and_variance(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean, mean, biased variance) over ``dims``, which are kept with size 1."""
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    mean = ops.sum(x, dim=dims, keepdim=True) / count
    centred = x - mean
    return centred, mean, ops.sum(centred * centred, dim=dims, keepdim=True) / count


@full
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Over the last dimensions, whose sizes are ``normalized_shape`` (Ba, Kiros and Hinton, 2016)."""
    dims = _last_dims(input, normalized_shape, weight=weight, bias=bias)
    x = wide(input)
    centred, _, var = mean_and_variance(x, dims)
    out = centred * ops.rsqrt(var + eps)
    if weight is not None:
        out = out * wide(weight)
    if bias is not None:
        out = out + wide(bias)
    return narrow(out, input)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root of the mean square of the last dimensions (Zhang and Sennrich, 2019)."""
    dims = _last_dims(input, normalized_shape, weight=weight)
    x = wide(input)
    small = float(np.finfo(x.dtype.np).eps) if eps is None else eps
    count: Any = 1
    for s in normalized_shape:
        count = count * s
    out = x * ops.rsqrt(ops.sum(x * x, dim=dims, keepdim=True) / count + small)
    if weight is not None:
        out = out * wide(weight)
    return narrow(out, input)


def _last_dims(input: Tensor, normalized_shape: Sequence[Any], **learned: Tensor | None) -> tuple[int, ...]:
    shape = tuple(normalized_shape)
    n = len(shape)
    if n == 0 or tuple(input.shape[-n:]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            f"but got input of size{list(input.shape)}"
        )
    for name, t in learned.items():
        if t is not None and tuple(t.shape) != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(t.shape)} and "
                f"normalized_shape = {list(shape)}"
            )
    return tuple(range(input.dim() - n, input.dim()))


@full
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Over each group of channels (dimension 1) with all that follows it (Wu and He, 2018)."""
    n, channels, *rest = input.shape
    if channels % num_groups:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    _of_channels(input, weight=weight, bias=bias)
    x = wide(input).reshape(n, num_groups, channels // num_groups * math.prod(rest))
    centred, _, var = mean_and_variance(x, (2,))
    out = (centred * ops.rsqrt(var + eps)).reshape(n, channels, *rest)
    return narrow(_scale_channels(out, weight, bias), input)


def _of_channels(input: Tensor, **given: Tensor | None) -> None:
    """One number for each channel; fewer would be spread over all, more would widen the result."""
    for name, t in given.items():
        if t is not None and (t.dim() != 1 or t.shape[0] != input.shape[1]):
            raise RuntimeError(f"{name} should contain {input.shape[1]} elements not {t.numel()}")


def _scale_channels(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift along dimension 1."""
    shape = (-1, *(1,) * (x.dim() - 2))
    if weight is not None:
        x = x * wide(weight).reshape(shape)
    if bias is not None:
        x = x + wide(bias).reshape(shape)
    return x


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Over all but dimension 1 in training, moving the running statistics; with those in evaluation
    (Ioffe and Szegedy, 2015)."""
    _of_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    x = wide(input)
    dims = (0, *range(2, input.dim()))
    if training:
        count = _numel_over(input, dims)
        if isinstance(count, int) and count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
        centred, mean, var = mean_and_variance(x, dims)
        _move(running_mean, mean, momentum, 1)
        _move(running_var, var, momentum, _unbiased(count))
    else:
        assert running_mean is not None and running_var is not None, "evaluation needs running statistics"
        shape = (-1, *(1,) * (input.dim() - 2))
        centred, var = x - wide(running_mean).reshape(shape), wide(running_var).reshape(shape)
    return narrow(_scale_channels(centred * ops.rsqrt(var + eps), weight, bias), input)


def _numel_over(x: Tensor, dims: Sequence[int]) -> Any:
    n: Any = 1
    for d in dims:
        n = n * x.shape[d]
    return n


def _unbiased(count: Any) -> Any:
    """n / (n - 1); a tensor if n is symbolic, whose quotient as a number would fix it."""
    if not isinstance(count, int):
        count = ops.full(shape=(), value=count, dtype=dtypes.float64)
    return count / (count - 1)


def _move(running: Tensor | None, now: Tensor, momentum: float, factor: Any) -> None:
    """running = (1 - momentum) running + momentum factor now, off the tape."""
    if running is not None:
        with tape.grad_mode(False):
            running._assign(running * (1 - momentum) + now.detach().reshape(running.shape) * (momentum * factor))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Over each channel of each sample; running statistics are means over the batch (Ulyanov et al., 2016)."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    _of_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    x = wide(input)
    dims = tuple(range(2, input.dim()))
    count = _numel_over(input, dims)
    if isinstance(count, int) and count <= 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape}")
    centred, mean, var = mean_and_variance(x, dims)
    if running_mean is not None:
        _move(running_mean, ops.sum(mean, dim=(0,), keepdim=False) / input.shape[0], momentum, 1)
    if running_var is not None:
        _move(running_var, ops.sum(var, dim=(0,), keepdim=False) / input.shape[0], momentum, count / (count - 1))
    return narrow(_scale_channels(centred * ops.rsqrt(var + eps), weight, bias), input)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide by a power of the mean square of ``size`` neighbouring channels (Krizhevsky et al., 2012)."""
    padded = pad(input * input, (0, 0) * (input.dim() - 2) + (size // 2, (size - 1) // 2))
    channels = input.shape[1]
    total = padded.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + padded.narrow(1, i, channels)
    return input / (total * (alpha / size) + k) ** beta
