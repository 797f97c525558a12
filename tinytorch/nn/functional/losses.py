"""Losses: how far predictions are from targets, as one number or one per element.

Stage: eager.  In: predictions and targets.  Out: a tensor reduced by ``reduction``: "mean", "sum" or "none".
Mirrors ``torch.nn.functional``, without the deprecated ``size_average`` and ``reduce``.  Read next: ``lookup``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.amp.policy import full
from tinytorch.nn.functional.activations import logsigmoid, softplus
from tinytorch.tensor import Tensor


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """``loss`` by "mean", "sum" or "none"; ValueError for any other word."""
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _weighted(loss: Tensor, weight: Tensor | None) -> Tensor:
    return loss if weight is None else loss * weight


# --- regression -------------------------------------------------------------------------------------------------------
@full
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    return reduced(_weighted(ops.abs(input - target), weight), reduction)


@full
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    return reduced(_weighted(ops.square(input - target), weight), reduction)


@full
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Squared where nearer than ``beta``, absolute beyond."""
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return l1_loss(input, target, reduction)
    diff = ops.abs(input - target)
    return reduced(ops.where(diff < beta, ops.square(diff) * (0.5 / beta), diff - 0.5 * beta), reduction)


@full
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """``smooth_l1_loss`` times delta (Huber, 1964)."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    diff = ops.abs(input - target)
    return reduced(ops.where(diff <= delta, ops.square(diff) * 0.5, (diff - 0.5 * delta) * delta), reduction)


@full
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of Poisson counts; ``full`` adds Stirling's approximation of log(target!)."""
    loss = ops.exp(input) - target * input if log_input else input - target * ops.log(input + eps)
    if full:
        stirling = target * ops.log(target) - target + 0.5 * ops.log(target * (2 * math.pi))
        loss = loss + ops.where(target <= 1, 0.0, stirling)
    return reduced(loss, reduction)


@full
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Negative log likelihood of a normal distribution of mean ``input`` and variance ``var`` (at least eps)."""
    spread: Any = var if isinstance(var, Tensor) else input.detach() * 0.0 + var
    if spread.dim() == input.dim() - 1:
        spread = spread.unsqueeze(-1)
    spread = ops.where(spread < eps, spread.detach() * 0.0 + eps, spread)
    loss = 0.5 * (ops.log(spread) + ops.square(input - target) / spread)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# --- classification ---------------------------------------------------------------------------------------------------
@full
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log probability of the target class.

    ``input``: (C), (N, C) or (N, C, d1, ...) log probabilities; ``target``: the same without C, of class numbers.
    The mean is weighted by the classes' weights; targets equal to ``ignore_index`` count nothing.
    """
    dim = 0 if input.dim() == 1 else 1
    _check_classes(input, target, dim)
    _check_weight(weight, input.shape[dim])
    valid: Any = target != ignore_index
    safe = ops.where(valid, target, 0)
    loss = -input.gather(dim, safe.unsqueeze(dim)).squeeze(dim)
    if weight is not None:
        share = weight.to(input.dtype)[safe]
        loss = loss * share
        counts = ops.where(valid, share, 0.0)
    else:
        counts = valid
    loss = ops.where(valid, loss, 0.0)
    return loss.sum() / counts.sum() if reduction == "mean" else reduced(loss, reduction)


def _check_weight(weight: Tensor | None, classes: Any) -> None:
    if weight is not None and (weight.dim() != 1 or weight.shape[0] != classes):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of "
            f"shape: {list(weight.shape)}"
        )


def _check_classes(input: Tensor, target: Tensor, dim: int) -> None:
    if input.dim() == 0:
        raise ValueError(f"Expected 1 or more dimensions (got {input.dim()})")
    expected = (*input.shape[:dim], *input.shape[dim + 1 :])
    if target.dim() > 0 and input.dim() > 1 and input.shape[0] != target.shape[0]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]})."
        )
    if tuple(target.shape) != expected:
        raise RuntimeError(f"Expected target size {list(expected)}, got {list(target.shape)}")


@full
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits (C), (N, C) or (N, C, d1, ...) with class numbers, or with probabilities of equal shape."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    dim = 0 if input.dim() == 1 else 1
    logp = input.log_softmax(dim)
    if target.dtype.is_floating_point:
        return _cross_entropy_probabilities(logp, target, weight, reduction, label_smoothing, dim)
    loss = nll_loss(logp, target, weight, None, ignore_index, None, reduction)
    if label_smoothing == 0.0:
        return loss
    smooth = _smooth_loss(logp, target, weight, ignore_index, reduction, dim)
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / input.shape[dim])


