"""The recorded cases once more on the GPU, through CuPy; skipped loudly where there is none.

Cases that write their own CPU tensors beside the inputs are left out.
"""

from __future__ import annotations

import warnings

import pytest
from test_eager_recorded import CASES, RECORDED, Case, differences, run

import tinytorch as torch
from tinytorch.device import cuda_available, emulated

pytestmark = pytest.mark.cuda
SKIP = "" if cuda_available() and not emulated() else "no CUDA GPU through CuPy: the eager library was NOT tested on one"


def own_tensors(case: Case) -> bool:
    """Whether the case makes tensors of its own, which would be on the CPU."""
    text = case.expr + case.setup
    makers = ("torch.tensor(", "torch.ones(", "torch.zeros(", "torch.empty(", "numpy", "torch.float", "repr(")
    return not case.inputs or any(m in text for m in makers)


ON_GPU = [(theme, case) for theme, case in CASES if theme != "errors" and not case.differs and not own_tensors(case)]


@pytest.mark.skipif(bool(SKIP), reason=SKIP)
@pytest.mark.parametrize(("theme", "case"), ON_GPU, ids=[f"{t}-{c.name}" for t, c in ON_GPU])
def test_equals_recorded_on_the_gpu(theme: str, case: Case) -> None:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, dtype in case.variants():
            found = differences(run(torch, case, dtype, "cuda"), RECORDED[theme][key], dtype, case.loose * 4, False)
            wrong += [f"{key} {case.expr}: {line[:300]}" for line in found]
    assert not wrong, "\n".join(wrong)
