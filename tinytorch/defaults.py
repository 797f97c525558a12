"""What is meant where a program does not say: the type of floats, and the device of new tensors.

Stage: eager, guarded by capture.  In: ``set_default_dtype``, ``set_default_device``, ``with device(...)``.  Out: ``defaults.now``,
a pair that is the same object whenever it is equal, so that compiled code asks one ``is``.  Read next: ``dtypes``, ``device``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinytorch.device import Device
    from tinytorch.dtypes import DType


class Defaults:
    """The pair (dtype, device) of the process."""

    now: tuple[DType, Device]

    def __init__(self) -> None:
        self._known: dict[tuple[Any, Any], Any] = {}

    def put(self, dtype: Any, device: Any) -> None:
        pair = dtype, device
        self.now = self._known.setdefault(pair, pair)


defaults = Defaults()
defaults.put(None, None)  # ``dtypes`` and ``device`` put in theirs
