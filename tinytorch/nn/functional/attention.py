"""Attention: softmax(Q K^T) V, and the multi-head form with its projections.

Stage: eager.  In: queries, keys and values.  Out: values mixed by similarity.  Mirrors ``torch.nn.functional``.
Read next: ``nn.attention``.
"""

from __future__ import annotations

import math
from typing import Any

from tinytorch import dtypes, ops, rng
from tinytorch.amp.policy import lower
from tinytorch.nn.functional.drop import dropout
from tinytorch.nn.functional.lookup import linear
from tinytorch.nn.functional.sdp_backend import blocked_allowed, math_allowed
from tinytorch.tensor import Tensor


@lower
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key^T scale + mask) value (Vaswani et al., 2017).

    query (..., L, E), key (..., S, E), value (..., S, Ev) give (..., L, Ev).  A bool mask says who takes part, any
    other is added.  With ``enable_gqa`` each head of key and value serves several heads of query.  Runs as one row
    that never makes the (L, S) matrix; ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`` asks for the plain formula.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if attn_mask is not None and not (attn_mask.dtype is dtypes.bool_ or attn_mask.dtype.is_floating_point):
        raise RuntimeError(f"Expected attn_mask dtype to be bool or float, but got attn_mask.dtype: {attn_mask.dtype}")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if blocked_allowed() and _fits_row(query, key, value, attn_mask, dropout_p, enable_gqa):
        return _blocked(query, key, value, attn_mask, dropout_p, is_causal, factor)
    if not math_allowed():
        raise RuntimeError("No available kernel. Aborting execution.")
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = (query * factor).matmul(key.transpose(-2, -1))
    if is_causal:
        attn_mask = causal_mask(query.shape[-2], key.shape[-2], query)
    if attn_mask is not None:
        scores = ops.where(attn_mask, scores, -math.inf) if attn_mask.dtype is dtypes.bool_ else scores + attn_mask
    weights = scores.softmax(-1) if is_causal or attn_mask is None else _softmax_rows(scores)
    return dropout(weights, dropout_p).matmul(value)


def _fits_row(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, grouped: bool) -> bool:
    """Whether the row ``attention`` covers the case: (N,) heads, no broadcasting between q, k and v, no gradient of the
    mask, one floating type.  What is wrong altogether is left to the plain formula's messages."""
    if not (q.dim() == k.dim() == v.dim() in (3, 4)) or not q.dtype.is_floating_point:
        return False
    if not (q.dtype is k.dtype is v.dtype) or not 0.0 <= dropout_p < 1.0:
        return False
    if mask is not None and (mask.requires_grad or mask.dim() > q.dim() or not _mask_fits(mask, q, k)):
        return False
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or k.shape[:-2] != v.shape[:-2]:
        return False
    if any(isinstance(n, int) and n == 0 for n in (*q.shape, *k.shape, *v.shape)):
        return False
    if not grouped:
        return q.shape[:-2] == k.shape[:-2]
    return q.shape[:-3] == k.shape[:-3] and q.shape[-3] % k.shape[-3] == 0


