"""Values, gradients, types, shapes, strides and errors against PyTorch's answers, recorded in ``tests/data``.

``tests/record`` holds the cases and says how the answers are made anew.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytorch as torch

sys.path.insert(0, str(Path(__file__).parent / "record"))

from harness import Case, Result, run  # noqa: E402
from store import load  # noqa: E402

THEMES = [p.stem.removeprefix("torch_") for p in sorted((Path(__file__).parent / "data").glob("torch_*.json"))]
#: (relative, absolute) tolerance of values computed in this type
TOLERANCE = {
    "float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2), "float32": (3e-6, 2e-6), "float64": (1e-10, 1e-10),
    "complex64": (3e-6, 3e-6), "complex128": (1e-10, 1e-10),
}  # fmt: skip
RECORDED: dict[str, dict[str, Result]] = {theme: load(f"torch_{theme}") for theme in THEMES}
CASES: list[tuple[str, Case]] = [
    (theme, case) for theme in THEMES for case in importlib.import_module(f"cases_{theme}").CASES
]


def differences(ours: Result, theirs: Result, dtype: str, loose: float, zeros: bool = True) -> list[str]:
    """What is not equal, in words."""
    if ours.error or theirs.error:
        if not (ours.error and theirs.error):
            return [f"error: {ours.error} for {theirs.error}"]
        if ours.error[0] != theirs.error[0]:
            return [f"error type: {ours.error} for {theirs.error}"]
        alike = difflib.SequenceMatcher(None, ours.error[1][:200], theirs.error[1][:200]).ratio()
        return [] if alike > 0.4 else [f"error text: {ours.error} for {theirs.error}"]
    if _strideless(ours.notes) != _strideless(theirs.notes):
        return [f"{a} for {b}" for a, b in zip(ours.notes, theirs.notes, strict=False) if a != b] or ["number of results"]
    rtol, atol = TOLERANCE.get(dtype, (1e-6, 1e-6))
    found = []
    outputs = sum(note[0] == "tensor" for note in ours.notes)
    for k, (a, b) in enumerate(zip(ours.arrays, theirs.arrays, strict=True)):
        rt, at = (rtol * loose, atol * loose) if a.dtype.kind in "fc" else (0, 0)
        if a.dtype == np.float64 and dtype in ("float16", "bfloat16", "float32"):
            rt, at = rtol * loose, atol * loose
        if not np.allclose(a, b, rt, at, equal_nan=True):
            found.append(f"values of {k}: {a.tolist()} for {b.tolist()}")
        elif zeros and k < outputs and a.dtype.kind == "f" and np.any(np.signbit(a) != np.signbit(b), where=(a == 0) & (b == 0)):
            found.append(f"signs of zeros in {k}: {a.tolist()} for {b.tolist()}")
    return found


def _strideless(notes: list[Any]) -> list[Any]:
    """Strides of empty tensors, and of dimensions of size 1, mean nothing."""
    return [_meant(n) if n[0] == "tensor" else n for n in notes]


def _meant(note: list[Any]) -> list[Any]:
    kind, dtype, shape, strides = note
    return [kind, dtype, shape, [] if 0 in shape else [s for s, n in zip(strides, shape, strict=True) if n != 1]]


@pytest.mark.parametrize(("theme", "case"), CASES, ids=[f"{t}-{c.name}" for t, c in CASES])
def test_equals_recorded(theme: str, case: Case) -> None:
    if case.differs:
        pytest.skip(f"differs on purpose: {case.differs}")
    wrong: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, dtype in case.variants():
            found = differences(run(torch, case, dtype), RECORDED[theme][key], dtype, case.loose, case.zeros)
            if found:
                wrong[dtype] = found
    assert not wrong, "\n".join(f"{case.expr} [{d}]: {line}" for d, lines in wrong.items() for line in lines)


def test_every_case_is_recorded() -> None:
    missing = [k for theme, case in CASES for k, _ in case.variants() if k not in RECORDED[theme]]
    assert not missing
