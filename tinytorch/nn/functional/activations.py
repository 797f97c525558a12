"""Activations: pointwise functions, and softmax and its relations.

Stage: eager.  In: a tensor.  Out: a tensor of the same shape, unless said.  Mirrors ``torch.nn.functional``.
Most are written with ``where``, which remembers one bool per element for backward.  Read next: ``norms``.
"""

from __future__ import annotations

import math
from typing import Any

from tinytorch import dtypes, ops, rng
from tinytorch.amp.policy import full
from tinytorch.blocks import by_blocks
from tinytorch.dtypes import DType
from tinytorch.ops import composite
from tinytorch.tensor import Tensor


def finish(out: Tensor, input: Tensor, inplace: bool) -> Tensor:
    """``out``, or ``input`` with the value of ``out`` written into it."""
    return input._assign(out) if inplace else out


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return finish(ops.relu(input), input, inplace)


def relu_(input: Tensor) -> Tensor:
    return relu(input, inplace=True)


@by_blocks
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; the gradient is zero where it was cut."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    out = ops.where(input <= min_val, min_val, ops.where(input >= max_val, max_val, input))
    return finish(out, input, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return hardtanh(input, 0.0, 6.0, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > threshold, else ``value``."""
    return finish(ops.where(input <= threshold, value, input), input, inplace)


@by_blocks
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return finish(ops.where(input > 0, input, input * negative_slope), input, inplace)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return leaky_relu(input, negative_slope, inplace=True)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Leaky ReLU with a learned slope: one in all, or one per channel (dimension 1)."""
    if weight.numel() != 1 and input.dim() > 1:
        if weight.numel() != input.shape[1]:
            raise RuntimeError(
                f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {weight.numel()} "
                f"and channel size = {input.shape[1]}."
            )
        weight = weight.reshape(-1, *(1,) * (input.dim() - 2))
    return ops.where(input > 0, input, weight * input)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Leaky ReLU whose slope is drawn per element in training, and is the mean of the bounds otherwise."""
    slope: Any = (lower + upper) / 2
    if training:
        slope = uniform_like(input) * (upper - lower) + lower
    return finish(ops.where(input >= 0, input, input * slope), input, inplace)


@by_blocks
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else alpha (exp(x) - 1)."""
    return finish(ops.where(input > 0, input, ops.expm1(_negative_part(input)) * alpha), input, inplace)


def _negative_part(x: Tensor) -> Tensor:
    """x where x <= 0 (or NaN), else 0: what an exponential may take without overflow."""
    return ops.where(x > 0, 0.0, x)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(input, alpha, inplace=True)


@by_blocks
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Clevert et al.'s continuous form: the exponential takes x / alpha."""
    negative = ops.expm1(_negative_part(input) * (1 / alpha)) * alpha
    return finish(ops.where(input > 0, input, negative), input, inplace)


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@by_blocks
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Klambauer et al., Self-Normalizing Neural Networks, 2017."""
    return finish(elu(input, SELU_ALPHA) * SELU_SCALE, input, inplace)


@by_blocks
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's cumulative function, exact or by tanh (Hendrycks and Gimpel, 2016)."""
    if approximate == "none":
        return input * 0.5 * (1.0 + ops.erf(input * (1 / math.sqrt(2))))
    if approximate != "tanh":
        raise RuntimeError("approximate argument must be either none or tanh.")
    if input.dtype.is_complex:
        raise NotImplementedError("gelu is not defined for complex numbers")
    return ops.gelu_tanh(input)


@by_blocks
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x sigmoid(x), also called swish."""
    return finish(input * ops.sigmoid(input), input, inplace)


@by_blocks
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(softplus(x))."""
    return finish(input * ops.tanh(softplus(input)), input, inplace)


@full
@by_blocks
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above ``threshold``."""
    scaled = input * beta
    beyond = scaled > threshold
    soft = ops.log1p(ops.exp(ops.where(beyond, 0.0, scaled))) * (1 / beta)
    return ops.where(beyond, input, soft)


@by_blocks
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow on either side."""
    return ops.minimum(input, 0.0) - ops.log1p(ops.exp(-ops.abs(input)))


@by_blocks
def tanhshrink(input: Tensor) -> Tensor:
    return input - ops.tanh(input)


@by_blocks
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Zero where \\|x\\| <= lambd, else x."""
    return ops.where((input >= -lambd) & (input <= lambd), 0.0, input)


@by_blocks
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards zero by lambd."""
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return ops.where(input > lambd, input - lambd, ops.where(input < -lambd, input + lambd, input * 0.0))


@by_blocks
def softsign(input: Tensor) -> Tensor:
    return input / (ops.abs(input) + 1)


@by_blocks
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6."""
    return finish(relu6(input + 3) * (1 / 6), input, inplace)


@by_blocks
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x relu6(x + 3) / 6."""
    return finish(input * relu6(input + 3) * (1 / 6), input, inplace)


def sigmoid(input: Tensor) -> Tensor:
    return ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    return ops.tanh(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """First half of ``dim`` times sigmoid of the second half."""
    if input.shape[dim] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {input.shape[dim]}")
    a, b = input.chunk(2, dim)
    return a * ops.sigmoid(b)


# --- along a dimension ------------------------------------------------------------------------------------------------
def _softmax_dim(dim: int | None, ndim: int) -> int:
    """The dimension meant when none is given, PyTorch's old rule."""
    return dim if dim is not None else (0 if ndim in (0, 1, 3) else 1)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along ``dim``; with ``dtype`` the input is cast first."""
    return composite.softmax(input, _softmax_dim(dim, input.dim()), dtype)  # type: ignore[no-any-return]


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """log(softmax(x)), without taking the logarithm of small numbers."""
    return composite.log_softmax(input, _softmax_dim(dim, input.dim()), dtype)  # type: ignore[no-any-return]


@full
def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    return softmax(-input, dim, dtype=dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of a relaxed categorical distribution (Jang et al., Maddison et al., 2016); ``hard`` gives one-hot
    values with the soft gradient."""
    gumbels = -ops.log(-ops.log(uniform_like(logits) + 2.0**-25))
    soft = ((logits + gumbels) / tau).softmax(dim)
    if not hard:
        return soft
    best = soft.argmax(dim, keepdim=True)
    one_hot = (soft.detach() * 0.0).scatter(dim, best, 1.0)
    return one_hot - soft.detach() + soft


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """x divided by its p-norm along ``dim``, the norm no smaller than ``eps``."""
    size = input.norm(p, dim, keepdim=True)
    result = input / size.clamp_min(eps).expand_as(input)
    return result if out is None else out.copy_(result)


# --- random -----------------------------------------------------------------------------------------------------------
def uniform_like(input: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) of the shape of ``input``, in its type (float32 for half types)."""
    dtype = input.dtype if input.dtype is dtypes.float64 else dtypes.float32
    state, shift = rng.default_generator.draw(input.numel(), input.device)
    return ops.uniform(state, shape=tuple(input.shape), shift=shift, dtype=dtype)
