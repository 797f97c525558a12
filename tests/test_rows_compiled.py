"""Every row compiled: by the loop interpreter and by machine code, for each type, layout and mode of numerics = eager.

Values come from the samples that rows carry; for pointwise rows also NaN, infinities, zeros of both signs, subnormals
and the ends of integer ranges.  ``TT_LONG_TESTS`` runs machine code for every type, too.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import numpy as np
import pytest
from loop_helpers import trace
from row_helpers import Maker, inputs, rows

import tinytorch as torch
from compiler.config import Config
from compiler.loop import compile_graph, interp
from compiler.loop.printer import format_plan
from compiler.loop.verify import verify
from tinytorch import dtypes, ops, tape
from tinytorch.ops.opdef import TABLE
from tinytorch.tensor import Tensor

LONG = bool(os.environ.get("TT_LONG_TESTS"))
REFUSES = (RuntimeError, TypeError, NotImplementedError)
#: rows with files of their own, and those whose shapes depend on values (no graph holds them)
ELSEWHERE = {"attention", "attention_backward", "empty", "to_device"}
ROWS = [n for n in rows() if n not in ELSEWHERE and not TABLE[n].data_dependent]
POINTWISE = [n for n in ROWS if TABLE[n].kind == "pointwise"]
TYPES = [d for d in dtypes.ALL if not d.is_complex]
ORDINARY = [dtypes.float32, dtypes.int64, dtypes.float16, dtypes.bool_] if not LONG else TYPES
#: kinds of types that the functions which use a row never hand to it
NO_SUCH_TYPES = {"b": ("var", "floordiv", "mod", "fmod", "round"), "u": ("var", "round"), "i": ("var", "round")}
#: of one rounding or none: strict numerics give eager's very bits
EXACT = (
    "add sub mul div neg abs sqrt maximum minimum floor ceil trunc round sign eq ne lt le gt ge where relu "
    "bit_and bit_or bit_xor bit_not logical_not cast square isnan"
).split()


class Edges(Maker):
    """Tensors full of the values that programs forget."""

    def _values(self, shape: tuple[int, ...]) -> Any:
        if self.dtype.is_floating_point:
            info = np.finfo(np.float32 if self.dtype is dtypes.bfloat16 else self.dtype.np)
            odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, float(info.max), float(info.tiny) / 4]
        elif self.dtype.kind == "b":
            odd = [False, True]
        else:
            ends = np.iinfo(self.dtype.np)
            odd = [0, 1, 2, 3, int(ends.max), int(ends.min), int(ends.max) - 1] + [-1, -7] * (self.dtype.kind == "i")
        picked = self.random.integers(0, len(odd), shape)
        return np.array(odd, self.dtype.np)[picked]


def many(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def cases(name: str, maker: type[Maker], dtype: Any) -> Any:
    """The samples of a row that eager takes for ``dtype``."""
    found = TABLE[name].samples
    assert found is not None
    try:
        for args, params in found(maker(name, dtype)):
            if name in NO_SUCH_TYPES.get(dtype.kind, ()):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    TABLE[name](*args, **params)
                except REFUSES:
                    continue
            yield args, params
    except REFUSES:
        return


def compiled(name: str, args: Any, params: Any, numerics: str) -> tuple[Any, list[Any]]:
    """The plan of one call, and its inputs."""
    places = [n for n, a in enumerate(args) if isinstance(a, Tensor)]

    def fn(*xs: Tensor) -> Any:
        full = list(args)
        for n, x in zip(places, xs, strict=True):
            full[n] = x
        return TABLE[name](*full, **params)

    config = Config().replace({"numerics": numerics})
    plan = compile_graph(trace(fn, *(args[n] for n in places)), config)
    verify(plan)
    return plan, [args[n]._data for n in places]


def built(plan: Any, arrays: list[Any], numerics: str) -> list[Any]:
    return importlib.import_module("codegen_numba").build(plan, Config().replace({"numerics": numerics}))(arrays, ())


def agree(name: str, plan: Any, got: list[Any], args: Any, params: Any, exact: bool) -> None:
    with tape.grad_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = [t._data for t in many(TABLE[name](*args, **params))]
    for g, w in zip(got, want, strict=True):
        text = f"{name}{params}\n{args}\n{format_plan(plan)}"
        assert g.dtype == w.dtype and g.shape == w.shape, text
        complex_view = TABLE[name].kind == "view" and plan.inputs[0].dtype.is_complex  # looks into pairs of numbers
        assert g.size < 2 or complex_view or [s for s, n in zip(g.strides, g.shape, strict=True) if n > 1] == [
            s for s, n in zip(w.strides, w.shape, strict=True) if n > 1
        ], text
        if g.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w, err_msg=text)
            continue
        kind = np.complex128 if g.dtype.kind == "c" else np.float64
        tolerance = 0.0 if exact else {2: 2e-2, 4: 4e-6, 8: 1e-12}[min(g.dtype.itemsize, 8)]
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(g.astype(kind), w.astype(kind), rtol=tolerance, atol=tolerance / 8, err_msg=text)
            if exact:
                np.testing.assert_array_equal(np.signbit(g.astype(kind)), np.signbit(w.astype(kind)), err_msg=text)


def transposed(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    order = tuple(reversed(range(x.ndim)))
    return x.detach().permute(*order).contiguous().permute(*order)


def strided(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.ndim:
        return x
    block = torch.empty(*(2 * n for n in x.shape), dtype=x.dtype)
    return block[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x.detach())


LAYOUTS = {"contiguous": lambda x: x, "transposed": transposed, "strided": strided}


@pytest.mark.parametrize("name", ROWS)
def test_interpreted_is_eager_for_every_type(name: str) -> None:
    for dtype in TYPES:
        for args, params in cases(name, Maker, dtype):
            for numerics in ("fast", "strict"):
                plan, arrays = compiled(name, args, params, numerics)
                exact = numerics == "strict" and name in EXACT
                agree(name, plan, interp.run_plan(plan, arrays, order="shuffle"), args, params, exact)


@pytest.mark.parametrize("name", ROWS)
def test_machine_code_is_eager(name: str) -> None:
    for dtype in ORDINARY:
        for args, params in cases(name, Maker, dtype):
            plan, arrays = compiled(name, args, params, "fast")
            agree(name, plan, built(plan, arrays, "fast"), args, params, False)


@pytest.mark.parametrize("layout", ["transposed", "strided"])
@pytest.mark.parametrize("name", [n for n in ROWS if TABLE[n].kind != "view"])
def test_layouts(name: str, layout: str) -> None:
    for args, params in cases(name, Maker, dtypes.float32):
        moved = tuple(LAYOUTS[layout](a) for a in args)
        plan, arrays = compiled(name, moved, params, "fast")
        agree(name, plan, interp.run_plan(plan, arrays), moved, params, False)
        agree(name, plan, built(plan, arrays, "fast"), moved, params, False)


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("name", POINTWISE)
def test_edge_values(name: str, numerics: str) -> None:
    for dtype in ORDINARY:
        for args, params in cases(name, Edges, dtype):
            plan, arrays = compiled(name, args, params, numerics)
            exact = numerics == "strict" and name in EXACT
            agree(name, plan, interp.run_plan(plan, arrays), args, params, exact)
            agree(name, plan, built(plan, arrays, numerics), args, params, exact)


def test_every_exact_row_is_a_row() -> None:
    assert not [n for n in EXACT if n not in TABLE]


def test_samples_are_met() -> None:
    """The tests above cannot pass by having nothing to do."""
    assert all(any(True for _ in inputs(n)) for n in ROWS)
    assert len(POINTWISE) > 50 and ops.add is TABLE["add"]
