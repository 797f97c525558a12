"""What the tests of rows share: the maker of inputs, and the list of (row, sample) pairs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import tinytorch as torch
from tinytorch import ops
from tinytorch.device import cpu
from tinytorch.dtypes import DType
from tinytorch.functions.creation import fresh
from tinytorch.ops import samples  # noqa: F401 - hangs the samples on the rows
from tinytorch.tensor import Tensor


class Maker:
    """``make(2, 3)``: a tensor of the type under test with values that differ from each other and from kinks."""

    device = cpu

    def __init__(self, name: str, dtype: DType = torch.float64, requires_grad: bool = False) -> None:
        self.random = np.random.default_rng(zlib.crc32(name.encode()))
        self.dtype = dtype
        self.requires_grad = requires_grad

    def _tensor(self, values: Any, dtype: DType | None = None) -> Tensor:
        dtype = dtype or self.dtype
        if dtype.kind == "u":
            values = np.abs(values)
        t = fresh(np.asarray(values).astype(dtype.np), cpu)
        return t.requires_grad_() if self.requires_grad and dtype.is_floating_point else t

    def _values(self, shape: tuple[int, ...]) -> Any:
        """Halves apart by at least 0.05 from whole numbers and from one another."""
        n = int(np.prod(shape))
        v = self.random.permutation(2 * n)[:n].reshape(shape) - n
        return v / 7 + 0.05 if self.dtype.is_floating_point else v

    def __call__(self, *shape: int) -> Tensor:
        return self._tensor(self._values(shape))

    def positive(self, *shape: int) -> Tensor:
        return self._tensor(np.abs(self._values(shape)) + (0.3 if self.dtype.is_floating_point else 1))

    def unit(self, *shape: int) -> Tensor:
        v = self._values(shape)
        return self._tensor(np.tanh(v) * 0.8 if self.dtype.is_floating_point else np.sign(v))

    def float(self, *shape: int) -> Tensor:
        return self._tensor(self.random.standard_normal(shape), torch.float32)

    def wide(self, *shape: int) -> Tensor:
        return self._tensor(self.random.standard_normal(shape), torch.float64)

    def complex(self, *shape: int) -> Tensor:
        v = self.random.standard_normal(shape) + 1j * self.random.standard_normal(shape)
        t = fresh(np.asarray(v), cpu)
        return t.requires_grad_() if self.requires_grad else t

    def index(self, n: int, *shape: int) -> Tensor:
        return fresh(np.asarray(self.random.integers(0, n, shape)), cpu)

    def bool(self, *shape: int) -> Tensor:
        return fresh(np.asarray(self.random.integers(0, 2, shape) == 1), cpu)

    def state(self) -> Tensor:
        return fresh(np.array([7, 3], np.int64), cpu)


def rows() -> list[str]:
    """All but those that only name nodes of the tape: extern rows without a kernel."""
    return [name for name, op in ops.TABLE.items() if op.kind != "extern" or op.kernel is not None]


def inputs(name: str, **options: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The good inputs of a row."""
    found = ops.TABLE[name].samples
    assert found is not None, f"ops.{name} has no samples"
    yield from found(Maker(name, **options))


def tensors(args: Any) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]
