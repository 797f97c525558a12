"""Tensors from numbers, lists and arrays: ``tensor``, ``zeros``, ``arange``, ``linspace``, ``eye``, ``*_like``, ...

Stage: eager.  In: Python and NumPy data, shapes, types, devices.  Out: tensors.  Read next: ``functions.random``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinytorch import dispatch, dtypes, ops
from tinytorch.device import Device, array_module, canonical, cpu, get_default_device, set_default_device  # noqa: F401 - public here
from tinytorch.dtypes import DType
from tinytorch.functions.args import is_int, plain, sizes
from tinytorch.functions.pointwise import into
from tinytorch.loans import over
from tinytorch.tensor import Tensor

place = canonical


# --- from data --------------------------------------------------------------------------------------------------------
def tensor(
    data: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A new leaf with a copy of ``data`` (number, nested lists, array, tensor).  Mirrors ``torch.tensor``."""
    if isinstance(data, Tensor):
        t = data.detach().clone().to(device=place(device) if device is not None else data.device, dtype=dtype)
        return t.requires_grad_(requires_grad)
    where = place(device)
    t = fresh(array_of(data, None if dtype is None else dtypes.typed(dtype, dtypes.float32)), where)
    return t.requires_grad_(True) if requires_grad else t


def fresh(array: Any, device: Device) -> Tensor:
    """A tensor over a new array, which a tracer must see as a constant."""
    xp = array_module(device)
    data = array if xp is np else xp.asarray(array)
    return dispatch.constant(Tensor._wrap(data, device))


def array_of(data: Any, dtype: DType | None) -> Any:
    """A new NumPy array; Python floats take the default type, ints int64."""
    if isinstance(data, np.ndarray | np.generic):
        found = np.array(data, order="C")
        _check_type(found.dtype)
    elif isinstance(data, bool | int | float | complex):
        found = np.array(data, _wide_type([data], dtype).np)
        _check_range(found, dtype)
    else:
        found = _array_of_sequence(data, dtype)
        _check_range(found, dtype)
    return found if dtype is None else dispatch.cast_array(np, found, dtype.np)


def _check_range(found: Any, dtype: DType | None) -> None:
    """Python's ints must fit; unsigned types take negative ones, which wrap, as in PyTorch."""
    if dtype is not None and found.dtype.kind == "i" and found.size:
        check_fits(found.min(), found.max(), dtype)


def check_fits(least: int, greatest: int, dtype: DType) -> None:
    """RuntimeError for whole numbers that an integer type cannot hold."""
    if dtype.kind in "iu":
        high = np.iinfo(dtype.np).max
        if greatest > high or least < (-high if dtype.kind == "u" else np.iinfo(dtype.np).min):
            raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")


def _type_of_numbers(values: list[Any]) -> DType:
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return dtypes.bool_
    if any(issubclass(k, complex) and not issubclass(k, float | int) for k in kinds):
        return dtypes.get_default_dtype().to_complex()
    if any(issubclass(k, float) for k in kinds) or not kinds:
        return dtypes.get_default_dtype()
    return dtypes.int64


def _wide_type(values: list[Any], dtype: DType | None) -> DType:
    """The type Python numbers are read in: when another floating type is asked for, without a detour by the default."""
    found = _type_of_numbers(values)
    if dtype is None or found.kind not in "fc":
        return found
    return dtypes.complex128 if found.kind == "c" else dtypes.float64


def _array_of_sequence(data: Any, dtype: DType | None) -> Any:
    leaves: list[Any] = []
    shape = _walk(data, leaves, 0)
    if any(isinstance(v, np.generic) for v in leaves):
        found = np.array(leaves).reshape(shape)
        if dtype is None:
            _check_type(found.dtype)
        return (
            found
            if all(isinstance(v, np.generic) for v in leaves)
            else found.astype(_type_of_numbers([plain(v) for v in leaves]).np)
        )
    return np.array(leaves, _wide_type(leaves, dtype).np).reshape(shape)


