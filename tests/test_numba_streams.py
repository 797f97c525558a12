"""Loops over many streams: which statements may part, and that values stay."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_helpers import trace
from numba_helpers import TINY, run_kernel

import tinytorch as torch
from codegen_numba import parallel, streams
from codegen_numba.build import build
from codegen_numba.compile import Source, assembly
from codegen_numba.emit import Emitter
from codegen_numba.schedule import Tune, phases
from compiler.config import Config
from compiler.fake import fake_like
from compiler.loop.build import kernel
from compiler.loop.host import compile_graph
from compiler.loop.ir import Check, Kernel, Let, Load, Store
from compiler.sym.env import ShapeEnv
from compiler.sym.expr import Symbol
from compiler.sym.ranges import Interval, extent
from tinytorch import ops
from tinytorch.device import cpu
from tinytorch.dtypes import float32, int64
from tinytorch.tensor import Tensor

I, S, T = Symbol("i"), Symbol("s"), Symbol("t")


def apart(body: Any, *sizes: Symbol) -> list[Any]:
    """Pieces of a loop over ``i``, where these sizes are known to be at least one."""
    return streams.apart(body, "i", {I: Interval(0, 127), **dict.fromkeys(sizes, Interval(1))})


def copies(count: int, target: Any = lambda n: (f"out{n}", I)) -> tuple[Any, ...]:
    body: list[Any] = []
    for n in range(count):
        body += [Load(f"v{n}", f"in{n}", I, float32), Store(*target(n), f"v{n}")]
    return tuple(body)


def test_few_streams_stay_together() -> None:
    assert apart(copies(6)) == [copies(6)]


def test_many_part_and_nothing_is_lost() -> None:
    body = copies(20)
    parts = apart(body)
    assert len(parts) > 1 and sorted(map(str, (s for p in parts for s in p))) == sorted(map(str, body))
    assert all(len({s.buffer for s in p}) <= streams.MOST for p in parts)


def test_places_of_one_array_that_never_meet_part() -> None:
    assert len(apart(copies(20, lambda n: ("out", I + 4096 * n)))) > 1


@pytest.mark.parametrize("place", [lambda n: 128 * S * n, lambda n: S * T * (20 - n) - 5 * n, lambda n: I + S * n])
def test_symbolic_distances_that_are_never_zero(place: Any) -> None:
    body = copies(20, lambda n: ("out", I + place(n)))
    parts = apart(body, S, T)
    assert len(parts) > 1 and sorted(map(str, (s for p in parts for s in p))) == sorted(map(str, body))
    assert apart(body) == [body]  # a size of zero, and all are one place


def test_sizes_that_may_cancel_out_stay() -> None:
    body = copies(20, lambda n: ("out", I + (S - T) * n))
    assert apart(body, S, T) == [body]


def test_what_is_known_inside_of_a_loop() -> None:
    """A loop that runs has iterations; nothing else says that a size is not zero, or even not negative."""
    known = streams.facts((3 * S, T, S - 5), {I: extent(8 * S)})
    assert (known[S].lo, known[T].lo) == (1, 0)
    assert Symbol("n") not in streams.facts((T, S * Symbol("n")), {I: extent(T * Symbol("n"))})
    assert streams.facts((S, T), {I: extent(4 * S * T)})[T].lo == 1
    assert T not in streams.facts((), {I: extent(S + T)})


@pytest.mark.parametrize(
    "target",
    [lambda n: ("out", I), lambda n: ("out", I * (n + 1)), lambda n: (f"in{(n + 1) % 20}", I)],
    ids=["one place", "places that may meet", "written and read"],
)
def test_statements_whose_order_matters_stay(target: Any) -> None:
    body = copies(20, target)
    assert apart(body) == [body]


def test_a_value_that_all_use_keeps_them_together() -> None:
    body = [Load("x", "in", I, float32)]
    for n in range(20):
        body += [Let(f"v{n}", "exp", ("x",), float32), Store(f"out{n}", I, f"v{n}")]
    assert apart(tuple(body)) == [tuple(body)]


def test_a_check_leaves_the_whole_iteration() -> None:
    body = (Let("ok", "lt", (1.0, 2.0), float32), Check("ok", "no"), *copies(20))
    assert apart(body) == [body]


def test_a_concatenation_of_many() -> None:
    """Cut out and put in another order, with sums beside: the kernel that made this needful."""
    xs = [Tensor._wrap(np.random.default_rng(n).normal(size=(16, 70)).astype(np.float32), cpu) for n in range(24)]
    fn = lambda *a: (ops.cat(*a, dim=0), ops.cat(*(ops.mul(x, 2.0) for x in reversed(a)), dim=0))  # noqa: E731
    built = build(compile_graph(trace(fn, *xs), Config()), Config())
    both, turned = built([x._data for x in xs])
    np.testing.assert_array_equal(both, np.concatenate([x._data for x in xs]))
    np.testing.assert_array_equal(turned, np.concatenate([2 * x._data for x in reversed(xs)]))


# --- what LLVM cannot see ---------------------------------------------------------------------------------------------
def stores(*indices: Any, mode: Any = "set") -> tuple[Any, ...]:
    pairs = ((Load(f"v{n}", f"in{n}", I, float32), Store("out", at, f"v{n}", mode)) for n, at in enumerate(indices))
    return tuple(s for pair in pairs for s in pair)


def test_symbolic_places_of_a_written_array_are_hidden() -> None:
    assert streams.hidden(stores(I, I + S), "i")
    assert streams.hidden(stores(I + S, I + 3, I + 2 * S + T), "i")
    assert streams.hidden((Load("x", "out", I + S, float32), Store("out", I, "x")), "i")


@pytest.mark.parametrize(
    "body",
    [
        stores(I, I + 64),  # LLVM sees it
        (Load("x", "in", I, float32), Load("y", "in", I + S, float32), Store("out", I, "x")),  # only read
        stores(2 * I, 2 * I + S),
        stores(I, S),
        stores(I, I + S, mode="add"),  # iterations may combine in one place
        (Load("k", "at", I, int64), *stores(I, I + S, I + 8 * Symbol("k"))),  # places may come twice
        (Let("ok", "lt", (1.0, 2.0), float32), Check("ok", "no"), *stores(I, I + S)),
    ],
    ids=["constant", "read", "jumps", "fixed", "combined", "indirect", "checked"],
)
def test_what_may_not_be_promised(body: Any) -> None:
    assert not streams.hidden(body, "i")


def pieces(count: int, width: int, reverse: bool = False) -> Kernel:
    """``count`` arrays of [n, width] behind one another, and once more the other way round."""

    @kernel
    def cat(k: Any) -> None:
        n = k.size("n")
        ins = [k.param(f"x{m}", float32, (n, width), (width, 1)) for m in range(count)]
        out = k.param("out", float32, (count * n, width), (width, 1))
        back = k.param("back", float32, (count * n, width), (width, 1)) if reverse else None
        for i in k.map(n):
            for j in k.map(width):
                for m, x in enumerate(ins):
                    v = k.load(x, width * i + j)
                    k.store(out, width * i + j + m * width * n, v)
                    if back is not None:
                        k.store(back, width * i + j + (count - 1 - m) * width * n, v)

    return cat


def copying(most: int, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The kernel that puts 32 pieces into two arrays, in loops over at most so many streams."""
    monkeypatch.setattr(streams, "MOST", most)
    k = pieces(32, 128, reverse=True)
    (phase,) = phases(k, 1, Tune())
    return Emitter(k, phase, False, Tune()).source("k")[0]


