"""``autocast``: run a block in mixed precision.

Stage: eager.  In: a device type and a dtype.  Out: the thread's autocast mode.  Mirrors ``torch.autocast``.
Read next: ``policy``, ``grad_scaler``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.tape import mode

#: device type -> the dtype used unless one is given
DEFAULTS: dict[str, DType] = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16}


class autocast:  # noqa: N801 - its public name
    """A block, or a decorator, in which products compute in ``dtype`` and sums in float32.

    Only ops on tensors of ``device_type`` are changed; ``enabled=False`` inside an outer block switches it off there.
    """

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type not in DEFAULTS:
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        self.device, self.dtype, self._enabled = device_type, dtype or DEFAULTS[device_type], enabled
        if enabled and self.dtype not in (dtypes.float16, dtypes.bfloat16):
            raise RuntimeError(f"autocast supports float16 and bfloat16, not {self.dtype}")

    def __enter__(self) -> autocast:
        self.before = mode.autocast
        pairs = {**dict(self.before or ()), self.device: self.dtype}
        if not self._enabled:
            del pairs[self.device]
        mode.autocast = tuple(pairs.items()) or None
        return self

    def __exit__(self, *exc: object) -> None:
        mode.autocast = self.before

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with autocast(self.device, self.dtype, self._enabled):
                return fn(*args, **kwargs)

        return wrapped


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether autocast changes ops on this device type now."""
    return device_type in dict(mode.autocast or ())


def get_autocast_dtype(device_type: str) -> DType:
    """The dtype autocast uses now, or would by default."""
    return dict(mode.autocast or ()).get(device_type, DEFAULTS[device_type])


def is_autocast_available(device_type: str) -> bool:
    return device_type in DEFAULTS
