"""What a tensor can do: the public functions, attached to ``Tensor`` under their names.

Stage: eager.  In: the rooms of ``functions``.  Out: methods, operators, ``name_`` in-place variants and properties.
A method is the very function object that ``tinytorch.<name>`` is, so a captured call has one name however it was
written.  An in-place variant computes out of place and writes.  Read next: ``functions.pointwise``.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np

from tinytorch import dtypes, ops, printing
from tinytorch.functions import (
    assembly,
    complexes,
    creation,
    decompositions,
    indexing,
    legacy,
    linalg,
    pointwise,
    random,
    reduction,
    shape,
    typing,
)
from tinytorch.functions.args import sizes
from tinytorch.ops import composite, views
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor, address

#: room -> the names that are methods too
METHODS: dict[Any, str] = {
    pointwise: """
        add sub mul div pow neg abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan
        asin acos atan atan2 arcsin arccos arctan arctan2 sinh cosh tanh asinh acosh atanh arcsinh arccosh arctanh erf
        sigmoid relu floor ceil trunc fix frac round isnan isinf isfinite nan_to_num logical_not logical_and logical_or
        logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift fmod remainder
        floor_divide maximum minimum fmax fmin copysign eq ne lt le gt ge less less_equal greater greater_equal not_equal
        clamp clip clamp_min clamp_max masked_fill isclose lerp addcmul addcdiv logit hypot logaddexp xlogy positive
        negative absolute subtract multiply divide true_divide deg2rad rad2deg erfc
        signbit isposinf isneginf""",
    complexes: "conj angle",
    reduction: """
        sum nansum mean prod any all count_nonzero var std amax amin aminmax argmax argmin max min cumsum cumprod cummax
        cummin logcumsumexp logsumexp sort argsort topk kthvalue median quantile
        nanquantile norm dist nanmean""",
    shape: """
        reshape view view_as reshape_as flatten ravel unflatten unsqueeze squeeze permute transpose swapaxes swapdims t
        movedim moveaxis expand expand_as broadcast_to diagonal diag diag_embed unfold narrow select unbind split chunk
        tensor_split repeat tile repeat_interleave flip fliplr flipud roll rot90 tril triu""",
    assembly: "diagflat diff hsplit vsplit",
    decompositions: "inverse",
    linalg: "matmul mm bmm mv dot outer ger addmm addmv addr baddbmm trace inner kron cross",
    indexing: """
        gather scatter scatter_add scatter_reduce index_select index_add index_copy index_fill index_put masked_select
        masked_scatter take nonzero argwhere unique bincount take_along_dim""",
    typing: """
        to type_as cuda clone contiguous item tolist numpy equal allclose is_nonzero copy_ fill_ fill_diagonal_
        zero_ resize_""",
    composite: "softmax log_softmax",
    random: "uniform_ normal_ bernoulli_ exponential_ random_ bernoulli multinomial",
}

#: functions that have an in-place variant ``name_``
INPLACE = """
    add sub mul div pow neg abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin
    acos atan sinh cosh tanh asinh acosh atanh erf sigmoid relu floor ceil trunc frac round fmod remainder floor_divide
    clamp clip clamp_min clamp_max masked_fill lerp addcmul addcdiv logical_not logical_and logical_or logical_xor
    bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift eq ne lt le gt ge cumsum
    cumprod tril triu scatter scatter_add scatter_reduce index_add index_copy index_fill masked_scatter nan_to_num
    negative multiply divide subtract copysign addmm baddbmm addr logit hypot erfc true_divide xlogy""".split()


def _inplace(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    """``fn`` with the result written into its first argument."""
    name = fn.__name__ + "_"

    def method(self: Tensor, *args: Any, **params: Any) -> Tensor:
        return self._take_result(fn(self, *args, **params))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In-place ``{fn.__name__}``: compute and write.  Mirrors ``torch.Tensor.{name}``."
    return method


# --- operators --------------------------------------------------------------------------------------------------------
def _operand(x: Any) -> Any:
    """What may stand beside a tensor in ``x + y``: tensors, numbers, NumPy values; NotImplemented for the rest."""
    if isinstance(x, Tensor | int | float | complex):
        return x
    if isinstance(x, np.ndarray):
        return creation.from_numpy(np.ascontiguousarray(x).reshape(x.shape))
    if isinstance(x, np.generic):
        return x.item()
    return x if isinstance(x, Number) else NotImplemented


_READY = frozenset({Tensor, int, float, bool, complex})


def _operator(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if type(other) not in _READY:
            other = _operand(other)
            if other is NotImplemented:
                return NotImplemented
        return compute(self, other)

    method.__name__ = method.__qualname__ = name
    return method


def _reflected(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return _operator(name, lambda self, other: compute(other, self))


def _pow(x: Any, y: Any) -> Tensor:
    return pointwise.pow(x, y)


#: operator -> function of two operands; each also gets its reflected form
BINARY_OPERATORS: dict[str, Any] = {
    "add": TABLE["add"], "sub": TABLE["sub"], "mul": TABLE["mul"], "truediv": TABLE["div"],
    "floordiv": TABLE["floordiv"], "mod": TABLE["mod"], "pow": _pow, "and": TABLE["bit_and"], "or": TABLE["bit_or"],
    "xor": TABLE["bit_xor"], "lshift": TABLE["shl"], "rshift": TABLE["shr"],
}  # fmt: skip
COMPARISONS: dict[str, Op] = {name: TABLE[name] for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _in_place_operator(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        other = _operand(other)
        return other if other is NotImplemented else self._take_result(compute(self, other))

    return method


def _attach_operators() -> None:
    for name, compute in BINARY_OPERATORS.items():
        setattr(Tensor, f"__{name}__", _operator(f"__{name}__", compute))
        setattr(Tensor, f"__r{name}__", _reflected(f"__r{name}__", compute))
        setattr(Tensor, f"__i{name}__", _in_place_operator(compute))
    for name, op in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", _operator(f"__{name}__", op))
    members: dict[str, Any] = {
        "__matmul__": lambda self, other: (
            linalg.matmul(self, other) if isinstance(other, Tensor) else NotImplemented
        ),
        "__rmatmul__": lambda self, other: (
            linalg.matmul(other, self) if isinstance(other, Tensor) else NotImplemented
        ),
        "__neg__": lambda self: ops.neg(self),
        "__pos__": lambda self: pointwise.positive(self),
        "__abs__": lambda self: ops.abs(self),
        "__invert__": _invert,
        "__hash__": lambda self: id(self),
        "__len__": _len,
        "__iter__": _iter,
        "__contains__": lambda self, x: bool(ops.eq(self, x).any()),
        "__getitem__": indexing.getitem,
        "__setitem__": indexing.setitem,
        "__bool__": typing.to_bool,
        "__int__": typing.to_int,
        "__float__": typing.to_float,
        "__complex__": typing.to_complex,
        "__index__": typing.to_index,
        "__array__": typing.array,
        "__array_priority__": 1000,
        "__repr__": printing.tensor_text,
        "__format__": _format,
        "__deepcopy__": _deepcopy,
        "__reduce_ex__": _pickle,
        "__getattr__": _missing,
        "__new__": staticmethod(legacy.new_tensor),
    }
    for name, member in members.items():
        setattr(Tensor, name, member)


def _invert(self: Tensor) -> Tensor:
    if dtypes.category(self.dtype) > 1:
        raise TypeError("~ (operator.invert) is only implemented on integer and Boolean-type tensors")
    return ops.bit_not(self)


def _len(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("len() of a 0-d tensor")
    return self._data.shape[0]


def _iter(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


def _format(self: Tensor, spec: str) -> str:
    return (
        format(self.item(), spec)
        if not self.ndim and spec
        else object.__format__(self, spec)
        if spec
        else repr(self)
    )


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A leaf with copied memory and gradient; RuntimeError for others, as in PyTorch."""
    if id(self) in memo:
        return memo[id(self)]  # type: ignore[no-any-return]
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    new = object.__new__(type(self))
    new.__dict__.update({k: v for k, v in self.__dict__.items() if not k.startswith("_")})
    new._data, new.device = self.detach().clone()._data, self.device
    new._requires_grad, new.name = self._requires_grad, self.name
    memo[id(self)] = new
    new.grad = None if self.grad is None else self.grad.detach().clone()
    return new


