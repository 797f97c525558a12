"""Equal launches joined: which may be, and that the joint gives what they give one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tinytorch as torch
from codegen_cupy import emulate, many, nvrtc
from codegen_cupy.host import prepare
from codegen_cupy.program import Program
from compiler.config import Config
from compiler.loop import interp
from compiler.loop.build import KernelRecorder, PlanRecorder, kernel, plan
from compiler.loop.ir import Plan
from tinytorch.dtypes import float32

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
EMULATED = Config(cuda_emulate=True)
N = 6


def descend(k: KernelRecorder) -> None:
    g = k.param("g", float32, (N,), (1,))
    p = k.param("p", float32, (N,), (1,))
    for i in k.map(N):
        k.store(p, i, k.sub(k.load(p, i), k.mul(k.load(g, i), 0.5)))


def optimizer(pairs: list[tuple[str, str]]) -> Plan:
    """``p -= g / 2`` for pairs of names."""

    def steps(p: PlanRecorder) -> None:
        s = kernel(descend)
        p.kernels(s)
        names = {n: p.input(n, float32, (N,), (1,)) for n in sorted({n for pair in pairs for n in pair})}
        for g, w in pairs:
            p.run(s, names[g], names[w])
        p.output(*[p.view(names[w], (N,), (1,)) for w in dict.fromkeys(w for _, w in pairs)])

    return plan(steps)


def grids(p: Plan) -> list[int]:
    return [s.grid[1] for s in Program(p, EMULATED).recipe().launches]


@pytest.mark.parametrize(
    ("pairs", "want"),
    [
        ([("a", "p"), ("b", "q"), ("c", "r")], [3]),
        ([("a", "p"), ("a", "q")], [2]),  # both read a
        ([("a", "p"), ("b", "p")], [1, 1]),  # both write p
        ([("a", "p"), ("p", "q"), ("b", "r")], [1, 2]),  # the second reads what the first wrote
        ([("a", "p"), ("q", "r"), ("b", "q")], [2, 1]),  # the third writes what the second reads
    ],
)
def test_what_may_join(pairs, want) -> None:
    p = optimizer(pairs)
    assert grids(p) == want
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(N).astype(np.float32) for _ in p.inputs]
    theirs = [a.copy() for a in x]
    wanted = interp.run_plan(p, theirs)
    for got, w in zip(Program(p, EMULATED)(x), wanted, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-6)


def test_arguments_are_no_longer_than_a_kernel_takes() -> None:
    pairs = [(f"g{i}", f"p{i}") for i in range(300)]
    launches = Program(optimizer(pairs), EMULATED).recipe().launches
    assert sum(s.grid[1] for s in launches) == 300
    assert all(8 * (len(s.buffers) + len(s.sizes)) <= many.MOST_BYTES for s in launches) and len(launches) == 2


@pytest.mark.skipif(not nvrtc.available(), reason="no NVRTC")
def test_the_joint_text_compiles() -> None:
    recipe = many.joined(prepare(optimizer([("a", "p"), ("b", "q")]), {}, aligned=True, strict=False))
    (launch,) = recipe.launches
    for arch in ("sm_80", "sm_90a"):
        assert nvrtc.compile_text(launch.source.text, arch)


def test_an_optimizer_is_a_few_launches(monkeypatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    seen: list[Program] = []
    made = Program.__init__

    def remember(self, *args):
        made(self, *args)
        seen.append(self)

    monkeypatch.setattr(Program, "__init__", remember)

    def trained(compiled: bool) -> list[np.ndarray]:
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(4, 8, device="cuda")) for _ in range(5)]
        opt = torch.optim.AdamW(params, lr=0.1)
        run = torch.compile(opt.step) if compiled else opt.step
        for i in range(4):
            for p in params:
                p.grad = torch.full((4, 8), 1.0 + i, device="cuda")
            run()
        return [p.numpy(force=True).copy() for p in params]

    for a, b in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    grids = Counter(s.grid[1] for s in seen[-1].recipe().launches)
    assert grids == {5: 2}  # the step counts, the parameters


def test_results_do_not_keep_launches_apart() -> None:
    """Memory of a result is taken between two launches of a plan; it may as well be there before both."""

    def out_of_place(k: KernelRecorder) -> None:
        g = k.param("g", float32, (N,), (1,))
        p = k.param("p", float32, (N,), (1,))
        for i in k.map(N):
            k.store(p, i, k.mul(k.load(g, i), 0.5))

    def steps(p: PlanRecorder) -> None:
        s = kernel(out_of_place)
        p.kernels(s)
        x, y = (p.input(n, float32, (N,), (1,)) for n in "xy")
        a = p.alloc("a", float32, (N,), (1,))
        p.run(s, x, a)
        b = p.alloc("b", float32, (N,), (1,))
        p.run(s, y, b)
        p.output(p.view(a, (N,), (1,)), p.view(b, (N,), (1,)))

    p = plan(steps)
    assert grids(p) == [2]
    x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    a, b = Program(p, EMULATED)([x, y])
    np.testing.assert_array_equal(a, x / 2)
    np.testing.assert_array_equal(b, y / 2)
