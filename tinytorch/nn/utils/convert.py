"""Parameters as one vector, and back.

Stage: eager.  In: parameters.  Out: a vector; or the parameters, over parts of a vector.
Mirrors ``torch.nn.utils``.  Read next: ``clip_grad``.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinytorch import ops
from tinytorch.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements one after another."""
    return ops.cat(*[p.reshape(-1) for p in parameters], dim=0)  # type: ignore[no-any-return]


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give each parameter its part of ``vec`` as its data."""
    start = 0
    for p in parameters:
        n = p.numel()
        p.data = vec[start : start + n].view(p.shape).detach()
        start += n
