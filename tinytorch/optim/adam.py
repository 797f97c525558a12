"""``Adam``, ``AdamW`` and their relations: steps scaled by running moments of the gradient.

Stage: eager.  In: gradients.  Out: parameters changed in place.  Mirrors ``torch.optim``.  Read next: ``lr_scheduler``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytorch import ops
from tinytorch.optim.functional import adam_
from tinytorch.optim.optimizer import (
    Group,
    Optimizer,
    check_not_negative,
    step_count,
    value_of,
    zeros_like,
)
from tinytorch.tensor import Tensor


def check_betas(betas: tuple[float, float]) -> None:
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


class Adam(Optimizer):
    """p -= lr m / (sqrt(v) + eps), with m and v the bias-corrected running means of g and g² (Kingma and Ba, 2014).

    ``amsgrad`` uses the largest v so far (Reddi et al., 2018); ``decoupled_weight_decay`` makes it AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(
            params, {**settings, "maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay}
        )

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
        return {"step": step_count(p), **{name: zeros_like(p) for name in names}}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        state = self.state[p]
        state["step"] += 1
        largest = state["max_exp_avg_sq"] if group["amsgrad"] else None
        step = value_of(state["step"])
        adam_(p, g, state["exp_avg"], state["exp_avg_sq"], largest, step, group["lr"], group["betas"], group["eps"])


class AdamW(Adam):
    """Adam with the weights shrunk by lr weight_decay, apart from the gradient (Loshchilov and Hutter, 2017)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True
        )


class NAdam(Optimizer):
    """Adam with Nesterov momentum (Dozat, 2016)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(betas)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        more = {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, {**settings, **more})

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        counts = {"step": step_count(p), "mu_product": step_count(p, 1.0)}
        return {**counts, "exp_avg": zeros_like(p), "exp_avg_sq": zeros_like(p)}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        beta1, beta2 = group["betas"]
        lr, decay = group["lr"], group["momentum_decay"]
        state = self.state[p]
        state["step"] += 1
        step = value_of(state["step"])
        mu = beta1 * (1 - 0.5 * 0.96 ** (step * decay))
        mu_next = beta1 * (1 - 0.5 * 0.96 ** ((step + 1) * decay))
        state["mu_product"] *= mu
        product = value_of(state["mu_product"])
        state["exp_avg"].lerp_(g, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
        p.sub_(g / denominator * (lr * (1 - mu) / (1 - product)))
        p.sub_(state["exp_avg"] / denominator * (lr * mu_next / (1 - product * mu_next)))


class Adamax(Optimizer):
    """Adam with the largest decayed gradient in place of the second moment (Kingma and Ba, 2014, section 7)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, settings)

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        return {"step": step_count(p), "exp_avg": zeros_like(p), "exp_inf": zeros_like(p)}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[p]
        state["step"] += 1
        state["exp_avg"].lerp_(g, 1 - beta1)
        largest = ops.maximum(state["exp_inf"] * beta2, ops.abs(g) + group["eps"])
        state["exp_inf"].copy_(largest)
        correction = 1 - beta1 ** value_of(state["step"])
        p.sub_(state["exp_avg"] / largest * (group["lr"] / correction))
