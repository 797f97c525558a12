"""The attention row: equal to the formula it stands for, in every flag, block by block, twice differentiable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import ops
from tinytorch.nn.attention import SDPBackend, sdpa_kernel
from tinytorch.ops import flash

RNG = np.random.default_rng(5)


def make(*shape: int, dtype: Any = None) -> torch.Tensor:
    return torch.tensor(RNG.standard_normal(shape), dtype=dtype or torch.float64)


def state_of(seed: int) -> torch.Tensor:
    return torch.tensor([seed, 3], dtype=torch.int64)


SAMPLES = list(flash._samples(make)) + [
    ((make(2, 4, 5, 3), make(2, 2, 7, 3), make(2, 2, 7, 6), None, state_of(9)), dict(causal=False, scale=0.4, dropout=0.3, shift=2)),
]  # fmt: skip


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
@pytest.mark.parametrize("small", [flash.SMALL, 0])
def test_row_is_the_formula(sample: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "SMALL", small)
    monkeypatch.setattr(flash, "BLOCK", 3)
    args, params = SAMPLES[sample]
    for got, want in zip(ops.attention(*args, **params), flash.formula(*args, **params), strict=True):
        close(got, want)


def gradients(fn: Any, args: Any, params: dict[str, Any]) -> list[torch.Tensor]:
    leaves = [a.detach().clone().requires_grad_() for a in args[:3]]
    out, lse = fn(*leaves, *args[3:], **params)
    rng = np.random.default_rng(1)
    loss = (out * torch.tensor(rng.standard_normal(tuple(out.shape)))).sum()
    loss = loss + (lse * torch.tensor(rng.standard_normal(tuple(lse.shape)))).sum()
    loss.backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
@pytest.mark.parametrize("small", [flash.SMALL, 0])
def test_gradients_are_the_formulas(sample: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "SMALL", small)
    monkeypatch.setattr(flash, "BLOCK", 2)
    args, params = SAMPLES[sample]
    for got, want in zip(gradients(ops.attention, args, params), gradients(flash.formula, args, params), strict=True):
        close(got, want)


def test_second_derivative() -> None:
    def twice(fn: Any) -> list[torch.Tensor]:
        leaves = [a.detach().clone().requires_grad_() for a in args[:3]]
        out, _ = fn(*leaves, *args[3:], **params)
        firsts = torch.autograd.grad((out**3).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum((g**2).sum() for g in firsts), leaves))

    args, params = SAMPLES[1]
    for got, want in zip(twice(ops.attention), twice(flash.formula), strict=True):
        close(got, want)


def test_one_tensor_thrice() -> None:
    x = make(1, 2, 4, 3).requires_grad_()
    y = x.detach().clone().requires_grad_()
    F.scaled_dot_product_attention(x, x, x).sin().sum().backward()
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(y, y, y).sin().sum().backward()
    close(x.grad, y.grad)
    second = []
    for t in (x, y):
        with sdpa_kernel([SDPBackend.MATH] if t is y else list(SDPBackend)):
            (g,) = torch.autograd.grad(F.scaled_dot_product_attention(t, t, t).sin().sum(), t, create_graph=True)
        second.append(torch.autograd.grad((g * g).sum(), t)[0])
    close(*second)


def test_backward_again_after_another_cotangent() -> None:
    q, k, v = (make(1, 1, 3, 2).requires_grad_() for _ in range(3))
    out, _ = ops.attention(q, k, v, None, None, causal=False, scale=1.0, dropout=0.0, shift=0)
    ones = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    (first,) = torch.autograd.grad(out, q, ones, retain_graph=True)
    (other,) = torch.autograd.grad(out, v, 2 * ones, retain_graph=True)
    (again,) = torch.autograd.grad(out, v, ones)
    assert first.abs().sum() > 0
    close(other, 2 * again)


CALLS: list[dict[str, Any]] = [
    {}, {"is_causal": True}, {"attn_mask": make(5, 7)}, {"attn_mask": make(2, 1, 5, 7) > 0}, {"dropout_p": 0.4},
    {"attn_mask": make(1, 4, 1, 7)}, {"scale": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("call", range(len(CALLS)))
@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (4, 5, 3)])
def test_function_both_ways(call: int, shape: tuple[int, ...]) -> None:
    """The blocked row and the plain formula, dropout bits included."""
    kwargs = CALLS[call]
    if len(shape) == 3 and kwargs.get("attn_mask") is not None and kwargs["attn_mask"].dim() == 4:
        kwargs = {"attn_mask": kwargs["attn_mask"][0]}
    q, k, v = make(*shape), make(*shape[:-2], 7, 3), make(*shape[:-2], 7, 2)
    out = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        torch.manual_seed(3)
        with sdpa_kernel(backend):
            out.append(F.scaled_dot_product_attention(q, k, v, **kwargs))
    close(*out)


def test_grouped_heads_both_ways() -> None:
    q, k, v = make(2, 6, 5, 3), make(2, 2, 7, 3), make(2, 2, 7, 3)
    one = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    with sdpa_kernel(SDPBackend.MATH):
        close(one, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_a_row_that_sees_nobody_is_zero() -> None:
    q, k, v = (make(1, 1, 3, 2).requires_grad_() for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.sum().backward()
    assert out[0, 0, 1].tolist() == [0.0, 0.0]
    assert all(np.isfinite(x.grad.numpy()).all() for x in (q, k, v))
    assert q.grad[0, 0, 1].tolist() == [0.0, 0.0]


def test_heads_come_back_side_by_side() -> None:
    """A query made by splitting and transposing gives an output whose transpose is contiguous."""
    q, k, v = (x.view(2, 5, 4, 3).transpose(1, 2) for x in make(2, 5, 36).chunk(3, -1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.transpose(1, 2).is_contiguous()


def test_half_types_round_once() -> None:
    q, k, v = (make(1, 2, 9, 8, dtype=torch.float32) for _ in range(3))
    want = F.scaled_dot_product_attention(q.bfloat16().float(), k.bfloat16().float(), v.bfloat16().float())
    got = F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert got.dtype is torch.bfloat16
    close(got.float(), want.bfloat16().float(), 1e-2)


def test_only_a_forbidden_backend() -> None:
    q = make(2, 3, 4, 5, 6)  # five dimensions: the row does not cover them
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("number", range(3))
def test_errors(number: int) -> None:
    args, params = list(flash._errors(make))[number]
    with pytest.raises(RuntimeError):
        ops.attention(*args, **params)


def test_the_partitioner_knows_what_it_costs() -> None:
    """Attention counts as its two products, not as one step per element."""
    from compiler.fake import fake_tensor, infer_node
    from compiler.ir.graph import Graph
    from compiler.partition.cost import flops

    graph = Graph()
    inputs = [graph.placeholder(n) for n in "qkv"]
    for n in inputs:
        n.meta["val"] = fake_tensor((2, 4, 64, 16), torch.float32)
    params = dict(causal=False, scale=0.25, dropout=0.0, shift=0)
    node = graph.call_function(ops.attention, (*inputs, None, None), params)
    node.meta["val"] = infer_node(ops.attention, (*[n.meta["val"] for n in inputs], None, None), params)
    assert flops(node) >= 4 * 2 * 4 * 64 * 64 * 16
