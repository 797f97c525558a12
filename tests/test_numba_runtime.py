"""Calls that overlap: many threads, forks, errors in flight, memory that is lent and given back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba_helpers import TINY, plan_of

import tinytorch as torch
from codegen_numba import runtime
from codegen_numba.build import Builder, build
from codegen_numba.schedule import Tune
from compiler import logs
from compiler.config import Config, config, from_environment
from compiler.loop.build import kernel, plan
from compiler.loop.ir import Plan
from tinytorch.dtypes import float32, int64
from tinytorch.functions import misc

RNG = np.random.default_rng(1)
ROWS, COLS = 37, 50


@kernel
def center(k: Any) -> None:
    x = k.param("x", float32, (ROWS, COLS), (COLS, 1))
    out = k.param("out", float32, (ROWS, COLS), (COLS, 1))
    total = k.param("total", float32, (COLS,), (1,))
    for i in k.map(ROWS):
        a = k.init("add", float32)
        for j in k.reduce(COLS):
            k.update("add", a, k.load(x, COLS * i + j))
        mean = k.div(a, float(COLS))
        for j in k.map(COLS):
            y = k.sub(k.load(x, COLS * i + j), mean)
            k.store(out, COLS * i + j, y)
            k.store(total, j, y, mode="add")


@kernel
def add_totals(k: Any) -> None:
    x = k.param("x", float32, (ROWS, COLS), (COLS, 1))
    total = k.param("total", float32, (COLS,), (1,))
    out = k.param("out", float32, (ROWS, ROWS), (ROWS, 1))
    product = k.param("product", float32, (ROWS, ROWS), (ROWS, 1))
    for i in k.map(ROWS):
        for j in k.map(ROWS):
            v = k.add(k.load(product, ROWS * i + j), k.load(total, j))
            k.store(out, ROWS * i + j, k.mul(v, k.load(x, COLS * i + j)))


@plan
def program(p: Any) -> None:
    """Kernels around a library call, with temporaries."""
    p.kernels(center, add_totals)
    x = p.input("x", float32, (ROWS, COLS), (COLS, 1))
    mid = p.alloc("mid", float32, (ROWS, COLS), (COLS, 1))
    total = p.alloc("total", float32, (COLS,), (1,), fill=0.0)
    p.run(center, x, mid, total)
    product = p.alloc("product", float32, (ROWS, ROWS), (ROWS, 1))
    p.extern(
        "matmul", p.view(mid, (ROWS, COLS), (COLS, 1)), p.view(x, (COLS, ROWS), (1, COLS)),
        outs=(p.view(product, (ROWS, ROWS), (ROWS, 1)),),
    )  # fmt: skip
    p.free(mid)
    out = p.alloc("out", float32, (ROWS, ROWS), (ROWS, 1))
    p.run(add_totals, x, total, out, product)
    p.output(p.view(out, (ROWS, ROWS), (ROWS, 1)), p.view(total, (COLS,), (1,)))


def expected(x: np.ndarray) -> list[np.ndarray]:
    mid = x - x.mean(1, keepdims=True)
    return [(mid @ x.T + mid.sum(0)[None, :ROWS]) * x[:, :ROWS], mid.sum(0)]


def check(built: Any, x: np.ndarray) -> None:
    for got, want in zip(built([x], ()), expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def data() -> np.ndarray:
    return RNG.normal(size=(ROWS, COLS)).astype(np.float32)


@pytest.mark.parametrize("tune", [None, TINY])
def test_externs_between_kernels(tune):
    built = build(program, Config(), tune)
    for _ in range(3):
        check(built, data())
    assert "def call(arrays, sizes)" in built.source and "center" in " ".join(built.kernels)


def test_outputs_are_fresh():
    built = build(program, Config())
    x, y = data(), data()
    first = built([x], ())
    kept = [a.copy() for a in first]
    built([y], ())
    for a, b in zip(first, kept, strict=True):
        assert np.array_equal(a, b)


def test_many_threads_call_at_once():
    """One of them gets the workers, the others run alone; none sees another's temporaries."""
    built = build(program, Config(), TINY)
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        x = np.random.default_rng(_).normal(size=(ROWS, COLS)).astype(np.float32)
        barrier.wait()
        for _ in range(60):
            check(built, x)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_threads_may_build_at_once():
    with ThreadPoolExecutor(4) as pool:
        for built in pool.map(lambda _: build(program, Config()), range(4)):
            check(built, data())


@kernel
def gather(k: Any) -> None:
    at = k.param("at", int64, (400,), (1,))
    out = k.param("out", int64, (400,), (1,))
    for i in k.map(400):
        t = k.load(at, i)
        k.check(k.lt(t, 9), "index {} is too large", value=t)
        k.store(out, i, k.mul(t, 2))


@plan
def gathering(p: Any) -> None:
    p.kernels(gather)
    at = p.input("at", int64, (400,), (1,))
    out = p.alloc("out", int64, (400,), (1,))
    p.run(gather, at, out)
    p.output(p.view(out, (400,), (1,)))


def test_errors_of_one_thread_are_not_anothers():
    built = build(gathering, Config(), TINY)

    def work(n: int) -> None:
        at = np.arange(400) % 9
        if n % 2:
            at[n] = 10 + n
        for _ in range(50):
            if n % 2:
                with pytest.raises(IndexError, match=f"index {10 + n} is too large"):
                    built([at], ())
            else:
                assert np.array_equal(built([at], ())[0], at * 2)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_the_same_plan():
    built = build(program, Config(), TINY)
    x = data()
    check(built, x)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check(built, x)
            check(built, x + 1)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    check(built, x)


