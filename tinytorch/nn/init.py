"""Initial values: fill a tensor in place, off the tape.

Stage: eager.  In: a tensor.  Out: the same tensor.  Mirrors ``torch.nn.init``.  Read next: ``linear``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tinytorch import ops, tape
from tinytorch.rng import Generator
from tinytorch.tensor import Tensor


def _in_place(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run without recording: an initial value has no history."""

    @wraps(fn)
    def off_the_tape(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with tape.grad_mode(False):
            return fn(tensor, *args, **kwargs)

    return off_the_tape


_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much a nonlinearity shrinks the deviation of its input; ValueError for an unknown name."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


@_in_place
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    return tensor.uniform_(a, b, generator=generator)


@_in_place
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    return tensor.normal_(mean, std, generator=generator)


@_in_place
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal numbers inside [a, b]: those outside are drawn again (and after 100 rounds moved to the border)."""
    tensor.normal_(mean, std, generator=generator)
    for _ in range(100):
        outside = (tensor < a) | (tensor > b)
        if not outside.any():
            return tensor
        again = tensor.new_empty(tensor.shape).normal_(mean, std, generator=generator)
        tensor.copy_(ops.where(outside, again, tensor))
    return tensor.clamp_(a, b)


@_in_place
def constant_(tensor: Tensor, val: float) -> Tensor:
    return tensor.fill_(val)


@_in_place
def ones_(tensor: Tensor) -> Tensor:
    return tensor.fill_(1.0)


@_in_place
def zeros_(tensor: Tensor) -> Tensor:
    return tensor.fill_(0.0)


@_in_place
def eye_(tensor: Tensor) -> Tensor:
    """The identity, or as much of it as fits a matrix."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    row = ops.iota(size=tensor.shape[0], device=tensor.device).unsqueeze(-1)
    return tensor.copy_(row == ops.iota(size=tensor.shape[1], device=tensor.device))


@_in_place
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution weight that passes its input through."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    out_channels = tensor.shape[0] // groups
    tensor.fill_(0.0)
    middle = tuple(s // 2 for s in tensor.shape[2:])
    for g in range(groups):
        for d in range(min(out_channels, tensor.shape[1])):
            tensor[(g * out_channels + d, d, *middle)] = 1.0
    return tensor


def _fans(tensor: Tensor) -> tuple[int, int]:
    """How many inputs reach one output, and how many outputs one input reaches."""
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


_calculate_fan_in_and_fan_out = _fans


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _fans(tensor)[mode.lower() == "fan_out"]


@_in_place
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Variance gain² 2 / (fan in + fan out) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return tensor.uniform_(-bound, bound, generator=generator)


@_in_place
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    return tensor.normal_(0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator=generator)


@_in_place
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Variance gain² / fan (He et al., 2015); ``a`` is the slope of the leaky ReLU that follows."""
    if 0 in tensor.shape:
        return tensor
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3 / _calculate_correct_fan(tensor, mode))
    return tensor.uniform_(-bound, bound, generator=generator)


@_in_place
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    if 0 in tensor.shape:
        return tensor
    std = calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))
    return tensor.normal_(0.0, std, generator=generator)


@_in_place
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Rows (or columns, if fewer) that are orthonormal (Saxe et al., 2013): Q of a random matrix's QR."""
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    rows = tensor.shape[0]
    flat = tensor.new_empty(rows, tensor.numel() // max(rows, 1)).normal_(0.0, 1.0, generator=generator)
    wide = flat.shape[0] < flat.shape[1]
    q = _orthonormal_columns(flat.t() if wide else flat)
    return tensor.copy_((q.t() if wide else q).reshape(tensor.shape)).mul_(gain)


def _orthonormal_columns(matrix: Tensor) -> Tensor:
    """Q with the signs that make R's diagonal positive, which makes Q uniform."""
    q, r = np.linalg.qr(matrix.detach().cpu().double().numpy())
    signed = Tensor._wrap(q * np.sign(np.diag(r)), matrix.cpu().device)
    return signed.to(device=matrix.device, dtype=matrix.dtype)


@_in_place
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal numbers with a fraction ``sparsity`` of each column zero."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    order = tensor.new_empty(tensor.shape).uniform_(generator=generator).argsort(0).argsort(0)
    zeros = math.ceil(sparsity * tensor.shape[0])
    return tensor.normal_(0.0, std, generator=generator).masked_fill_(order < zeros, 0.0)