def _mask_fits(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Broadcasts to the scores; ones of a type that may be added."""
    if mask.dtype is not dtypes.bool_ and not mask.dtype.is_floating_point:
        return False
    scores = (*q.shape[:-1], k.shape[-2])
    return all(
        n == s or (isinstance(n, int) and n == 1) for n, s in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def _blocked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, scale: float
) -> Tensor:
    """Through the row ``attention``, whose dropout draws the bits that a mask over all scores would."""
    single = q.dim() == 3
    if single:
        q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    while mask is not None and mask.dim() < 4:
        mask = mask.unsqueeze(0)
    state, shift = None, 0
    if dropout_p:
        numel = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        state, shift = rng.default_generator.draw(numel, q.device)
    out, _ = ops.attention(q, k, v, mask, state, causal=causal, scale=scale, dropout=dropout_p, shift=shift)
    return out.squeeze(0) if single else out


def causal_mask(rows: Any, columns: Any, like: Tensor) -> Tensor:
    """True where column <= row: each position sees itself and what came before."""
    row = ops.iota(size=rows, device=like.device).unsqueeze(-1)
    return row >= ops.iota(size=columns, device=like.device)


def _softmax_rows(scores: Tensor) -> Tensor:
    """Softmax, where a row that sees nobody becomes zeros instead of NaN."""
    weights = scores.softmax(-1)
    empty = ops.amax(scores, dim=(scores.dim() - 1,), keepdim=True) == -math.inf
    return ops.where(empty, 0.0, weights)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention over (L, N, E), (S, N, E), (S, N, E), or without N.  A bool mask is True where attention is
    *not* allowed, the opposite of ``scaled_dot_product_attention``.  Gives the output and, if wanted, the weights."""
    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward: static_k and static_v are not supported")
    batched = query.dim() == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, embed = query.shape
    assert embed == embed_dim_to_check, f"was expecting embedding dimension of {embed_dim_to_check}, but got {embed}"
    head = embed // num_heads
    assert head * num_heads == embed, f"embed_dim {embed} not divisible by num_heads {num_heads}"
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _project(query, key, value, in_proj_weight, in_proj_bias, separate)
    if bias_k is not None and bias_v is not None:
        k = _extend(k, bias_k.expand(1, batch, embed))
        v = _extend(v, bias_v.expand(1, batch, embed))
        attn_mask, key_padding_mask = _one_more(attn_mask), _one_more(key_padding_mask)
    q, k, v = (x.reshape(x.shape[0], batch, num_heads, head).permute(1, 2, 0, 3) for x in (q, k, v))
    if add_zero_attn:
        zero = ops.full(shape=(batch, num_heads, 1, head), value=0.0, dtype=k.dtype, device=k.device)
        k, v = ops.cat(k, zero, dim=2), ops.cat(v, zero, dim=2)
        attn_mask, key_padding_mask = _one_more(attn_mask), _one_more(key_padding_mask)
    mask = _joint_mask(attn_mask, key_padding_mask, batch, num_heads, q.dtype)
    p = dropout_p if training else 0.0
    if need_weights:
        weights = (q * (1 / math.sqrt(head))).matmul(k.transpose(-2, -1))
        weights = (weights if mask is None else weights + mask).softmax(-1)
        weights = dropout(weights, p)
        mixed = weights.matmul(v)
    else:
        mixed = scaled_dot_product_attention(q, k, v, mask, p, is_causal and mask is None)
    out = linear(mixed.permute(2, 0, 1, 3).reshape(length, batch, embed), out_proj_weight, out_proj_bias)
    if not need_weights:
        return (out if batched else out.squeeze(1)), None
    if average_attn_weights:
        weights = weights.mean(1)
    return (out, weights) if batched else (out.squeeze(1), weights.squeeze(0))


def _project(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, separate: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V: one product for self-attention, three otherwise."""
    if separate is None and query is key and key is value:
        assert weight is not None
        q, k, v = linear(query, weight, bias).chunk(3, -1)
        return q, k, v
    weights = separate if separate is not None else weight.chunk(3, 0)  # type: ignore[union-attr]
    biases = (None, None, None) if bias is None else bias.chunk(3, 0)
    q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    return q, k, v


def _extend(x: Tensor, row: Tensor) -> Tensor:
    return ops.cat(x, row, dim=0)


def _one_more(mask: Tensor | None) -> Tensor | None:
    """The mask with one key more, which all may see."""
    if mask is None:
        return None
    last = mask.dim() - 1
    return ops.slice_backward(mask, dim=last, size=mask.shape[last] + 1, start=0, stop=mask.shape[last], step=1)


def _joint_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: Any, heads: int, dtype: dtypes.DType
) -> Tensor | None:
    """Both masks as one to add, (N or 1, heads or 1, L or 1, S)."""
    joint = None
    if attn_mask is not None:
        joint = _additive(attn_mask, dtype)
        if joint.dim() == 3:
            joint = joint.reshape(batch, heads, *joint.shape[1:])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, dtype).reshape(batch, 1, 1, -1)
        joint = padding if joint is None else joint + padding
    return joint


def _additive(mask: Tensor, dtype: dtypes.DType) -> Tensor:
    """-inf where a bool mask forbids, 0 elsewhere; other masks as they are."""
    if mask.dtype is not dtypes.bool_:
        return mask
    zero = ops.full(shape=(), value=0.0, dtype=dtype, device=mask.device)
    return ops.where(mask, -math.inf, zero)
