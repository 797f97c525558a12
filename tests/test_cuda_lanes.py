"""Lanes of a graph: who depends on whom, who leaves the line, and that any order the plan allows gives the same numbers."""

from __future__ import annotations

import gc
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
from test_cuda_graphs import N, bump, scale

import tinytorch as torch
from codegen_cupy import emulate, lanes
from codegen_cupy.effects import stored
from codegen_cupy.graphs import Graphed
from codegen_cupy.kernel_text import Source
from codegen_cupy.lanes import Placed, Rule, Work
from codegen_cupy.program import Program
from codegen_cupy.recorded import RecordedGraphs, order
from compiler import logs
from compiler.config import Config
from compiler.loop import interp
from compiler.loop.build import PlanRecorder, kernel, plan
from compiler.loop.ir import Plan
from tinytorch.dtypes import float32

emulated = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
GRAPHS = Config(cuda_emulate=True, cudagraphs=True)
SEEDS = (None, 0, 1, 2, 3)


def work(reads: str, writes: str, share: float = 0.1, us: float = 10.0) -> Work:
    """Letters are buffers of 16 bytes; "b+" is the second half of b and the first of c."""
    return Work(f"{reads}->{writes}", tuple(map(span, reads.split())), tuple(map(span, writes.split())), share, us)


def span(b: str) -> lanes.Span:
    at = 16 * (ord(b[0]) - ord("a")) + 8 * (len(b) > 1)
    return "arena", at, at + 16


# --- who needs whom ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("works", "want"),
    [
        ([("", "a"), ("a", "b")], [[], [0]]),  # reads what was written
        ([("", "a"), ("a", "b"), ("", "a")], [[], [0], [0, 1]]),  # writes over what was read
        ([("", "a"), ("", "a")], [[], [0]]),  # writes over what was written
        ([("x", "a"), ("x", "b")], [[], []]),  # both only read x
        ([("", "a"), ("", "b"), ("", "a+")], [[], [], [0, 1]]),  # other buffers in the same bytes
        ([("", "a"), ("a", "a"), ("a", "b")], [[], [0], [1]]),  # the second stands for the first
        ([("", "a+"), ("", "a"), ("b", "c")], [[], [0], [0]]),  # the second covers only half
    ],
)
def test_needs(works, want) -> None:
    assert [sorted(n) for n in lanes.needs([work(*w) for w in works])] == want


def drawn(seed: int) -> list[Work]:
    draw = random.Random(seed)
    names = [b + half for b in "abcdefgh" for half in ("", "+")]
    pick = lambda n: " ".join(draw.sample(names, draw.randint(0, n)))  # noqa: E731
    return [work(pick(3), pick(2), draw.random(), draw.uniform(2, 40)) for _ in range(draw.randint(1, 24))]


@pytest.mark.parametrize("seed", range(60))
def test_plans_order_what_touches_the_same_bytes_and_no_wait_is_idle(seed) -> None:
    works, draw = drawn(seed), random.Random(seed)
    needed = lanes.needs(works)
    for p in (lanes.planned(works, Rule(hop=0.0, least=0.0, part=0.0)), lanes.waits(needed, [draw.randrange(4) for _ in works])):
        assert not lanes.unordered(works, p)
        for i, placed in enumerate(p):
            assert all(lanes.unordered(works, lanes.without(p, i, j)) for j in placed.after)


def test_a_missing_dependency_is_found() -> None:
    works = [work("", "a"), work("", "b"), work("a b", "c")]
    assert lanes.unordered(works, [Placed(0), Placed(1), Placed(0)]) == [(1, 2)]
    assert lanes.unordered(works, [Placed(0), Placed(1), Placed(0, (1,))]) == []


# --- who leaves the line ----------------------------------------------------------------------------------------------
def test_what_is_small_and_not_in_a_hurry_leaves_the_line() -> None:
    """The last layers of a backward pass: each product of a weight's gradient waits for nobody but the optimizer."""
    works = [
        work("g w", "h", share=1.0, us=40),  # gradient of an input
        work("g x", "d", share=0.5, us=12),  # of a weight, few blocks
        work("h", "k", share=0.8, us=8),
        work("k v", "l", share=1.0, us=40),
        work("k y", "e", share=1.0, us=40),  # of a weight, many blocks
        work("d", "m"),
        work("e", "n"),
    ]
    assert lanes.planned(works) == [Placed(0), Placed(1), Placed(0), Placed(0), Placed(0), Placed(1), Placed(0)]


