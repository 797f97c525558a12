"""Products of a few rows with one matrix: packed once for all, right for every layout, and only while nothing changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from codegen_numba import packed
from codegen_numba.build import build
from codegen_numba.product import lanes
from compiler import logs
from compiler.config import Config
from compiler.loop.build import plan
from compiler.loop.ir import ArrayView, Buffer, Extern, Plan
from compiler.loop.printer import parse_plan
from compiler.sym.expr import Symbol, lift
from tinytorch.dtypes import float32

RNG = np.random.default_rng(4)


def layout(rows: int, columns: int, kind: str) -> np.ndarray:
    if kind == "turned":
        return RNG.normal(size=(columns, rows)).astype(np.float32).T
    if kind == "cut":
        return RNG.normal(size=(rows, columns + 5)).astype(np.float32)[:, :columns]
    return RNG.normal(size=(rows, columns)).astype(np.float32)


def strides(x: np.ndarray) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def products(lefts: list[np.ndarray], b: np.ndarray, overwrite: int | None = None) -> Plan:
    """``x @ b`` for each ``x``; before product ``overwrite`` another library call writes ``b``."""

    @plan
    def program(p: Any) -> None:
        xs = [p.input(f"x{n}", float32, a.shape, strides(a)) for n, a in enumerate(lefts)]
        other = p.input("other", float32, (b.shape[0], 1), (1, 1)) if overwrite is not None else None
        row = p.input("row", float32, (1, b.shape[1]), (b.shape[1], 1)) if overwrite is not None else None
        right = p.input("b", float32, b.shape, strides(b)) if overwrite is None else p.alloc("b", float32, b.shape, strides(b))
        outs = []
        for n, (x, a) in enumerate(zip(xs, lefts, strict=True)):
            if overwrite is not None and n in (0, overwrite):
                p.extern(
                    "matmul", p.view(other, (b.shape[0], 1), (1, 1)), p.view(row, (1, b.shape[1]), (b.shape[1], 1)),
                    outs=(p.view(right, b.shape, strides(b)),),
                )  # fmt: skip
            out = p.alloc(f"out{n}", float32, (a.shape[0], b.shape[1]), (b.shape[1], 1))
            view = p.view(out, (a.shape[0], b.shape[1]), (b.shape[1], 1))
            p.extern("matmul", p.view(x, a.shape, strides(a)), p.view(right, b.shape, strides(b)), outs=(view,))
            outs.append(view)
        p.output(*outs)

    return program


@pytest.mark.parametrize("left", ["plain", "turned", "cut"])
@pytest.mark.parametrize("right", ["plain", "turned", "cut"])
@pytest.mark.parametrize("size", [(16, 12, 4), (5, 1, 3), (3, 33, 6), (64, 128, 5)], ids=str)
def test_products_of_every_layout(size: tuple[int, int, int], left: str, right: str) -> None:
    rows, depth, panels = size
    lefts = [layout(rows, depth, left) for _ in range(5)]
    b = layout(depth, panels * lanes(), right)
    built = build(products(lefts, b), Config())
    assert {"pack", "narrow"} <= set(built.kernels) and "matmul" not in built.kernels
    assert [name for name, _, _ in built.records].count("pack") == 1
    for got, a in zip(built([*lefts, b]), lefts, strict=True):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(65, 4, 5), (1, 4, 5), (16, 4, 3)], ids=["many rows", "one row", "few products"]
)
def test_what_blas_does_as_well(rows: int, columns: int, count: int) -> None:
    lefts, b = [layout(rows, 12, "plain") for _ in range(count)], layout(12, columns * lanes(), "plain")
    built = build(products(lefts, b), Config())
    assert "pack" not in built.kernels
    for got, a in zip(built([*lefts, b]), lefts, strict=True):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(lanes() < 16, reason="BLAS does as well with short vectors")
@pytest.mark.parametrize("left", ["plain", "turned", "cut"])
@pytest.mark.parametrize("right", ["plain", "turned", "cut"])
@pytest.mark.parametrize("size", [(257, 70, 5), (64, 600, 3), (512, 1, 160)], ids=str)
def test_one_product_of_many_rows_is_packed_too(size: tuple[int, int, int], left: str, right: str, monkeypatch) -> None:
    """Two of them: what they pack into is the same memory."""
    monkeypatch.setattr(packed, "SMALL", 1)
    rows, depth, panels = size
    lefts = [layout(rows, depth, left), layout(rows + 3, depth, left)]
    b = layout(depth, panels * lanes(), right)
    built = build(products(lefts, b), Config())
    assert [name for name, _, _ in built.records if name in ("pack", "packed")] == ["pack", "packed"] * 2
    for got, a in zip(built([*lefts, b]), lefts, strict=True):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(lanes() < 16, reason="BLAS does as well with short vectors")
def test_sums_are_no_worse_than_those_of_blas(monkeypatch) -> None:
    """Long ones are made of short ones."""
    a, b = layout(64, 1 << 13, "plain"), layout(1 << 13, lanes(), "turned")
    got = build(products([a], b), Config())([a, b])[0]
    want = a.astype(np.float64) @ b
    assert np.abs(got - want).mean() < 1.5 * np.abs(a @ b - want).mean()


def test_a_width_that_fills_no_vector_is_left_to_blas() -> None:
    lefts, b = [layout(8, 12, "plain") for _ in range(5)], layout(12, lanes() + 1, "plain")
    assert "pack" not in build(products(lefts, b), Config()).kernels


def test_a_matrix_that_changes_between_is_not_kept() -> None:
    lefts, b = [layout(8, 12, "plain") for _ in range(5)], np.empty((12, 2 * lanes()), np.float32)
    other, row = layout(12, 1, "plain"), layout(1, b.shape[1], "plain")
    built = build(products(lefts, b, overwrite=3), Config())
    assert "pack" not in built.kernels
    for got, a in zip(built([*lefts, other, row]), lefts, strict=True):
        np.testing.assert_allclose(got, a @ (other @ row), rtol=1e-4, atol=1e-4)


def test_numbers_that_are_none_stay_in_their_row() -> None:
    lefts, b = [layout(8, 12, "plain") for _ in range(4)], layout(12, 2 * lanes(), "plain")
    lefts[1][3, 5], lefts[2][0, 0] = np.nan, np.inf
    for got, a in zip(build(products(lefts, b), Config())([*lefts, b]), lefts, strict=True):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_how_many_rows_there_are_may_vary() -> None:
    """A recurrent net whose batch size is a symbol: one plan for all, also for more rows than would be packed for."""
    torch.compiler.reset()
    step = torch.nn.Linear(4 * lanes(), 4 * lanes(), bias=False)

    def fn(x: Any) -> Any:
        for _ in range(5):
            x = torch.tanh(step(x))
        return x

    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    plans = []
    with torch.no_grad():
        for rows in (7, 3, 90):
            x = torch.from_numpy(RNG.normal(size=(rows, 4 * lanes())).astype(np.float32))
            with logs.collecting() as made:
                torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
            plans += [parse_plan(text) for topic, _, text, *_ in made if topic == "loops"]
    (only,) = plans
    kernels = set(build(only, Config()).kernels)
    assert {"pack", "narrow"} <= kernels and "matmul" not in kernels


@pytest.mark.parametrize("count", [2, 6], ids=["BLAS", "packed once"])
def test_operands_and_results_that_begin_where_a_size_says(count: int) -> None:
    """Pieces of inputs, results and temporaries, a symbolic number of elements from their first."""
    torch.compiler.reset()
    w = torch.from_numpy(layout(2 * lanes(), 2 * lanes(), "plain") / 8)

    def fn(x: Any) -> Any:
        h = torch.cat([x[t] @ w for t in range(count)])
        y = torch.tanh(h).view(count, x.shape[1], -1)
        return h, [torch.tanh(y[t] @ w) for t in range(count)]

    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for rows in (7, 3, 90, 1):
        x = torch.from_numpy(RNG.normal(size=(count, rows, 2 * lanes())).astype(np.float32))
        with logs.collecting() as made:
            torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
        for topic, name, text, *_ in made:
            assert topic != "kernels" or name != "host" or "x0(" not in text  # no call of NumPy


@pytest.mark.skipif(lanes() < 16, reason="BLAS does as well with short vectors")
@pytest.mark.parametrize("right", ["plain", "turned"])
@pytest.mark.parametrize(("depth", "panels"), [(70, 5), (600, 32)])
def test_many_rows_are_packed_for_where_their_number_is_a_symbol(depth: int, panels: int, right: str) -> None:
    """One plan has both ways, of which few rows take the one and many the other."""
    torch.compiler.reset()
    b = torch.from_numpy(layout(depth, panels * lanes(), right))
    compiled = torch.compile(lambda x: torch.relu(x @ b), fullgraph=True)
    rows = Symbol("rows")
    for n in (2, 3, 63, 64, 65, 300, 17):
        x = torch.from_numpy(layout(n, depth, "plain"))
        torch.compiler.mark_dynamic(x, 0)
        with logs.collecting() as made:
            torch.testing.assert_close(compiled(x), torch.relu(x @ b), rtol=1e-4, atol=1e-4)
        for plan_text in (text for topic, _, text, *_ in made if topic == "loops"):
            built = build(parse_plan(plan_text), Config())
            assert {"pack", "packed", "matmul"} <= {name for name, _, _ in built.records}
    for n in (0, 1, 63, 64, 65, 1000):
        shapes = {"x": (rows, depth), "b": (depth, 512), "c": (rows, 512)}
        views = [ArrayView(name, shape, (shape[1], 1)) for name, shape in shapes.items()]
        step = Extern("matmul", tuple(views[:2]), tuple(views[2:]))
        found = packed.matmul(step, {v.buffer: Buffer(v.buffer, float32, v.shape, v.stride) for v in views})
        busy = {t.source.name: lift(t.extent).evaluate({"rows": n}) for t in found or ()}
        assert (busy["matmul"], busy["packed"]) == ((n, 0) if n < 64 else (0, n)) and (busy["pack"] > 0) == (n >= 64)


@pytest.mark.skipif(lanes() < 16, reason="BLAS does as well with short vectors")
@pytest.mark.parametrize("pieces", [packed.PIECES, packed.TERMS * 3 * lanes()], ids=["at once", "in pieces"])
@pytest.mark.parametrize("columns", [3 * lanes(), 2 * lanes()])
def test_sums_of_a_symbolic_number_of_terms(columns: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of weights where the batch size varies; of no terms the sum is zero."""
    monkeypatch.setattr(packed, "PIECES", pieces)
    monkeypatch.setattr(packed, "ROWS_EACH", 1)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, y: x.t() @ y, fullgraph=True)
    x, y = torch.ones(5, 137), torch.ones(5, columns)
    torch.compiler.mark_dynamic(x, 0)
    torch.compiler.mark_dynamic(y, 0)
    with logs.collecting() as made:
        compiled(x, y)
    (text,) = [text for topic, _, text, *_ in made if topic == "loops"]
    built = build(parse_plan(text), Config())
    assert "deep" in built.kernels and "matmul" not in built.kernels
    for terms in (0, 1, 2, 255, 256, 257, 1000, 5400):
        a, b = layout(terms, 137, "plain"), layout(terms, columns, "plain")
        (got,) = built([a, b], (terms,))
        np.testing.assert_allclose(got, a.T @ b, rtol=1e-4, atol=2e-4)
