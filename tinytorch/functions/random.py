"""Random tensors, all from the counter-based stream of ``rng``: the same bits on every device, eager or compiled.

Stage: eager.  In: shapes, bounds, a generator.  Out: tensors made by the rows ``uniform`` and ``random_bits``.
Mirrors the random part of ``torch``.  Read next: ``ops.random``, ``rng``.
"""

from __future__ import annotations

import math
from typing import Any

from tinytorch import dtypes, ops, rng
from tinytorch.device import Device
from tinytorch.dtypes import DType
from tinytorch.functions.args import is_int
from tinytorch.functions.creation import _size, place
from tinytorch.functions.pointwise import into
from tinytorch.ops import views
from tinytorch.rng import Generator
from tinytorch.tensor import Tensor


# --- the stream -------------------------------------------------------------------------------------------------------
def manual_seed(seed: int) -> Generator:
    """Start the default stream anew.  Mirrors ``torch.manual_seed``."""
    return rng.default_generator.manual_seed(seed)


def seed() -> int:
    """A seed the system chooses."""
    return rng.default_generator.seed()


def initial_seed() -> int:
    return rng.default_generator.initial_seed()


def get_rng_state() -> Tensor:
    return rng.default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    rng.default_generator.set_state(new_state)


def uniform_draw(shape: Any, dtype: DType, device: Device, generator: Generator | None) -> Tensor:
    """In [0, 1)."""
    shape = tuple(shape)
    state, shift = (generator or rng.default_generator).draw(views.numel(shape), device)
    return ops.uniform(state, shape=shape, shift=shift, dtype=dtype)


def bits_draw(shape: Any, device: Device, generator: Generator | None) -> Tensor:
    """32 random bits, as int64."""
    shape = tuple(shape)
    state, shift = (generator or rng.default_generator).draw(views.numel(shape), device)
    return ops.random_bits(state, shape=shape, shift=shift)


def normal_draw(shape: Any, dtype: DType, device: Device, generator: Generator | None) -> Tensor:
    """Box and Muller's transform of two uniform draws."""
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    radius = uniform_draw(shape, wide, device, generator)
    angle = uniform_draw(shape, wide, device, generator)
    length = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, radius)), -2.0))
    z = ops.mul(length, ops.cos(ops.mul(angle, 2 * math.pi)))
    return z if dtype is wide else ops.cast(z, dtype=dtype)


def _floating(dtype: DType | None) -> DType:
    dtype = dtypes.typed(dtype, dtypes.get_default_dtype())
    if not dtype.is_floating_point:
        raise NotImplementedError(f"\"normal_kernel_cpu\" not implemented for '{dtype.title}'")
    return dtype


