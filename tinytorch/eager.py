"""Compute now: rows on NumPy or CuPy arrays.

Stage: eager.  In: a row and its arguments.  Out: fresh tensors, or views.  ``run`` is the whole meaning; ``quick`` is a
short cut for what most calls are: one or two floating tensors of one type, or such a tensor and a number, on the CPU,
through one NumPy ufunc.  Read next: ``tape``, ``ops.spell_numpy``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from tinytorch import dtypes
from tinytorch.defaults import defaults
from tinytorch.device import Device, array_module, cpu
from tinytorch.ops import opdef
from tinytorch.ops.opdef import Meta, Op
from tinytorch.ops.spell_numpy import quiet, spelling, unquiet
from tinytorch.tensor import Tensor

_new = object.__new__
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


# --- the short cut ----------------------------------------------------------------------------------------------------
def quick(ufunc: Any, args: tuple[Any, ...]) -> Tensor | None:
    """``ufunc`` on the arrays, or None where ``run`` must look closer: other types, layouts, devices, errors."""
    x = args[0]
    if not isinstance(x, Tensor):
        return _number_first(ufunc, args)
    a = x._data
    if type(a) is not ndarray:
        return None
    dtype = a.dtype
    if (dtype is not _F32 and dtype is not _F64) or not a.flags.c_contiguous:
        return None  # how the result of another layout lies is ``elementwise_strides``' affair
    if len(args) == 1:
        token = quiet()
        try:
            out = ufunc(a)
        except OverflowError:  # a number that the type cannot hold
            return None
        finally:
            unquiet(token)
    else:
        y = args[1]
        if type(y) is float or type(y) is int:
            b = y
        elif isinstance(y, Tensor):
            b = y._data
            if type(b) is not ndarray or b.dtype is not dtype or y.device is not x.device:
                return None
            if not b.flags.c_contiguous:
                return None
        else:
            return None
        token = quiet()
        try:
            out = ufunc(a, b)
        except (ValueError, OverflowError, TypeError):
            return None
        finally:
            unquiet(token)
    t = _new(Tensor)
    t._data = out if type(out) is ndarray else np.asarray(out)
    t.device = x.device
    return t


def _number_first(ufunc: Any, args: tuple[Any, ...]) -> Tensor | None:
    """``1.0 - x``."""
    x, y = args[0], args[-1]
    if type(x) is not float and type(x) is not int or not isinstance(y, Tensor) or len(args) != 2:
        return None
    return quick(lambda a: ufunc(x, a), (y,))


# --- the whole meaning ------------------------------------------------------------------------------------------------
def run(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Infer (which raises the user's errors), compute, wrap."""
    if op.kind == "pointwise":
        return _pointwise(op, args, params)
    device = common_device(op, args, params)
    inferred = None if op.data_dependent else _remembered(_infer, op, args, params)
    xp = _module(op, args, device)
    arrays = _met(xp, [a._data if isinstance(a, Tensor) else a for a in args])
    assert op.kernel is not None, op
    token = quiet()
    try:
        data = op.kernel(xp, *arrays, **params)
    finally:
        unquiet(token)
    if op.kind == "view":
        return Tensor._view(args[0], data, op, params)
    if isinstance(data, tuple):
        metas = inferred if inferred is not None else [None] * len(data)
        return tuple(_fresh(d, m, device) for d, m in zip(data, metas, strict=True))
    return _fresh(data, inferred, device)


_memory: dict[Any, Any] = {}
_FORGET = 10_000


