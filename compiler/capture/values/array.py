"""NumPy arrays: tensors under another name.

Stage: capture.  In and out: see ``base``.  An array's operations become the tensor operations that compute the same, so
NumPy code in the middle of a model stays in the graph.  ``scalar``: what NumPy functions give instead of a 0-d array.
Read next: ``models.numpy_``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture.values.base import Value
from compiler.capture.values.tensor import TensorValue
from tinytorch.dtypes import BY_NAME

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Whether tensors can be of an array's type: one of theirs, its bytes in this machine's order."""
    return dtype.kind in "biufc" and dtype.isnative and dtype.name in BY_NAME


class ArrayValue(Value):
    """``tensor`` shares the array's memory."""

    def __init__(self, tensor: TensorValue, source: Source | None = None, obj: Any = None, scalar: bool = False) -> None:
        self.tensor = tensor
        self.source = source
        self.obj = obj
        self.scalar = scalar

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.fake._data.dtype  # type: ignore[no-any-return]

    def pytype(self) -> type:
        return self.dtype.type if self.scalar else np.ndarray

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [self.tensor]

    def describe(self) -> str:
        return f"ndarray{list(self.tensor.fake._data.shape)}"

    def dummy(self) -> Any:
        """An array of this shape and type, to ask NumPy what a call on it would give."""
        shape = tuple(int(s) for s in self.tensor.fake._data.shape)
        made = np.ones(shape, self.dtype)
        return made[()] if self.scalar else made

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        text = f"{emit.load(self.tensor)}.detach().numpy()"
        return f"{text}[()]" if self.scalar else text
