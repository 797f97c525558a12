"""What a call allocates: one arena for all that dies in it, results, and nothing for what lies in dead or donated memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import trace

import tinytorch as torch
from codegen_cupy import arena
from codegen_cupy import host as cuda_host
from codegen_numba import build, layout, runtime
from compiler.config import Config
from compiler.loop import compile_graph, ir
from compiler.loop.footprint import footprint
from tinytorch import ops


def numbers(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def chain(x: Any, narrow: Any, wide: Any) -> Any:
    """Library calls with results of two sizes in turn: nothing fuses, little lives at once."""
    for _ in range(3):
        x = ops.matmul(ops.matmul(x, narrow), wide)
    return x


ARGS = (64, 32), (32, 16), (16, 32)
SIZES = 64 * 16 * 4, 64 * 32 * 4  # of what lies between


def overlapping(places: list[tuple[int, int, int, int]]) -> bool:
    """Of (first step, last step, first byte, behind the last): do any two share bytes at a time?"""
    pairs = ((p, q) for n, p in enumerate(places) for q in places[:n])
    return any(p[0] <= q[1] and q[0] <= p[1] and p[2] < q[3] and q[2] < p[3] for p, q in pairs)


def test_a_call_takes_one_arena_as_large_as_its_largest_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    args = [numbers(*shape) for shape in ARGS]
    built = build(compile_graph(trace(chain, *args), Config()), Config())
    taken = []
    take = runtime.take_arena
    monkeypatch.setattr(runtime, "take_arena", lambda size: taken.append(size) or take(size))
    arrays = [a._data for a in args]
    for _ in range(2):
        (got,) = built(arrays, ())
        np.testing.assert_allclose(got, chain(*args).numpy(), rtol=1e-4, atol=1e-4)
    assert len(taken) == 2 and taken[0] == taken[1]
    assert taken[0] >= sum(SIZES)  # and, before or behind them, what products need to work
    chunks = list(layout.memory_of(compile_graph(trace(chain, *args), Config())).chunk.values())
    temporaries = [c for c in chunks if c.size in SIZES][:-1]
    assert layout.place(temporaries) == sum(SIZES)
    assert not overlapping([(c.first, c.last, int(c.offset), int(c.offset) + int(c.size)) for c in temporaries])


def test_memory_between_two_buffers_of_a_size_is_anybodys() -> None:
    """A buffer where an old one was, and meanwhile others: the block holds only what is alive."""

    def fn(x: Any, narrow: Any, wide: Any, tall: Any) -> Any:
        a = ops.matmul(x, narrow)  # 64 x 16
        b = ops.matmul(a, wide)  # 64 x 32
        c = ops.matmul(b, ops.permute(wide, dims=(1, 0)))  # where a was
        d = ops.matmul(tall, x)  # 128 x 32, where b and c were, when both are gone
        return ops.sum(c, dim=(0, 1), keepdim=False), ops.matmul(ops.matmul(d, narrow), wide)

    args = [numbers(*shape) for shape in (*ARGS, (128, 64))]
    plan = compile_graph(trace(fn, *args), Config())
    assert any(isinstance(s, ir.Alloc) and s.reuse for s in plan.steps)
    most = footprint(plan)
    kept = sum(x.size for x in most.live if not x.last)
    memory = layout.memory_of(plan)
    assert layout.place([c for c in memory.chunk.values() if id(c) not in memory.kept]) == most.peak - kept
    spots = arena.places(cuda_host.prepare(plan, {}, aligned=True, strict=False))
    assert spots.total == most.peak - kept


def test_a_plan_on_a_gpu_has_one_block_too() -> None:
    args = [numbers(*shape) for shape in ARGS]
    plan = compile_graph(trace(chain, *args), Config())
    recipe = cuda_host.prepare(plan, {}, aligned=True, strict=False)
    spots = arena.places(recipe)
    assert spots.total == sum(map(arena.rounded, SIZES)) and set(spots.offsets).isdisjoint(spots.kept)


def test_donated_memory_and_dead_operands_cost_nothing() -> None:
    def fn(x: Any, w: Any) -> Any:
        return ops.matmul(ops.exp(ops.matmul(ops.exp(ops.matmul(x, w)), w)), w)

    args = numbers(32, 32), numbers(32, 32) * 0.1
    for donated in (False, True):
        gm = trace(fn, *args)
        gm.meta["donated"] = ["arg0"] if donated else []
        plan = compile_graph(gm, Config())
        memory = layout.memory_of(plan)
        temporaries = {id(c) for c in memory.chunk.values()} - memory.kept
        assert len(temporaries) == 2 - donated  # each exp lies over its operand, the second product where x was
        assert [*memory.donated.values()] == ["arg0"] * donated
        arrays = [a.numpy().copy() for a in args]
        before = arrays[0].copy()
        np.testing.assert_allclose(build(plan, Config())(arrays, ())[0], fn(*args).numpy(), rtol=1e-4)
        assert np.array_equal(arrays[0], before) is not donated
