"""Tensors, arrays and varying floats from outside: inputs of the graph.

Stage: capture.  In: a real tensor (array, float) and its source.  Out: a value on a fake tensor of its layout, and
guards on type, shape, strides, dtype, device and history.  The graph lists it as an input once it is used.
Read next: ``graphs``, which records what is done with it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture.sizes import size_form
from compiler.capture.source import Source
from compiler.capture.values.array import ArrayValue, has_tensors
from compiler.capture.values.base import Value
from compiler.capture.values.number import NumberValue
from compiler.capture.values.tensor import TensorValue
from compiler.fake import fake_like, fake_tensor
from compiler.sym.expr import expr_of
from tinytorch import tape
from tinytorch.device import cpu
from tinytorch.dtypes import float64
from tinytorch.loans import over
from tinytorch.nn.parameter import Buffer, Parameter
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def tensor_input(tx: Tracer, obj: Tensor, source: Source) -> Value:
    """A tensor from outside: guarded in type, shape, strides, dtype, device and history; a graph input once used."""
    dims = tx.sizes.dims(source.text, obj)
    fake = fake_like(obj, tx.shape_env, source=source.text, dynamic=dims, storages=tx.storages)
    if obj._made_by()[0] is not None:
        fake._set_history(tape.Node(_INPUT, [], [], []), 0)
    value = tx.new_tensor(fake, None, source, obj)
    value.kind = type(obj)
    value.example = Tensor._wrap(fake._data, fake.device)
    value.example._requires_grad = fake._requires_grad
    if fake._node is not None:  # the backend is told that it is no leaf, and whether it is a view
        value.example._set_history(fake._node, 0)
        value.example._view_input = obj._base is not None  # type: ignore[attr-defined]
    shape = source.attr("_data").attr("shape")
    for d, size in enumerate(fake._data.shape):
        e = expr_of(size)
        if e is not None and str(e) not in tx.symbols:
            tx.symbols[str(e)] = (shape.item(d), value)
    _tensor_guards(tx, value)
    return tx.remember(obj, value)  # type: ignore[no-any-return]


def is_plain_array(obj: Any) -> bool:
    """Whether a tensor can lie over the array's memory."""
    return type(obj) is np.ndarray and has_tensors(obj.dtype) and all(s >= 0 and s % obj.itemsize == 0 for s in obj.strides)


def array_input(tx: Tracer, obj: Any, source: Source) -> Value:
    """A plain NumPy array from outside: its tensor is made by the check, over the same memory."""
    names = tx.namespace
    tx.guard("TYPE", "type({0}) is {1}", source, names.source(np.ndarray))
    tx.guard("TENSOR", f"{{0}}.shape == {obj.shape!r} and {{0}}.strides == {obj.strides!r}", source)
    tx.guard("TENSOR", "{0}.dtype == {1}", source, names.source(obj.dtype, obj.dtype.name))
    where = Source("{1}({0})", source, names.source(_over, "tensor_over"))
    real = _over(obj)
    tensor = tx.new_tensor(fake_like(real, storages=tx.storages), None, where, real)
    tensor.example = Tensor._wrap(tensor.fake._data, tensor.fake.device)
    return tx.remember(obj, ArrayValue(tensor, source, obj))  # type: ignore[no-any-return]


def _over(array: Any) -> Tensor:
    """A tensor over the array's memory."""
    return over(array, cpu)


def float_input(tx: Tracer, obj: float, source: Source) -> Value:
    """A float that differs between calls: a 0-d input of the graph."""
    tx.guard("TYPE", "type({0}) is float", source)
    where = Source("{1}({0})", source, tx.namespace.source(scalar_tensor, "scalar"))
    tensor = tx.new_tensor(fake_tensor((), float64), None, where)
    tensor.example = tensor.fake
    return NumberValue(tensor, float, obj, frozenset({source.text}), source)


def scalar_tensor(x: float) -> Tensor:
    """A Python float as a 0-d tensor: as wide, and as weak in promotion."""
    return Tensor._wrap(np.array(x, np.float64), cpu)


class _InputOp:
    """Stands for whatever made a non-leaf input."""

    name = "input"
    vjp = None


_INPUT: Any = _InputOp()


def _tensor_guards(tx: Tracer, value: TensorValue) -> None:
    obj, fake, source = value.obj, value.fake, value.source
    assert obj is not None and source is not None
    data, fake_data = source.attr("_data"), fake._data
    names = tx.namespace
    tx.guard("TENSOR", "type({0}) is {1}", source, names.source(type(obj)))
    if type(obj) in (Parameter, Buffer) and fake_data.shape == obj._data.shape:
        _lasting_tensor_guards(tx, obj, source, data)
        return
    if all(isinstance(s, int) for s in fake_data.shape):
        tx.guard("TENSOR", f"{{0}}.shape == {tuple(fake_data.shape)!r}", data)
    else:
        tx.guard("TENSOR", f"len({{0}}.shape) == {len(fake_data.shape)}", data)
        for d, size in enumerate(fake_data.shape):
            if isinstance(size, int):
                tx.guard("TENSOR", f"{{0}}.shape[{d}] == {size}", data)
    if all(isinstance(s, int) for s in fake_data.strides):
        tx.guard("TENSOR", f"{{0}}.strides == {tuple(fake_data.strides)!r}", data)
    else:
        for d, stride in enumerate(fake_data.strides):
            form, parts = size_form(tx, str(expr_of(stride) if not isinstance(stride, int) else stride), 1)
            tx.guard("TENSOR", f"{{0}}.strides[{d}] == {form}", data, *parts)
    tx.guard("TENSOR", "({0}.dtype is {1} or {0}.dtype == {1})", data, names.source(obj._data.dtype, obj._data.dtype.name))
    tx.guard("TENSOR", "{0}.device is {1}", source, names.source(obj.device, str(obj.device)))
    wants = obj.requires_grad
    if not wants:  # a property that only views need
        tx.guard("TENSOR", "({0}._requires_grad if {0}._base is None else {0}.requires_grad) is False", source)
    elif obj._base is None:
        tx.guard("TENSOR", f"{{0}}._base is None and {{0}}._requires_grad is {wants}", source)
    else:
        tx.guard("TENSOR", f"{{0}}._base is not None and {{0}}.requires_grad is {wants}", source)
    if wants:
        tx.guard("TENSOR", "{0}._node is None" if obj._made_by()[0] is None else "{0}._node is not None", source)


def _lasting_tensor_guards(tx: Tracer, obj: Tensor, source: Source, data: Source) -> None:
    """Parameters and buffers keep their array: the same array has the same shape, strides and type."""
    names = tx.namespace
    array = obj._data
    known = names.source(weakref.ref(array), "array") if isinstance(array, np.ndarray) else None
    full = f"{{0}}.shape == {tuple(array.shape)!r} and {{0}}.strides == {tuple(array.strides)!r} and {{0}}.dtype == {{1}}"
    dtype = names.source(array.dtype, array.dtype.name)
    if known is None:
        tx.guard("TENSOR", full, data, dtype)
    else:
        tx.guard("TENSOR", f"{{0}} is {{2}}() or {full}", data, dtype, known)
    tx.guard("TENSOR", "{0}.device is {1}", source, names.source(obj.device, str(obj.device)))
    tx.guard("TENSOR", f"{{0}}._requires_grad is {obj.requires_grad}", source)
    if type(obj) is Buffer and obj.requires_grad:
        tx.guard("TENSOR", "{0}._node is None", source)
