"""The tuner: proposals fit the kernel, the winner is kept and shown, results stay right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from loop_helpers import trace
from numba_helpers import plan_of

import tinytorch
from codegen_numba import tune
from codegen_numba.build import build
from codegen_numba.schedule import Tune
from compiler import autotune, logs
from compiler.config import Config, config
from compiler.loop import compile_graph
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import float32, int64
from tinytorch.nn import functional as F


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with config.patch(cache=True, cache_dir=str(tmp_path / "cache")):
        yield


@dataclass(frozen=True)
class Choice:
    a: int = 1
    b: tuple[int, int] = (1, 1)


def test_the_search_moves_one_field_at_a_time_and_is_kept():
    asked: list[Choice] = []

    def measure(c: Choice) -> float:
        asked.append(c)
        if c.a == 9:
            raise RuntimeError("cannot be built")
        return abs(c.a - 3) + abs(c.b[0] - 4) + 1.0

    fields = {"a": (2, 3, 9), "b": ((2, 1), (4, 1))}
    with logs.collecting() as found:
        best = autotune.search("name", "key" * 20, Choice(), fields, measure)
    assert best == Choice(3, (4, 1))
    assert len(asked) == len(set(asked)) == 6
    ((topic, name, text),) = found
    assert (topic, name) == ("autotune", "name") and text.splitlines()[0].startswith("* ")
    asked.clear()
    assert autotune.search("name", "key" * 20, Choice(), fields, measure) == best and not asked


def test_noise_does_not_replace_the_start():
    assert autotune.search("n", "k" * 40, Choice(), {"a": (2,)}, lambda c: 1.0 - 0.01 * c.a) == Choice()


def test_a_start_that_fails_is_an_error():
    with pytest.raises(ZeroDivisionError):
        autotune.search("n", "z" * 40, Choice(), {"a": (2,)}, lambda c: 1 / 0)


def turning(n: int) -> Kernel:
    @kernel
    def turn(k: Any) -> None:
        x = k.param("x", float32, (n, n), (n, 1))
        out = k.param("out", float32, (n, n), (n, 1))
        for i in k.map(n):
            for j in k.map(n):
                k.store(out, n * i + j, k.load(x, n * j + i))

    return turn


def summing(n: int) -> Kernel:
    @kernel
    def total(k: Any) -> None:
        x = k.param("x", float32, (n, n), (n, 1))
        at = k.param("at", int64, (n,), (1,))
        out = k.param("out", float32, (n,), (1,))
        for i in k.map(n):
            a = k.init("add", float32)
            for j in k.reduce(n):
                k.update("add", a, k.load(x, n * i + j))
            k.store(out, k.load(at, i), a, mode="add")

    return total


def test_proposals_fit_the_kernel():
    assert "tile" in tune.proposals(turning(64), Config(), Tune())
    wide = tune.proposals(summing(1000), Config(), Tune())
    assert "block" in wide and "tile" not in wide
    assert "block" not in tune.proposals(summing(1000), Config().replace({"deterministic": True}), Tune())


def test_tuned_kernels_are_right_and_their_table_is_shown():
    n = 300
    x = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    settings = Config().replace({"autotune": True})
    with logs.collecting() as found:
        built = build(plan_of(turning(n)), settings)
    assert np.array_equal(built([x], ())[0], x.T)
    assert any(topic == "autotune" and "tile=" in text for topic, _, text in found)
    with logs.collecting() as found:
        build(plan_of(turning(n)), settings)
    assert not any(topic == "autotune" for topic, _, _ in found)  # known by now


LAYERS = {
    "matmul": (lambda x, w: tinytorch.relu(x @ w), (96, 48), (48, 64)),
    "conv": (lambda x, w: tinytorch.relu(F.conv2d(x, w, padding=1)), (8, 4, 12, 12), (8, 4, 3, 3)),
}


@pytest.mark.parametrize("fn", LAYERS)
def test_the_way_to_make_a_product_is_found_once_and_its_table_is_shown(fn):
    layer, *shapes = LAYERS[fn]
    tensors = [tinytorch.randn(*s) for s in shapes]
    plan = compile_graph(trace(layer, *tensors), Config())
    arrays, settings = [t.numpy() for t in tensors], Config().replace({"autotune": True})
    with logs.collecting() as found:
        built = build(plan, settings)
    np.testing.assert_allclose(built(list(arrays), ())[0], layer(*tensors).numpy(), rtol=1e-4, atol=1e-4)
    (table,) = (text for topic, name, text in found if topic == "autotune" and name == fn)
    assert "way='own'" in table and "way='library'" in table and "together=65536" in table
    with logs.collecting() as found:
        build(plan, settings)
    assert not any(topic == "autotune" for topic, _, _ in found)


def test_bits_that_a_way_would_change_are_kept():
    layer, *shapes = LAYERS["matmul"]
    plan = compile_graph(trace(layer, *(tinytorch.randn(*s) for s in shapes)), Config())
    with logs.collecting() as found:
        build(plan, Config().replace({"autotune": True, "deterministic": True}))
    assert not any(name == "matmul" for topic, name, _ in found if topic == "autotune")


def test_strict_numbers_are_made_by_the_library():
    layer, *shapes = LAYERS["conv"]
    plan = compile_graph(trace(layer, *(tinytorch.randn(*s) for s in shapes)), Config().replace({"numerics": "strict"}))
    for autotune_ in (False, True):
        built = build(plan, Config().replace({"autotune": autotune_, "numerics": "strict"}))
        assert "conv" in built.kernels and "direct" not in built.kernels


def test_tuning_survives_indices():
    """Examples are made of zeros where they may be indices."""
    n = 270
    x = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    built = build(plan_of(summing(n), {"out": 0.0}), Config().replace({"autotune": True}))
    got = built([x, np.arange(n)[::-1].copy()], ())[0]
    np.testing.assert_allclose(got, x.sum(1)[::-1], rtol=1e-3, atol=1e-4)
