"""Categorical, Bernoulli, Normal, Uniform, and Independent.

Stage: eager.  In: parameters.  Out: samples and log probabilities.  Mirrors ``torch.distributions``.
Read next: ``distribution``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytorch import ops, tape
from tinytorch.distributions.distribution import Distribution, require
from tinytorch.functions.creation import as_tensor
from tinytorch.functions.random import bernoulli, multinomial, rand, randn
from tinytorch.functions.shape import broadcast_tensors
from tinytorch.nn.functional.losses import binary_cross_entropy_with_logits
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor


def _numbers(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape, a floating type, and one device: numbers follow the first tensor."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    dtype, device = (None, None) if like is None else (like.dtype, like.device)
    made = (v if isinstance(v, Tensor) else as_tensor(float(v), dtype=dtype, device=device) for v in values)
    return tuple(broadcast_tensors(*made))


class Categorical(Distribution):
    """A class number with the given probabilities (normalised) or logits along the last dimension."""

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        given = probs if probs is not None else logits
        assert given is not None
        if given.dim() < 1:
            raise ValueError("`probs` parameter must be at least one-dimensional." if logits is None else "`logits` parameter must be at least one-dimensional.")
        if probs is not None and validate_args is not False:
            require(probs >= 0, "probs to be non-negative", probs)
        self._probs = None if probs is None else probs / probs.sum(-1, keepdim=True)
        self._logits = None if logits is None else logits.log_softmax(-1)
        super().__init__(given.shape[:-1])
        self._num_events = given.shape[-1]

    @property
    def probs(self) -> Tensor:
        return self._probs if self._probs is not None else ops.exp(self._logits)

    @property
    def logits(self) -> Tensor:
        if self._logits is not None:
            return self._logits
        assert self._probs is not None
        eps = float(2.0**-23)
        return ops.log(self._probs.clamp(eps, 1 - eps))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tape.grad_mode(False):
            rows = self.probs.detach().reshape(-1, self._num_events)
            draws = multinomial(rows, math.prod(sample_shape), replacement=True)  # (batch, samples)
            return draws.t().reshape(*self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.long().unsqueeze(-1)
        shape = broadcast_shapes(tuple(value.shape[:-1]), tuple(self.batch_shape))
        logits = self.logits.expand(*shape, self._num_events)
        return logits.gather(-1, value.expand(*shape, 1)).squeeze(-1)

    def entropy(self) -> Tensor:
        logits = self.logits.clamp_min(-3.4e38)
        return -(logits * self.probs).sum(-1)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)


class Bernoulli(Distribution):
    """1 with the given probability or logit, else 0."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        (given,) = _numbers(probs if probs is not None else logits)
        self.probs = given if probs is not None else ops.sigmoid(given)
        eps = float(2.0**-23)
        safe = self.probs.clamp(eps, 1 - eps)
        self.logits = given if logits is not None else ops.log(safe) - ops.log1p(-safe)
        super().__init__(given.shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tape.grad_mode(False):
            return bernoulli(self.probs.expand(*self._extended_shape(sample_shape)).contiguous())

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_tensors(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)


class Normal(Distribution):
    """Mean ``loc``, deviation ``scale``."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = _numbers(loc, scale)
        if validate_args is not False:
            require(self.scale > 0, "scale to be positive", self.scale)
        super().__init__(self.loc.shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.loc + self.scale * randn(*shape, dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -0.5 * z * z - ops.log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + ops.erf((value - self.loc) / self.scale / math.sqrt(2)))

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + ops.log(self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale * self.scale


class Uniform(Distribution):
    """Between ``low`` and ``high``."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = _numbers(low, high)
        if validate_args is not False:
            require(self.low < self.high, "high to be above low", self.high)
        super().__init__(self.low.shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.low + (self.high - self.low) * rand(*shape, dtype=self.low.dtype, device=self.low.device)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return ops.where(inside, -ops.log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return ops.log(self.high - self.low)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12


class Independent(Distribution):
    """The last ``reinterpreted_batch_ndims`` batch dimensions of another distribution taken as part of the event."""

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        n = reinterpreted_batch_ndims
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        if n > len(base_distribution.batch_shape):
            raise ValueError(
                f"Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual {n} vs {len(base_distribution.batch_shape)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        cut = len(base_distribution.batch_shape) - n
        super().__init__(shape[:cut], shape[cut:])
        self.has_rsample = base_distribution.has_rsample

    def _sum(self, x: Tensor) -> Tensor:
        return x.sum(tuple(range(-self.reinterpreted_batch_ndims, 0))) if self.reinterpreted_batch_ndims else x

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._sum(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._sum(self.base_dist.entropy())

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q) for pairs of one family; NotImplementedError for others."""
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = (p.scale / q.scale) ** 2
        distance = ((p.loc - q.loc) / q.scale) ** 2
        return 0.5 * (ratio + distance - 1 - ops.log(ratio))
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return (p.probs * (p.logits - q.logits)).sum(-1)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        return _cross_entropy(p, q) - p.entropy()
    if isinstance(p, Independent) and isinstance(q, Independent):
        return p._sum(kl_divergence(p.base_dist, q.base_dist))
    raise NotImplementedError(f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}")


def _cross_entropy(p: Bernoulli, q: Bernoulli) -> Tensor:
    """The cross entropy of q with outcomes of p."""
    logits, target = broadcast_tensors(q.logits, p.probs)
    return binary_cross_entropy_with_logits(logits, target, reduction="none")
