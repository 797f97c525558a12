"""``call``: the one door through which every operator runs.

Stage: eager.  In: an op row and its arguments.  Out: tensors, and a node on the tape where a gradient will be wanted.
Two questions, in this order: *who computes?* the current interpreter (none: NumPy or CuPy; else fake shapes, or a
tracer that records a graph); *who remembers?* the tape.  The tape does not know who computes, which is why the very
same vjp rules make gradients of arrays and of graphs.  Read next: ``tape``, ``tensor``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from tinytorch import dtypes, tape
from tinytorch.device import Device, array_module
from tinytorch.ops import opdef
from tinytorch.ops.opdef import Meta, Op
from tinytorch.ops.spell_numpy import spelling
from tinytorch.tensor import Tensor


class Interpreter(Protocol):
    """Who computes.  ``run`` gives fresh tensors (views share storage); ``write`` is the only mutation there is."""

    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any: ...

    def write(self, dst: Tensor, src: Tensor) -> None: ...

    def draw(self, generator: Any, numel: Any, device: Device) -> tuple[Tensor, Any]: ...


class _Current(threading.local):
    interpreter: Interpreter | None = None


current = _Current()


@contextmanager
def use(interpreter: Interpreter | None) -> Iterator[Interpreter | None]:
    """Let ``interpreter`` compute inside the block, in this thread; None is eager."""
    before, current.interpreter = current.interpreter, interpreter
    try:
        yield interpreter
    finally:
        current.interpreter = before


@contextmanager
def keep() -> Iterator[None]:
    """A block that changes nothing; the counterpart of ``use``."""
    yield


def call(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run ``op``; record it if grad mode is on and an input requires grad."""
    interpreter = current.interpreter
    out = eager(op, args, params) if interpreter is None else interpreter.run(op, args, params)
    if tape.mode.grad:
        for a in args:
            if isinstance(a, Tensor) and a.requires_grad:
                tape.record(op, args, params, out)
                break
    return out


def constant(t: Tensor) -> Tensor:
    """A tensor made from data outside any row: an interpreter may want to know of it."""
    interpreter = current.interpreter
    seen = getattr(interpreter, "constant", None)
    return t if seen is None else seen(t)


def write(dst: Tensor, src: Tensor) -> None:
    """``dst[...] = src`` for equal shapes: memory, version counter and history.  All in-place operators end here."""
    tape.check_write(dst)
    interpreter = current.interpreter
    if interpreter is None:
        np_like = array_module(dst.device)
        np_like.copyto(dst._data, src._data, casting="unsafe")
    else:
        interpreter.write(dst, src)
    dst._bump_version()
    tape.rebase(dst, src)


# --- eager ------------------------------------------------------------------------------------------------------------
def eager(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Compute on arrays now."""
    if op.kind == "pointwise":
        return _eager_pointwise(op, args, params)
    device = common_device(op, args, params)
    metas = [meta_of(a) for a in args]
    inferred = None if op.data_dependent else op.infer(*metas, **params)
    arrays = [a._data if isinstance(a, Tensor) else a for a in args]
    assert op.kernel is not None, op
    with np.errstate(all="ignore"):
        data = op.kernel(array_module(device), *arrays, **params)
    if op.kind == "view":
        return Tensor._view(args[0], data, op, params)
    if params.get("device") is not None:
        device = params["device"]
    if isinstance(inferred, Meta) or not isinstance(data, tuple):
        return wrap(data, device)
    return tuple(wrap(d, device) for d in data)


def _eager_pointwise(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
    device = None
    dtype = None
    arrays = []
    plain = op.types != "custom"
    for a in args:
        if isinstance(a, Tensor):
            data = a._data
            arrays.append(data)
            if device is None:
                device, dtype = a.device, data.dtype
                plain = plain and dtype.kind == "f"
            elif data.dtype is not dtype or a.device is not device:
                plain = False
        else:
            arrays.append(a)
            if type(a) is not float and type(a) is not int:
                plain = False
    if not plain or device is None:
        return _eager_promoted(op, args, params)
    kernel = op.kernel or spelling(op)
    try:
        with np.errstate(all="ignore"):
            out = kernel(array_module(device), *arrays, **params)
    except ValueError:
        op.infer(*[meta_of(a) for a in args], **params)  # raises the user's error
        raise
    return wrap(out, device)


def _eager_promoted(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
    """The general case: mixed types, numbers, 0-d tensors, bools, other devices' scalars."""
    device = common_device(op, args, params)
    xp = array_module(device)
    metas = [meta_of(a) for a in args]
    result = op.infer(*metas, **params)
    arrays = [a._data if isinstance(a, Tensor) else a for a in args]
    if op.types != "custom":
        compute = opdef.compute_types(op, metas)[0].np
        arrays = [cast_array(xp, a, compute) for a in arrays]
    with np.errstate(all="ignore"):
        out = (op.kernel or spelling(op))(xp, *arrays, **params)
    return wrap(cast_array(xp, out, result.dtype.np), device)


def cast_array(xp: Any, a: Any, dtype: Any) -> Any:
    """``a`` (array, NumPy scalar or Python number) as an array of ``dtype``; C's conversions, no warnings."""
    if a is None or getattr(a, "dtype", None) == dtype:
        return a
    if isinstance(a, bool | int | float | complex):
        if dtype.kind in "iu" and isinstance(a, int):  # wrap like C does; NumPy would raise
            return xp.asarray(np.array(a & 0xFFFF_FFFF_FFFF_FFFF, np.uint64).astype(dtype))
        return xp.asarray(a, dtype=dtype)
    if getattr(a, "dtype", None) is not None and a.dtype.kind == "c" and dtype.kind != "c" and dtype.kind != "b":
        a = a.real
    return xp.asarray(a).astype(dtype)


def wrap(data: Any, device: Device) -> Tensor:
    """A fresh tensor over an array; NumPy scalars, which 0-d results become, are made arrays again."""
    if not hasattr(data, "strides") or type(data).__module__ == "numpy" and not isinstance(data, np.ndarray):
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
    """The device of all tensors (0-d CPU tensors may join any); RuntimeError for a mix."""
    found: Device | None = None
    for a in args:
        if isinstance(a, Tensor) and (found is None or a.device is not found):
            if found is None or (found.type == "cpu" and _joins(args, found)):
                found = a.device
            elif not (a.device.type == "cpu" and not a._data.shape):
                raise RuntimeError(
                    f"{op.name}: expected all tensors to be on the same device, but found {found} and {a.device}"
                )
    return found or params.get("device") or Device("cpu")


def _joins(args: tuple[Any, ...], device: Device) -> bool:
    return all(not a._data.shape for a in args if isinstance(a, Tensor) and a.device is device)


opdef.CALL = call
