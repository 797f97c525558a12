"""NumPy functions and array methods as tensor operations.

Stage: capture.  See ``registry``.  Each call is asked of NumPy too, on an array of ones: the result takes NumPy's type
and must have NumPy's shape, so 64-bit defaults and promotion are NumPy's own.  Read next: ``numpy_names``.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

import tinytorch as torch
from compiler.capture import breaks, graphs
from compiler.capture.models.numpy_names import FUNCTIONS
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, classes
from compiler.capture.values.array import ArrayValue, has_tensors
from compiler.capture.values.base import FALSE, ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.function import BoundMethod, BuiltinValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue
from tinytorch import dtypes

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

#: Functions that make arrays of constants: run now, the array is a constant of the graph.
_MAKERS = ("zeros", "ones", "full", "arange", "linspace", "eye", "array", "asarray")
_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
_COMPARE = {"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal"}
_UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert", "pos": "positive"}


def has_array(tx: Tracer, v: Value) -> bool:
    v = realize(tx, v)
    return isinstance(v, ArrayValue) or (isinstance(v, ListValue | TupleValue) and any(has_array(tx, e) for e in v.items))


def compute(tx: Tracer, numpy_fn: Any, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """One NumPy call as a node; NumPy says what type and shape it has."""
    fn = FUNCTIONS.get(name)
    if fn is None or "out" in kwargs:
        breaks.unsupported(breaks.NUMPY_CALL, f"numpy {name}")
    try:
        with np.errstate(all="ignore"):
            wanted = numpy_fn(*[_dummy(tx, a) for a in args], **{k: _dummy(tx, v) for k, v in kwargs.items()})
    except NotConstantError:
        breaks.unsupported(breaks.NUMPY_CALL, f"numpy {name} of values that are not known")
    except Exception as e:
        tx.raise_native(e)
    if isinstance(wanted, np.ndarray | np.generic):
        known(wanted.dtype)
    kwargs.pop("dtype", None)  # the wanted type says it
    _check_range(tx, args)
    wide = [_operand(tx, a, wanted, name) for a in args]
    found = graphs.call(tx, fn, wide, {k: _operand(tx, v, None, name) for k, v in kwargs.items()})
    return _as_array(tx, found, wanted, name)


def _check_range(tx: Tracer, args: tuple[Value, ...]) -> None:
    """An int that the array's type cannot hold is compared exactly by NumPy, and wrapped by tensors."""
    kinds = [realize(tx, a).dtype for a in args if isinstance(realize(tx, a), ArrayValue)]  # type: ignore[attr-defined]
    for a in args:
        v = realize(tx, a)
        if isinstance(v, ConstantValue) and type(v.value) is int and len(kinds) == 1 and kinds[0].kind in "iu":
            limits = np.iinfo(kinds[0])
            if not limits.min <= v.value <= limits.max:
                breaks.unsupported(breaks.NUMPY_CALL, f"{v.value} beside an array of {kinds[0]}")


def _dummy(tx: Tracer, v: Value) -> Any:
    v = realize(tx, v)
    if isinstance(v, ArrayValue):
        return v.dummy()
    if isinstance(v, TensorValue):
        breaks.unsupported(breaks.NUMPY_CALL, "a NumPy function of a tensor")
    if isinstance(v, ListValue | TupleValue):
        items = [_dummy(tx, e) for e in v.items]
        return items if isinstance(v, ListValue) else tuple(items)
    if isinstance(v, SymIntValue):
        return int(v.sym)
    if isinstance(v, SliceValue):
        return slice(*[_dummy(tx, p) for p in v.parts])
    return calls.constant_of(tx, v)


_WIDEN = frozenset(_BINARY.values()) | {"sum", "prod", "cumsum", "cumprod", "mean", "std", "var"}


def _operand(tx: Tracer, v: Value, wanted: Any, name: str) -> Value:
    """The tensor of an array; cast first where NumPy computes wider than tensors would."""
    v = realize(tx, v)
    if isinstance(v, ListValue | TupleValue) and has_array(tx, v):
        return ListValue([_operand(tx, e, wanted, name) for e in v.items])
    if not isinstance(v, ArrayValue):
        return v
    target = getattr(wanted, "dtype", None)
    wider = name in _WIDEN and target is not None and target != v.dtype and target.kind in "iufc"
    into_float = target is not None and target.kind == "f" and v.dtype.kind in "biu" and name not in ("where", "clip")
    if wider or into_float:
        return graphs.call_method(tx, "to", [v.tensor, ConstantValue(dtypes.from_numpy(target))], {})
    return v.tensor


def _as_array(tx: Tracer, found: Value, wanted: Any, name: str) -> Value:
    if not isinstance(found, TensorValue) or not isinstance(wanted, np.ndarray | np.generic):
        breaks.unsupported(breaks.NUMPY_CALL, f"numpy {name}")
    if tuple(found.fake._data.shape) != wanted.shape:
        breaks.unsupported(breaks.NUMPY_CALL, f"numpy {name}, whose shape is another")
    if found.fake._data.dtype != wanted.dtype:
        cast = graphs.call_method(tx, "to", [found, ConstantValue(dtypes.from_numpy(wanted.dtype))], {})
        assert isinstance(cast, TensorValue)
        found = cast
    return ArrayValue(found, scalar=isinstance(wanted, np.generic))


