"""Compiled graphs on two devices: small tables made on the CPU for the GPU, results brought back, both, and to and fro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from codegen_cupy import emulate
from compiler import logs
from compiler.backends import devices
from compiler.config import config
from tinytorch import Tensor

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.cuda)], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    emulated = request.param == "emulated"
    if emulated:
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    torch.compiler.reset()
    with config.patch(cuda_emulate=emulated):
        yield
    torch.compiler.reset()


def table(x: Tensor, w: Tensor) -> Any:
    half = torch.exp(-torch.arange(3, dtype=torch.float32) / 3).to(x.device)
    return (x[:, :1] * half * w).sum(), half


def brought_back(x: Tensor, w: Tensor) -> Any:
    y = (x * w).tanh()
    return y, y.cpu(), y.detach().cpu().sum() + 1, y.sum().cpu() * 2


def from_the_host(x: Tensor, w: Tensor) -> Any:
    host = torch.ones(3) * 2
    mask = torch.tensor([True, False, True])
    return torch.where(mask.to(x.device), x * w, host.to(x)), host


def through(x: Tensor, w: Tensor) -> Any:
    limit = torch.linspace(0, 1, 3)
    y = torch.minimum(x * w, limit.to(x.device))
    return (y.cpu() + limit).mean(), y


def to_and_fro(x: Tensor, w: Tensor) -> Any:
    y = (x * w).cpu() * 3
    return (y.to(x.device) + x).sum(), y


def number_of_the_host(x: Tensor, w: Tensor) -> Any:
    scale = torch.tensor(3.0) * 2
    return x * scale * w, scale.to(x.device) * w


PROGRAMS = [table, brought_back, from_the_host, through, to_and_fro, number_of_the_host]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_graph_on_two_devices(fn: Callable[..., Any], dynamic: bool) -> None:
    found = []
    compiled = torch.compile(fn, fullgraph=True, dynamic=dynamic)
    for call in (fn, compiled, compiled):
        x = torch.linspace(-1, 1, 12).reshape(4, 3).cuda()
        w = torch.linspace(1, 2, 3).cuda().requires_grad_()
        outs = call(x, w)
        wanted = [o for o in outs if o.requires_grad]
        torch.autograd.backward([o.sum() for o in wanted])
        found.append([(o.device.type, o.requires_grad, o.detach().cpu().numpy()) for o in (*outs, w.grad)])
    for got in found[1:]:
        for (*want, value), (*have, other) in zip(found[0], got, strict=True):
            assert have == want
            np.testing.assert_allclose(other, value, rtol=1e-5, atol=1e-6)


def test_a_batch_of_the_host_is_trained_on_the_gpu() -> None:
    """One graph: the batch goes up, the loss comes down, and each device runs its own kernels."""

    def run(wrap: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3).cuda()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            opt.zero_grad()
            x = (x - x.mean()) / x.std()
            loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
            loss.backward()
            opt.step()
            return loss.detach().cpu() * 2

        call = wrap(step)
        torch.manual_seed(1)
        losses = [call(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])) for _ in range(3)]
        return [*losses, *(p.detach().cpu() for p in net.parameters())]

    with logs.collecting() as made:
        got = run(lambda f: torch.compile(f, fullgraph=True, dynamic=False))
    assert sum(topic == "graph" for topic, *_ in made) == 1 and sum(topic == "loops" for topic, *_ in made) >= 2
    for a, b in zip(got, run(lambda f: f), strict=True):
        assert a.device.type == b.device.type == "cpu"
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_a_graph_on_one_device_is_left_alone() -> None:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "on_both", lambda *args: seen.append(args))
        torch.compile(lambda x: x.to(x.device) * 2, fullgraph=True)(torch.ones(3).cuda())
        torch.compile(lambda x: x.cpu() * 2, fullgraph=True)(torch.ones(3))
    assert not seen
