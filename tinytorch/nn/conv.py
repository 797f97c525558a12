"""Convolutions as modules, in one, two and three dimensions, plain and transposed.

Stage: eager.  In: (N, C, *sizes) or (C, *sizes).  Out: other channels and sizes.  Mirrors ``torch.nn``.
Read next: ``functional.conv``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinytorch.dtypes import DType
from tinytorch.nn import functional as F
from tinytorch.nn import init
from tinytorch.nn.functional.conv import as_tuple, same_padding
from tinytorch.nn.module import Module
from tinytorch.nn.parameter import Parameter, empty
from tinytorch.tensor import Tensor

Size = int | Sequence[int]


class _ConvNd(Module):
    """What all convolutions share: sizes, weight, bias; ``n`` spatial dimensions."""

    n = 0
    transposed = False
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Any,
        dilation: Size,
        output_padding: Size,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: DType | None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string '{padding}', should be one of {{'valid', 'same'}}")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                "padding_mode must be one of {'zeros', 'reflect', 'replicate', 'circular'}, "
                f"but got padding_mode='{padding_mode}'"
            )
        n = self.n
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = (as_tuple(x, n) for x in (kernel_size, stride, dilation))
        self.padding = padding if isinstance(padding, str) else as_tuple(padding, n)
        self.output_padding = as_tuple(output_padding, n)
        self.padding_mode = padding_mode
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty((*channels, *self.kernel_size), device, dtype))
        self.register_parameter("bias", Parameter(empty((out_channels,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._fans(self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """Borders that are not zeros are made here; the convolution then has none."""
        if self.padding_mode == "zeros":
            return input, self.padding
        if self.padding == "valid":
            return input, 0
        if self.padding == "same":
            pairs = same_padding(self.kernel_size, self.dilation)
        else:
            pairs = [(p, p) for p in self.padding]
        return F.pad(input, [size for pair in reversed(pairs) for size in pair], mode=self.padding_mode), 0

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.n:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.n:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self.n:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text + (f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else "")


class _Conv(_ConvNd):
    fn: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Any = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            0,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        x, padding = self._padded(input)
        return self.fn(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """(N, C, L) to (N, O, L')."""

    n = 1
    fn = staticmethod(F.conv1d)


class Conv2d(_Conv):
    """(N, C, H, W) to (N, O, H', W')."""

    n = 2
    fn = staticmethod(F.conv2d)


class Conv3d(_Conv):
    """(N, C, D, H, W) to (N, O, D', H', W')."""

    n = 3
    fn = staticmethod(F.conv3d)


class _ConvTranspose(_ConvNd):
    transposed = True
    fn: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _extra(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that makes ``output_size``; ValueError if none does."""
        wanted = tuple(output_size)[-self.n :]
        extra = []
        geometry = zip(input.shape[-self.n :], wanted, self.stride, self.padding, self.dilation, self.kernel_size)
        for size, want, s, p, d, k in geometry:
            least = (size - 1) * s - 2 * p + d * (k - 1) + 1
            if not least <= want <= least + s - 1:
                raise ValueError(
                    f"requested an output size of {list(wanted)}, but valid sizes range from {least} to {least + s - 1}"
                )
            extra.append(want - least)
        return tuple(extra)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return self.fn(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )


class ConvTranspose1d(_ConvTranspose):
    n = 1
    fn = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    n = 2
    fn = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    n = 3
    fn = staticmethod(F.conv_transpose3d)


class Unfold(Module):
    """Windows as columns: (N, C, H, W) to (N, C KH KW, places)."""

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )


class Fold(Module):
    """Columns added up where their windows are: the transpose of ``Unfold``."""

    def __init__(
        self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )
