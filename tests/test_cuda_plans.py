"""From op rows to CUDA: graphs lowered and fused for a GPU, run by the emulated machine, compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from loop_helpers import trace
from test_loop_random import programs

import tinytorch as torch
from codegen_cupy import emulate
from codegen_cupy.emulated_machine import EmulatedMachine
from codegen_cupy.program import Program
from compiler.config import Config
from compiler.loop import compile_graph
from tinytorch import dtypes, ops, tape
from tinytorch.device import Device
from tinytorch.tensor import Tensor

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
RNG = np.random.default_rng(0)
CUDA = Device("cuda", 0)


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    yield


def tensor(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor._wrap(RNG.normal(size=shape).astype(dtype), CUDA)


def integers(high: int, *shape: int) -> Tensor:
    return Tensor._wrap(RNG.integers(0, high, size=shape), CUDA)


def compare(fn: Callable[..., Any], *tensors: Tensor, tolerance: float = 3e-5) -> Program:
    """Eager's results, types, shapes and strides; the program is returned for a look at its kernels."""
    program = Program(compile_graph(trace(fn, *tensors), Config()), Config(cuda_emulate=True))
    got = program([t._data for t in tensors])
    with tape.grad_mode(False):
        want = fn(*tensors)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        w = w._data
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        kind = np.float64 if g.dtype.kind in "fV" else g.dtype
        np.testing.assert_allclose(g.astype(kind), w.astype(kind), rtol=tolerance, atol=tolerance)
    return program


def kernels(program: Program) -> list[str]:
    return [s.source.name for s in program.recipe().launches]


def mean(x: Any, dim: tuple[int, ...], count: int) -> Any:
    return ops.div(ops.sum(x, dim=dim, keepdim=True), float(count))


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    n = x.shape[1]
    d = ops.sub(x, mean(x, (1,), n))
    rstd = ops.rsqrt(ops.add(mean(ops.mul(d, d), (1,), n), 1e-5))
    return ops.add(ops.mul(ops.mul(d, rstd), w), b)


def softmax(x: Any) -> Any:
    e = ops.exp(ops.sub(x, ops.amax(x, dim=(1,), keepdim=True)))
    return ops.div(e, ops.sum(e, dim=(1,), keepdim=True))


def test_layer_norm_is_one_kernel() -> None:
    assert len(kernels(compare(layer_norm, tensor(37, 256), tensor(256), tensor(256)))) == 1


@pytest.mark.parametrize("shape", [(5, 7), (64, 1024), (2, 40_000)])
def test_softmax(shape: tuple[int, int]) -> None:
    compare(softmax, tensor(*shape))


def test_gradients_of_a_norm_with_its_weights() -> None:
    def backward(g: Any, x: Any, w: Any, m: Any, rstd: Any) -> Any:
        n = x.shape[1]
        normal = ops.mul(ops.sub(x, m), rstd)
        gw = ops.mul(g, w)
        s = ops.add(mean(gw, (1,), n), ops.mul(normal, mean(ops.mul(gw, normal), (1,), n)))
        sums = ops.sum(ops.mul(g, normal), dim=(0,), keepdim=False), ops.sum(g, dim=(0,), keepdim=False)
        return ops.mul(ops.sub(gw, s), rstd), *sums

    rows, weights, stats = (200, 96), (96,), (200, 1)
    program = compare(
        backward, tensor(*rows), tensor(*rows), tensor(*weights), tensor(*stats), tensor(*stats), tolerance=2e-4
    )
    assert len(kernels(program)) == 1


def test_bias_gradient_beside_its_cause() -> None:
    def backward(g: Any, x: Any) -> Any:
        d = ops.mul(g, ops.tanh(x))
        return d, ops.sum(d, dim=(0,), keepdim=False)

    assert len(kernels(compare(backward, tensor(300, 64), tensor(300, 64), tolerance=1e-4))) == 1


