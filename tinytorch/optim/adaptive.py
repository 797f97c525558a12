"""``RMSprop``, ``Adagrad``, ``Adadelta``: steps scaled by the size of past gradients.

Stage: eager.  In: gradients.  Out: parameters changed in place.  Mirrors ``torch.optim``.  Read next: ``lr_scheduler``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytorch.optim.optimizer import (
    Group,
    Optimizer,
    check_not_negative,
    step_count,
    value_of,
    zeros_like,
)
from tinytorch.tensor import Tensor


class RMSprop(Optimizer):
    """p -= lr g / (sqrt(v) + eps), v the running mean of g² (Hinton's lecture 6e; ``centered``: Graves, 2013)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        settings = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**settings, "centered": centered, "maximize": maximize})

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        state = {"step": step_count(p), "square_avg": zeros_like(p)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = zeros_like(p)
        return state

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        alpha = group["alpha"]
        state = self.state[p]
        state["step"] += 1
        square = state["square_avg"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(g, 1 - alpha)
            square = square - mean * mean
        update = g / (square.sqrt() + group["eps"])
        if group["momentum"] > 0:
            update = state["momentum_buffer"].mul_(group["momentum"]).add_(update)
        p.sub_(update * group["lr"])


class Adagrad(Optimizer):
    """p -= lr g / (sqrt(sum of g²) + eps) (Duchi, Hazan and Singer, 2011)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_not_negative(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        check_not_negative(initial_accumulator_value=initial_accumulator_value)
        settings = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**settings, "initial_accumulator_value": initial_accumulator_value})
        self.prepare(lambda p: p.requires_grad)

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        total = zeros_like(p).fill_(group["initial_accumulator_value"])
        return {"step": step_count(p), "sum": total}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        state = self.state[p]
        state["step"] += 1
        lr = group["lr"]
        if group["lr_decay"] != 0:
            lr = lr / (1 + (value_of(state["step"]) - 1) * group["lr_decay"])
        total = state["sum"].addcmul_(g, g, value=1.0)
        p.sub_(g / (total.sqrt() + group["eps"]) * lr)


class Adadelta(Optimizer):
    """Steps scaled by the ratio of the running sizes of past steps and gradients (Zeiler, 2012)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        settings = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, settings)

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        return {"step": step_count(p), "square_avg": zeros_like(p), "acc_delta": zeros_like(p)}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        rho, eps = group["rho"], group["eps"]
        state = self.state[p]
        state["step"] += 1
        square, steps = state["square_avg"], state["acc_delta"]
        square.mul_(rho).addcmul_(g, g, value=1 - rho)
        delta = (steps + eps).sqrt() / (square + eps).sqrt() * g
        steps.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.sub_(delta * group["lr"])
