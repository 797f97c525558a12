"""``Parameter`` and ``Buffer``: tensors that a Module registers when they are assigned to it.

Stage: eager.  In: a tensor.  Out: the same memory, of the class ``Module.__setattr__`` looks for.
Mirrors ``torch.nn.Parameter`` and ``torch.nn.Buffer``.  Read next: ``module``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytorch import dtypes
from tinytorch.device import array_module, canonical, cpu
from tinytorch.dtypes import DType
from tinytorch.tensor import Storage, Tensor


def _same_memory(cls: type[Any], data: Tensor | None) -> Any:
    if data is None:
        data = Tensor._wrap(np.empty(0, np.float32), cpu)
    out = object.__new__(cls)
    out._data, out.device = data._data, data.device
    if data._storage is None:
        data._storage = Storage()
    out._storage = data._storage
    return out


class Parameter(Tensor):
    """A leaf tensor that a Module owns and an optimizer trains.  Shares memory with ``data``."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        out: Parameter = _same_memory(cls, data)
        if requires_grad and not out._is_differentiable():
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        out._requires_grad = bool(requires_grad)
        return out

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self._requires_grad)
            if self.grad is not None:
                memo[id(self)].grad = copy.deepcopy(self.grad, memo)
        return memo[id(self)]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that belongs to a Module's state but is not trained: assigned, it becomes a buffer."""

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        out: Buffer = _same_memory(cls, data)
        out.persistent = persistent
        out._requires_grad = data is not None and data.requires_grad
        return out

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        pass


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known before the first forward; ``materialize`` gives it memory."""

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> UninitializedParameter:
        out: UninitializedParameter = super().__new__(cls, None, requires_grad)  # type: ignore[assignment]
        out._wanted = (device, dtype)  # type: ignore[attr-defined]
        return out

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        pass

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become an ordinary Parameter of ``shape`` (contents undefined)."""
        made = empty(shape, device or self._wanted[0], dtype or self._wanted[1])  # type: ignore[attr-defined]
        self._data, self.device = made._data, made.device
        self.__class__ = Parameter  # type: ignore[assignment]


def empty(shape: Sequence[int], device: Any = None, dtype: DType | None = None) -> Tensor:
    """A tensor for a layer to initialise: undefined contents, the default type and device unless given."""
    where = canonical(device)
    what = dtypes.typed(dtype, dtypes.get_default_dtype())
    return Tensor._wrap(array_module(where).empty(tuple(shape), what.np), where)


def is_lazy(t: Any) -> bool:
    """Whether ``t`` still waits for its shape."""
    return isinstance(t, UninitializedParameter)