def test_cross_entropy() -> None:
    rows = 30

    def loss(x: Any, target: Any) -> Any:
        d = ops.sub(x, ops.amax(x, dim=(1,), keepdim=True))
        logs = ops.sub(d, ops.log(ops.sum(ops.exp(d), dim=(1,), keepdim=True)))
        picked = ops.gather(logs, ops.view(target, shape=(rows, 1)), dim=1)
        return ops.neg(ops.div(ops.sum(picked, dim=(0, 1), keepdim=False), float(rows)))

    compare(loss, tensor(rows, 257), integers(257, rows))


def test_batch_statistics() -> None:
    def norm(x: Any) -> Any:
        count = x.shape[0] * x.shape[2] * x.shape[3]
        d = ops.sub(x, mean(x, (0, 2, 3), count))
        return ops.mul(d, ops.rsqrt(ops.add(mean(ops.mul(d, d), (0, 2, 3), count), 1e-5)))

    compare(norm, tensor(4, 3, 9, 11))


def test_whole_tensor_norm_divides() -> None:
    compare(lambda x: ops.div(x, ops.sum(ops.mul(x, x), dim=(0, 1), keepdim=True)), tensor(64, 1024))


@pytest.mark.parametrize("dims", [(1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_permuted_copies(dims: tuple[int, ...]) -> None:
    compare(lambda x: ops.add(ops.contiguous(ops.permute(x, dims=dims)), 1.0), tensor(33, 20, 40))


def test_embedding_and_its_gradient() -> None:
    ids, table, g = integers(9, 25), tensor(9, 32), tensor(25, 32)
    compare(lambda ids, table: ops.index_select(table, ids, dim=0), ids, table)
    zeros = Tensor._wrap(np.zeros((9, 32), np.float32), CUDA)
    compare(lambda z, ids, g: ops.index_add(z, ids, g, dim=0), zeros, ids, g)


def test_matmul_between_kernels() -> None:
    compare(lambda x, w, b: ops.tanh(ops.add(ops.matmul(ops.mul(x, 2.0), w), b)), tensor(20, 30), tensor(30, 10), tensor(10))


def test_half_precision_rounds_at_the_end() -> None:
    x = tensor(64, 128, dtype=dtypes.bfloat16.np)
    compare(softmax, x, tolerance=2e-2)


def test_dropout_draws_eager_bits() -> None:
    state = Tensor._wrap(np.array([11, 5]), CUDA)

    def drop(state: Any, x: Any) -> Any:
        keep = ops.lt(ops.uniform(state, shape=(50, 80), shift=3, dtype=dtypes.float32), 0.5)
        return ops.where(keep, ops.mul(x, 2.0), 0.0)

    compare(drop, state, tensor(50, 80))


@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs(program: Any) -> None:
    fn, tensors = program
    compare(fn, *tensors, tolerance=1e-4)


def test_gradients_that_start_at_zero_take_one_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    fills: list[int] = []
    fill = EmulatedMachine.fill
    monkeypatch.setattr(EmulatedMachine, "fill", lambda self, *args: (fills.append(args[2]), fill(self, *args))[1])
    rng = np.random.default_rng(0)
    x, g, *w = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)).to("cuda") for s in ((64, 300), (64, 300), *[(300,)] * 4))
    for t in w:
        t.requires_grad_()

    def gradients(x: Any, g: Any) -> list[Any]:
        for t in w:
            t.grad = None
        norm = torch.nn.functional.layer_norm
        norm(norm(x, (300,), w[0], w[1]).sin(), (300,), w[2], w[3]).backward(g)
        return [t.grad for t in w]

    want = [t.cpu().numpy() for t in gradients(x, g)]
    compiled = torch.compile(gradients)
    first = compiled(x, g)
    assert len(fills) == 1
    second = compiled(x, 2 * g)
    for a, b, c in zip(first, second, want, strict=True):  # each call has its own block
        np.testing.assert_allclose(a.cpu().numpy(), c, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(b.cpu().numpy(), 2 * c, rtol=1e-3, atol=1e-3)
