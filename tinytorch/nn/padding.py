"""Borders as modules, one class per mode and number of dimensions.

Stage: eager.  In: (N, C, *sizes) or (C, *sizes).  Out: larger sizes.  Mirrors ``torch.nn``.
Read next: ``functional.pads``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinytorch.nn import functional as F
from tinytorch.nn.functional.conv import as_tuple
from tinytorch.nn.module import Module
from tinytorch.tensor import Tensor


class _Pad(Module):
    """``padding``: one size for all sides, or (left, right, top, bottom, ...)."""

    n = 0
    mode = "constant"

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        self.padding = as_tuple(padding, 2 * self.n)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    n = 1


class ConstantPad2d(_ConstantPad):
    n = 2


class ConstantPad3d(_ConstantPad):
    n = 3


class ZeroPad1d(_Pad):
    n = 1


class ZeroPad2d(_Pad):
    n = 2


class ZeroPad3d(_Pad):
    n = 3


class ReflectionPad1d(_Pad):
    n, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    n, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    n, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    n, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    n, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    n, mode = 3, "replicate"


class CircularPad1d(_Pad):
    n, mode = 1, "circular"


class CircularPad2d(_Pad):
    n, mode = 2, "circular"


class CircularPad3d(_Pad):
    n, mode = 3, "circular"