def known(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type that tensors have, and that NumPy would give them; others end the graph."""
    if not has_tensors(dtype):
        breaks.unsupported(breaks.NUMPY_CALL, f"an array of {dtype!r}")
    return dtype


def _of_array(fn: Any) -> Any:
    """A model of a method, for arrays that capture knows: others (of objects, say) are NumPy's own affair."""

    def run(tx: Tracer, a: Value, *args: Value, **kwargs: Value) -> Value:
        if not isinstance(a, ArrayValue):
            breaks.unsupported(breaks.NUMPY_CALL, f"a method of {a.describe()}, over which no tensor can lie")
        return fn(tx, a, *args, **kwargs)  # type: ignore[no-any-return]

    return run


# --- registration -----------------------------------------------------------------------------------------------------
def _function(numpy_fn: Any, name: str) -> Any:
    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        if any(has_array(tx, a) for a in (*args, *kwargs.values())):
            return compute(tx, numpy_fn, name, args, dict(kwargs))
        try:
            real = [calls.constant_of(tx, a) for a in args], {k: calls.constant_of(tx, v) for k, v in kwargs.items()}
        except NotConstantError:
            breaks.unsupported(breaks.NUMPY_CALL, f"numpy {name} of values that are not known")
        try:
            made = numpy_fn(*real[0], **real[1])
        except Exception as e:
            tx.raise_native(e)
        return new_array(tx, made) if isinstance(made, np.ndarray) else tx.from_python(made)

    return run


for _name in (*FUNCTIONS, *_MAKERS):
    _target = getattr(np, _name, None)
    if _target is not None:
        model(_target)(_function(_target, _name))


def new_array(tx: Tracer, made: Any) -> Value:
    """An array of known elements: made anew by the graph in every call."""
    if not has_tensors(made.dtype) or made.size > 4096 and not (made == made.flat[0]).all():
        breaks.unsupported(breaks.NUMPY_CALL, "a large or unusual array made inside")
    dtype = ConstantValue(dtypes.from_numpy(made.dtype))
    if made.size and (made == made.flat[0]).all():
        args = [tx.from_python(made.shape), tx.from_python(made.flat[0].item())]
        found = graphs.call(tx, torch.full, args, {"dtype": dtype})
    else:
        make: Any = torch.tensor  # a module and a function of one name
        found = graphs.call(tx, make, [tx.from_python(made.tolist())], {"dtype": dtype})
        found = graphs.call_method(tx, "reshape", [found, tx.from_python(made.shape)], {})
    assert isinstance(found, TensorValue)
    return ArrayValue(found)


def binary(tx: Tracer, fn: Any, a: Value, b: Value) -> Value:
    """An operator of which an array is one side: the ufunc of the same name."""
    name = (_BINARY | _COMPARE)[fn.__name__.strip("_")]
    return compute(tx, getattr(np, name), name, (a, b), {})


def attribute(tx: Tracer, a: ArrayValue, name: str) -> Value | None:
    """``array.name``."""
    if name in ("shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides"):
        return tx.from_python(getattr(a.dummy(), name))
    if name == "T":
        return compute(tx, np.transpose, "transpose", (a,), {})
    if name in ("real", "flat", "data", "base", "flags", "ctypes", "imag"):
        breaks.unsupported(breaks.NUMPY_CALL, f"ndarray.{name}")
    raw = classes.lookup(tx, np.ndarray, name)
    if raw is None:
        tx.raise_(AttributeError, f"'numpy.ndarray' object has no attribute '{name}'")
    return BoundMethod(BuiltinValue(getattr(np.ndarray, name)), a)


def _method(name: str) -> Any:
    def run(tx: Tracer, a: ArrayValue, *args: Value, **kwargs: Value) -> Value:
        return compute(tx, getattr(np.ndarray, name), name, (a, *args), dict(kwargs))

    return run


for _name in FUNCTIONS:
    _target = getattr(np.ndarray, _name, None)
    if _target is not None:
        model(_target)(_method(_name))


def _operator(name: str, reflected: bool = False) -> Any:
    ufunc = getattr(np, name)

    def run(tx: Tracer, a: Value, b: Value) -> Value:
        return compute(tx, ufunc, name, (b, a) if reflected else (a, b), {})

    return run


for _slot, _name in _BINARY.items():
    model(getattr(np.ndarray, f"__{_slot}__"))(_operator(_name))
    model(getattr(np.ndarray, f"__r{_slot}__"))(_operator(_name, reflected=True))
for _slot, _name in _COMPARE.items():
    model(getattr(np.ndarray, f"__{_slot}__"))(_operator(_name))
for _slot, _name in _UNARY.items():
    model(getattr(np.ndarray, f"__{_slot}__"))(lambda tx, a, _name=_name: compute(tx, getattr(np, _name), _name, (a,), {}))


def _write(tx: Tracer, a: ArrayValue, fn: Any, args: list[Value]) -> None:
    graphs.call(tx, fn, [a.tensor, *args], {})


def _inplace(slot: str, name: str) -> Any:
    def run(tx: Tracer, a: ArrayValue, b: Value) -> Value:
        value = compute(tx, getattr(np, name), name, (a, b), {})
        assert isinstance(value, ArrayValue)
        if value.dtype != a.dtype and not np.can_cast(value.dtype, a.dtype, "same_kind"):
            breaks.unsupported(breaks.NUMPY_CALL, f"in-place {name} that changes the type")
        graphs.call_method(tx, "copy_", [a.tensor, value.tensor], {})
        return a

    return run


for _slot, _name in _BINARY.items():
    if hasattr(np.ndarray, f"__i{_slot}__") and _slot != "matmul":
        model(getattr(np.ndarray, f"__i{_slot}__"))(_of_array(_inplace(_slot, _name)))


@model(np.ndarray.__getitem__)
@_of_array
def getitem(tx: Tracer, a: ArrayValue, key: Value) -> Value:
    try:
        wanted = a.dummy()[_index_dummy(tx, key)]
    except IndexError as e:
        tx.raise_native(e)
    found = graphs.call(tx, _take, [a.tensor, _index(tx, key)], {})
    return _as_array(tx, found, wanted, "indexing")


def _take(x: Any, key: Any) -> Any:
    """``x[key]``."""
    return x[key]


_take._tt_leaf = True  # type: ignore[attr-defined]


def _index_dummy(tx: Tracer, key: Value) -> Any:
    key = realize(tx, key)
    if isinstance(key, ArrayValue):
        if key.dtype == np.bool_:
            breaks.unsupported(breaks.DYNAMIC_OUTPUT, "an array indexed by a mask")
        return np.zeros(key.dummy().shape, key.dtype)
    if isinstance(key, TupleValue):
        return tuple(_index_dummy(tx, k) for k in key.items)
    return _dummy(tx, key)


def _index(tx: Tracer, key: Value) -> Value:
    key = realize(tx, key)
    if isinstance(key, ArrayValue):
        return key.tensor
    return TupleValue([_index(tx, k) for k in key.items]) if isinstance(key, TupleValue) else key


@model(np.ndarray.__setitem__)
@_of_array
def setitem(tx: Tracer, a: ArrayValue, key: Value, v: Value) -> Value:
    new = v.tensor if isinstance(v, ArrayValue) else v
    if isinstance(new, ListValue):
        breaks.unsupported(breaks.NUMPY_CALL, "assignment of a list to part of an array")
    graphs.call(tx, operator.setitem, [a.tensor, _index(tx, key), new], {})
    return ConstantValue(None)


@model(np.ndarray.__len__)
@_of_array
def length(tx: Tracer, a: ArrayValue) -> Value:
    return tx.from_python(len(a.dummy()))


@model(np.ndarray.astype)
@_of_array
def astype(tx: Tracer, a: ArrayValue, dtype: Value, **kwargs: Value) -> Value:
    wanted = known(np.dtype(calls.constant_of(tx, dtype)))
    found = graphs.call_method(tx, "to", [a.tensor, ConstantValue(dtypes.from_numpy(wanted))], {})
    copied = graphs.call_method(tx, "clone", [found], {})
    assert isinstance(copied, TensorValue)
    return ArrayValue(copied, scalar=a.scalar)


@model(np.ndarray.__bool__)
def truth(tx: Tracer, a: ArrayValue) -> Value:
    breaks.unsupported(breaks.TENSOR_BRANCH, a.describe())


@model(np.ndarray.item, np.ndarray.tolist, np.ndarray.__float__, np.ndarray.__int__, np.ndarray.__iter__)
def values_of(tx: Tracer, a: ArrayValue, *args: Value) -> Value:
    breaks.unsupported(breaks.SCALAR_OUTPUT, f"the elements of {a.describe()}")


@model(torch.from_numpy)
def from_numpy(tx: Tracer, a: Value) -> Value:
    if not isinstance(a, ArrayValue):
        breaks.unsupported(breaks.NUMPY_CALL, "from_numpy")
    return a.tensor


@model(torch.Tensor.numpy)  # type: ignore[attr-defined]
def to_numpy(tx: Tracer, t: TensorValue, *, force: Value = FALSE) -> Value:
    if t.fake.requires_grad:
        tx.raise_(RuntimeError, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    return ArrayValue(t)


for _maker in (torch.tensor, torch.as_tensor):

    def _tensor_of(tx: Tracer, data: Value, *args: Value, _maker: Any = _maker, **kwargs: Value) -> Value:
        if not isinstance(data, ArrayValue):
            return graphs.call(tx, _maker, [data, *args], dict(kwargs))
        found = graphs.call_method(tx, "contiguous", [data.tensor], {}) if _maker is torch.tensor else data.tensor
        return graphs.call(tx, _maker, [found, *args], dict(kwargs))

    model(_maker)(_tensor_of)
