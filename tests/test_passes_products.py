"""Sums of narrow products become one product: which do, which must not, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import run, trace

import tinytorch as torch
from compiler import logs
from compiler.ir import Interpreter, verify
from compiler.passes.products import lay_end_to_end
from compiler.passes.tidy import drop_unused
from tinytorch import ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

RNG = np.random.default_rng(3)


def matrices(count: int, *shape: int) -> list[Tensor]:
    return [Tensor._wrap(RNG.normal(size=shape).astype(np.float32), cpu) for _ in range(count)]


def turned(x: Tensor) -> Tensor:
    return ops.permute(x, dims=(1, 0))


def chain(xs: list[Tensor]) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = ops.add(total, x)
    return total


def tree(xs: list[Tensor]) -> Tensor:
    if len(xs) == 1:
        return xs[0]
    half = len(xs) // 2
    return ops.add(tree(xs[half:]), tree(xs[:half]))


def products_after(fn: Any, *args: Tensor) -> int:
    """How many products are left; the results are as before."""
    module = trace(fn, *args)
    want = [t._data for t in Interpreter(module).run(*args)]
    lay_end_to_end(module.graph)
    drop_unused(module.graph)
    module.recompile()
    verify(module.graph)
    for got, w in zip(Interpreter(module).run(*args), want, strict=True):
        np.testing.assert_allclose(got._data, w, rtol=1e-4, atol=1e-5)
        assert got._data.strides == w.strides
    return [n.target.name for n in module.graph.nodes if n.op == "call_function"].count("matmul")


@pytest.mark.parametrize("total", [chain, tree])
@pytest.mark.parametrize("left", ["turned", "plain", "mixed"])
def test_narrow_products_are_laid_end_to_end(left: str, total: Any) -> None:
    xs = [*matrices(3, 4, 24), *(matrices(3, 24, 4) if left == "mixed" else matrices(3, 4, 24))]
    if left == "plain":
        xs = matrices(6, 24, 4)
    ys = matrices(6, 4, 20)

    def fn(*args: Tensor) -> Tensor:
        pairs = zip(args[:6], args[6:], strict=True)
        return ops.neg(total([ops.matmul(turned(x) if x.shape[0] == 4 else x, y) for x, y in pairs]))

    assert products_after(fn, *xs, *ys) == 1


def test_depths_may_differ() -> None:
    xs = [m for k in (1, 2, 3, 4) for m in matrices(1, k, 24)]
    ys = [m for k in (1, 2, 3, 4) for m in matrices(1, k, 20)]
    fn = lambda *a: chain([ops.matmul(turned(x), y) for x, y in zip(a[:4], a[4:], strict=True)])  # noqa: E731
    assert products_after(fn, *xs, *ys) == 1


@pytest.mark.parametrize(("count", "depth"), [(3, 4), (5, 16)], ids=["few", "deep"])
def test_sums_that_stay(count: int, depth: int) -> None:
    xs, ys = matrices(count, depth, 24), matrices(count, depth, 20)
    fn = lambda *a: chain([ops.matmul(turned(x), y) for x, y in zip(a[:count], a[count:], strict=True)])  # noqa: E731
    assert products_after(fn, *xs, *ys) == count


def test_a_product_or_a_partial_sum_that_others_read_stays() -> None:
    xs, ys = matrices(5, 2, 24), matrices(5, 2, 20)

    def fn(*a: Tensor) -> Any:
        found = [ops.matmul(turned(x), y) for x, y in zip(a[:5], a[5:], strict=True)]
        some = chain(found[:3])
        return ops.add(ops.add(some, found[3]), found[4]), some

    assert products_after(fn, *xs, *ys) == 5


def test_a_sum_with_something_else_stays() -> None:
    xs, ys = matrices(4, 2, 24), matrices(4, 2, 20)
    (extra,) = matrices(1, 24, 20)
    fn = lambda e, *a: ops.add(chain([ops.matmul(turned(x), y) for x, y in zip(a[:4], a[4:], strict=True)]), ops.exp(e))  # noqa: E731
    assert products_after(fn, extra, *xs, *ys) == 1  # the sum below the last addition is one


@pytest.mark.parametrize(("numerics", "calls"), [("fast", 1), ("strict", 5)])
def test_only_where_not_every_rounding_must_be_eagers(numerics: str, calls: int) -> None:
    xs, ys = matrices(5, 2, 24), matrices(5, 2, 20)
    fn = lambda *a: chain([ops.matmul(turned(x), y) for x, y in zip(a[:5], a[5:], strict=True)])  # noqa: E731
    plan = run(fn, *xs, *ys, numerics=numerics, rtol=1e-4, atol=1e-5)
    assert sum(getattr(s, "fn", "") == "matmul" for s in plan.steps) == calls


def test_how_deep_the_products_are_may_vary() -> None:
    """A batch whose size is a symbol: its first size decides."""
    torch.compiler.reset()
    seen = []

    def total(x: Tensor, y: Tensor) -> Tensor:
        return chain([(x + i).t() @ (y - i) for i in range(5)])

    compiled = torch.compile(total, dynamic=True, fullgraph=True)
    for batch in (3, 5):
        x, y = (torch.from_numpy(RNG.normal(size=(batch, n)).astype(np.float32)) for n in (24, 20))
        with logs.collecting() as made:
            torch.testing.assert_close(compiled(x, y), total(x, y), rtol=1e-4, atol=1e-4)
        seen += [text.count("'matmul'") for topic, _, text, *_ in made if topic == "loops"]
    assert seen == [1]
