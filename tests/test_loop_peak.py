"""The order of launches that holds the fewest bytes: valid, never worse than the program's, and the program's unless it pays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_helpers import run, trace

import tinytorch as torch
from compiler import logs
from compiler.config import Config
from compiler.loop import compile_graph, interp, ir, peak
from compiler.loop.footprint import footprint
from compiler.loop.peak import Memory, Work, lowest, needs
from tinytorch import dtypes, ops


@pytest.fixture(autouse=True)
def _every_byte_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "BYTES", 1)
    monkeypatch.setattr(peak, "SHARE", 0)


def work(*touches: str, writes: str, **more: Any) -> Work:
    return Work((*touches, *writes.split()), frozenset(writes.split()), **more)


@st.composite
def programs(draw: Any) -> tuple[list[Work], Memory]:
    """Launches that read what earlier ones made, some of them writing into it, some over it."""
    count = draw(st.integers(2, 12))
    inputs = [f"in{n}" for n in range(draw(st.integers(0, 3)))]
    sizes = {b: draw(st.sampled_from([1, 4, 32])) for b in inputs}
    works, made = [], []
    for n in range(count):
        have = [*inputs, *made]
        reads = draw(st.lists(st.sampled_from(have), max_size=3, unique=True)) if have else []
        new = [f"b{n}_{k}" for k in range(draw(st.integers(1, 2)))]
        sizes |= {b: draw(st.sampled_from([1, 2, 8, 32])) for b in new}
        also = draw(st.lists(st.sampled_from(made), max_size=1)) if made else []
        over = {b: tuple(r for r in reads if sizes[r] == sizes[b] and r not in also) for b in new}
        touches = tuple(dict.fromkeys((*reads, *also, *new)))
        works.append(Work(touches, frozenset((*also, *new)), over, raises=draw(st.booleans())))
        made += new
    kept = frozenset(draw(st.lists(st.sampled_from(made), max_size=3)))
    donated = frozenset(draw(st.lists(st.sampled_from(inputs), max_size=2)) if inputs else [])
    return works, Memory(sizes, frozenset(inputs), kept, donated)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_an_order_of_any_program(program: tuple[list[Work], Memory]) -> None:
    works, memory = program
    chosen = lowest(works, memory)
    assert sorted(chosen.order) == list(range(len(works)))
    place = {n: p for p, n in enumerate(chosen.order)}
    for n, need in enumerate(needs(works, memory.homes)):
        assert all(m < n and place[m] < place[n] for m in need)
        for m in range(n):  # of two that touch a buffer, one to write, none overtakes the other
            both_raise = works[m].raises and works[n].raises
            if both_raise or works[m].writes & {*works[n].touches} or works[n].writes & {*works[m].touches}:
                assert place[m] < place[n]
    assert chosen.before == peak.peak(works, memory, range(len(works)))
    assert chosen.after == peak.peak(works, memory, chosen.order) <= chosen.before
    assert chosen.after >= peak.bound(works, memory)
    assert chosen.order == tuple(range(len(works))) or chosen.after < chosen.before
    assert lowest(works, memory) == chosen


def best(works: list[Work], memory: Memory) -> int:
    """By trying all."""
    need = needs(works, memory.homes)

    def orders(done: tuple[int, ...]) -> Any:
        if len(done) == len(works):
            yield done
        for n in range(len(works)):
            if n not in done and need[n] <= set(done):
                yield from orders((*done, n))

    return min(peak.peak(works, memory, order) for order in orders(()))


def test_it_is_about_as_low_as_can_be() -> None:
    rng = np.random.default_rng(0)
    total, least, hits = 0, 0, 0
    for _ in range(40):
        works, sizes, made = [], {}, []
        for n in range(6):
            count = min(len(made), int(rng.integers(0 if n < 2 else 1, 4)))
            reads = rng.choice(made, count, replace=False) if made else []
            new = f"b{n}"
            sizes[new] = int(rng.choice([1, 2, 4, 8, 16, 32]))
            works.append(work(*map(str, reads), writes=new))
            made.append(new)
        memory = Memory(sizes, kept=frozenset([made[-1]]))
        chosen, low = lowest(works, memory).after, best(works, memory)
        total, least, hits = total + chosen, least + low, hits + (chosen == low)
    assert hits >= 36 and total <= 1.02 * least


def fan(count: int) -> tuple[list[Work], Memory]:
    """Large values, made one after the other, then each made small."""
    works = [work("x", writes=f"large{n}") for n in range(count)]
    works += [work(f"large{n}", writes=f"small{n}") for n in range(count)]
    sizes = {f"large{n}": 100 for n in range(count)} | {f"small{n}": 1 for n in range(count)} | {"x": 100}
    return works, Memory(sizes, frozenset(["x"]), frozenset(f"small{n}" for n in range(count)))


def test_what_is_large_is_used_up_before_the_next() -> None:
    works, memory = fan(4)
    chosen = lowest(works, memory)
    assert chosen.order == (0, 4, 1, 5, 2, 6, 3, 7) and (chosen.before, chosen.after) == (401, 104)
    assert str(chosen) == "8 launches hold 401 bytes at most in the program's order, 104 in another"


def test_an_order_that_is_good_enough_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    works, memory = fan(4)
    monkeypatch.setattr(peak, "BYTES", 1000)
    assert lowest(works, memory).order == tuple(range(8))
    monkeypatch.setattr(peak, "BYTES", 1)
    small = Memory({**memory.sizes, **{f"large{n}": 1 for n in range(4)}, "small3": 500}, memory.given, memory.kept)
    monkeypatch.setattr(peak, "SHARE", 1 / 64)
    assert lowest(works, small).order == tuple(range(8))  # 4 of 507 bytes are not worth it


def test_what_a_launch_overwrites_costs_nothing() -> None:
    """A result in its operand's place, in a donated input, in its home."""
    chain = [work("x", writes="a", over={"a": ("x",)}), work("a", writes="b", over={"b": ("a",)})]
    sizes = dict.fromkeys("xab", 10)
    given = frozenset("x")
    assert peak.peak(chain, Memory(sizes, given, frozenset("b")), (0, 1)) == 10
    assert peak.peak(chain, Memory(sizes, given, frozenset("b"), given), (0, 1)) == 0
    assert peak.peak(chain[:1], Memory(sizes, given, frozenset("a"), homes={"a": "x"}), (0,)) == 0
    raising = [*chain[:1], work("y", writes="c", raises=True)]
    home = Memory({**sizes, "y": 1, "c": 1}, frozenset("xy"), frozenset("ac"), homes={"a": "x"})
    assert peak.peak(raising, home, (0, 1)) == 11 and peak.peak(raising, home, (1, 0)) == 1