def test_the_process_ends_while_workers_sleep():
    root = Path(__file__).resolve().parents[1]
    code = (
        "import test_numba_runtime as t; from codegen_numba import runtime; b = t.build(t.program, t.Config(), t.TINY);"
        "t.check(b, t.data()); assert runtime.cell[0] or runtime.thread_count() == 1; print('done')"
    )
    env = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done" and done.returncode == 0, done.stderr


def test_arena_blocks_are_reused():
    built = build(program, Config())
    x = data()
    built([x], ())
    before = len(runtime._blocks)
    for _ in range(5):
        built([x], ())
    assert len(runtime._blocks) == before


def test_inputs_given_back_and_views_put_out():
    @plan
    def passing(p: Any) -> None:
        x = p.input("x", float32, (3, 4), (4, 1))
        p.output(p.view(x, (3, 4), (4, 1)), p.view(x, (4, 3), (1, 4)), p.view(x, (2, 2), (8, 2), 1))

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    same, turned, part = build(passing, Config())([x], ())
    assert same is x and np.shares_memory(turned, x) and np.array_equal(turned, x.T)
    assert np.array_equal(part, [[1, 3], [9, 11]]) and np.shares_memory(part, x)


def test_the_host_function_is_in_tracebacks():
    built = build(gathering, Config())
    with pytest.raises(IndexError) as e:
        built([np.full(400, 99)], ())
    assert any("host" in str(entry.path) and "fail(c)" in str(entry.statement) for entry in e.traceback)


def test_plans_without_work():
    @plan
    def nothing(p: Any) -> None:
        x = p.input("x", float32, (2,), (1,))
        p.output(p.view(x, (2,), (1,)))

    x = np.zeros(2, np.float32)
    assert build(nothing, Config())([x], ())[0] is x
    empty = build(Plan((), (), (), ()), Config())
    assert empty([], ()) == []


def test_assembly_is_shown_on_request():
    @kernel
    def unusual(k: Any) -> None:
        x = k.param("x", float32, (123,), (1,))
        out = k.param("out", float32, (123,), (1,))
        for i in k.map(123):
            k.store(out, i, k.mul(k.load(x, i), 0.123456))

    with logs.collecting() as found:
        build(plan_of(unusual), Config())
    texts = {topic: text for topic, name, text in found if name == "unusual"}
    assert "def unusual(x, out, start, stop, part):" in texts["kernels"]
    assert "ret" in texts["asm"] and "tt_entry" in texts["asm"]


def test_each_record_can_be_timed():
    built = build(program, Config(), TINY)
    rows = built.profile([data()], ())
    assert rows[0][0] == "prepare" and "add_totals" in dict(rows)
    assert all(0 < seconds < 1 for _, seconds in rows)


# --- into how many parts ---------------------------------------------------------------------------------------------
def doubling(name: str, n: int) -> Any:
    @kernel
    def made(k: Any) -> None:
        x, out = (k.param(b, float32, (n,), (1,)) for b in ("x", "out"))
        for i in k.map(n):
            k.store(out, i, k.mul(k.load(x, i), 2.0))

    return replace(made, name=name)


def parts_of(monkeypatch: pytest.MonkeyPatch, *sizes: int, threads: int = 2) -> list[int]:
    """Into how many parts kernels over so many elements are cut that run one after the other."""
    monkeypatch.setattr(runtime, "thread_count", lambda: threads)
    kernels = [doubling(f"k{n}", size) for n, size in enumerate(sizes)]

    @plan
    def made(p: Any) -> None:
        p.kernels(*kernels)
        outs = []
        for n, size in enumerate(sizes):
            x = p.input(f"x{n}", float32, (size,), (1,))
            outs.append(p.alloc(f"out{n}", float32, (size,), (1,)))
            p.run(kernels[n], x, outs[-1])
        p.output(*(p.view(o, (size,), (1,)) for o, size in zip(outs, sizes, strict=True)))

    builder = Builder(made, Config(), Tune())
    builder.build()
    return [record[3][1] for record in builder.records[1:]]


def test_who_says_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program, then the setting, which ``TT_NUM_THREADS`` fills; else the cores."""
    monkeypatch.setattr(misc._Switches, "threads", 0)
    with config.patch(threads=0):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        assert runtime.thread_count() == torch.get_num_threads() == cores
    with config.patch(threads=from_environment({"TT_NUM_THREADS": "3"}).threads):
        assert runtime.thread_count() == torch.get_num_threads() == 3
        torch.set_num_threads(5)
        assert runtime.thread_count() == torch.get_num_threads() == 5
    with pytest.raises(RuntimeError, match="positive"):
        torch.set_num_threads(0)


def test_only_large_phases_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_of(monkeypatch, 1 << 20, 1 << 15, 1 << 20) == [8, 1, 8]
    assert parts_of(monkeypatch, 1 << 20, threads=1) == [1]


@pytest.mark.parametrize("n", [1 << 16, 3 << 16, 5 << 16, 1 << 20])
def test_parts_are_dealt_out_evenly(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (parts,) = parts_of(monkeypatch, n, threads=3)
    assert parts < 3 or parts % 3 == 0