def _missing(self: Tensor, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
    raise AttributeError(
        f"'{type(self).__name__}' object has no attribute '{name}': it is outside the supported subset of PyTorch "
        "(docs/api_subset.md lists what is there)"
    )


def _pickle(self: Tensor, protocol: int) -> Any:
    if not self.is_leaf:
        raise RuntimeError("cannot pickle a tensor with a history: detach() it first")
    data = typing.host_array(self, "pickle")
    return _rebuild, (type(self), np.ascontiguousarray(data), str(self.device), self._requires_grad)


def _rebuild(kind: type[Tensor], data: Any, device: str, requires_grad: bool) -> Tensor:
    base = creation.from_numpy(data).to(device)
    new = object.__new__(kind)
    new._data, new.device, new._requires_grad = base._data, base.device, requires_grad
    return new


# --- properties and small methods -------------------------------------------------------------------------------------
def _transposed(self: Tensor) -> Tensor:
    return self.permute(*reversed(range(self.ndim)))


def _matrix_transposed(self: Tensor) -> Tensor:
    if self.ndim < 2:
        raise RuntimeError(
            f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor."
        )
    return self.transpose(-2, -1)


def _new(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(
        self: Tensor,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **more: Any,
    ) -> Tensor:
        where = self.device if device is None else device
        return make(*args, dtype=dtype or self.dtype, device=where, requires_grad=requires_grad, **more)

    method.__name__ = method.__qualname__ = f"new_{make.__name__}"
    return method


def _cast_method(name: str, dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor, memory_format: Any = None) -> Tensor:
        return self if self.dtype is dtype else ops.cast(self, dtype=dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"The tensor as {dtype.name}."
    return method


CASTS: dict[str, dtypes.DType] = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int": dtypes.int32, "long": dtypes.int64, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8,
    "bool": dtypes.bool_, "cfloat": dtypes.complex64, "cdouble": dtypes.complex128,
}  # fmt: skip


def _attach_members() -> None:
    properties: dict[str, Any] = {
        "T": property(_transposed),
        "mT": property(_matrix_transposed),
        "data": property(lambda self: self.detach(), typing.set_data),
        "real": property(complexes.real),
        "imag": property(complexes.imag),
        "itemsize": property(lambda self: self.dtype.itemsize),
        "nbytes": property(lambda self: self.numel() * self.dtype.itemsize),
        "is_cuda": property(lambda self: self.device.type == "cuda"),
        "is_cpu": property(lambda self: self.device.type == "cpu"),
        "layout": "strided",
        "is_sparse": False,
        "is_quantized": False,
        "is_meta": False,
        "is_nested": False,
    }
    methods: dict[str, Any] = {
        "type": typing.type_,
        "cpu": typing.cpu_,
        "nelement": lambda self: self.numel(),
        "ndimension": lambda self: self.ndim,
        "element_size": lambda self: self.dtype.itemsize,
        "is_floating_point": lambda self: self.dtype.is_floating_point,
        "is_complex": lambda self: self.dtype.is_complex,
        "is_signed": lambda self: self.dtype.is_signed,
        "get_device": lambda self: -1 if self.device.type == "cpu" else self.device.index or 0,
        "is_inference": lambda self: self._inference,
        "untyped_storage": lambda self: _UntypedStorage(self),
        "resolve_conj": lambda self: self,
        "resolve_neg": lambda self: self,
        "new_tensor": lambda self, data, **k: creation.tensor(
            data, **{"dtype": self.dtype, "device": self.device, **k}
        ),
        "new": _new_of_size,
        "data_ptr": lambda self: address(self._data),
        "index_put_": _index_put_,
        "unsqueeze_": lambda self, dim: _rebind(self, self.unsqueeze(dim)),
        "squeeze_": lambda self, dim=None: _rebind(self, self.squeeze(dim)),
        "transpose_": lambda self, a, b: _rebind(self, self.transpose(a, b)),
        "t_": lambda self: _rebind(self, self.t()),
        "set_": _set,
        "where": lambda self, condition, other: pointwise.where(condition, self, other),
        "pin_memory": lambda self, device=None: self.clone(),
        "is_pinned": lambda self, device=None: False,
        "detach_": _detach_,
        "apply_": _apply_,
        "bernoulli_": random.bernoulli_,
    }
    for name, value in {**properties, **methods}.items():
        if callable(value) and getattr(value, "__name__", "").startswith(("<lambda>", "_")):  # by this name a trace knows it
            value.__name__ = value.__qualname__ = name
        setattr(Tensor, name, value)
    for make in (creation.zeros, creation.ones, creation.empty, creation.full):
        setattr(Tensor, f"new_{make.__name__}", _new(make))
    for name, dtype in CASTS.items():
        setattr(Tensor, name, _cast_method(name, dtype))


class _UntypedStorage:
    """The block of memory behind a tensor and its views: where it starts and how long it is."""

    def __init__(self, t: Tensor) -> None:
        self.tensor = t if t._base is None else t._base

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()  # type: ignore[no-any-return]

    def nbytes(self) -> int:
        return self.tensor.nbytes  # type: ignore[no-any-return]

    size = __len__ = nbytes


def _new_of_size(self: Tensor, *args: Any) -> Tensor:
    if len(args) == 1 and isinstance(args[0], list | np.ndarray):
        return creation.tensor(args[0], dtype=self.dtype, device=self.device)
    return creation.empty(*(sizes(args) if args else (0,)), dtype=self.dtype, device=self.device)


def _index_put_(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    return self._take_result(indexing.index_put(self, indices, values, accumulate))


def _rebind(self: Tensor, view: Tensor) -> Tensor:
    """``self`` becomes the view: another look at the same memory, with the view's history."""
    base, chain = view._base, view._chain
    self._data = view._data
    if self._base is not None:
        self._chain, self._view_version = chain, -1
    elif base is self:  # views made before and after have chains that begin at what it was
        self._chain, self._back = chain, (*views.undone(chain[len(self._chain) :]), *self._back)
        if view._node is not None:
            self._set_history(*view._made_by())
    return self


def _detach_(self: Tensor) -> Tensor:
    """Leave the history behind, in place; a view cannot."""
    if self._base is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self._forget_history()
    return self


def _set(self: Tensor, source: Tensor) -> Tensor:
    self._data, self._storage, self.device = source._data, source._storage, source.device
    if self._base is None:
        self._chain = self._back = ()
    return self


def _apply_(self: Tensor, fn: Callable[[Any], Any]) -> Tensor:
    flat = [fn(v) for v in self.reshape(-1).tolist()]
    return self.copy_(creation.tensor(flat, dtype=self.dtype).reshape(self.shape))


def attach() -> None:
    """Give ``Tensor`` all of the above."""
    for room, names in METHODS.items():
        for name in names.split():
            setattr(Tensor, name, getattr(room, name))
    for name in INPLACE:
        setattr(Tensor, f"{name}_", _inplace(getattr(Tensor, name)))
    _attach_operators()
    _attach_members()


attach()