# --- distributions ----------------------------------------------------------------------------------------------------
def rand(
    *size: Any, generator: Generator | None = None, out: Any = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """Uniform in [0, 1).  Mirrors ``torch.rand``."""
    t = uniform_draw(_size(size, _), _floating(dtype), place(device), generator)
    return into(out, t.requires_grad_(True) if requires_grad else t)


def randn(
    *size: Any, generator: Generator | None = None, out: Any = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """Standard normal.  Mirrors ``torch.randn``."""
    t = normal_draw(_size(size, _), _floating(dtype), place(device), generator)
    return into(out, t.requires_grad_(True) if requires_grad else t)


def randint(
    low: Any, high: Any = None, size: Any = None, *, generator: Generator | None = None, out: Any = None,
    dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """Integers in [low, high).  ``randint(high, size)`` starts at 0.  Mirrors ``torch.randint``."""
    if not is_int(high):
        low, high, size = 0, low, high if size is None else size
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    t = integers(tuple(size), low, high, place(device), generator)
    dtype = dtypes.typed(dtype, dtypes.int64)
    return into(out, t if dtype is dtypes.int64 else ops.cast(t, dtype=dtype))


def integers(shape: Any, low: Any, high: Any, device: Device, generator: Generator | None) -> Tensor:
    """32 bits modulo the range, or 63 where the range is larger."""
    words = bits_draw(shape, device, generator)
    if high - low > 1 << 32:
        upper = ops.bit_and(bits_draw(shape, device, generator), (1 << 31) - 1)
        words = ops.bit_or(words, ops.shl(upper, 32))
    t = ops.mod(words, high - low)
    return t if type(low) is int and low == 0 else ops.add(t, low)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType = dtypes.int64, device: Any = None, **_: Any
) -> Tensor:
    """A permutation of 0 .. n - 1: the order of random words.  Mirrors ``torch.randperm``."""
    if n < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
    high = bits_draw((n,), place(device), generator)
    low = bits_draw((n,), place(device), generator)
    words = ops.bit_or(ops.shl(ops.bit_and(high, (1 << 31) - 1), 32), low)
    return ops.cast(ops.argsort(words, dim=0, descending=False), dtype=dtypes.typed(dtype, dtypes.int64))


def rand_like(
    input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    return rand(
        *input.shape, dtype=dtype or input.dtype, device=device or input.device, requires_grad=requires_grad
    )


def randn_like(
    input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    return randn(
        *input.shape, dtype=dtype or input.dtype, device=device or input.device, requires_grad=requires_grad
    )


def randint_like(
    input: Tensor,
    low: int,
    high: int | None = None,
    *,
    dtype: DType | None = None,
    device: Any = None,
    **_: Any,
) -> Tensor:
    return randint(low, high, tuple(input.shape), dtype=dtype or input.dtype, device=device or input.device)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """Normal numbers with these means and deviations (numbers or tensors).  Mirrors ``torch.normal``."""
    if not isinstance(std, Tensor) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    shaped = [x for x in (mean, std) if isinstance(x, Tensor)]
    if shaped:
        like = ops.add(mean, ops.mul(std, 0.0)) if len(shaped) > 1 else shaped[0]
        z = normal_draw(like.shape, like.dtype, like.device, generator)
    else:
        z = normal_draw(tuple(size), _floating(dtype), place(device), generator)
    return ops.add(ops.mul(z, std), mean)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None, out: Any = None
) -> Tensor:
    """1 with the probability that each element states, in its own type.  Mirrors ``torch.bernoulli``."""
    u = uniform_draw(input.shape, dtypes.float32, input.device, generator)
    return into(out, ops.cast(ops.lt(u, input.detach() if p is None else p), dtype=input.dtype))


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn in proportion to the rows of weights.  Mirrors ``torch.multinomial``.

    Without replacement: the largest of weight / exponential variate (Efraimidis and Spirakis, 2006); with it, the place
    of a uniform number among the cumulative weights.
    """
    if input.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for the input, got: {input.dtype.title}"
        )
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    n = input.shape[-1]
    if not replacement and num_samples > n:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    p = ops.cast(input.detach(), dtype=dtypes.float32)
    if not replacement:
        u = uniform_draw(p.shape, dtypes.float32, input.device, generator)
        wait = ops.neg(ops.log(ops.sub(1.0, u)))
        key = ops.div(ops.add(wait, 1e-30), p)  # infinite where the weight is 0
        return ops.argsort(key, dim=p.ndim - 1, descending=False).narrow(-1, 0, num_samples).contiguous()
    steps = p.cumsum(-1)
    goal = uniform_draw((*p.shape[:-1], num_samples), dtypes.float32, input.device, generator)
    goal = ops.mul(goal, steps.narrow(-1, n - 1, 1))
    return ops.le(steps.unsqueeze(-2), goal.unsqueeze(-1)).sum(-1).clamp(max=n - 1)


# --- in place, on a tensor --------------------------------------------------------------------------------------------
def uniform_(
    self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None, **named: Any
) -> Tensor:
    """Fill with uniform numbers in [from, to)."""
    low = named.pop("from", from_)
    u = uniform_draw(self.shape, self.dtype, self.device, generator)
    return self._assign(ops.add(ops.mul(u, to - low), low))


def normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with normal numbers."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    z = normal_draw(self.shape, _floating(self.dtype), self.device, generator)
    return self._assign(ops.add(ops.mul(z, std), mean))


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability ``p``, else 0."""
    u = uniform_draw(self.shape, dtypes.float32, self.device, generator)
    return self._assign(ops.cast(ops.lt(u, p), dtype=self.dtype))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponential numbers of this rate."""
    u = uniform_draw(self.shape, self.dtype, self.device, generator)
    return self._assign(ops.div(ops.neg(ops.log(ops.sub(1.0, u))), lambd))


def random_(
    self: Tensor, from_: int = 0, to: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Fill with integers in [from, to); ``random_(n)`` in [0, n)."""
    low, high = (0, from_) if to is None and from_ else (from_, to)
    if high is None:
        exact = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24, "float64": 1 << 53}
        high = exact.get(self.dtype.name) or (
            2 if self.dtype is dtypes.bool_ else min(dtypes.iinfo(self.dtype).max + 1, 1 << 63)
        )
    return self._assign(ops.cast(integers(self.shape, low, high, self.device, generator), dtype=self.dtype))
