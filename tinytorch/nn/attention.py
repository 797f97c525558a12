"""Multi-head attention, and the transformer layers made of it.

Stage: eager.  In: sequences (L, N, E), or (N, L, E) with ``batch_first``.  Out: the same shape.
Mirrors ``torch.nn``.  Read next: ``functional.attention``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from tinytorch import dtypes, ops
from tinytorch.dtypes import DType
from tinytorch.functions.creation import place
from tinytorch.nn import functional as F
from tinytorch.nn import init
from tinytorch.nn.containers import ModuleList
from tinytorch.nn.dropout import Dropout
from tinytorch.nn.functional.sdp_backend import SDPBackend as SDPBackend
from tinytorch.nn.functional.sdp_backend import sdpa_kernel as sdpa_kernel
from tinytorch.nn.linear import Linear, NonDynamicallyQuantizableLinear
from tinytorch.nn.module import Module
from tinytorch.nn.normalization import LayerNorm
from tinytorch.nn.parameter import Parameter, empty
from tinytorch.tensor import Tensor

#: What ``torch.nn.attention`` has; the modules below are ``torch.nn``'s.
__all__ = ["SDPBackend", "sdpa_kernel"]


class MultiheadAttention(Module):
    """Attention with ``num_heads`` heads and projections before and after (Vaswani et al., 2017)."""

    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        assert embed_dim % num_heads == 0, "embed_dim must be divisible by num_heads"
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.head_dim, self.add_zero_attn = batch_first, embed_dim // num_heads, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim

        def new(*shape: int) -> Parameter:
            return Parameter(empty(shape, device, dtype))

        same = self._qkv_same_embed_dim
        self.register_parameter("in_proj_weight", new(3 * embed_dim, embed_dim) if same else None)
        self.register_parameter("q_proj_weight", None if same else new(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if same else new(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if same else new(embed_dim, self.vdim))
        self.register_parameter("in_proj_bias", new(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        self.register_parameter("bias_k", new(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", new(1, 1, embed_dim) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = self._parameters[name]
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)  # type: ignore[arg-type]
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights or None).  Bool masks are True where attention is not allowed."""
        turned = self.batch_first and query.dim() == 3
        if turned:
            if query is key and key is value:
                query = key = value = query.transpose(0, 1)
            else:
                query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        out, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (out.transpose(0, 1) if turned else out), weights


def _activation(which: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if not isinstance(which, str):
        return which
    if which not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {which}")
    return F.relu if which == "relu" else F.gelu


class _TransformerLayer(Module):
    """Attentions and a feed-forward network; around each of them dropout, a residual and layer normalisation."""

    _attentions: tuple[str, ...] = ("self_attn",)

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        where: Any = {"device": device, "dtype": dtype}
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **where))
        self.linear1 = Linear(d_model, dim_feedforward, bias, **where)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **where)
        self.norm_first = norm_first
        parts = range(1, len(self._attentions) + 2)
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **where))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    @staticmethod
    def _attend(
        attention: Any, x: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        out = attention(
            x, memory, memory, attn_mask=mask, key_padding_mask=padding, is_causal=is_causal, need_weights=False
        )
        return out[0]  # type: ignore[no-any-return]

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward network, each with dropout, a residual and layer normalisation."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def own(x: Tensor) -> Tensor:
            return self.dropout1(self._attend(self.self_attn, x, x, src_mask, src_key_padding_mask, is_causal))  # type: ignore[no-any-return]

        x = src
        if self.norm_first:
            x = x + own(self.norm1(x))
            return x + self.dropout2(self._feed_forward(self.norm2(x)))
        x = self.norm1(x + own(x))
        return self.norm2(x + self.dropout2(self._feed_forward(x)))  # type: ignore[no-any-return]


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the encoder's memory, and a feed-forward network."""

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def own(x: Tensor) -> Tensor:
            return self.dropout1(self._attend(self.self_attn, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))  # type: ignore[no-any-return]

        def cross(x: Tensor) -> Tensor:
            found = self._attend(self.multihead_attn, x, memory, memory_mask, memory_key_padding_mask, memory_is_causal)
            return self.dropout2(found)  # type: ignore[no-any-return]

        x = tgt
        if self.norm_first:
            x = x + own(self.norm1(x))
            x = x + cross(self.norm2(x))
            return x + self.dropout3(self._feed_forward(self.norm3(x)))
        x = self.norm1(x + own(x))
        x = self.norm2(x + cross(x))
        return self.norm3(x + self.dropout3(self._feed_forward(x)))  # type: ignore[no-any-return]


class TransformerEncoder(Module):
    """``num_layers`` copies of an encoder layer."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(
                src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal)
            )
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """``num_layers`` copies of a decoder layer."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_is_causal: bool | None = None, **masks: Any) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_is_causal=bool(tgt_is_causal), **masks)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        rest: Any = (layer_norm_eps, batch_first, norm_first, bias, device, dtype)
        size: Any = (d_model, nhead, dim_feedforward, dropout, activation)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*size, *rest), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*size, *rest), num_decoder_layers, norm()
        )
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt,
            memory,
            tgt_is_causal=tgt_is_causal,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: DType | None = None) -> Tensor:
        """(sz, sz): -inf above the diagonal, 0 elsewhere."""
        row = ops.iota(size=sz, device=place(device))
        zero = ops.full(shape=(), value=0.0, dtype=dtype or dtypes.get_default_dtype(), device=row.device)
        return ops.where(row > row.unsqueeze(-1), -math.inf, zero)  # type: ignore[no-any-return]
