"""Linear maps and table look-ups.

Stage: eager.  In: activations or indices, and weights.  Out: activations.  Mirrors ``torch.nn.functional``.
Read next: ``attention``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import ops, tape
from tinytorch.amp.policy import lower
from tinytorch.tensor import Tensor


@lower
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b.  input (*, in), weight (out, in) or (in), bias (out): gives (*, out) or (*)."""
    out = input.matmul(weight.t() if weight.dim() == 2 else weight)
    return out if bias is None else out + bias


@lower
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1^T W x2 + b for each output.  inputs (*, in1) and (*, in2), weight (out, in1, in2)."""
    rows = input1.unsqueeze(-2).unsqueeze(-2)  # (*, 1, 1, in1)
    half = rows.matmul(weight).squeeze(-2)  # (*, out, in2)
    out = (half * input2.unsqueeze(-2)).sum(-1)
    return out if bias is None else out + bias


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of ``weight`` (num, dim) at ``input``, integers of any shape: gives (*input.shape, dim).

    The row ``padding_idx`` gets no gradient.  ``max_norm`` renormalises the used rows in place.
    """
    if sparse:
        raise NotImplementedError("F.embedding: sparse=True: there are no sparse tensors here; without it the gradient is dense")
    if scale_grad_by_freq:
        raise NotImplementedError("F.embedding: scale_grad_by_freq=True is not supported")
    if max_norm is not None:
        _renormalise(weight, input, max_norm, norm_type)
    out = ops.index_select(weight, input, dim=0)
    if padding_idx is None:
        return out
    return ops.where((input == padding_index(padding_idx, weight)).unsqueeze(-1), out.detach(), out)


def padding_index(padding_idx: int, weight: Tensor) -> Any:
    """``padding_idx`` counted from the front; AssertionError if there is no such row."""
    rows = weight.shape[0]
    assert -rows <= padding_idx < rows, "Padding_idx must be within num_embeddings"
    return padding_idx + rows if padding_idx < 0 else padding_idx


def _renormalise(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    with tape.grad_mode(False):
        rows = weight.detach()[input.reshape(-1)]
        size = rows.norm(norm_type, 1, keepdim=True)
        scale = ops.where(size > max_norm, max_norm / (size + 1e-7), 1.0)
        weight.detach()[input.reshape(-1)] = rows * scale


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """The sum, mean or max of the rows of each bag; ``input`` (bags, size), one bag a row."""
    if offsets is not None or input.dim() != 2:
        raise NotImplementedError("F.embedding_bag: only 2-d input, one bag a row, is supported")
    rows = embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        if mode != "sum":
            raise NotImplementedError("embedding_bag: per_sample_weights was not None, which needs mode='sum'")
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == "max":
        return rows.amax(1)
    if mode not in ("sum", "mean"):
        raise ValueError("mode has to be one of sum, mean or max")
    return rows.sum(1) if mode == "sum" else rows.mean(1)
