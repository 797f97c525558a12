"""Attention rows: softmax(Q K^T) V without the matrix of scores, forward and backward.

Stage: eager, read by all.  In: ``q`` (B, H, T, D), ``k`` (B, Hk, S, D), ``v`` (B, Hk, S, E), Hk dividing H; an optional
``mask`` that broadcasts to (B, H, T, S), and the ``state`` of a random stream for dropout.  Out: (B, H, T, E), and the
logarithm of each row's sum of exponentials (B, H, T), which is all that backward needs of the softmax.
Blocks of rows meet blocks of columns with a running maximum and sum (Milakov and Gimelshein, 2018; FlashAttention,
Dao et al., 2022), so memory grows with T + S and not with T x S.  Read next: ``nn.functional.attention``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tinytorch import dtypes, engine, tape
from tinytorch.dtypes import DType
from tinytorch.ops import philox
from tinytorch.ops.opdef import TABLE, Meta, Op, elementwise_strides

#: Scores up to this many elements are one block.
SMALL = 1 << 21
#: Rows and columns of a block otherwise.
BLOCK = 256


# --- shapes -----------------------------------------------------------------------------------------------------------
def sums_dtype(dtype: DType) -> DType:
    """In which type scores, sums and their logarithm are kept."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _check(q: Meta, k: Meta, v: Meta, mask: Meta | None, state: Meta | None, dropout: float) -> None:
    if not (len(q.shape) == len(k.shape) == len(v.shape) == 4):
        raise RuntimeError(f"attention takes 4-D tensors, got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    if q.dtype is not k.dtype or q.dtype is not v.dtype or not q.dtype.is_floating_point:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{q.dtype.title} key.dtype: {k.dtype.title} and value.dtype: {v.dtype.title} instead."
        )
    (b, h, _, d), (bk, hk, s, dk) = q.shape, k.shape
    if b != bk or b != v.shape[0] or hk != v.shape[1] or s != v.shape[2] or d != dk or h % hk != 0:
        raise RuntimeError(f"attention: shapes do not fit: {list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    if mask is not None and len(mask.shape) != 4:
        raise RuntimeError(f"attention: the mask must have 4 dimensions, got {list(mask.shape)}")
    if dropout and state is None:
        raise RuntimeError("attention: dropout needs the state of a random stream")


def _infer(
    q: Meta, k: Meta, v: Meta, mask: Meta | None, state: Meta | None, causal: bool, scale: float, dropout: float, shift: Any
) -> tuple[Meta, Meta]:
    """The output lies in memory as the query does, so that heads come back side by side without a copy."""
    _check(q, k, v, mask, state, dropout)
    shape = (*q.shape[:3], v.shape[3])
    return Meta(shape, q.dtype, elementwise_strides(shape, [q])), Meta(shape[:3], sums_dtype(q.dtype))


def _backward_infer(
    g: Meta, q: Meta, k: Meta, v: Meta, delta: Meta, lse: Meta, mask: Meta | None, state: Meta | None, **p: Any
) -> tuple[Meta, Meta, Meta]:
    """Each gradient lies in memory as its tensor does."""
    return tuple(Meta(x.shape, x.dtype, elementwise_strides(x.shape, [x])) for x in (q, k, v))  # type: ignore[return-value]


# --- eager kernels ----------------------------------------------------------------------------------------------------
class Scores:
    """Blocks of the matrix of scores, heads of one key grouped: (B, Hk, H / Hk, rows, columns)."""

    def __init__(
        self, xp: Any, q: Any, k: Any, mask: Any, state: Any, causal: bool, scale: float, dropout: float, shift: Any
    ) -> None:
        self.xp, self.causal, self.scale, self.dropout = xp, causal, scale, dropout
        self.wide = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
        self.shape = (*q.shape[:3], k.shape[2])
        b, h, t, s = self.shape
        self.lead = (b, k.shape[1], h // k.shape[1])
        self.q, self.k = q.reshape(*self.lead, t, q.shape[3]), k[:, :, None]
        self.mask = None if mask is None else xp.broadcast_to(mask, self.shape).reshape(*self.lead, t, s)
        if dropout:
            self.seed, self.offset = int(state[0]), int(state[1]) + int(shift)

    def blocks(self) -> Iterator[tuple[slice, list[slice]]]:
        """Rows, and the columns that meet them."""
        b, h, t, s = self.shape
        step = BLOCK if b * h * t * s > SMALL else max(t, s, 1)
        for row in range(0, t, step):
            last = min(s, row + step) if self.causal else s
            yield slice(row, min(row + step, t)), [slice(c, min(c + step, last)) for c in range(0, last, step)]

    def widened(self, x: Any) -> Any:
        return x.astype(self.wide, copy=False)

    def at(self, rows: slice, columns: slice) -> Any:
        """Scaled and masked scores."""
        xp = self.xp
        q, k = self.widened(self.q[..., rows, :]), self.widened(self.k[..., columns, :])
        s = xp.matmul(q * self.wide.type(self.scale), k.swapaxes(-1, -2))
        if self.causal and columns.stop > rows.start + 1:
            ahead = xp.arange(columns.start, columns.stop) > xp.arange(rows.start, rows.stop)[:, None]
            s = xp.where(ahead, self.wide.type(-math.inf), s)
        if self.mask is not None:
            m = self.mask[..., rows, columns]
            s = xp.where(m, s, self.wide.type(-math.inf)) if m.dtype.kind == "b" else s + self.widened(m)
        return s

    def kept(self, rows: slice, columns: slice) -> Any:
        """0 where dropout falls, else 1 / (1 - p): what a mask drawn over all scores at once has there."""
        xp = self.xp
        b, h, t, s = self.shape
        row = xp.arange(b * h).reshape(*self.lead, 1, 1) * t + xp.arange(rows.start, rows.stop)[:, None]
        place = row * s + xp.arange(columns.start, columns.stop)
        uniform = philox.draw_at(xp, self.seed, self.offset + place // 4, place % 4, philox.UNIFORM)
        return xp.where(uniform >= np.float32(self.dropout), self.wide.type(1 / (1 - self.dropout)), self.wide.type(0))


def _kernel(xp: Any, q: Any, k: Any, v: Any, mask: Any, state: Any, **p: Any) -> tuple[Any, Any]:
    """One pass over the columns of each block of rows; what was summed so far is scaled when the maximum rises."""
    scores = Scores(xp, q, k, mask, state, **p)
    b, h, t, _ = scores.shape
    wide, values = scores.wide, v[:, :, None]
    out = xp.empty((*scores.lead, t, v.shape[-1]), q.dtype)
    lse = xp.empty((*scores.lead, t), wide)
    for rows, all_columns in scores.blocks():
        n = rows.stop - rows.start
        peak = xp.full((*scores.lead, n, 1), -math.inf, wide)
        total = xp.zeros((*scores.lead, n, 1), wide)
        mixed = xp.zeros((*scores.lead, n, v.shape[-1]), wide)
        for columns in all_columns:
            s = scores.at(rows, columns)
            higher = xp.maximum(peak, s.max(-1, keepdims=True))
            level = xp.where(higher == -math.inf, wide.type(0), higher)  # a row that has seen nothing yet
            weights, faded = xp.exp(s - level), xp.exp(peak - level)
            total = total * faded + weights.sum(-1, keepdims=True)
            if p["dropout"]:
                weights = weights * scores.kept(rows, columns)
            mixed = mixed * faded + xp.matmul(weights, scores.widened(values[..., columns, :]))
            peak = higher
        out[..., rows, :] = mixed / xp.where(total == 0, wide.type(1), total)
        lse[..., rows] = (peak + xp.log(total))[..., 0]
    return out.reshape(b, h, t, v.shape[3]), lse.reshape(b, h, t)


def _backward_kernel(
    xp: Any, g: Any, q: Any, k: Any, v: Any, delta: Any, lse: Any, mask: Any, state: Any, **p: Any
) -> tuple[Any, Any, Any]:
    """The weights again from the scores and their saved sums; then the chain rule, block by block."""
    scores = Scores(xp, q, k, mask, state, **p)
    wide, (b, h, t, _) = scores.wide, scores.shape
    g, values = g.reshape(*scores.lead, t, g.shape[3]), v[:, :, None]
    delta, lse = (x.reshape(*scores.lead, t, 1) for x in (delta, lse))
    lse = xp.where(lse == -math.inf, wide.type(math.inf), lse)  # a row that sees nobody has weights of zero
    dq = xp.zeros(scores.q.shape, wide)
    dk = xp.zeros(k.shape, wide)
    dv = xp.zeros(v.shape, wide)
    for rows, all_columns in scores.blocks():
        gr, qr = scores.widened(g[..., rows, :]), scores.widened(scores.q[..., rows, :])
        for columns in all_columns:
            weights = xp.exp(scores.at(rows, columns) - lse[..., rows, :])
            dweights = xp.matmul(gr, scores.widened(values[..., columns, :]).swapaxes(-1, -2))
            dropped = weights
            if p["dropout"]:
                kept = scores.kept(rows, columns)
                dropped, dweights = weights * kept, dweights * kept
            dv[:, :, columns] += xp.matmul(dropped.swapaxes(-1, -2), gr).sum(2)
            ds = weights * (dweights - delta[..., rows, :]) * wide.type(p["scale"])
            dq[..., rows, :] += xp.matmul(ds, scores.widened(scores.k[..., columns, :]))
            dk[:, :, columns] += xp.matmul(ds.swapaxes(-1, -2), qr).sum(2)
    return dq.reshape(b, h, t, q.shape[3]).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)


# --- derivatives ------------------------------------------------------------------------------------------------------
def _vjp(outs: Any, q: Any, k: Any, v: Any, mask: Any, state: Any, **p: Any) -> Any:
    """Three functions that share one run of ``attention_backward``: the first that is called leaves the others' parts."""
    out, lse = outs
    left: dict[int, Any] = {}
    of: list[Any] = []

    def part(cotangents: Any, number: int) -> Any:
        if not (of and of[0] is cotangents and number in left):
            grads = _plain if tape.mode.grad else _blocked
            left.clear()
            left.update(enumerate(grads(cotangents, out, lse, (q, k, v), mask, state, p)))
            of[:] = [cotangents]
        return left.pop(number)

    return tuple([_numbered(part, n) for n in range(3)])


def _numbered(part: Callable[[Any, int], Any], number: int) -> Callable[[Any], Any]:
    return lambda cotangents: part(cotangents, number)


def _blocked(cotangents: Any, out: Any, lse: Any, qkv: Any, mask: Any, state: Any, p: Any) -> Any:
    """``delta``, each row's sum of weight times its cotangent, is that of output times cotangent."""
    g, g_lse = cotangents
    if g is None:
        g = TABLE["mul"](out, 0.0)
    wide = lse.dtype
    product = TABLE["mul"](_cast(g, wide), _cast(out, wide))
    delta = TABLE["sum"](product, dim=(3,), keepdim=False)
    if g_lse is not None:
        delta = TABLE["sub"](delta, g_lse)
    return attention_backward(_cast(g, out.dtype), *qkv, delta, lse, mask, state, **p)


def _plain(cotangents: Any, out: Any, lse: Any, qkv: Any, mask: Any, state: Any, p: Any) -> Any:
    """Gradients that can be differentiated again: those of the plain formula, through the tape."""
    running = tape.mode.running
    copies = [TABLE["clone"](x) for x in qkv]  # of their own, should two of them be one tensor
    plain: Any = formula
    roots = [(o, g) for o, g in zip(plain(*copies, mask, state, **p), cotangents, strict=True) if g is not None]
    wanted = [c for c in copies if c.requires_grad]
    found = iter(
        engine.backward(
            [o for o, _ in roots], [g for _, g in roots], retain_graph=True, create_graph=True, inputs=wanted,
            accumulate=False,
        )
    )  # fmt: skip
    tape.mode.running = running
    return [next(found) if c.requires_grad else None for c in copies]


def formula(
    q: Any, k: Any, v: Any, mask: Any, state: Any, causal: bool, scale: float, dropout: float, shift: Any
) -> tuple[Any, Any]:
    """What the row means, in other rows: the output and the logarithm of the sums."""
    kind, wide = q.dtype, sums_dtype(q.dtype)
    k, v = (x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    q, k, v = (_cast(x, wide) for x in (q, k, v))
    scores = (q * scale).matmul(k.transpose(-2, -1))
    if causal:
        row = TABLE["iota"](size=q.shape[2], device=q.device).unsqueeze(-1)
        scores = TABLE["where"](row >= TABLE["iota"](size=k.shape[2], device=q.device), scores, -math.inf)
    if mask is not None:
        boolean = mask.dtype is dtypes.bool_
        scores = TABLE["where"](mask, scores, -math.inf) if boolean else scores + _cast(mask, wide)
    peak = TABLE["amax"](scores.detach(), dim=(3,), keepdim=True)
    level = TABLE["where"](peak == -math.inf, 0.0, peak)
    weights = (scores - level).exp()
    total = weights.sum(-1, keepdim=True)
    weights = weights / TABLE["where"](total == 0.0, 1.0, total)
    if dropout:
        uniform = TABLE["uniform"](state, shape=tuple(scores.shape), shift=shift, dtype=dtypes.float32)
        weights = TABLE["where"](uniform >= dropout, weights * (1 / (1 - dropout)), 0.0)
    return _cast(weights.matmul(v), kind), (total.log() + level).squeeze(-1)


def _cast(x: Any, dtype: DType) -> Any:
    return x if x.dtype is dtype else TABLE["cast"](x, dtype=dtype)


def _backward_vjp(outs: Any, *args: Any, **p: Any) -> Any:
    raise NotImplementedError(
        "attention_backward is not differentiable; take second derivatives of attention with create_graph=True"
    )


# --- rows -------------------------------------------------------------------------------------------------------------
def _samples(make: Callable[..., Any]) -> Iterator[Any]:
    """Shapes that meet every flag: one row, grouped heads, a value size of its own, both kinds of mask."""
    plain = {"causal": False, "scale": 0.5, "dropout": 0.0, "shift": 0}
    q, kv = make(2, 4, 5, 3), (make(2, 2, 7, 3), make(2, 2, 7, 6))
    yield (q, *kv, None, None), plain
    yield (q, *kv, None, None), {**plain, "causal": True}
    yield (q, *kv, make(1, 4, 5, 7), None), plain
    yield (q, *kv, make(2, 1, 1, 7) > 0, None), plain
    yield (make(1, 1, 1, 8), make(1, 1, 1, 8), make(1, 1, 1, 8), None, None), {**plain, "causal": True}


def _errors(make: Callable[..., Any]) -> Iterator[Any]:
    plain = {"causal": False, "scale": 0.5, "dropout": 0.0, "shift": 0}
    yield (make(2, 3, 5, 3), make(2, 2, 7, 3), make(2, 2, 7, 3), None, None), plain
    yield (make(2, 2, 5, 3), make(2, 2, 7, 4), make(2, 2, 7, 3), None, None), plain
    yield (make(2, 2, 5, 3), make(2, 2, 7, 3), make(2, 2, 7, 3), None, None), {**plain, "dropout": 0.5}


attention = Op(
    name="attention",
    kind="extern",
    infer=_infer,
    kernel=_kernel,
    vjp=_vjp,
    recompute="save",
    outputs=2,
    samples=_samples,
    errors=_errors,
    doc="softmax(q k^T scale + mask) v and the logarithm of each row's sum, without the matrix of scores",
)
attention_backward = Op(
    name="attention_backward",
    kind="extern",
    infer=_backward_infer,
    kernel=_backward_kernel,
    vjp=_backward_vjp,
    recompute="save",
    outputs=3,
    doc="cotangents of attention's q, k and v from that of its output, delta and the saved logarithms",
)
