"""Losses as modules: each keeps the settings of its function in ``functional.losses``.

Stage: eager.  In: predictions and targets.  Out: a loss.  Mirrors ``torch.nn``.  Read next: ``functional.losses``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytorch.nn import functional as F
from tinytorch.nn.module import Module
from tinytorch.tensor import Tensor


class _Loss(Module):
    """A loss with a ``reduction``; the settings named in ``_settings`` are passed on by keyword."""

    fn: Callable[..., Tensor]
    _settings: tuple[str, ...] = ("reduction",)

    def __init__(self, size_average: None = None, reduce: None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args, **{name: getattr(self, name) for name in self._settings})


class _WeightedLoss(_Loss):
    """A loss with a rescaling ``weight``, kept as a buffer so that it moves with the module."""

    _settings: tuple[str, ...] = ("weight", "reduction")
    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, size_average: None = None, reduce: None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss):
    fn = staticmethod(F.l1_loss)


class MSELoss(_Loss):
    fn = staticmethod(F.mse_loss)


class SoftMarginLoss(_Loss):
    fn = staticmethod(F.soft_margin_loss)


class BCELoss(_WeightedLoss):
    fn = staticmethod(F.binary_cross_entropy)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    fn = staticmethod(F.multilabel_soft_margin_loss)


class BCEWithLogitsLoss(_Loss):
    fn = staticmethod(F.binary_cross_entropy_with_logits)
    _settings = ("weight", "reduction", "pos_weight")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        reduce: None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)


class NLLLoss(_WeightedLoss):
    fn = staticmethod(F.nll_loss)
    _settings = ("weight", "ignore_index", "reduction")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index


class CrossEntropyLoss(_WeightedLoss):
    fn = staticmethod(F.cross_entropy)
    _settings = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing


class KLDivLoss(_Loss):
    fn = staticmethod(F.kl_div)
    _settings = ("reduction", "log_target")

    def __init__(
        self, size_average: None = None, reduce: None = None, reduction: str = "mean", log_target: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target


class SmoothL1Loss(_Loss):
    fn = staticmethod(F.smooth_l1_loss)
    _settings = ("reduction", "beta")

    def __init__(
        self, size_average: None = None, reduce: None = None, reduction: str = "mean", beta: float = 1.0
    ) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta


class HuberLoss(_Loss):
    fn = staticmethod(F.huber_loss)
    _settings = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta


class PoissonNLLLoss(_Loss):
    fn = staticmethod(F.poisson_nll_loss)
    _settings = ("log_input", "full", "eps", "reduction")

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: None = None,
        eps: float = 1e-8,
        reduce: None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_input, self.full, self.eps = log_input, full, eps


class GaussianNLLLoss(_Loss):
    fn = staticmethod(F.gaussian_nll_loss)
    _settings = ("full", "eps", "reduction")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps


class _MarginLoss(_Loss):
    """A loss with a ``margin``."""

    _settings = ("margin", "reduction")
    _margin = 0.0

    def __init__(
        self, margin: float | None = None, size_average: None = None, reduce: None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin = self._margin if margin is None else margin


class HingeEmbeddingLoss(_MarginLoss):
    fn = staticmethod(F.hinge_embedding_loss)
    _margin = 1.0


class MarginRankingLoss(_MarginLoss):
    fn = staticmethod(F.margin_ranking_loss)


class CosineEmbeddingLoss(_MarginLoss):
    fn = staticmethod(F.cosine_embedding_loss)


class MultiMarginLoss(_WeightedLoss):
    fn = staticmethod(F.multi_margin_loss)
    _settings = ("p", "margin", "weight", "reduction")

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: None = None,
        reduce: None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.p, self.margin = p, margin


class TripletMarginLoss(_Loss):
    fn = staticmethod(F.triplet_margin_loss)
    _settings = ("margin", "p", "eps", "swap", "reduction")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: None = None,
        reduce: None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap


class TripletMarginWithDistanceLoss(_Loss):
    fn = staticmethod(F.triplet_margin_with_distance_loss)
    _settings = ("distance_function", "margin", "swap", "reduction")

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap


class CosineSimilarity(Module):
    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Any:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CTCLoss(_Loss):
    fn = staticmethod(F.ctc_loss)
    _settings = ("blank", "reduction", "zero_infinity")

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity
