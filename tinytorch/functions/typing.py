"""Types, devices and host reads: ``to``, ``type``, ``float``, ``item``, ``tolist``, ``numpy``, ``clone``, ``copy_``.

Stage: eager.  In: a tensor.  Out: a tensor of another type or place, or Python and NumPy values.  Read next:
``methods``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch import dtypes, late, ops, tape
from tinytorch.device import Device, canonical, cpu
from tinytorch.dtypes import DType
from tinytorch.tensor import Tensor


# --- type and device --------------------------------------------------------------------------------------------------
def to(
    self: Tensor, *args: Any, dtype: DType | None = None, device: Any = None, copy: bool = False, **_: Any
) -> Tensor:
    """``to(dtype)``, ``to(device)``, ``to(device, dtype)``, ``to(other)``: self if nothing changes, unless ``copy``."""
    for a in args:
        if isinstance(a, DType | type):
            dtype = dtypes.typed(a, self.dtype)
        elif isinstance(a, Tensor):
            dtype, device = a.dtype, a.device
        elif isinstance(a, bool):  # non_blocking, copy: by position
            continue
        elif isinstance(a, str | Device | int):
            device = a
        elif a is not None:
            raise TypeError(f"to() received an invalid combination of arguments - got ({type(a).__name__})")
    return moved(self, dtypes.typed(dtype, self.dtype), self.device if device is None else canonical(device), copy)


def moved(x: Tensor, dtype: DType, device: Device, copy: bool = False) -> Tensor:
    same = x
    if device is not x.device:
        x = ops.to_device(x, device=device)
    if dtype is not x.dtype:
        x = ops.cast(x, dtype=dtype)
    return ops.clone(x) if copy and x is same else x


def type_(self: Tensor, dtype: Any = None) -> Any:
    """The type's name ("torch.FloatTensor"), or the tensor in another type."""
    if dtype is None:
        return f"torch.{_TENSOR_NAMES[self.dtype.name]}"
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.").removeprefix("cuda.")
        if name not in _BY_TENSOR_NAME:
            raise ValueError(f"invalid type: {dtype!r}")
        dtype = _BY_TENSOR_NAME[name]
    own = getattr(dtype, "dtype", None)  # of FloatTensor and its kin
    return self.to(own if isinstance(own, DType) else dtype)


_TENSOR_NAMES = {
    d.name: f"{'' if d.kind == 'c' else d.title}{'ComplexTensor' if d.kind == 'c' else 'Tensor'}"
    for d in dtypes.ALL
}
_BY_TENSOR_NAME = {name: dtypes.BY_NAME[d] for d, name in _TENSOR_NAMES.items()}


def type_as(self: Tensor, other: Tensor) -> Tensor:
    return moved(self, other.dtype, other.device)


def cpu_(self: Tensor, **_: Any) -> Tensor:
    return moved(self, self.dtype, cpu)


def cuda(self: Tensor, device: Any = None, **_: Any) -> Tensor:
    return moved(self, self.dtype, canonical("cuda" if device is None else device))


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy that keeps the strides of a dense tensor, and its history.  Mirrors ``torch.clone``."""
    return ops.clone(input)


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """Self if rows lie one after another in memory, else such a copy."""
    return self if self.is_contiguous() else ops.contiguous(self)


# --- to the host ------------------------------------------------------------------------------------------------------
def host_array(x: Tensor, what: str) -> Any:
    """The NumPy array behind a tensor; RuntimeError where a tracer has none."""
    data = x._data if x.device.type == "cpu" else late.host_copy(x._data)
    if not isinstance(data, np.ndarray):
        raise RuntimeError(f"{what}: the value of a traced tensor is not known")
    return data


def item(self: Tensor) -> Any:
    """The Python number of a tensor with one element; RuntimeError for others."""
    data = host_array(self, "item()")
    if data.size != 1:
        raise RuntimeError(f"a Tensor with {data.size} elements cannot be converted to Scalar")
    value = data.item()
    return float(value) if type(value).__module__ == "ml_dtypes" else value


def tolist(self: Tensor) -> Any:
    """Nested lists of Python numbers."""
    data = host_array(self, "tolist()")
    return (data.astype(np.float32) if self.dtype is dtypes.bfloat16 else data).tolist()


def numpy(self: Tensor, *, force: bool = False) -> Any:
    """The memory as a NumPy array; not for tensors that require grad, nor for other devices, unless ``force``."""
    if force:
        return host_array(self.detach().cpu(), "numpy()")
    if self.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if self.device.type != "cpu":
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    if self.dtype is dtypes.bfloat16:
        raise TypeError("Got unsupported ScalarType BFloat16")
    return host_array(self, "numpy()")


def array(self: Tensor, dtype: Any = None, copy: Any = None) -> Any:
    """NumPy's protocol."""
    found = numpy(self)
    return found if dtype is None else found.astype(dtype, copy=False)


def to_bool(self: Tensor) -> bool:
    if self.numel() != 1:
        if self.numel() == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    return bool(item(self))


def _number(self: Tensor) -> Any:
    if self.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return item(self)


def to_int(self: Tensor) -> int:
    return int(_number(self))


def to_float(self: Tensor) -> float:
    return float(_number(self))


def to_complex(self: Tensor) -> complex:
    return complex(_number(self))


def to_index(self: Tensor) -> int:
    if self.dtype.kind not in "iub" or self.numel() != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(item(self))


def equal(input: Tensor, other: Tensor) -> bool:
    """Same shape and the same elements, as a Python bool."""
    if tuple(input.shape) != tuple(other.shape):
        return False
    return to_bool(ops.all(ops.eq(input, other), dim=tuple(range(input.ndim)), keepdim=False))


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, as a Python bool.  Mirrors ``torch.allclose``."""
    return to_bool(input.isclose(other, rtol, atol, equal_nan).all())


def is_nonzero(input: Tensor) -> bool:
    return to_bool(input)


# --- in-place copies --------------------------------------------------------------------------------------------------
def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """``self[...] = src``, broadcast, cast and moved.  Mirrors ``torch.Tensor.copy_``."""
    if not isinstance(src, Tensor):
        return fill_(self, src)
    if src.device is not self.device:
        src = ops.to_device(src, device=self.device)
    if tape.mode.grad and (src.requires_grad or (self.requires_grad and not self.is_leaf)):
        src = ops.overwrite(self, src)
    elif src._data.shape != self._data.shape:
        src = ops.expand(src, shape=tuple(self.shape))
    return self._assign(src)


def fill_(self: Tensor, value: Any) -> Tensor:
    """One number (or 0-d tensor) everywhere."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions."
            )
        return copy_(self, value)
    one = ops.full(shape=(), value=value, dtype=self.dtype, device=self.device)
    return copy_(self, one)


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """One number at the places whose indices are all equal; ``wrap``: again below, in a tall matrix.

    Mirrors ``torch.Tensor.fill_diagonal_``.
    """
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.ndim > 2 and len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    rows, cols = self.shape[0], self.shape[1]
    for top in range(0, rows if wrap and self.ndim == 2 else 1, cols + 1):
        line = self[top:]
        while line.ndim > 1:
            line = ops.diagonal(line, offset=0, dim1=0, dim2=1)
        fill_(line, fill_value)
    return self


def zero_(self: Tensor) -> Tensor:
    return fill_(self, 0)


def set_data(self: Tensor, new: Tensor) -> None:
    """``x.data = y``: other memory behind the same tensor and history."""
    if not isinstance(new, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(new).__name__}")
    self._data, self.device = new._data, new.device
    self._storage = new._storage
    if self._base is None:
        self._chain = self._back = ()


def resize_(self: Tensor, *sizes: Any) -> Tensor:
    """Another shape over the same memory where it suffices, else over new memory (contents undefined)."""
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    if tape.mode.grad and self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    new = ops.empty(shape=shape, dtype=self.dtype, device=self.device)
    n = min(new.numel(), self.numel())
    new._data.reshape(-1)[:n] = self._data.reshape(-1)[:n]
    self._data = new._data
    return self