def test_a_chain_and_what_gains_little_stay_in_line() -> None:
    chain = [work("a", "b"), work("b", "c"), work("c", "d")]
    short = [work("a", "b", us=2), work("a", "c", us=2), work("b c", "d", us=2)]
    for works in (chain, short, []):
        assert {p.lane for p in lanes.planned(works)} <= {0}
    free = [work("a", b) for b in "bcdef"]
    assert max(p.lane for p in lanes.planned(free)) == 2
    assert {p.lane for p in lanes.planned(free, lanes.CHAIN)} == {0}
    lone = [replace(w, alone=True) for w in free]  # nothing runs beside any of them
    assert {p.lane for p in lanes.planned(lone)} == {0}
    long = [work("a", "b", share=1.0, us=4000), *free]  # some microseconds of many
    assert {p.lane for p in lanes.planned(long)} == {0}


def test_a_plan_prints() -> None:
    works = [work("", "a"), work("", "b"), work("a b", "c")]
    assert lanes.shown(works, [Placed(0), Placed(1), Placed(0, (1,))]).splitlines() == [
        "3 works, about 22 us on 2 lanes, 30 us in one line",
        "   0 ->a  10.0 us, 10%",
        "   1     ->b  10.0 us, 10%",
        "   2 a b->c  10.0 us, 10%  after 1",
    ]
    assert lanes.shown(works, lanes.planned(works, lanes.CHAIN)).splitlines()[0] == "3 works, about 30 us in one line"


# --- what a kernel stores ---------------------------------------------------------------------------------------------
def wide() -> Plan:
    """Branches that meet: products and kernels on x and w, a state written in place, and memory used again."""

    def steps(p: PlanRecorder) -> None:
        a, b = kernel(scale), kernel(bump)
        p.kernels(a, b)
        x, w, state = (p.input(n, float32, (N, N), (N, 1)) for n in ("x", "w", "state"))
        new = lambda name, **kw: p.alloc(name, float32, (N, N), (N, 1), **kw)  # noqa: E731
        whole = lambda b: p.view(b, (N, N), (N, 1))  # noqa: E731
        ends = []
        for i in range(3):
            t, u, m = new(f"t{i}"), new(f"u{i}"), new(f"m{i}")
            p.run(a, x, t)
            p.run(a, w, u)
            p.extern("matmul", whole(t), whole(u), outs=[whole(m)])
            p.free(t)
            p.free(u)
            p.run(b, m, state)
            ends.append(m)
        sums = new("sums")
        p.run(a, ends[0], sums)
        p.run(b, ends[1], sums)
        last = new("last", reuse=ends[0])
        p.extern("matmul", whole(ends[2]), whole(sums), outs=[whole(last)])
        p.output(whole(last), whole(state), whole(sums))

    return plan(steps)


@emulated
def test_stored_is_what_the_text_says() -> None:
    for s in Program(wide(), GRAPHS).recipe().launches:
        sets = len(s.buffers) // 2
        assert stored(s.source) == (False, True) * sets
        assert sets == 1 or "_of_" in s.source.name


def test_a_kernel_whose_parameters_depend_on_macros_may_store_to_all() -> None:
    text = 'extern "C" __global__ void __launch_bounds__(32) KERNEL(\n#if P\n    const float* x,\n#endif\n    float* y) {\n'
    assert stored(written(text)) == (True, True)
    assert stored(written(text.replace("#if P\n", "").replace("#endif\n", ""))) == (False, True)


def written(text: str) -> Source:
    return Source("written", text, ("x", "y"), (), 8, (), (), (32, 1), 1)


# --- replays ----------------------------------------------------------------------------------------------------------
def test_orders_keep_to_the_waits() -> None:
    after = [frozenset(), frozenset(), frozenset({0}), frozenset({1}), frozenset({2, 3})]
    assert order(after) == [1, 3, 0, 2, 4]  # the first as late as can be
    seen = {tuple(order(after, seed)) for seed in range(50)}
    assert len(seen) == 6
    assert all(o.index(j) < o.index(i) for o in seen for i, js in enumerate(after) for j in js)