def wide_stores(source: Source) -> int:
    return len(re.findall(r"^\s+vmov[ua]p[sd]\s+%[yz]mm\d+, ", assembly(source), re.M))


def test_pieces_of_symbolic_size_are_copied_in_several_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    source = copying(streams.MOST, monkeypatch)
    assert source.text.count(f"{parallel.WORD}()") == source.text.count("for i1 in range") == 8
    assert wide_stores(source) >= 64


def test_what_is_promised_becomes_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: one loop over 96 streams, where LLVM by itself does one element after the other."""
    source = copying(1000, monkeypatch)
    assert source.text.count(f"{parallel.WORD}()") == source.text.count("for i1 in range") == 1
    assert wide_stores(source) >= 64
    assert wide_stores(replace(source, text=source.text.replace(f"{parallel.WORD}()", "pass"))) < 16
    assert wide_stores(replace(source, alias=True)) < 16  # arrays that may overlap: nothing is promised


@settings(max_examples=40, deadline=None)
@given(
    n=st.sampled_from([0, 1, 2, 3, 5, 17, 64]), count=st.integers(2, 20), width=st.sampled_from([1, 3, 16, 70]),
    reverse=st.booleans(), tiny=st.booleans(),
)  # fmt: skip
def test_pieces_of_any_size(n: int, count: int, width: int, reverse: bool, tiny: bool) -> None:
    k = pieces(count, width, reverse)
    arrays = [np.random.default_rng(m).normal(size=(n, width)).astype(np.float32) for m in range(count)]
    got = run_kernel(k, arrays, (n,), tune=TINY if tiny else None)
    np.testing.assert_array_equal(got[0], np.concatenate(arrays))
    if reverse:
        np.testing.assert_array_equal(got[1], np.concatenate(arrays[::-1]))


PROGRAMS = {
    "rows": lambda *xs: ops.cat(*xs, dim=0),
    "columns": lambda *xs: ops.cat(*xs, dim=1),
    "two ways": lambda *xs: (ops.cat(*xs, dim=0), ops.cat(*(ops.mul(x, 2.0) for x in reversed(xs)), dim=0)),
    "sums beside": lambda *xs: (ops.cat(*xs, dim=0), *(ops.sum(x, dim=(0,), keepdim=False) for x in xs[::3])),
    "around one": lambda *xs: ops.cat(*xs[:7], ops.exp(xs[7]), ops.add(xs[7], xs[8]), *xs[7:], dim=0),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
def test_plans_of_symbolic_pieces(name: str, dims: tuple[int, ...]) -> None:
    """One plan for sizes of all kinds; for one too, though a call of the compiler has a plan of its own for that."""

    def arrays(n: int, m: int) -> list[Tensor]:
        shape = (n if 0 in dims else 6, m if 1 in dims else 40)
        return [Tensor._wrap(np.random.default_rng(k).normal(size=shape).astype(np.float32), cpu) for k in range(18)]

    fn, env = PROGRAMS[name], ShapeEnv()
    like = [fake_like(t, env, dynamic=dims) for t in arrays(6, 40)]
    plan = compile_graph(trace(fn, *like, fakes=like), Config())
    built = [build(plan, Config(), tune) for tune in (None, TINY)]
    for n, m in [(2, 2), (3, 5), (7, 16), (64, 33), (1, 9), (9, 1)]:
        xs = arrays(n, m)
        dimensions = [d for b, x in zip(plan.inputs, xs, strict=True) for d in zip(b.shape, x.shape, strict=True)]
        sizes = {s.name: size for s, size in dimensions if isinstance(s, Symbol)}
        want = fn(*xs)
        for run in built:
            got = run([x._data for x in xs], tuple(sizes[s] for s in plan.sizes))
            for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                np.testing.assert_allclose(g, w._data, rtol=1e-6, atol=1e-5)


def test_gradients_of_a_recurrent_net_with_a_symbolic_batch() -> None:
    """What all this is for: its backward puts the steps' gradients behind one another."""
    torch.manual_seed(0)
    net, head = torch.nn.LSTM(8, 16, batch_first=True), torch.nn.Linear(16, 3)
    params = [*net.parameters(), *head.parameters()]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(head(net(x)[0][:, -1]), y)

    compiled = torch.compile(loss, dynamic=True)
    for batch in (5, 2, 16, 33):
        x, y = torch.randn(batch, 14, 8), torch.randint(0, 3, (batch,))
        found = []
        for fn in (loss, compiled):
            for p in params:
                p.grad = None
            fn(x, y).backward()
            found.append([p.grad.numpy() for p in params])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
