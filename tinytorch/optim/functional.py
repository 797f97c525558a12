"""Steps as functions of tensors: what one step does to a parameter and to its state, in place.

Stage: eager.  In: a parameter, its gradient, its state.  Out: the same, changed.  Capture takes such a function for one node, as it
does those of ``nn.functional``: a step over some hundred parameters is traced in as many calls, not in a dozen each.
Mirrors ``torch.optim.adam.adam``.  Read next: ``adam``.
"""

from __future__ import annotations

from tinytorch import ops
from tinytorch.tensor import Tensor


def adam_(
    p: Tensor, g: Tensor, mean: Tensor, square: Tensor, largest: Tensor | None, step: float | Tensor, lr: float | Tensor,
    betas: tuple[float, float], eps: float,
) -> Tensor:  # fmt: skip
    """Adam's step number ``step``; with ``largest`` (the largest ``square`` so far) that of AMSGrad."""
    beta1, beta2 = betas
    mean.lerp_(g, 1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if largest is not None:
        square = largest.copy_(ops.maximum(largest, square))
    denominator = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
    return p.sub_(mean / denominator * (lr / (1 - beta1**step)))
