"""The tuner: proposals fit the kernel, the winner is kept and shown, results stay right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numba_helpers import plan_of

from codegen_numba import tune
from codegen_numba.build import build
from codegen_numba.schedule import Tune
from compiler import autotune, logs
from compiler.config import Config, config
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import float32, int64


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


def test_tuning_survives_indices():
    """Examples are made of zeros where they may be indices."""
    n = 270
    x = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    built = build(plan_of(summing(n), {"out": 0.0}), Config().replace({"autotune": True}))
    got = built([x, np.arange(n)[::-1].copy()], ())[0]
    np.testing.assert_allclose(got, x.sum(1)[::-1], rtol=1e-3, atol=1e-4)
