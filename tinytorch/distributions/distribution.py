"""The base of all distributions: shapes, sampling without and with gradients.

Stage: eager.  In: parameters as tensors.  Out: samples and log probabilities.  Mirrors ``torch.distributions``.
Read next: ``families``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytorch import tape
from tinytorch.tensor import Size, Tensor


class Distribution:
    """``batch_shape`` independent distributions over events of ``event_shape``."""

    has_rsample = False

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw, off the tape."""
        with tape.grad_mode(False):
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw so that gradients flow into the parameters."""
        raise NotImplementedError(f"{type(self).__name__} cannot be sampled with gradients")

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self) -> Tensor:
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape: {self._batch_shape}, event_shape: {self._event_shape})"


def require(ok: Tensor, what: str, value: Any) -> None:
    """ValueError unless all of ``ok``."""
    if not ok.all():
        raise ValueError(f"Expected parameter {what}, but found invalid values:\n{value}")
