"""Calls of sin, cos and tan gathered into wider ones: same values, and only calls that do not need one another."""

from __future__ import annotations

import numpy as np
import pytest
from numba_helpers import run_source

from codegen_numba import vectors
from codegen_numba.compile import Source

HUGE = {"float32": 1e9, "float64": 1e12}


def calls(*operands: str, callee: str = "tt_sin_f32x8", kind: str = "8 x float") -> str:
    return "\n".join(
        f"  %r{n} = tail call <{kind}> @{callee}(<{kind}> {operand})" for n, operand in enumerate(operands)
    )


@pytest.mark.parametrize(
    ("operands", "left"),
    [
        (["%a"], ["x8"]),
        (["%a", "%b"], ["x16"]),
        (["%a", "%b", "%c"], ["x16", "x8"]),
        (["%a", "%b", "%c", "%d"], ["x32"]),
        (["%a", "%r0"], ["x8", "x8"]),
        (["%a", "%b", "%r0", "%r1"], ["x16", "x16"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_neighbours_that_do_not_need_one_another_become_one_call(operands: list[str], left: list[str]) -> None:
    lines = [s for s in vectors.gather(calls(*operands)).splitlines() if " call " in s]
    assert [line.split("(")[0].split("f32")[1] for line in lines] == left


def test_every_result_keeps_its_name() -> None:
    text = vectors.gather(calls("%a", "%b", "%c", "%d"))
    assert [f"%r{n} = shufflevector" in text for n in range(4)] == [True] * 4
    assert text.count("declare <32 x float> @tt_sin_f32x32") == 1


def test_another_function_between_ends_a_run() -> None:
    other = "  %q = tail call <8 x float> @tt_cos_f32x8(<8 x float> %z)"
    text = "\n".join([calls("%a"), other, calls("%b").replace("%r0", "%s0")])
    assert "shufflevector" not in vectors.gather(text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_huge_argument_changes_its_own_lane_alone(name: str, dtype: str) -> None:
    """One huge number, at each place of a stretch as long as any unrolled loop, among everyday ones."""
    text = f"def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = {name}(x[i])\n"
    everyday = np.linspace(-3, 3, 160).astype(dtype)
    quiet = np.empty_like(everyday)
    source = Source("k", text, (("x", dtype), ("out", dtype)))
    run_source(source, [everyday, quiet], everyday.size)
    for place in range(0, 160, 7):
        x, out = everyday.copy(), np.empty_like(everyday)
        x[place] = HUGE[dtype]
        run_source(source, [x, out], x.size)
        want = quiet.copy()
        want[place] = getattr(np, name)(np.float64(x[place]))
        np.testing.assert_allclose(out[place], want[place], rtol=1e-5)
        np.testing.assert_array_equal(np.delete(out, place), np.delete(want, place))
