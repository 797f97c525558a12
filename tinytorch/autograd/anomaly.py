"""Anomaly mode: remember the forward line of every node, and stop at the first NaN in backward.

Stage: eager.  Mirrors ``torch.autograd.anomaly_mode``.  Read next: ``engine``.
"""

from __future__ import annotations

from typing import Any

from tinytorch.tape import mode


class set_detect_anomaly:  # noqa: N801 - PyTorch's names
    """Switches the mode at once; as a block, puts the old one back at its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = _now()
        _set(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _set(*self.before)


class detect_anomaly:  # noqa: N801
    """A block in which errors of backward name the forward line, and NaN gradients raise."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan

    def __enter__(self) -> None:
        self.before = _now()
        _set(True, self.check_nan)

    def __exit__(self, *exc: object) -> None:
        _set(*self.before)


def _now() -> tuple[bool, bool]:
    return mode.anomaly, mode.check_nan


def _set(anomaly: Any, check_nan: bool) -> None:
    mode.anomaly, mode.check_nan = bool(anomaly), check_nan


def is_anomaly_enabled() -> bool:
    return mode.anomaly
