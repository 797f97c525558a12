"""Which functions autocast changes: two decorators, put on the functions themselves.

Stage: eager.  In: the thread's autocast mode (``tape.mode.autocast``: None, or pairs of device type and dtype).
Out: arguments cast.  A cast is an ordinary row, so the tape and the compiler see it.  ``lower``: products, which half types
make fast.  ``full``: sums and exponentials, which half types make wrong.  All else takes what it gets, promoted.
Mirrors the op lists of ``torch.amp``.  Read next: ``autocast``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import TABLE
from tinytorch.tape import mode
from tinytorch.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def lower(fn: F) -> F:
    """Under autocast ``fn`` computes in the autocast dtype."""

    @functools.wraps(fn)
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        if mode.autocast is None:
            return fn(*args, **kwargs)
        return _with(fn, args, kwargs, dict(mode.autocast).get)

    return under_autocast  # type: ignore[return-value]


def full(fn: F) -> F:
    """Under autocast ``fn`` computes in float32."""

    @functools.wraps(fn)
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        if mode.autocast is None:
            return fn(*args, **kwargs)
        covered = dict(mode.autocast)
        return _with(fn, args, kwargs, lambda device: dtypes.float32 if device in covered else None)

    return under_autocast  # type: ignore[return-value]


def _with(fn: Any, args: Any, kwargs: Any, wanted: Callable[[str], DType | None]) -> Any:
    """Call with the floating tensors cast; functions called inside are not cast again."""
    args = tuple(_cast(a, wanted) for a in args)
    kwargs = {k: _cast(v, wanted) for k, v in kwargs.items()}
    before, mode.autocast = mode.autocast, None
    try:
        return fn(*args, **kwargs)
    finally:
        mode.autocast = before


def _cast(value: Any, wanted: Callable[[str], DType | None]) -> Any:
    """float64 is left alone, as in PyTorch: it was asked for."""
    if type(value) in (list, tuple):
        return type(value)(_cast(v, wanted) for v in value)
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.dtype is dtypes.float64:
        return value
    dtype = wanted(value.device.type)
    return value if dtype is None or dtype is value.dtype else TABLE["cast"](value, dtype=dtype)
