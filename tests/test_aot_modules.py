"""Every layer and loss of the recorded cases, through the joint graph and the min cut: results and gradients as eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nn_cases import CASES, Case, array, seeded
from test_nn_recorded import fill, flat

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler.aot.autograd import aot_autograd
from compiler.ir.verify import verify
from compiler.partition import min_cut
from tinytorch import Tensor, nn


def checked(gm: Any, examples: Any) -> Any:
    verify(gm, functional=True, level=1)
    return gm


backend = aot_autograd(checked, partition_fn=lambda joint, n: min_cut(joint, n, 1.0))


class AsFunction:
    """A case as a function of its parameters, buffers and inputs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = seeded(case.name)
        self.m = eval(case.make, {"nn": nn, "torch": torch}) if case.make else None
        if self.m is not None:
            if isinstance(self.m, nn.Module):
                self.m.double()
            fill(self.m, rng)
            self.m.train(not case.eval)
        modules = list(self.m.modules()) if isinstance(self.m, nn.Module) else []
        self.slots = [(m._parameters, n) for m in modules for n in m._parameters if m._parameters[n] is not None]
        self.slots += [(m._buffers, n) for m in modules for n in m._buffers if m._buffers[n] is not None]
        self.args: list[Any] = [where[n] for where, n in self.slots]
        for spec in case.inputs:
            values, wanted = array(rng, spec)
            t = torch.tensor(values)
            self.args.append(t.requires_grad_() if wanted else t)
        self.structure: Any = None

    def __call__(self, *args: Any) -> list[Any]:
        count = len(self.slots)
        before = [where[n] for where, n in self.slots]
        try:
            for (where, n), value in zip(self.slots, args[:count], strict=True):
                where[n] = value
            names = {"m": self.m, "F": F, "torch": torch, "nn": nn, **dict(zip("xyzw", args[count:], strict=False))}
            return flat(eval(self.case.call, names))
        finally:
            for (where, n), value in zip(self.slots, before, strict=True):
                where[n] = value


def outcome(case: Case, compiled: bool) -> tuple[list[Any], list[Any], list[Any]]:
    torch.manual_seed(5)
    fn = AsFunction(case)
    run = backend(fn, fn.args) if compiled else fn
    torch.manual_seed(6)
    results = run(*fn.args)
    roots = [t for t in results if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) * 0.5 for t in roots])
    return results, [t.grad for t in fn.args], [t for t in fn.args]


#: results whose shape depends on values: capture breaks the graph there
DATA_DEPENDENT = {"F.one_hot(x) ('9:i5',)"}


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in DATA_DEPENDENT], ids=lambda c: c.name)
def test_a_case_compiles_to_what_eager_does(case: Case) -> None:
    for got, want in zip(outcome(case, compiled=True), outcome(case, compiled=False), strict=True):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if isinstance(g, Tensor):
                assert g.dtype is w.dtype and g.requires_grad == w.requires_grad
                assert g.stride() == w.stride() and g.shape == w.shape
                np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-9, atol=1e-12)
