"""Results of library calls that are put where they belong: which are, which must not, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_helpers import run

import tinytorch as torch
from codegen_cupy.ways import Reader
from compiler.config import config
from compiler.loop import host
from compiler.loop.ir import ArrayView, Extern, Plan
from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

F = torch.nn.functional
RNG = np.random.default_rng(5)


def numbers(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    return Tensor._wrap(RNG.standard_normal(shape).astype(np.float32).astype(dtype.np), cpu)


def outs(plan: Plan) -> list[ArrayView]:
    return [v for s in plan.steps if isinstance(s, Extern) for v in s.outs]


def laid(fn: Any, *args: Tensor, copies: int = 0, **tolerance: float) -> Plan:
    """The plan, after a comparison with eager; it has so many kernels."""
    plan = run(fn, *args, **tolerance)
    assert len(plan.kernels) == copies
    return plan


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_products_lie_end_to_end(dim: int) -> None:
    x, y, w = numbers(2, 8, 16), numbers(2, 8, 16), numbers(2, 16, 32)
    plan = laid(lambda x, y, w: ops.cat(ops.matmul(x, w), ops.matmul(y, w), dim=dim % 3), x, y, w)
    (first, second) = outs(plan)
    assert first.buffer == second.buffer and first.stride == second.stride
    assert second.offset == {0: 512, 1: 256, -1: 32}[dim]


def test_other_pieces_are_kernels() -> None:
    x, w = numbers(6, 8), numbers(8, 16)
    plan = laid(lambda x, w: ops.cat(ops.exp(w), ops.matmul(x, w), ops.neg(w), dim=0), x, w, copies=1)
    assert outs(plan)[0].offset == 128


def test_a_result_in_another_order() -> None:
    x, w = numbers(4, 8, 8), numbers(4, 8, 16)
    plan = laid(lambda x, w: ops.contiguous(ops.permute(ops.matmul(x, w), dims=(1, 0, 2))), x, w)
    assert outs(plan)[0].stride == (16, 64, 1)


def test_half_precision_is_moved_as_it_is() -> None:
    x, w = numbers(4, 8, dtype=dtypes.bfloat16), numbers(8, 16, dtype=dtypes.bfloat16)
    laid(lambda x, w: ops.cat(ops.matmul(x, w), ops.matmul(x, w), dim=1), x, w, rtol=1e-2, atol=1e-2)


def test_others_read_it_where_it_is() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = ops.matmul(x, w)
        return ops.contiguous(ops.permute(y, dims=(1, 0, 2))), ops.sum(y, dim=(0,), keepdim=False), ops.exp(y)

    plan = laid(fn, numbers(4, 8, 8), numbers(4, 8, 16), copies=1)
    assert outs(plan)[0].stride == (16, 64, 1)


STAYS = {
    "read by others": lambda x, w: (ops.cat(y := ops.matmul(x, w), ops.neg(y), dim=1), ops.exp(y)),
    "a result": lambda x, w: (ops.cat(y := ops.matmul(x, w), ops.neg(w), dim=0), y),
    "in part": lambda x, w: ops.cat(ops.slice(ops.matmul(x, w), dim=1, start=0, stop=8, step=1), x, dim=1),
    "twice": lambda x, w: ops.cat(y := ops.matmul(x, w), y, dim=1),
    "turned round": lambda x, w: ops.cat(ops.flip(ops.matmul(x, w), dims=(0,)), ops.neg(w), dim=0),
    "turned": lambda x, w: ops.cat(ops.permute(ops.matmul(x, w), dims=(1, 0)), ops.permute(w, dims=(1, 0)), dim=1),
    "another type": lambda x, w: ops.cat(ops.cast(ops.matmul(x, w), dtype=dtypes.float64), ops.cast(w, dtype=dtypes.float64), dim=0),
    "off the grid": lambda x, w: ops.cat(ops.slice(x, dim=1, start=0, stop=3, step=1), ops.matmul(x, w), dim=1),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_is_copied(why: str) -> None:
    x, w = numbers(8, 8), numbers(8, 16)
    plan = run(STAYS[why], x, w)
    assert all(not v.offset and v.stride in ((16, 1), (1, 16)) for v in outs(plan)) and plan.kernels


def test_a_kernel_behind_a_part_is_no_part_of_the_product() -> None:
    def fn(x: Any, w: Any) -> Any:
        late = ops.matmul(x, w)
        early = ops.matmul(ops.neg(x), w)
        return ops.exp(ops.cat(early, late, dim=0))

    plan = run(fn, numbers(8, 8), numbers(8, 16))
    reader = Reader(plan, {})
    assert [p.then for p in reader.pairs()] == [-1, -1]


# --- the gradients of q, k and v -------------------------------------------------------------------------------------
def split(y: Any, n: int, t: int, heads: int) -> Any:
    return (z.reshape(n, t, heads, -1).transpose(1, 2) for z in y.split(y.shape[2] // 3, dim=2))


def unbind(y: Any, n: int, t: int, heads: int) -> Any:
    return (z.transpose(1, 2) for z in y.reshape(n, t, 3, heads, -1).unbind(2))


def permute(y: Any, n: int, t: int, heads: int) -> Any:
    return y.reshape(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)


def attention(heads: int, form: Any) -> Any:
    def step(x: Any, w: Any, b: Any) -> Any:
        n, t, d = x.shape
        q, k, v = form(F.linear(x, w, b), n, t, heads)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.transpose(1, 2).reshape(n, t, d).square().sum().backward()
        return out

    return step


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Plan] = []
    original = host.shared
    monkeypatch.setattr(host, "shared", lambda plan: (made.append(original(plan)), made[-1])[1])
    with config.patch(cache=False, recompile_limit=64):
        yield made


@pytest.mark.parametrize("form", [split, unbind, permute])
@pytest.mark.parametrize(("device", "kind"), [("cpu", "float32"), ("cpu", "bfloat16"), ("cuda", "bfloat16"), ("cuda", "float32")])
def test_gradients_of_queries_keys_and_values_are_one_buffer(plans: list[Plan], monkeypatch: Any, form: Any, device: str, kind: str) -> None:
    if device == "cuda":
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    dtype = getattr(torch, kind)
    shapes = (2, 24, 32), (96, 32), (96,)
    made = [torch.from_numpy(RNG.standard_normal(s).astype(np.float32) / 2).to(device).to(dtype) for s in shapes]
    grads = []
    for compiled in (False, True):
        args = [t.clone().requires_grad_() for t in made]
        step = attention(2, form)
        (torch.compile(step) if compiled else step)(*args)
        grads.append([a.grad.float().cpu().numpy() for a in args])
    tolerance = 1e-5 if kind == "float32" else 4e-2
    for want, got in zip(*grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
    (call,) = [s for p in plans for s in p.steps if isinstance(s, Extern) and s.fn == "attention_backward"]
    assert [v.offset for v in call.outs] == [0, 32, 64] and len({v.buffer for v in call.outs}) == 1
    assert all(v.stride == (24 * 96, 16, 96, 1) for v in call.outs)


def test_sizes_that_vary(plans: list[Plan]) -> None:
    step = attention(2, lambda y, n, t, heads: (z.reshape(n, t, 2, 16).transpose(1, 2) for z in y.split(32, dim=2)))
    compiled = torch.compile(step, dynamic=True)
    for t in (24, 17):
        made = [torch.from_numpy(RNG.standard_normal(s).astype(np.float32) / 2) for s in ((3, t, 32), (96, 32), (96,))]
        grads = []
        for fn in (step, compiled):
            args = [a.clone().requires_grad_() for a in made]
            fn(*args)
            grads.append([a.grad.numpy() for a in args])
        for want, got in zip(*grads, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    (call,) = [s for p in plans for s in p.steps if isinstance(s, Extern) and s.fn == "attention_backward"]
    assert [v.offset for v in call.outs] == [0, 32, 64] and len({v.buffer for v in call.outs}) == 1


def test_a_result_that_shows_signs_of_zeros_is_a_sum(plans: list[Plan]) -> None:
    """The gradient itself leaves the program: -0.0 + 0.0 is 0.0."""
    x = torch.from_numpy(RNG.standard_normal((2, 24, 96)).astype(np.float32)).requires_grad_()

    def fn(y: Any) -> Any:
        q, k, v = (z.reshape(2, 24, 2, 16).transpose(1, 2) for z in y.split(32, dim=2))
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    torch.compile(fn)(x)
    (call,) = [s for p in plans for s in p.steps if isinstance(s, Extern) and s.fn == "attention_backward"]
    assert len({v.buffer for v in call.outs}) == 3


def test_a_reduction_of_a_number_moves_nothing() -> None:
    """How many targets count, where they are known: a sum of ones, with nothing in its innermost loop."""
    x = torch.from_numpy(RNG.standard_normal((8, 3)).astype(np.float32))

    def fn(x: Any) -> Any:
        return F.cross_entropy(x, torch.zeros(8, dtype=torch.int64))

    np.testing.assert_allclose(torch.compile(fn)(x).numpy(), fn(x).numpy(), rtol=1e-5)