def _remembered(fn: Any, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """``fn(op, metas, params)``, asked once for each set of shapes, types, strides and parameters."""
    key: Any = [fn, op, defaults.now]
    for a in args:
        if isinstance(a, Tensor):
            data = a._data
            key += data.shape, data.dtype, data.strides
        else:
            key += type(a), a
    key = (*key, *params.values())
    keep = True
    try:
        return _memory[key]
    except KeyError:
        pass
    except TypeError:  # a parameter without a hash
        keep = False
    found = fn(op, [meta_of(a) for a in args], params)  # what it raises has no other exception as its context
    if keep:
        if len(_memory) > _FORGET:
            _memory.clear()
        _memory[key] = found
    return found


def _infer(op: Op, metas: list[Any], params: dict[str, Any]) -> Any:
    return op.infer(*metas, **params)


def _fresh(data: Any, meta: Any, device: Device) -> Tensor:
    if meta is not None and not (meta.strides is None and data.flags.c_contiguous):
        data = _laid_out(array_module(device), data, meta)
    return wrap(data, device)


def _module(op: Op, args: tuple[Any, ...], device: Device) -> Any:
    """Where the operands are: ``to_device`` computes there, not where its result goes."""
    return array_module(args[0].device if op.kind == "extern" and args and isinstance(args[0], Tensor) else device)


def _met(xp: Any, arrays: list[Any]) -> list[Any]:
    """The operands where they meet: a 0-d array of the CPU may join those of a GPU, but CuPy takes none."""
    if xp is np:
        return arrays
    return [xp.asarray(a) if type(a) is ndarray and not a.shape else a for a in arrays]


def _pointwise(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
    """Promote, cast, compute, and lay the result out as PyTorch would."""
    device = common_device(op, args, params)
    xp = array_module(device)
    result, compute = _remembered(_types, op, args, params)
    arrays = _met(xp, [a._data if isinstance(a, Tensor) else a for a in args])
    if compute is not None:
        arrays = [a if getattr(a, "dtype", None) is compute else cast_array(xp, a, compute) for a in arrays]
    token = quiet()
    try:
        out = (op.kernel or spelling(op))(xp, *arrays, **params)
    finally:
        unquiet(token)
    out = out if getattr(out, "dtype", None) is result.dtype.np else cast_array(xp, out, result.dtype.np)
    return wrap(_laid_out(xp, out, result), device)


def _types(op: Op, metas: list[Any], params: dict[str, Any]) -> tuple[Meta, Any]:
    """(what comes out, the NumPy type to compute in or None to leave the operands as they are)."""
    result = op.infer(*metas, **params)
    if op.types == "custom":
        return result, None
    compute = opdef.compute_types(op, metas)[0]
    if compute.itemsize == 2 and op.ufunc is None and op.kernel is None and compute.is_floating_point:
        compute = dtypes.float32  # a body of several steps rounds once, at its end
    return result, compute.np


def _laid_out(xp: Any, out: Any, meta: Meta) -> Any:
    """``out`` with the strides that ``infer`` promised."""
    if not isinstance(out, xp.ndarray):
        out = xp.asarray(out)
    if meta.strides is None:
        return out if out.flags.c_contiguous else xp.ascontiguousarray(out).reshape(out.shape)
    item = out.dtype.itemsize
    strides = tuple(s * item for s in meta.strides)
    if out.strides == strides or out.size < 2:
        return out
    order = sorted(range(out.ndim), key=lambda d: (-strides[d], d))
    new = xp.empty([out.shape[d] for d in order], out.dtype).transpose(np.argsort(order))
    new[...] = out
    return new


# --- arrays and metas -------------------------------------------------------------------------------------------------
def cast_array(xp: Any, a: Any, dtype: Any) -> Any:
    """``a`` (array, NumPy scalar or Python number) as an array of ``dtype``; C's conversions, no warnings."""
    if isinstance(a, bool | int | float | complex):
        if dtype.kind in "iu" and isinstance(a, int):  # wrap like C does; NumPy would raise
            return xp.asarray(np.array(a & 0xFFFF_FFFF_FFFF_FFFF, np.uint64).astype(dtype))
        return xp.asarray(a, dtype=dtype)
    if a is None:
        return a
    if not hasattr(a, "dtype"):  # a symbolic or foreign number
        return xp.asarray(int(a) if dtype.kind in "iu" else float(a), dtype=dtype)
    if a.dtype == dtype:
        return a
    if a.dtype.kind == "c" and dtype.kind not in "cb":
        a = a.real
    token = quiet()
    try:
        return xp.asarray(a).astype(dtype)
    finally:
        unquiet(token)


def wrap(data: Any, device: Device) -> Tensor:
    """A fresh tensor over an array; NumPy scalars, which 0-d results become, are made arrays again."""
    if type(data) is not ndarray and isinstance(data, np.generic | int | float):
        data = np.asarray(data)
    return Tensor._wrap(data, device)


def meta_of(a: Any) -> Any:
    """The ``Meta`` of a tensor; anything else as it is."""
    if not isinstance(a, Tensor):
        return a
    data = a._data
    item = data.dtype.itemsize
    return Meta(data.shape, dtypes.from_numpy(data.dtype), tuple(s // item for s in data.strides))


def common_device(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Device:
    """The device of the result: the one asked for, else that of all tensors (0-d CPU tensors may join any)."""
    asked = params.get("device") if params else None
    if asked is not None:
        return asked  # type: ignore[no-any-return]
    found: Device | None = None
    for a in args:
        if isinstance(a, Tensor) and (found is None or a.device is not found):
            if found is None or (found.type == "cpu" and _joins(args, found)):
                found = a.device
            elif not (a.device.type == "cpu" and not a._data.shape):
                raise RuntimeError(
                    f"{op.name}: expected all tensors to be on the same device, but found {found} and {a.device}"
                )
    return found or cpu


def _joins(args: tuple[Any, ...], device: Device) -> bool:
    return all(not a._data.shape for a in args if isinstance(a, Tensor) and a.device is device)
