"""Graphs on the emulated machine: replays give what launches give, outputs that are held stay, moved inputs are followed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tinytorch as torch
from codegen_cupy import emulate, graphs
from codegen_cupy.graphs import Graphed
from codegen_cupy.program import Program
from compiler.config import Config
from compiler.loop import interp
from compiler.loop.build import KernelRecorder, PlanRecorder, kernel, plan
from compiler.loop.ir import Plan
from tinytorch.dtypes import float32

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
GRAPHS = Config(cuda_emulate=True, cudagraphs=True)
N = 4


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")


def scale(k: KernelRecorder) -> None:
    x = k.param("x", float32, (N, N), (N, 1))
    y = k.param("y", float32, (N, N), (N, 1))
    for i in k.map(N * N):
        k.store(y, i, k.add(k.mul(k.load(x, i), 2.0), 1.0))


def total(k: KernelRecorder) -> None:
    x = k.param("x", float32, (N, N), (N, 1))
    y = k.param("y", float32, (), ())
    a = k.init("add", float32)
    for i in k.reduce(N * N):
        k.update("add", a, k.load(x, i))
    k.store(y, 0, a)


def bump(k: KernelRecorder) -> None:
    x = k.param("x", float32, (N, N), (N, 1))
    y = k.param("y", float32, (N, N), (N, 1))
    for i in k.map(N * N):
        k.store(y, i, k.add(k.load(y, i), k.load(x, i)))


def step() -> Plan:
    """x (kernels and a product), w (a product), state (written in place) -> product, sum, state, shifted."""

    def steps(p: PlanRecorder) -> None:
        a, s, b = kernel(scale), kernel(total), kernel(bump)
        p.kernels(a, s, b)
        x, w, state = (p.input(n, float32, (N, N), (N, 1)) for n in ("x", "w", "state"))
        t = p.alloc("t", float32, (N, N), (N, 1))
        p.run(a, x, t)
        m = p.alloc("m", float32, (N, N), (N, 1))
        whole = [p.view(b, (N, N), (N, 1)) for b in (t, w, m)]
        p.extern("matmul", whole[0], whole[1], outs=[whole[2]])
        p.run(b, t, state)
        p.free(t)
        u = p.alloc("u", float32, (N, N), (N, 1), reuse=t)
        p.run(a, m, u)
        z = p.alloc("z", float32, (), ())
        p.run(s, u, z)
        p.output(whole[2], p.view(z, (), ()), p.view(state, (N, N), (N, 1)))

    return plan(steps)


def arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((N, N)).astype(np.float32) for _ in range(3)]


def check(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def graphed(program: Program) -> Graphed:
    (run,) = program._runs.values()
    assert isinstance(run, Graphed)
    return run


def test_replays_give_what_launches_give_and_write_inputs_in_place() -> None:
    p = step()
    program, x = Program(p, GRAPHS), arrays(0)
    theirs = [a.copy() for a in x]
    for _ in range(4):
        want = interp.run_plan(p, theirs)
        got = program(x)
        check(got, want)
        check(x, theirs)
        assert got[2] is x[2]
        del got
    assert len(graphed(program).recordings) == 1


def test_an_output_that_is_held_is_never_overwritten() -> None:
    p = step()
    program, x = Program(p, GRAPHS), arrays(0)
    held, copies = [], []
    for i in range(7):
        x[0][...] = i
        m, z, _ = program(x)
        view = m[1:, ::2]
        held.append((view, z))  # a view keeps its memory too
        copies.append((view.copy(), z.copy()))
        del m
    for (view, z), (v, s) in zip(held, copies, strict=True):
        np.testing.assert_array_equal(view, v)
        np.testing.assert_array_equal(z, s)
    assert len(graphed(program).recordings) == graphs.RING + 1  # then outputs are copied
    addresses = {view.ctypes.data for view, _ in held}
    assert len(addresses) == len(held)


def test_small_outputs_are_new_in_each_call_without_new_recordings() -> None:
    program, x = Program(step(), GRAPHS), arrays(0)
    losses = []
    for i in range(6):
        x[0][...] = i
        losses.append(program(x)[1])
    assert len(graphed(program).recordings) == 1
    assert len({float(v) for v in losses}) == 6


def test_inputs_of_kernels_may_move() -> None:
    p = step()
    program, x = Program(p, GRAPHS), arrays(0)
    for i in range(6):
        x[0], x[2] = arrays(i)[0], arrays(i + 10)[2]
        want = interp.run_plan(p, [a.copy() for a in x])
        check(program(x), want)
    assert len(graphed(program).recordings) == 1


def test_inputs_of_library_calls_may_move() -> None:
    """A graph for each of the first addresses; then a copy."""
    p = step()
    program, x = Program(p, GRAPHS), arrays(0)
    kept = []
    for i in range(9):
        x[1] = arrays(i)[1]
        kept.append(x[1])
        want = interp.run_plan(p, [a.copy() for a in x])
        check(program(x), want)
    assert graphed(program).copied == {1}
    assert len(graphed(program).recordings) == 1


def product_into_input() -> Plan:
    def steps(p: PlanRecorder) -> None:
        a = kernel(scale)
        p.kernels(a)
        x, w = (p.input(n, float32, (N, N), (N, 1)) for n in ("x", "w"))
        t = p.alloc("t", float32, (N, N), (N, 1))
        p.run(a, x, t)
        whole = [p.view(b, (N, N), (N, 1)) for b in (t, t, w)]
        p.extern("matmul", *whole[:2], outs=[whole[2]])
        u = p.alloc("u", float32, (N, N), (N, 1))
        p.run(a, w, u)
        p.output(p.view(u, (N, N), (N, 1)), whole[2])

    return plan(steps)


def test_what_cannot_be_copied_is_launched_and_said() -> None:
    p = product_into_input()
    program, x = Program(p, GRAPHS), arrays(0)[:2]
    kept = []
    with pytest.warns(RuntimeWarning, match="no CUDA graph: w lies elsewhere in each call"):
        for i in range(8):
            x[1] = arrays(i)[1]
            kept.append(x[1])
            want = interp.run_plan(p, [a.copy() for a in x])
            check(program(x), want)


def test_a_row_that_runs_through_cupy_is_said() -> None:
    def steps(p: PlanRecorder) -> None:
        a = kernel(scale)
        p.kernels(a)
        x = p.input("x", float32, (N, N), (N, 1))
        t, u, v = (p.alloc(n, float32, (N, N), (N, 1)) for n in "tuv")
        p.run(a, x, t)
        gap = p.view(t, (N // 2, N // 2), (2 * N, 2))
        p.extern("matmul", gap, gap, outs=[p.view(u, (N // 2, N // 2), (N, 1))])
        p.run(a, t, v)
        p.output(p.view(v, (N, N), (N, 1)))

    with pytest.warns(RuntimeWarning, match="no CUDA graph: matmul runs through CuPy"):
        program = Program(plan(steps), GRAPHS)
    x = arrays(0)[0]
    check(program([x]), [(x * 2 + 1) * 2 + 1])


def test_a_recording_that_fails_falls_back_loudly(monkeypatch) -> None:
    p = step()
    program, x = Program(p, GRAPHS), arrays(0)
    program(x)
    recorder = graphed(program).machine.graphs()
    monkeypatch.setattr(type(recorder), "end", lambda self: (_ for _ in ()).throw(RuntimeError("driver says no")))
    want = interp.run_plan(p, [a.copy() for a in x])
    with pytest.warns(RuntimeWarning, match="driver says no"):
        check(program(x), want)
    recorder.abandon()
    assert graphed(program).broken


def test_a_whole_training_step_is_one_graph(on_cuda) -> None:
    nn = torch.nn

    def trained(mode: str | None) -> tuple[list[float], list[np.ndarray]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).to("cuda")
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rng = np.random.default_rng(0)

        def step(x, y):
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            return loss.detach()

        run = torch.compile(step, mode=mode) if mode else step
        losses = []
        for _ in range(9):
            x = torch.from_numpy(rng.standard_normal((5, 6), np.float32)).to("cuda")
            y = torch.from_numpy(rng.integers(0, 3, 5)).to("cuda")
            losses.append(run(x, y))
        return [float(v) for v in losses], [p.numpy(force=True).copy() for p in model.parameters()]

    got, want = trained("reduce-overhead"), trained(None)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_forward_and_backward_as_graphs(on_cuda) -> None:
    torch.manual_seed(0)
    w = torch.randn(8, 8, device="cuda", requires_grad=True)

    def f(x):
        return torch.tanh(torch.tanh(x @ w) @ w).sum(0)

    g = torch.compile(f, mode="reduce-overhead")
    for i in range(6):
        x = torch.randn(4, 8, device="cuda")
        w.grad = None
        g(x).pow(2).sum().backward()
        got, w.grad = w.grad, None
        f(x).pow(2).sum().backward()
        np.testing.assert_allclose(got.numpy(force=True), w.grad.numpy(force=True), rtol=1e-4, atol=1e-5, err_msg=f"call {i}")


def test_random_numbers_move_on_in_a_graph(on_cuda) -> None:
    """The generator's state is a new array in each call, which the recorded kernels are told of."""

    def f(x):
        a = torch.nn.functional.dropout(x, 0.5, training=True)
        b = torch.nn.functional.dropout(a @ a, 0.5, training=True)
        return torch.nn.functional.dropout(b @ x, 0.5, training=True).sum(0)

    x = torch.randn(8, 8, device="cuda")
    run = torch.compile(f, mode="reduce-overhead")
    torch.manual_seed(7)
    got = [run(x).numpy(force=True).copy() for _ in range(5)]
    torch.manual_seed(7)
    want = [f(x).numpy(force=True) for _ in range(5)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert not np.array_equal(got[3], got[4])


def test_tf32_is_asked_for_at_each_call() -> None:
    program, x = Program(step(), GRAPHS), arrays(0)
    program(x)
    torch.set_float32_matmul_precision("high")
    try:
        program(x)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [tf32 for _, _, tf32 in program._runs] == [False, True]


def test_new_sizes_are_recorded_anew(on_cuda) -> None:
    w = torch.randn(8, 8, device="cuda")

    def f(x):
        return torch.tanh(torch.tanh(x @ w) @ w).sum(0)

    run = torch.compile(f, mode="reduce-overhead", dynamic=True)
    for n in (3, 3, 5, 5, 3, 7, 5):
        x = torch.randn(n, 8, device="cuda")
        np.testing.assert_allclose(run(x).numpy(force=True), f(x).numpy(force=True), rtol=1e-4, atol=1e-5)


def sums_into(names: str) -> Plan:
    """Column sums into zeros, as results and as temporaries that are read again."""

    def columns(k: KernelRecorder) -> None:
        x = k.param("x", float32, (N, N), (N, 1))
        y = k.param("y", float32, (N,), (1,))
        for i in k.map(N):
            for j in k.map(N):
                k.store(y, j, k.load(x, N * i + j), mode="add")

    def twice(k: KernelRecorder) -> None:
        x = k.param("x", float32, (N,), (1,))
        y = k.param("y", float32, (N,), (1,))
        for i in k.map(N):
            k.store(y, i, k.mul(k.load(x, i), 2.0))

    def steps(p: PlanRecorder) -> None:
        c, d = kernel(columns), kernel(twice)
        p.kernels(c, d)
        x = p.input("x", float32, (N, N), (N, 1))
        outs = []
        for n in names:
            t = p.alloc(f"t{n}", float32, (N,), (1,), fill=0.0)
            p.run(c, x, t)
            if n.isupper():
                outs.append(t)
                continue
            u = p.alloc(f"u{n}", float32, (N,), (1,))
            p.run(d, t, u)
            p.free(t)
            outs.append(u)
        p.output(*[p.view(o, (N,), (1,)) for o in outs])

    return plan(steps)


@pytest.mark.parametrize("cudagraphs", [False, True])
def test_zeros_are_zero_in_every_call(cudagraphs) -> None:
    p = sums_into("abAcBC")
    program, (x, *_) = Program(p, Config(cuda_emulate=True, cudagraphs=cudagraphs)), arrays(0)
    for _ in range(4):
        check(program([x]), interp.run_plan(p, [x]))


def test_zeros_take_one_fill(monkeypatch) -> None:
    p = sums_into("abAcBC")
    program, (x, *_) = Program(p, GRAPHS), arrays(0)
    program([x])
    fills = []
    machine = graphed(program).machine
    monkeypatch.setattr(machine, "fill", lambda *a: fills.append(a))
    program([x])
    assert len(fills) == 2  # the temporaries, the results
