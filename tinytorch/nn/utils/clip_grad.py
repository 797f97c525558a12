"""Gradient clipping, in place.

Stage: eager.  In: parameters after backward.  Out: their norm; gradients limited.  Written without branches on values,
so that a compiled training step keeps it in its graph.  Mirrors ``torch.nn.utils``.  Read next: ``optim``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinytorch import ops, tape
from tinytorch.tensor import Tensor


def _as_list(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors as if they were one vector."""
    every = _as_list(tensors)
    p = float(norm_type)
    if not every:
        return ops.full(shape=(), value=0.0, dtype=_float32())
    norms = [t.detach().norm(p) for t in every]
    total = norms[0] if len(norms) == 1 else _stack([n.to(device=norms[0].device) for n in norms]).norm(p)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


def _float32() -> object:
    from tinytorch.dtypes import float32

    return float32


def _stack(scalars: list[Tensor]) -> Tensor:
    return ops.cat(*[s.reshape(1) for s in scalars], dim=0)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients by max_norm / total_norm if that is below 1."""
    scale = ops.minimum(max_norm / (total_norm + 1e-6), 1.0)
    with tape.grad_mode(False):
        for p in _as_list(parameters):
            if p.grad is not None:
                p.grad.mul_(scale.to(device=p.grad.device))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Limit the norm of all gradients together to ``max_norm``; returns the norm before."""
    every = _as_list(parameters)
    with tape.grad_mode(False):
        total = get_total_norm([p.grad for p in every if p.grad is not None], norm_type, error_if_nonfinite)
        clip_grads_with_norm_(every, float(max_norm), total)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Limit each element of the gradients to [-clip_value, clip_value]."""
    limit = float(clip_value)
    with tape.grad_mode(False):
        for p in _as_list(parameters):
            if p.grad is not None:
                p.grad.clamp_(-limit, limit)
