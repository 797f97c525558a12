"""Every row against itself: what ``infer`` promises, what bodies mean, gradients to second order, layouts, errors.

All from the samples that rows carry; a row without samples fails.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
from row_helpers import Maker, inputs, rows, tensors

import tinytorch as torch
from tinytorch import dtypes, ops
from tinytorch.autograd import gradcheck, gradgradcheck
from tinytorch.dispatch import meta_of
from tinytorch.ops.opdef import Meta, Op
from tinytorch.ops.spell_numpy import handler
from tinytorch.tensor import Tensor

NO_SAMPLES = {"attention_backward"}  # a file of its own tests attention
ROWS = [name for name in rows() if name not in NO_SAMPLES]
REFUSES = (RuntimeError, TypeError, NotImplementedError)


def outputs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def strides_of(meta: Meta) -> tuple[int, ...]:
    if meta.strides is not None:
        return tuple(meta.strides)
    out, step = [], 1
    for n in reversed(meta.shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def check_promise(op: Op, args: Any, params: Any) -> None:
    """Shape, type, strides and sharing are what ``infer`` says."""
    result = op(*args, **params)
    if op.data_dependent:
        return
    promised = op.infer(*[meta_of(a) for a in args], **params)
    promised = [promised] if isinstance(promised, Meta) else list(promised)
    found = outputs(result)
    assert len(found) == len(promised)
    for t, meta in zip(found, promised, strict=True):
        assert tuple(t.shape) == tuple(meta.shape)
        assert t.dtype is meta.dtype
        if t.numel() > 1:
            sizes = [n != 1 for n in t.shape]
            assert list(itertools.compress(t.stride(), sizes)) == list(itertools.compress(strides_of(meta), sizes))
        if op.kind == "view" and t.numel():
            offset = t._data.ctypes.data - args[0]._data.ctypes.data
            assert offset == meta.offset * t.dtype.itemsize
        elif op.kind != "view":
            assert not any(np.shares_memory(t._data, a._data) for a in tensors(args))


@pytest.mark.parametrize("name", ROWS)
def test_infer_keeps_its_promise(name: str) -> None:
    for args, params in inputs(name):
        check_promise(ops.TABLE[name], args, params)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_complex], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ROWS)
def test_infer_keeps_its_promise_for_each_type(name: str, dtype: dtypes.DType) -> None:
    """Where a row takes a type, its result is what ``infer`` promises; where not, ``infer`` or the kernel raises."""
    taken = 0
    for args, params in _or_nothing(name, dtype):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ops.TABLE[name](*args, **params)
            except REFUSES:
                continue
            check_promise(ops.TABLE[name], args, params)
            taken += 1
    if dtype is dtypes.float32:
        assert taken


def _or_nothing(name: str, dtype: dtypes.DType) -> Any:
    try:
        yield from inputs(name, dtype=dtype)
    except REFUSES:
        return


@pytest.mark.parametrize("name", [n for n in ROWS if ops.TABLE[n].vjp is not None and n != "attention"])
def test_gradients_to_second_order(name: str) -> None:
    op = ops.TABLE[name]
    checked = 0
    for args, params in inputs(name):
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a._is_differentiable() and a.numel()]
        if not places or params.get("dtype") in (dtypes.float32, dtypes.int64):
            continue
        leaves = [args[i].detach().clone().requires_grad_() for i in places]

        def fn(*xs: Tensor, args: Any = args, params: Any = params, places: Any = places) -> Any:
            full = list(args)
            for i, x in zip(places, xs, strict=True):
                full[i] = x
            return op(*full, **params)

        if not any(o.requires_grad for o in outputs(fn(*leaves))):
            continue
        assert gradcheck(fn, leaves)
        assert gradgradcheck(fn, leaves)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", [n for n in ROWS if ops.TABLE[n].kind in ("pointwise", "reduce", "scan", "contract")])
def test_layout_does_not_change_values(name: str) -> None:
    """Transposed, strided and offset operands give what contiguous ones give."""
    op = ops.TABLE[name]
    for args, params in inputs(name):
        want = outputs(op(*args, **params))
        for spoil in (_transposed, _strided):
            spoiled = [spoil(a) if isinstance(a, Tensor) else a for a in args]
            for a, b in zip(outputs(op(*spoiled, **params)), want, strict=True):
                assert np.allclose(a._data, b._data, 1e-12, 1e-12, equal_nan=True)


def _transposed(x: Tensor) -> Tensor:
    """Equal to x, with memory in the reverse order of dimensions."""
    order = tuple(reversed(range(x.ndim)))
    return x.detach().permute(*order).contiguous().permute(*order)


def _strided(x: Tensor) -> Tensor:
    """Equal to x, every second element of a larger block."""
    block = torch.empty(*(2 * n for n in x.shape), dtype=x.dtype)
    view = block[tuple(slice(None, None, 2) for _ in x.shape)]
    return view.copy_(x.detach()) if x.ndim else x


@pytest.mark.parametrize("name", [n for n in ROWS if ops.TABLE[n].kind == "view" and ops.TABLE[n].body or n == "flip"])
def test_index_maps_of_views(name: str) -> None:
    """``body`` finds each element of the view in the input."""
    op = ops.TABLE[name]
    for args, params in inputs(name):
        x = args[0]
        view = op(*args, **params)
        for place in np.ndindex(*view.shape):
            assert view._data[place] == x._data[tuple(op.body(place, tuple(x.shape), **params))]


@pytest.mark.parametrize("name", [n for n in ROWS if ops.TABLE[n].kind == "pointwise" and n not in ("conj", "cast")])
def test_bodies_mean_what_kernels_compute(name: str) -> None:
    """The body over scalars in the vocabulary, against eager's kernel, element by element."""
    op = ops.TABLE[name]
    for args, params in inputs(name):
        got = op(*args, **params)._data
        arrays = np.broadcast_arrays(*[a._data if isinstance(a, Tensor) else a for a in args])
        if op.types != "custom":
            common = next(a.dtype for a in tensors(args)).np
            arrays = [a.astype(common) for a in arrays]
        with np.errstate(all="ignore"):
            want = np.asarray(op.body(handler(np), *arrays, **params))
        assert np.allclose(got, np.broadcast_to(want, got.shape), 1e-14, 1e-300, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in ROWS if ops.TABLE[n].errors is not None])
def test_error_samples_raise(name: str) -> None:
    op = ops.TABLE[name]
    for args, params in op.errors(Maker(name)):
        with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
            op(*args, **params)


@pytest.mark.parametrize("name", rows())
def test_rows_say_what_the_stages_need(name: str) -> None:
    op = ops.TABLE[name]
    assert op.recompute in ("free", "cheap", "save")
    assert op.infer is not None
    if op.kind == "pointwise":
        assert callable(op.body)
    else:
        assert op.kernel is not None
    if op.kind == "reduce":
        assert isinstance(op.body, str)


def test_constants_of_rules_do_not_lose_precision() -> None:
    """Numbers in rules are Python floats: a float64 gradient is exact to its last bits."""
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(torch.log10(x).sum(), x)
    assert math.isclose(g.item(), 1 / (0.3 * math.log(10)), rel_tol=1e-15)