def _walk(data: Any, leaves: list[Any], depth: int) -> tuple[int, ...]:
    """Flatten nested sequences into ``leaves``; ValueError where they are ragged."""
    if isinstance(data, Tensor):
        if data.ndim:
            parts = [_walk(row, leaves, depth + 1) for row in data.unbind(0)]
            return (len(parts), *(parts[0] if parts else tuple(data.shape[1:])))
        data = data.item()
    if isinstance(data, np.ndarray):
        data = data.tolist() if data.ndim else data.item()
    if isinstance(data, bool | int | float | complex | np.generic):
        leaves.append(data)
        return ()
    if is_int(data):
        leaves.append(int(data))
        return ()
    if not isinstance(data, tuple | list | range):
        if hasattr(data, "__array__"):
            return _walk(np.asarray(data), leaves, depth)
        if isinstance(data, str):
            raise TypeError(f"new(): invalid data type '{type(data).__name__}'")
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise RuntimeError(f"Could not infer dtype of {type(data).__name__}")
        data = [data[i] for i in range(len(data))]  # any sequence, as a deque
    shapes = [_walk(item, leaves, depth + 1) for item in data]
    for s in shapes:
        if s != shapes[0]:
            a, b = (x[0] if x else 0 for x in (shapes[0], s))
            raise ValueError(f"expected sequence of length {a} at dim {depth + 1} (got {b})")
    return (len(shapes), *(shapes[0] if shapes else ()))


def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The tensor itself or one sharing the array's memory where type and device allow.  Mirrors ``torch.as_tensor``."""
    if isinstance(data, Tensor):
        return data.to(device=data.device if device is None else canonical(device), dtype=dtype)
    if isinstance(data, np.ndarray):
        return from_numpy(data).to(device=place(device), dtype=dtype)
    return tensor(data, dtype=dtype, device=device)


asarray = as_tensor


def from_numpy(array: Any) -> Tensor:
    """A CPU tensor sharing the array's memory; TypeError for types no tensor has.  Mirrors ``torch.from_numpy``."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    if _check_type(array.dtype) in (dtypes.uint32, dtypes.uint64):
        raise TypeError(f"can't convert np.ndarray of type {array.dtype}")
    if any(s % array.itemsize for s in array.strides):
        raise ValueError(
            "given numpy array strides not a multiple of the element byte size. Copy the numpy array to reallocate the memory."
        )
    if any(s < 0 for s in array.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not "
            "currently supported. (You can probably work around this by making a copy of your array with array.copy().)"
        )
    if type(array) is not np.ndarray:  # a subclass computes in its own way
        array = array.view(np.ndarray)
    return dispatch.constant(over(array, cpu))


def _check_type(dtype: np.dtype[Any]) -> DType:
    """The type of a NumPy array's elements, which kernels read as this machine writes them."""
    found = dtypes.from_numpy(dtype)
    if not dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order. Conversion between byte orders is "
            "currently not supported."
        )
    return found


# --- from shapes ------------------------------------------------------------------------------------------------------
def _full(shape: Any, value: Any, dtype: DType | None, device: Any, requires_grad: bool) -> Tensor:
    made = dtypes.typed(dtype, dtypes.get_default_dtype())
    if isinstance(value, int) and not isinstance(value, bool):
        check_fits(value, value, made)
        value = value % (1 << 8 * made.itemsize) if made.kind == "u" else value
    t = ops.full(shape=tuple(shape), value=value, dtype=made, device=place(device))
    return t.requires_grad_(True) if requires_grad else t