def _along(weight: Tensor, dim: int, ndim: int) -> Tensor:
    """A per-class vector shaped to broadcast along ``dim``."""
    return weight.reshape(*(-1 if d == dim else 1 for d in range(ndim)))


def _smooth_loss(
    logp: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, dim: int
) -> Tensor:
    """The share of cross entropy spread over all classes by label smoothing."""
    weighted = logp if weight is None else logp * _along(weight, dim, logp.dim())
    valid: Any = target != ignore_index
    loss = ops.where(valid, -weighted.sum(dim), 0.0)
    if reduction != "mean":
        return reduced(loss, reduction)
    counts = valid if weight is None else ops.where(valid, weight[ops.where(valid, target, 0)], 0.0)
    return loss.sum() / counts.sum()


def _cross_entropy_probabilities(
    logp: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, dim: int
) -> Tensor:
    if tuple(target.shape) != tuple(logp.shape):
        raise RuntimeError(f"Expected floating point target of size {list(logp.shape)}, got {list(target.shape)}")
    if smoothing > 0.0:
        target = target * (1 - smoothing) + smoothing / logp.shape[dim]
    _check_weight(weight, logp.shape[dim])
    if weight is not None:
        target = target * _along(weight, dim, logp.dim())
    loss = -(logp * target).sum(dim)
    return loss.sum() / loss.numel() if reduction == "mean" else reduced(loss, reduction)


@full
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of probabilities with targets in [0, 1]; logarithms are no smaller than -100."""
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is deprecated. "
            "Please ensure they have the same size."
        )
    yes = ops.log(input).clamp_min(-100.0)
    no = ops.log1p(-input).clamp_min(-100.0)
    return reduced(_weighted((target - 1) * no - target * yes, weight), reduction)


@full
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """``binary_cross_entropy`` of sigmoid(input), without overflow."""
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    log_weight: Any = 1.0 if pos_weight is None else (pos_weight - 1) * target + 1
    return reduced(_weighted((1 - target) * input - log_weight * logsigmoid(input), weight), reduction)


@full
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Kullback-Leibler divergence of ``target`` from log probabilities ``input``; "batchmean" divides by the batch."""
    if log_target:
        loss = ops.exp(target) * (target - input)
    else:
        safe = ops.where(target > 0, target, 1.0)
        loss = ops.where(target > 0, target * ops.log(safe), 0.0) - target * input
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.dim() else 1)
    return reduced(loss, reduction)


@full
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return reduced(softplus(-target * input, threshold=50.0), reduction)


@full
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    near = ops.where(target == 1, input, 0.0)
    far = ops.where(target == -1, ops.relu(margin - input), 0.0)
    return reduced(near + far, reduction)


@full
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return reduced(_weighted(loss, weight).mean(-1), reduction)


@full
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Hinge of every wrong class against the right one, averaged over the classes."""
    place = target.unsqueeze(-1)
    hinge = ops.relu(margin - input.gather(-1, place) + input)
    hinge = hinge if p == 1 else hinge * hinge
    if weight is not None:
        hinge = hinge * weight[target].unsqueeze(-1)
    right = (input.detach() * 0.0).scatter(-1, place, 1.0)
    return reduced(ops.where(right == 1.0, 0.0, hinge).sum(-1) / input.shape[-1], reduction)


# --- embeddings -------------------------------------------------------------------------------------------------------
@full
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    return reduced(ops.relu(-target * (input1 - input2) + margin), reduction)


@full
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Scalar product over the product of the lengths, each no smaller than ``eps``."""
    a, b = (x / x.norm(2, dim, keepdim=True).clamp_min(eps) for x in (x1, x2))
    return (a * b).sum(dim)


@full
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cosine for pairs of target 1, the part of it above ``margin`` for pairs of target -1."""
    eps = 1e-12
    dot = (input1 * input2).sum(-1)
    sizes = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    cos = dot / ops.sqrt(sizes)
    loss = ops.where(target == 1, 1 - cos, ops.where(target == -1, ops.relu(cos - margin), 0.0))
    return reduced(loss, reduction)


@full
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@full
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """The negative shall be farther than the positive by ``margin``."""
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda x, y: pairwise_distance(x, y, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


@full
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduced(ops.relu(near - far + margin), reduction)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 ones at the places that ``tensor`` names along a new last dimension."""
    if tensor.dtype is not dtypes.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1 if tensor.numel() else 0
    classes = ops.iota(size=num_classes, device=tensor.device)
    return ops.cast(tensor.unsqueeze(-1) == classes, dtype=dtypes.int64)
