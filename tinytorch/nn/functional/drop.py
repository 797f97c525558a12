"""Dropout: zero some elements at random and scale the others up.

Stage: eager.  In: a tensor.  Out: the same shape; in evaluation the tensor itself.  The mask is a function of the
generator's state, so compiled code may draw it twice instead of keeping it.  Mirrors ``torch.nn.functional``.
Read next: ``norms``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes, ops, rng
from tinytorch.nn.functional.activations import SELU_ALPHA, SELU_SCALE, finish
from tinytorch.tensor import Tensor


def _check(p: float) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _keep(input: Tensor, p: float, shape: tuple[Any, ...]) -> Tensor:
    """True with probability 1 - p."""
    numel: Any = 1
    for s in shape:
        numel = numel * s
    state, shift = rng.default_generator.draw(numel, input.device)
    return ops.uniform(state, shape=shape, shift=shift, dtype=dtypes.float32) >= p


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training each element is zero with probability ``p`` and scaled by 1 / (1 - p) otherwise."""
    _check(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return finish(input * 0.0, input, inplace)
    keep = _keep(input, p, tuple(input.shape))
    return finish(ops.where(keep, input * (1 / (1 - p)), 0.0), input, inplace)


def _channel_shape(input: Tensor, batched: bool) -> tuple[Any, ...]:
    lead = 2 if batched else 1
    return (*input.shape[:lead], *(1,) * (input.dim() - lead))


def _channels(input: Tensor, p: float, training: bool, inplace: bool, batched: bool) -> Tensor:
    _check(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return finish(input * 0.0, input, inplace)
    keep = _keep(input, p, _channel_shape(input, batched))
    return finish(ops.where(keep, input * (1 / (1 - p)), 0.0), input, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, L) or (C, L) are dropped."""
    return _channels(input, p, training, inplace, input.dim() == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, H, W) are dropped."""
    return _channels(input, p, training, inplace, True)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, D, H, W) or (C, D, H, W) are dropped."""
    return _channels(input, p, training, inplace, input.dim() == 5)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of SELU activations (Klambauer et al., 2017)."""
    return _alpha(input, p, training, inplace, tuple(input.shape))


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha(input, p, training, inplace, _channel_shape(input, True))


def _alpha(input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[Any, ...]) -> Tensor:
    _check(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return finish(input * 0.0, input, inplace)
    low = -SELU_ALPHA * SELU_SCALE
    a = ((1 - p) * (1 + p * low * low)) ** -0.5
    kept = ops.where(_keep(input, p, shape), input, low)
    return finish(kept * a - a * p * low, input, inplace)
