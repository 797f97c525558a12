"""``tinytorch.amp``: mixed precision.

Stage: eager.  Mirrors ``torch.amp``.  Read next: ``policy``, ``autocast``, ``grad_scaler``.
"""

from __future__ import annotations

from typing import Any

from tinytorch.amp.autocast import autocast, get_autocast_dtype, is_autocast_available, is_autocast_enabled

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_available", "is_autocast_enabled"]


def __getattr__(name: str) -> Any:
    """``GradScaler`` needs optimizers, which the rest of this room must not bring along."""
    if name == "GradScaler":
        from tinytorch.amp.grad_scaler import GradScaler

        return GradScaler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
