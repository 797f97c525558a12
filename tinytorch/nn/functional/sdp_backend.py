"""Which way ``scaled_dot_product_attention`` may go: the blocked row, or the plain formula that fuses with its neighbours.

Stage: eager.  In: a choice, for a ``with`` block or by ``TT_ATTENTION=math``.  Out: what ``attention`` asks.  Mirrors
``torch.nn.attention``.  Read next: ``nn.functional.attention``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

from tinytorch.tape import mode


class SDPBackend(Enum):
    """The names PyTorch gives them; all but MATH are the blocked row here."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3


_MATH = frozenset({SDPBackend.MATH})
_DEFAULT = _MATH if os.environ.get("TT_ATTENTION", "") == "math" else frozenset(SDPBackend)


@contextmanager
def sdpa_kernel(backends: SDPBackend | Iterable[SDPBackend], set_priority: bool = False) -> Iterator[None]:
    """Allow only these inside the block, in this thread."""
    allowed = frozenset([backends] if isinstance(backends, SDPBackend) else backends)
    if not allowed:
        raise AssertionError("At least one backend must be provided")
    before, mode.sdpa = mode.sdpa, allowed
    try:
        yield
    finally:
        mode.sdpa = before


def allowed() -> frozenset[SDPBackend]:
    return _DEFAULT if mode.sdpa is None else mode.sdpa  # type: ignore[no-any-return]


def blocked_allowed() -> bool:
    return allowed() != _MATH


def math_allowed() -> bool:
    return SDPBackend.MATH in allowed()
