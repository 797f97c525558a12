"""``SGD``: gradient descent with momentum.

Stage: eager.  In: gradients.  Out: parameters changed in place.  Mirrors ``torch.optim.SGD``.  Read next: ``adam``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytorch.optim.optimizer import Group, Optimizer, check_not_negative, zeros_like
from tinytorch.tensor import Tensor


class SGD(Optimizer):
    """p -= lr v, where v = momentum v + (1 - dampening) g; ``nesterov`` looks one step ahead (Sutskever et al., 2013)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "nesterov": nesterov, "maximize": maximize})

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        """Zero velocity; with dampening the first gradient counts in full, so the first step must see that it is."""
        return {"momentum_buffer": zeros_like(p)} if group["momentum"] != 0 and group["dampening"] == 0 else {}

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        momentum = group["momentum"]
        if momentum != 0:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = g.detach().clone()
            else:
                state["momentum_buffer"].mul_(momentum).add_(g, alpha=1 - group["dampening"])
            velocity = state["momentum_buffer"]
            g = g.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        p.sub_(g * group["lr"])
