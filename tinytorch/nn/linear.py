"""``Linear`` and its relations.

Stage: eager.  In: sizes, then activations.  Out: activations.  Mirrors ``torch.nn``.  Read next: ``functional.lookup``.
"""

from __future__ import annotations

import math
from typing import Any

from tinytorch.dtypes import DType
from tinytorch.nn import functional as F
from tinytorch.nn import init
from tinytorch.nn.module import Module
from tinytorch.nn.parameter import Parameter, UninitializedParameter, empty, is_lazy
from tinytorch.tensor import Tensor


class Identity(Module):
    """Gives back what it is given; takes any constructor arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """x W^T + b: (*, in_features) to (*, out_features).

    Both are drawn uniformly from ±1/sqrt(in_features).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty((out_features, in_features), device, dtype))
        self.register_parameter("bias", Parameter(empty((out_features,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """The output projection inside ``MultiheadAttention``, under the name it prints there."""


class Bilinear(Module):
    """x1^T W x2 + b: (*, in1_features) and (*, in2_features) to (*, out_features)."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty((out_features, in1_features, in2_features), device, dtype))
        self.register_parameter("bias", Parameter(empty((out_features,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class LazyLinear(Linear):
    """A ``Linear`` that learns ``in_features`` from the first input, and becomes a plain ``Linear`` then."""

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: DType | None = None) -> None:
        super().__init__(0, 0, False, device, dtype)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)
        self.register_forward_pre_hook(LazyLinear._learn_shape)

    def reset_parameters(self) -> None:
        if "weight" in self._parameters and not is_lazy(self.weight) and self.in_features != 0:
            super().reset_parameters()

    def _learn_shape(self, args: tuple[Tensor, ...]) -> None:
        if is_lazy(self.weight):
            self.in_features = args[0].shape[-1]
            self.weight.materialize((self.out_features, self.in_features))
            if self.bias is not None:
                self.bias.materialize((self.out_features,))
            self.reset_parameters()
        self._forward_pre_hooks.clear()
        self.__class__ = Linear  # type: ignore[assignment]
