"""Complex numbers on a GPU: their rows run whole, between kernels, and alone; every row as eager computes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from row_helpers import Maker
from test_complex_compiled import turned
from test_rows_compiled import ROWS, agree, cases, compiled

import tinytorch as torch
from codegen_cupy import emulate
from codegen_cupy.program import Program
from compiler.config import Config
from tinytorch import dtypes
from tinytorch.tensor import Tensor

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_program(dynamic: bool, mode: str) -> None:
    torch.compiler.reset()
    results = []
    for fn in (turned, torch.compile(turned, fullgraph=True, dynamic=dynamic, mode=mode)):
        for _ in range(2 if fn is turned else 3):
            torch.manual_seed(0)
            x, angle = (torch.randn(3, n).to("cuda").requires_grad_() for n in (4, 2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # such calls are not recorded, and that is said
                pairs, number = fn(x, angle)
                (pairs.square().sum() + number).backward()
            results.append([t.cpu() for t in (pairs, number, x.grad, angle.grad)])
    for got in results[1:]:
        torch.testing.assert_close(got, results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_every_row(name: str) -> None:
    for args, params in cases(name, Maker, dtypes.complex64):
        on_gpu = [Tensor._wrap(a._data, torch.device("cuda")) if isinstance(a, Tensor) else a for a in args]
        plan, arrays = compiled(name, on_gpu, params, "fast")
        agree(name, plan, Program(plan, Config(cuda_emulate=True))(arrays), on_gpu, params, exact=False)


def test_products_go_to_the_library() -> None:
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.standard_normal((2, 3, 3)) + 1j).to("cuda") for _ in range(2))
    program = Program(compiled("matmul", [x, y], {}, "fast")[0], Config(cuda_emulate=True))
    assert [type(s).__name__ for s in program.recipe().steps if type(s).__name__ in ("Product", "Call")] == ["Product"]
