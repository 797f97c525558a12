"""Attention in cache on the CPU: equal to the row for every flag and type, alone and inside a compiled program."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from codegen_numba import flash, kernels, product
from codegen_numba.matmul import Template
from compiler.loop.ir import ArrayView, Buffer, Extern
from tinytorch import dtypes
from tinytorch.nn.attention import SDPBackend, sdpa_kernel
from tinytorch.ops import flash as row

ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.5e-2}


class Call:
    """An extern step over real arrays, run as its template says."""

    def __init__(self, fn: str, inputs: dict[str, Any], outs: dict[str, Any], params: dict[str, Any]) -> None:
        self.arrays = {n: a for n, a in (inputs | outs).items() if a is not None}
        self.buffers = {n: Buffer(n, dtypes.from_numpy(a.dtype), a.shape, strides(a)) for n, a in self.arrays.items()}
        self.step = Extern(fn, tuple(map(self.view, inputs)), tuple(map(self.view, outs)), params)

    def view(self, name: str) -> Any:
        a = self.arrays.get(name)
        return None if a is None else ArrayView(name, a.shape, strides(a))

    def run(self, template: Template) -> None:
        keep = np.zeros(int(template.scratch) + 64, np.uint8)
        words = [self.word(s, keep) for s in template.slots]
        block = np.array(words, np.int64)
        ENTRY(kernels.address(template.source))(block.ctypes.data, 0, int(template.extent), 0)

    def word(self, slot: Any, scratch: np.ndarray) -> int:
        if isinstance(slot, ArrayView):
            return self.arrays[slot.buffer].ctypes.data
        return scratch.ctypes.data if slot == "scratch" else int(slot)


def strides(a: np.ndarray) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)


CASES: list[tuple[Any, Any, dict[str, Any]]] = [
    ((1, 2, 2, 64, 64, 32, 32), np.float32, {}),
    ((2, 4, 2, 100, 130, 32, 32), np.float32, {"causal": True}),
    ((2, 4, 2, 100, 77, 19, 40), np.float32, {"mask": "bool"}),
    ((2, 4, 1, 70, 77, 24, 24), np.float32, {"causal": True, "mask": "added", "dropout": 0.3}),
    ((1, 1, 1, 1, 1, 1, 1), np.float32, {"causal": True}),
    ((2, 4, 2, 100, 77, 24, 24), ml_dtypes.bfloat16, {"causal": True, "dropout": 0.3}),
    ((1, 2, 2, 65, 129, 8, 16), np.float16, {"mask": "added"}),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_are_the_row(number: int) -> None:
    (b, h, hk, t, s, d, e), kind, flags = CASES[number]
    rng = np.random.default_rng(number)

    def new(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32).astype(kind)

    sideways = (0, 2, 1, 3)
    q, k, v = (new(b, n, heads, w).transpose(sideways) for n, heads, w in ((t, h, d), (s, hk, d), (s, hk, e)))
    g = new(b, t, h, e).transpose(sideways)
    mask = {"": None, "bool": rng.random((1, h, t, s)) > 0.3, "added": new(b, 1, 1, s)}[flags.get("mask", "")]
    if flags.get("mask") == "bool":
        mask[0, 0, 0] = False  # a row that sees nobody
    state = np.array([77, 5], np.int64) if flags.get("dropout") else None
    params = {"causal": flags.get("causal", False), "scale": 0.3, "dropout": flags.get("dropout", 0.0), "shift": 4}
    with np.errstate(all="ignore"):
        out, lse = row._kernel(np, q, k, v, mask, state, **params)
        delta = (out.astype(np.float32) * g.astype(np.float32)).sum(-1)
        grads = row._backward_kernel(np, g, q, k, v, delta, lse, mask, state, **params)
    ins = {"q": q, "k": k, "v": v, "mask": mask, "state": state}
    check("attention", ins, {"out": out, "lse": lse}, params, flash.forward)
    ins = {"g": g, "q": q, "k": k, "v": v, "delta": delta, "lse": lse, "mask": mask, "state": state}
    check("attention_backward", ins, dict(zip(("dq", "dk", "dv"), grads, strict=True)), params, flash.backward)


def check(fn: str, inputs: dict[str, Any], wants: dict[str, Any], params: dict[str, Any], maker: Any) -> None:
    made = {n: np.empty_like(w) for n, w in wants.items()}
    for a in made.values():
        a[...] = np.nan
    call = Call(fn, inputs, made, params)
    (template,) = maker(call.step, call.buffers)
    call.run(template)
    tolerance = TOLERANCE[str(inputs["q"].dtype)]
    for n, want in wants.items():
        want = want.astype(np.float64)
        finite = np.isfinite(want)
        scale = max(1e-3, np.abs(want[finite]).max())
        np.testing.assert_allclose(made[n].astype(np.float64), want, rtol=0, atol=tolerance * scale, err_msg=n)


def test_what_is_left_to_others() -> None:
    """float64, and head sizes that only running tells."""
    q = np.zeros((1, 1, 4, 8))
    call = Call("attention", dict(q=q, k=q, v=q, mask=None, state=None), dict(out=q, lse=q[..., 0]),
                dict(causal=False, scale=1.0, dropout=0.0, shift=0))  # fmt: skip
    assert flash.forward(call.step, call.buffers) is None


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_in_a_compiled_program(p: float) -> None:
    """Forward and backward with neighbours, at several lengths, one program for all but the first."""

    def program(x: Any, w: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in (x @ w).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p).transpose(1, 2).reshape(b, t, c)

    compiled = torch.compile(program)
    rng = np.random.default_rng(0)
    for t in (16, 33, 70):
        x, w = rng.standard_normal((2, t, 32)).astype(np.float32), rng.standard_normal((32, 96)).astype(np.float32)
        results = []
        for fn, backend in ((program, SDPBackend.MATH), (compiled, SDPBackend.FLASH_ATTENTION)):
            leaves = [torch.tensor(a).requires_grad_() for a in (x, w)]
            torch.manual_seed(0)
            with sdpa_kernel(backend):
                out = fn(*leaves)
                (out * out).sum().backward()
            results.append([out.detach().numpy(), *(a.grad.numpy() for a in leaves)])
        for got, want in zip(*reversed(results), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_the_choice_of_backend_is_guarded() -> None:
    """Code compiled under one choice does not serve another."""
    compiled = torch.compile(F.scaled_dot_product_attention)
    q = torch.tensor(np.random.default_rng(0).standard_normal((2, 4, 50, 16)).astype(np.float32))
    outs = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            outs.append(compiled(q, q, q))
    assert not np.array_equal(outs[0].numpy(), outs[1].numpy())  # two ways, two roundings
    five = torch.tensor(np.zeros((1, 1, 2, 8, 4), np.float32))  # which only the plain formula covers
    with sdpa_kernel(SDPBackend.MATH):
        compiled(five, five, five)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(Exception, match="No available kernel"):
        compiled(five, five, five)
    np.testing.assert_allclose(outs[0].numpy(), outs[1].numpy(), atol=1e-5)


def test_the_product_uses_whole_vectors() -> None:
    """Its inner loop multiplies and adds vectors as wide as the machine has."""
    call = Call("attention", *_small(), dict(causal=False, scale=1.0, dropout=0.0, shift=0))
    (template,) = flash.forward(call.step, call.buffers) or ()
    from codegen_numba.compile import assembly

    text = assembly(template.source)
    register = "%zmm" if product.lanes() == 16 else "%ymm"
    fused = [line for line in text.splitlines() if "fmadd" in line and "ps" in line and register in line]
    if product.target.has("fma") or product.target.has("avx512f"):
        assert len(fused) >= product.lanes()


def _small() -> tuple[dict[str, Any], dict[str, Any]]:
    q = np.zeros((1, 1, 64, 32), np.float32)
    return dict(q=q, k=q, v=q, mask=None, state=None), dict(out=q, lse=q[..., 0])