def zeros(
    *size: Any,
    out: Any = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Tensor:
    """Zeros of a shape.  Mirrors ``torch.zeros``."""
    return into(out, _full(_size(size, _), 0, dtype, device, requires_grad))


def ones(
    *size: Any,
    out: Any = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Tensor:
    """Ones of a shape.  Mirrors ``torch.ones``."""
    return into(out, _full(_size(size, _), 1, dtype, device, requires_grad))


def _size(size: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """``zeros(2, 3)``, ``zeros((2, 3))`` or ``zeros(size=(2, 3))``; layout and memory hints mean nothing here."""
    given = sizes((named.pop("size"),)) if "size" in named else sizes(size)
    unknown = set(named) - {"layout", "pin_memory", "memory_format", "names"}
    if unknown:
        raise TypeError(f"got an unexpected keyword argument '{unknown.pop()}'")
    for s in given:
        if type(s) is int and s < 0:
            raise RuntimeError(f"Dimension size must be non-negative, got {list(given)}")
    return given


def empty(
    *size: Any,
    out: Any = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Tensor:
    """Undefined contents of a shape.  Mirrors ``torch.empty``."""
    t = ops.empty(shape=_size(size, _), dtype=dtypes.typed(dtype, dtypes.get_default_dtype()), device=place(device))
    return t.requires_grad_(True) if requires_grad else t


def full(
    size: Any, fill_value: Any, *, out: Any = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """One number everywhere; its type decides unless ``dtype`` does.  Mirrors ``torch.full``."""
    shape = _size((size,) if isinstance(size, tuple | list) or is_int(size) else tuple(size), _)
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    fill_value = plain(fill_value)
    if dtype is None:
        dtype = _type_of_numbers([fill_value])
    return into(out, _full(shape, fill_value, dtype, device, requires_grad))


def _like(x: Tensor, dtype: DType | None, device: Any) -> tuple[DType, Any]:
    return dtypes.typed(dtype, x.dtype), x.device if device is None else canonical(device)


def zeros_like(
    input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    return _full(input.shape, 0, *_like(input, dtype, device), requires_grad)


def ones_like(
    input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    return _full(input.shape, 1, *_like(input, dtype, device), requires_grad)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Tensor:
    return _full(input.shape, plain(fill_value), *_like(input, dtype, device), requires_grad)


def empty_like(
    input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    kind, where = _like(input, dtype, device)
    return empty(tuple(input.shape), dtype=kind, device=where, requires_grad=requires_grad)


# --- ranges -----------------------------------------------------------------------------------------------------------
def arange(
    start: Any, end: Any = None, step: Any = 1, *, out: Any = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """start, start + step, ... before end; int64 when all are ints.  Mirrors ``torch.arange``."""
    if end is None:
        start, end = 0, start
    start, end, step = (x.item() if isinstance(x, Tensor) else plain(x) for x in (start, end, step))
    whole = is_int(start) and is_int(end) and is_int(step)
    dtype = dtypes.typed(dtype, dtypes.int64 if whole else dtypes.get_default_dtype())
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (step > 0 and start > end) or (step < 0 and start < end):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if whole:
        size = (end - start + step - (1 if step > 0 else -1)) // step
    else:
        size = math.ceil((end - start) / step)
    t = ops.iota(size=size, device=place(device))
    if whole:
        if not (type(step) is int and step == 1):
            t = ops.mul(t, step)
        if not (type(start) is int and start == 0):
            t = ops.add(t, start)
        t = ops.cast(t, dtype=dtype) if dtype is not dtypes.int64 else t
    else:
        wide = dtypes.float64
        t = ops.cast(ops.add(ops.mul(ops.cast(t, dtype=wide), float(step)), float(start)), dtype=dtype)
    return into(out, t.requires_grad_(True) if requires_grad else t)


def linspace(
    start: Any, end: Any, steps: int, *, out: Any = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """``steps`` numbers from start to end, both included, counted from the nearer end.  Mirrors ``torch.linspace``."""
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    dtype = dtypes.typed(dtype, dtypes.get_default_dtype())
    if steps == 1:
        return full((1,), start, dtype=dtype, device=device)
    i = ops.cast(ops.iota(size=steps, device=place(device)), dtype=dtypes.float64)
    step = (end - start) / max(steps - 1, 1)
    low = ops.add(ops.mul(i, step), float(start))
    high = ops.sub(float(end), ops.mul(ops.sub(float(steps - 1), i), step))
    t = ops.cast(ops.where(ops.lt(i, steps // 2), low, high), dtype=dtype)
    return into(out, t.requires_grad_(True) if requires_grad else t)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    device: Any = None,
    **_: Any,
) -> Tensor:
    wide = linspace(start, end, steps, dtype=dtypes.float64, device=device)
    return ops.cast(ops.pow(base, wide), dtype=dtypes.typed(dtype, dtypes.get_default_dtype()))


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Tensor:
    """Ones on the diagonal.  Mirrors ``torch.eye``."""
    for name, size in (("n", n), ("m", m)):
        if size is not None and size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    rows = ops.iota(size=n, device=place(device)).unsqueeze(1)
    cols = ops.iota(size=n if m is None else m, device=place(device))
    t = ops.cast(ops.eq(rows, cols), dtype=dtypes.typed(dtype, dtypes.get_default_dtype()))
    return t.requires_grad_(True) if requires_grad else t


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = dtypes.int64, device: Any = None
) -> Tensor:
    found = np.stack(np.tril_indices(row, offset, col))
    return fresh(found.astype(dtypes.typed(dtype, dtypes.int64).np), place(device))


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = dtypes.int64, device: Any = None
) -> Tensor:
    found = np.stack(np.triu_indices(row, offset, col))
    return fresh(found.astype(dtypes.typed(dtype, dtypes.int64).np), place(device))


def scalar_tensor(value: Any, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    return full((), value, dtype=dtypes.typed(dtype, dtypes.get_default_dtype()), device=device)
