"""NumPy in the middle of a compiled function: arrays are tensors of the graph, types and shapes are NumPy's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from capture_helpers import Counted, same

import tinytorch as torch


def elementwise(a):
    b = a * 2 + 1
    return b.sum(), np.tanh(b).mean(axis=1), b.T, b.shape, a.dtype, np.sqrt(a), a / 2, a // 2, a + 1.5, -a, abs(a), a % 3


def reductions(a):
    return (
        a.sum(), a.mean(), a.max(), a.argmax(), np.cumsum(a), np.prod(a, axis=0), a.std(), a.var(axis=1, ddof=1),
        (a**2).sum(axis=0, keepdims=True), a.min(axis=-1), np.any(a > 3, axis=0), (a >= 0).all(),
    )  # fmt: skip


def shapes(a):
    return (
        a.reshape(2, -1), a.ravel(), np.expand_dims(a, 0), a[1:, None], a[0], a[..., -1], a[::2], a.transpose(),
        np.concatenate([a, a], axis=1), np.stack([a, a]), len(a), a.size, a.ndim, np.flip(a, 0), a.swapaxes(0, 1),
    )  # fmt: skip


def mixed(a):
    i = np.array([0, 2])
    return a[:, i], np.where(a > 2, a, 0), np.clip(a, 1, 3), np.maximum(a, 2), a @ a.T, np.zeros(3), np.arange(4) * 2, a == a[0]


def conversions(a):
    return a.astype(np.float32) * a, np.ones((1, 4), dtype=np.float32), np.float32(2) * a, a.copy(), np.array([1.5, 2])


INPUTS = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "float64": np.arange(12, dtype=np.float64).reshape(3, 4),
    "int32": np.arange(12, dtype=np.int32).reshape(3, 4),
    "uint8": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "transposed": np.arange(12, dtype=np.float64).reshape(4, 3).T,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("fn", [elementwise, reductions, mixed, conversions], ids=lambda f: f.__name__)
def test_functions_and_methods(fn: Any, kind: str) -> None:
    compiled = Counted(fn, fullgraph=True)
    expected, got = fn(INPUTS[kind]), compiled(INPUTS[kind])
    for e, g in zip(expected, got, strict=True):
        if isinstance(e, np.ndarray | np.generic) and e.dtype.kind == "f":
            assert type(e) is type(g) and e.dtype == g.dtype
            np.testing.assert_allclose(g, e, rtol=3e-3 if e.dtype == np.float16 else 1e-6)
        else:
            assert same(e, g), (e, g)
    assert not compiled.native()


def test_views_and_shapes() -> None:
    a = INPUTS["float64"]
    assert all(same(e, g) for e, g in zip(shapes(np.tile(a, (2, 1))), Counted(shapes, fullgraph=True)(np.tile(a, (2, 1))), strict=True))


def test_writes_are_seen_in_the_array() -> None:
    def f(a):
        a += 1
        a[0] = 5
        a[1:] *= 2
        return a.sum()

    x, y = copy.deepcopy(INPUTS["float64"]), copy.deepcopy(INPUTS["float64"])
    assert f(x) == Counted(f, fullgraph=True)(y)
    assert np.array_equal(x, y)


def test_arrays_and_tensors_side_by_side() -> None:
    def f(x):
        a = x.numpy()
        b = np.concatenate([a, np.ones((1, 4), dtype=np.float32)], axis=0)
        return torch.from_numpy(b) * 2, np.maximum(a, 0.5), torch.tensor(a) + x

    x = torch.ones(3, 4)
    compiled = Counted(f, fullgraph=True)
    assert same(compiled(x), f(x))
    assert len(compiled.graphs) == 1


def test_what_has_no_tensor_form_breaks() -> None:
    def f(a):
        return np.linalg.det(a @ a.T) + a.sum()

    compiled = Counted(f)
    assert compiled(INPUTS["float64"]) == f(INPUTS["float64"])
    assert compiled.breaks()


def test_array_guards() -> None:
    compiled = Counted(elementwise)
    for a, n in ((INPUTS["float32"], 1), (INPUTS["float32"] + 1, 1), (INPUTS["float64"], 2), (INPUTS["transposed"], 3)):
        compiled(a)
        assert len(compiled.entries) == n


def outside(a):
    return a[1:], len(a), a.dtype.str, a * 2


def inside(a):
    wide = a.astype(np.longdouble)
    return np.asarray(a, ">f8") + 1, a.astype(">f4"), wide[1:].max(), wide.dtype.str, np.zeros(3, ">i4")


@pytest.mark.parametrize("dtype", [">f4", ">i8", "longdouble", "O", "f4"])
@pytest.mark.parametrize("fn", [outside, inside])
def test_arrays_over_which_no_tensor_can_lie(fn: Any, dtype: str) -> None:
    """Bytes in another order, types that tensors have not: read as tensors they would be other numbers."""
    a = np.arange(4).astype(dtype)
    for want, got in zip(fn(a), Counted(fn)(a), strict=True):
        assert str(want) == str(got) and getattr(want, "dtype", None) == getattr(got, "dtype", None)


def test_a_tensor_of_an_array_is_what_was_asked_for() -> None:
    def f(a):
        return torch.as_tensor(a, torch.float64), torch.tensor(a, requires_grad=True), torch.tensor(a).stride()

    a = np.asfortranarray(np.ones((2, 3), np.float32))
    (wide, leaf, stride), got = f(a), Counted(f)(a)
    assert got[0].dtype is wide.dtype and got[1].requires_grad and leaf.requires_grad and got[2] == stride == (3, 1)


def test_what_is_read_only_stays_as_it_is() -> None:
    """NumPy refuses to write there; kernels get addresses, and must not."""

    def tensors(x):
        return x[0], x.add_(1)

    def arrays(a):
        a += 1
        return a

    for fn, make in ((tensors, torch.from_numpy), (tensors, torch.as_tensor), (arrays, np.asarray)):
        compiled = torch.compile(fn)
        for array in (np.zeros(3), np.broadcast_to(np.zeros(()), (3,)), np.zeros(3)):
            array.flags.writeable = False
            for call in (fn, compiled):
                with pytest.raises((ValueError, RuntimeError)):
                    call(make(array))
                assert not array.any()
        compiled(make(np.zeros(3)))
        assert torch.compile(lambda x: x * 2 + 1)(torch.from_numpy(array)).sum() == 3


def test_a_view_of_what_is_read_only_stays_as_it_is() -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    x = torch.from_numpy(array)
    for view in (x[1:], x.view(2, 2), x.detach(), x.data, x.t()):
        for call in (lambda v: v.mul_(0).add_(1), torch.compile(lambda v: v.mul_(0).add_(1))):
            with pytest.raises(ValueError, match="read-only"):
                call(view)
            assert not array.any()


def test_numpy_generators_made_inside() -> None:
    """Their methods' types, written in Cython, say no module."""

    def f(x):
        legacy, new = np.random.RandomState(3), np.random.default_rng(5)
        return x + float(legacy.randn()) + new.normal() * new.integers(5) + torch.from_numpy(legacy.randn(3))

    assert same(Counted(f)(torch.ones(3)), f(torch.ones(3)))
