"""Mixed precision: autocast is traced into the graph, and its casts run inside the kernels around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from compiler.aot.autograd import aot_autograd
from compiler.backends import loops
from compiler.config import config
from compiler.loop import interp
from compiler.loop.ir import ArrayView, Extern, Plan, Run
from compiler.partition import min_cut
from tinytorch import Tensor, amp
from tinytorch.nn import functional as F


def rand(*shape: int) -> Tensor:
    data = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return torch.tensor(data / np.float32(np.sqrt(shape[-1])), requires_grad=True)


def inputs() -> list[Tensor]:
    return [rand(8, 16), rand(32, 16), rand(32), rand(32), rand(32), rand(16, 32)]


def full(x: Tensor, w1: Tensor, b1: Tensor, g: Tensor, b: Tensor, w2: Tensor) -> Tensor:
    h = F.layer_norm(F.gelu(F.linear(x, w1, b1)), (32,), g, b)
    return F.mse_loss(F.linear(h, w2), x.detach())


def mixed(*args: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return full(*args)


def scaled(x: Tensor, *args: Tensor) -> Tensor:
    """Half precision with a loss scale, as ``GradScaler`` multiplies it in."""
    with torch.autocast("cpu", torch.float16):
        return full(x, *args) * 8.0


def plans(fn: Any) -> tuple[list[Plan], list[Any]]:
    """The forward's and the backward's plan, and the gradients."""
    found: list[Plan] = []

    def build(plan: Plan, config: Any) -> Any:
        found.append(plan)
        return lambda arrays, sizes: interp.run_plan(plan, arrays, sizes)

    torch.compiler.reset()
    args = inputs()
    torch.compile(fn, backend=loops.through_loops(lambda module: build, config), fullgraph=True)(*args).backward()
    return found, [t.grad for t in args]


def lone_casts(plan: Plan) -> list[str]:
    """What each kernel reads that does nothing but cast."""
    return [s.args[0] for s in plan.steps if isinstance(s, Run) and _only_casts(plan.kernels[s.kernel])]


def _only_casts(kernel: Any) -> bool:
    return all(name.partition("_")[0] == "cast" for name in kernel.origin)


def runs(plan: Plan) -> int:
    return sum(isinstance(s, Run) for s in plan.steps)


def of_products(plan: Plan) -> set[str]:
    """Buffers that a product writes, and the plan's inputs: a cast of these has no kernel to run in."""
    written = {v.buffer for s in plan.steps if isinstance(s, Extern) for v in s.outs if isinstance(v, ArrayView)}
    return written | {b.name for b in plan.inputs}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fn", [mixed, scaled])
def test_casts_are_fused_away(fn: Any) -> None:
    """The same kernels as in full precision; besides, only operands and results of products are cast by themselves."""
    (forward, backward), _ = plans(fn)
    (plain_forward, plain_backward), _ = plans(full)
    assert not lone_casts(plain_forward) and not lone_casts(plain_backward)
    assert sorted(lone_casts(forward)) == ["primals_0", "primals_1", "primals_5"]
    assert runs(forward) - 3 == runs(plain_forward) == 2
    casts = lone_casts(backward)
    assert set(casts) <= of_products(backward)
    assert runs(backward) - len(casts) <= runs(plain_backward) + 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fn", [mixed, scaled])
def test_gradients_under_autocast_are_eagers(fn: Any) -> None:
    _, got = plans(fn)
    args = inputs()
    fn(*args).backward()
    for g, t in zip(got, args, strict=True):
        assert g.dtype is t.grad.dtype is torch.float32
        np.testing.assert_allclose(g.numpy(), t.grad.numpy(), rtol=0.05, atol=0.02 * float(t.grad.abs().max()))


def test_the_traced_graph_shows_the_types() -> None:
    seen: list[Any] = []

    def partition(joint: Any, n: int) -> Any:
        seen.append(joint)
        return min_cut(joint, n)

    torch.compiler.reset()
    torch.compile(mixed, backend=aot_autograd(lambda gm, _: gm, partition_fn=partition), fullgraph=True)(*inputs())
    products = [n for n in seen[0].graph.nodes if getattr(n.target, "name", "") == "matmul"]
    assert len(products) == 6 and all(n.meta["val"].dtype is torch.bfloat16 for n in products)
    sums = [n for n in seen[0].graph.nodes if getattr(n.target, "name", "") == "sum" and n.meta["val"].ndim == 0]
    assert sums and all(n.meta["val"].dtype is torch.float32 for n in sums)
    assert not amp.is_autocast_enabled("cpu")


def test_less_is_saved_in_half_precision() -> None:
    saved = []
    for fn in (full, mixed):
        reports: list[Any] = []

        def partition(joint: Any, n: int, into: list[Any] = reports) -> Any:
            into.append(min_cut(joint, n))
            return into[-1]

            torch.compiler.reset()
        torch.compile(fn, backend=aot_autograd(lambda gm, _: gm, partition_fn=partition), fullgraph=True)(*inputs())
        saved.append(reports[0][2].saved_bytes)
    assert saved[1] < 0.6 * saved[0]
