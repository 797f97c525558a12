"""Layers, losses, optimizers and schedules against results recorded from PyTorch 2.13 (``record/record_nn.py``)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nn_cases import CASES, MINIMISERS, OPTIMIZERS, SCHEDULES, Case, array, seeded

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn, optim

RECORD = Path(__file__).parent / "data" / "nn_recorded.npz"


@cache
def recorded() -> dict[str, Any]:
    """Name to array, or to text."""
    with np.load(RECORD) as f:
        groups = {k: f[k] for k in f.files}
    index = ast.literal_eval(groups.pop("index").tobytes().decode())
    out: dict[str, Any] = {}
    for name, group, shape, at in index:
        if group == "U":
            out[name] = at.split("\n\n") if shape else at
        else:
            out[name] = groups[group][at : at + int(np.prod(shape))].reshape(shape)
    return out


def flat(out: Any) -> list[Any]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in out for t in flat(part)] if isinstance(out, tuple | list) else []


def fill(m: Any, rng: np.random.Generator) -> None:
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.tensor(0.5 * rng.standard_normal(tuple(p.shape)), device=p.device))
        for _, b in m.named_buffers():
            if b.dtype.is_floating_point:
                b.copy_(torch.tensor(0.5 + rng.random(tuple(b.shape)), device=b.device))


def check(case: Case, key: str, got: Any) -> None:
    want = recorded()[f"{case.name}|{key}"]
    got = got.detach().cpu().numpy()
    assert got.shape == want.shape, key
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6, err_msg=key)
    else:
        assert got.dtype == want.dtype, key
        np.testing.assert_array_equal(got, want, err_msg=key)


PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case_equals_torch(case: Case, device: str) -> None:
    rng = seeded(case.name)
    space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    inputs = []
    for name, spec in zip("xyzw", case.inputs, strict=False):
        values, differentiate = array(rng, spec)
        space[name] = torch.tensor(values, device=device).requires_grad_(differentiate)
        inputs.append(space[name])
    module = None
    if case.make:
        space["m"] = module = eval(case.make, space).double().to(device)
        module.train(not case.eval)
        fill(module, rng)
        assert list(module.state_dict()) == list(recorded()[f"{case.name}|keys"])
        assert repr(module) == recorded()[f"{case.name}|repr"]
    outs = flat(eval(case.call, space))
    assert sum(k.startswith(f"{case.name}|out") for k in recorded()) == len(outs)
    for i, out in enumerate(outs):
        check(case, f"out{i}", out)
    live = [o for o in outs if o.requires_grad]
    total: Any = None
    for o in live:
        term = (o * torch.tensor(rng.standard_normal(tuple(o.shape)), device=device).to(o.dtype)).sum()
        total = term if total is None else total + term
    if total is not None:
        total.backward()
    for i, x in enumerate(inputs):
        assert (x.grad is not None) == (f"{case.name}|grad{i}" in recorded())
        if x.grad is not None:
            check(case, f"grad{i}", x.grad)
    if module is not None:
        for name, p in module.named_parameters():
            assert (p.grad is not None) == (f"{case.name}|grad {name}" in recorded()), name
            if p.grad is not None:
                check(case, f"grad {name}", p.grad)
        for name, b in module.named_buffers():
            check(case, f"buffer {name}", b)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizer_equals_torch(text: str, device: str) -> None:
    rng = seeded(text)
    ps = [nn.Parameter(torch.tensor(rng.standard_normal(s), device=device)) for s in ((3, 2), (4,))]
    opt = eval(f"optim.{text}", {"optim": optim, "ps": ps})
    for want in recorded()[f"optim {text}"]:
        for p in ps:
            p.grad = torch.tensor(rng.standard_normal(tuple(p.shape)), device=device)
        opt.step()
        got = np.concatenate([p.detach().cpu().numpy().ravel() for p in ps])
        single = "NAdam" in text  # PyTorch keeps the product of its momenta in float32
        np.testing.assert_allclose(got, want, rtol=1e-7 if single else 1e-9, atol=1e-12)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("text", MINIMISERS)
def test_minimiser_equals_torch(text: str, device: str) -> None:
    p = nn.Parameter(torch.tensor([-1.2, 1.0, 0.5, -0.3], dtype=torch.float64, device=device))
    opt = eval(f"optim.{text}", {"optim": optim, "p": p})

    def closure() -> Any:
        opt.zero_grad()
        loss = (100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2).sum()
        loss.backward()
        return loss

    got = [float(opt.step(closure)) for _ in range(6)] + p.tolist()
    np.testing.assert_allclose(got, recorded()[f"minimise {text}"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("text", SCHEDULES)
def test_schedule_equals_torch(text: str) -> None:
    opt = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = eval(text, {"opt": opt, "swa_utils": optim.swa_utils, **vars(optim.lr_scheduler)})
    for want in recorded()[f"schedule {text}"]:
        assert opt.param_groups[0]["lr"] == pytest.approx(want, rel=1e-12)
        opt.step()
        schedule.step()