def test_a_lane_nobody_waits_for_cannot_be_recorded() -> None:
    g = RecordedGraphs()
    g.begin()
    with pytest.raises(RuntimeError, match="not being recorded"):
        g.record(print, 0, g.lane(1))
    g.wait(g.lane(1), g.mark(g.stream))
    g.record(print, 0, g.lane(1))
    with pytest.raises(RuntimeError, match="never waited for"):
        g.end()
    g.begin()
    g.wait(g.lane(1), g.mark(g.stream))
    g.record(print, 0, g.lane(1))
    g.wait(g.stream, g.mark(g.lane(1)))
    assert [s.after for s in g.end()] == [frozenset()]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def scattered(monkeypatch, seed: int, count: int = 4, change=lambda plan: plan) -> None:
    """Plans that put works on lanes by lot."""

    def planned(works, rule=None):
        draw = random.Random(seed)
        p = lanes.waits(lanes.needs(works), [draw.randrange(count) for _ in works])
        assert not lanes.unordered(works, p)
        return change(p)

    monkeypatch.setattr(lanes, "planned", planned)


def replays(calls: int = 4) -> bool:
    """Does a program in lanes give what its plan means, in all orders?"""
    p = wide()
    program, rng = Program(p, GRAPHS), np.random.default_rng(0)
    x = [rng.standard_normal((N, N)).astype(np.float32) for _ in range(3)]
    right = True
    for i in range(calls * len(SEEDS)):
        (run,) = program._runs.values()
        assert isinstance(run, Graphed)
        run.machine.graphs().seed = SEEDS[i % len(SEEDS)]
        x[0][...] = rng.standard_normal((N, N)) / 9
        x[1][...] = rng.standard_normal((N, N)) / 9
        x[2][...] = 0
        want = interp.run_plan(p, [a.copy() for a in x])
        got = program(x)
        right &= all(np.allclose(g, w, rtol=1e-5, atol=1e-5) for g, w in zip(got, want, strict=True))
        del got
    run.machine.graphs().seed = None
    return right


@emulated
@pytest.mark.parametrize("seed", range(6))
def test_any_lanes_in_any_order_give_the_same(monkeypatch, no_warnings, seed) -> None:
    scattered(monkeypatch, seed)
    assert replays()


@emulated
def test_lanes_are_shown_with_the_kernels(monkeypatch) -> None:
    scattered(monkeypatch, 1)
    with logs.collecting() as found:
        assert replays(1)
    (text,) = {text for topic, name, text in found if (topic, name) == ("kernels", "lanes")}
    assert logs.suffix_of("kernels", "lanes", text) == ".txt"
    first, *rest = text.splitlines()
    assert first.startswith(f"{len(rest)} works, ") and " lanes, " in first
    assert any("product" in line for line in rest) and any("after" in line for line in rest)


@emulated
def test_a_wait_left_out_shows(monkeypatch) -> None:
    found = {}

    def look(p):
        found["waits"] = [(i, j) for i, x in enumerate(p) for j in x.after]
        return p

    scattered(monkeypatch, 1, change=look)
    assert replays(1)
    caught = 0
    for i, j in found["waits"]:
        scattered(monkeypatch, 1, change=lambda p, i=i, j=j: lanes.without(p, i, j))
        caught += not replays(2)
    assert caught >= len(found["waits"]) * 3 // 4  # the rest are ordered by luck: nobody reads what they spoil


def trained(mode: str | None, steps: int = 5) -> list[np.ndarray]:
    nn = torch.nn
    torch.compiler.reset()  # or the next model, whose weights lie elsewhere, shares the recordings
    gc.collect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)).to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)

    def step(x, y):
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    run = torch.compile(step, mode=mode)
    losses = []
    for _ in range(steps):
        x = torch.from_numpy(rng.standard_normal((5, 6), np.float32)).to("cuda")
        losses.append(run(x, torch.from_numpy(rng.integers(0, 3, 5)).to("cuda")))
    return [x.numpy(force=True).copy() for x in (*losses, *model.parameters())]


@emulated
def test_a_training_step_in_lanes_gives_the_bits_of_the_line(monkeypatch, no_warnings) -> None:
    """Random numbers and the optimizer's state included."""
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    want = trained(None)
    for seed in range(2):
        scattered(monkeypatch, seed, count=3)
        for a, b in zip(trained("reduce-overhead"), want, strict=True):
            np.testing.assert_array_equal(a, b)
