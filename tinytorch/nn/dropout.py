"""Dropout as modules, switched by ``train`` and ``eval``.

Stage: eager.  In: a tensor.  Out: the same shape.  Mirrors ``torch.nn``.  Read next: ``functional.drop``.
"""

from __future__ import annotations

from collections.abc import Callable

from tinytorch.nn import functional as F
from tinytorch.nn.module import Module
from tinytorch.tensor import Tensor


class Dropout(Module):
    """In training each element is zero with probability ``p`` and scaled by 1 / (1 - p) otherwise."""

    fn: Callable[..., Tensor] = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if p < 0.0 or p > 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return self.fn(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    fn = staticmethod(F.dropout1d)


class Dropout2d(Dropout):
    fn = staticmethod(F.dropout2d)


class Dropout3d(Dropout):
    fn = staticmethod(F.dropout3d)


class AlphaDropout(Dropout):
    fn = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(Dropout):
    fn = staticmethod(F.feature_alpha_dropout)
