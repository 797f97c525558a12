"""``tinytorch.accelerator``: the GPU by a name that does not say which kind.  Mirrors ``torch.accelerator``."""

from __future__ import annotations

from tinytorch import cuda
from tinytorch.device import Device


def is_available() -> bool:
    return cuda.is_available()


def current_accelerator(check_available: bool = False) -> Device | None:
    """``device(type='cuda')``, or None where there is no GPU."""
    return Device("cuda") if cuda.is_available() else None


def device_count() -> int:
    return cuda.device_count()


def synchronize() -> None:
    if cuda.is_available():
        cuda.synchronize()