def test_what_raises_and_what_may_write_to_an_input_keep_their_order() -> None:
    works, memory = fan(3)
    works[1] = work("x", writes="large1", raises=True)
    works[3] = work("large0", writes="small0", raises=True)
    works[4] = work("large1", "p", writes="small1", over={"small1": ("p",)})
    memory = Memory({**memory.sizes, "p": 1}, memory.given | {"p"}, memory.kept, homes={"small1": "p"})
    order = lowest(works, memory).order
    assert order.index(1) < order.index(3) < order.index(4)


# --- in the compiler -------------------------------------------------------------------------------------------------
def products(x: Any, *ws: Any) -> Any:
    """As fan: a library call each, then a sum."""
    made = [ops.matmul(x, w) for w in ws]
    return [ops.sum(ops.exp(m * 0.01), dim=(0, 1), keepdim=False) for m in made]


def test_products_are_summed_one_by_one() -> None:
    rng = np.random.default_rng(0)
    x, *ws = (torch.from_numpy(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(5))
    said = []
    logs.set_logs("memory")
    try:
        write, logs.log = logs.log, lambda topic, text: said.append(text)
        plan = run(products, x, *ws)
    finally:
        logs.log = write
        logs.set_logs("")
    size = 64 * 64 * 4
    assert size <= footprint(plan).peak < 2 * size, plan
    assert any(f"{footprint(plan).peak} in another" in text for text in said), said
    assert 4 * size <= footprint(compile_graph(trace(products, x, *ws), Config(reuse_buffers=False))).peak


def test_random_numbers_do_not_depend_on_the_order() -> None:
    def program(x: Any, state: Any, *ws: Any) -> Any:
        noise = [ops.uniform(state, shape=(32, 32), shift=n, dtype=dtypes.float32) for n in range(len(ws))]
        drawn = [ops.matmul(x, w) * u for w, u in zip(ws, noise, strict=True)]
        return [ops.sum(d, dim=(0, 1), keepdim=False) for d in drawn]

    rng = np.random.default_rng(0)
    x, *ws = (torch.from_numpy(rng.standard_normal((32, 32)).astype(np.float32)) for _ in range(4))
    state = torch.from_numpy(np.array([7, 1]))
    gm = trace(program, x, state, *ws)
    arrays = [t._data for t in (x, state, *ws)]
    got = interp.run_plan(compile_graph(gm, Config()), arrays)
    want = interp.run_plan(compile_graph(gm, Config(reuse_buffers=False)), arrays)
    for g, w in itertools.zip_longest(got, want):
        np.testing.assert_array_equal(g, w)


def test_a_plan_holds_what_was_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order's peak is the plan's: of a training step's graphs, donated inputs and all."""
    foretold, plans = [], []
    lowest_, seen = peak.lowest, compile_graph

    def spy(works: Any, memory: Any) -> Any:
        foretold.append(lowest_(works, memory))
        return foretold[-1]

    monkeypatch.setattr(peak, "lowest", spy)
    from compiler.loop import kept

    monkeypatch.setattr(kept, "compile_graph", lambda gm, config: plans.append(seen(gm, config)) or plans[-1])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    )  # fmt: skip
    step = torch.compile(lambda x: model(x).exp().sum(), options={"cache": False})
    step(torch.ones(8, 16)).backward()
    assert len(plans) == len(foretold) == 2
    for plan, chosen in zip(plans, foretold, strict=True):
        assert footprint(plan).peak == chosen.after
    assert any(isinstance(s, ir.Alloc) for s in plans[1].steps)


def test_a_result_that_no_launch_touches_has_no_elements() -> None:
    x = torch.zeros(3, 0)
    run(lambda x: (ops.ne(x, x), ops.sin(ops.sum(x, dim=(0, 1), keepdim=False))), x)
