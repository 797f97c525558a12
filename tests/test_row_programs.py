"""Random programs over the whole table of rows: fused = eager, element by element within what arithmetic allows.

Here some dozens, drawn by Hypothesis, which shrinks them; ``TT_FUZZ_EXAMPLES`` draws more, ``row_batches.py`` a hundred
thousand by dice.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_helpers import trace
from numba_helpers import TINY
from program_bounds import agrees, exact, met, result
from row_batches import DiffersError, check, needed, smallest
from row_programs import KINDS, Program, Step, programs, rolled

from codegen_numba.build import build
from compiler.config import Config
from compiler.loop import compile_graph, interp
from compiler.loop.printer import format_plan, parse_plan
from tinytorch.device import cpu
from tinytorch.dtypes import bool_, float32
from tinytorch.ops import TABLE
from tinytorch.tensor import Tensor

EXAMPLES = int(os.environ.get("TT_FUZZ_EXAMPLES", "40"))
NUMERICS = st.sampled_from(["fast", "strict"])


@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), NUMERICS)
def test_the_interpreter_is_eager(program: Program, numerics: str) -> None:
    check([program], "interp", numerics)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), NUMERICS, st.booleans())
def test_machine_code_is_eager(program: Program, numerics: str, tiny: bool) -> None:
    check([program], "numba", numerics, tiny)


@pytest.mark.parametrize("first", [0, 12, 24])
def test_many_programs_as_one_graph(first: int) -> None:
    batch = [rolled(first + n) for n in range(12)]
    check(batch, "interp")
    check(batch, "numba", "strict", tiny=first == 12)


def test_every_kind_of_step_is_rolled() -> None:
    rows = {s.name for seed in range(1500) for s in rolled(seed).steps if isinstance(s, Step)}
    kinds = {TABLE[r].kind for r in rows}
    assert kinds == {"pointwise", "reduce", "scan", "view", "index", "contract", "random", "create"}
    assert len(rows) > 95 and len(KINDS) > 30


def test_most_elements_are_compared() -> None:
    """Bounds that allow everything would make a test that cannot fail."""
    values = [p.values[o] for p in map(rolled, range(400)) for o in p.outputs]
    known = sum(int((v.error < 0.05 * np.maximum(1, np.abs(v.array.astype(np.complex128)))).sum()) for v in values)
    assert known > 0.9 * sum(v.array.size for v in values)


def test_a_wrong_result_is_seen() -> None:
    """One element of each output turned wrong is found wrong, but where its bound is infinite."""
    seen = 0
    for p in map(rolled, range(200)):
        for v in (p.values[o] for o in p.outputs):
            if not v.array.size or v.kind == "c" or not np.isfinite(v.error.flat[0]):
                continue
            wrong = v.array.copy()
            first = wrong.flat[0]
            wrong.flat[0] = not first if v.kind == "b" else first ^ 1 if v.kind in "iu" else 0 if abs(first) > 50 else 100
            seen += 1
            assert not agrees(wrong, v, False).all() and agrees(v.array, v, True).all()
    assert seen > 200


def test_what_nobody_promises_has_no_bound() -> None:
    """Products whose factors may overflow by parts, the sign of a NaN or of the greater of two zeros, and C's power of -inf
    beside NumPy's root."""

    def bound(name: str, *arrays: list[float], **params: object) -> list[bool]:
        values = [exact(Tensor._wrap(np.array(a, np.float32), cpu)) for a in arrays]
        return np.isinf(result(name, TABLE[name](*(v.t for v in values), **params), values, params).error).tolist()

    rows = [[1e30, 1e30, 0.0], [1e30, 1e-30, 0.0], [1e-30, 1e-30, 1e30], [2.0, 3.0, 0.0]]
    assert bound("prod", rows, dim=(1,), keepdim=False) == [True, False, True, False]
    assert bound("cumprod", rows[0], dim=0) == [False, True, True]
    assert bound("copysign", [1.0, np.inf, 1.0], [np.nan, np.nan, -2.0]) == [True, True, False]
    assert bound("pow", [-np.inf, -np.inf, 4.0], [0.5, 1.0, 0.5]) == [True, False, False]
    zeros, one = (exact(Tensor._wrap(np.array(a, np.float32), cpu)) for a in ([-0.0, 0.0, -0.0, 1.0], [1.0, 1.0, 1.0, 1.0]))
    greatest = result("clamp_min", TABLE["clamp_min"](zeros.t, 0.0), [zeros, 0.0], {})
    assert not greatest.same and (greatest.error > 0).tolist() == [True, False, True, False]
    inverse = result("div", TABLE["div"](one.t, greatest.t), [one, greatest], {})
    assert np.isinf(inverse.error[0]) and inverse.error[3] < 1e-6


def test_what_half_precision_rounds_has_a_bound() -> None:
    """Quotients that eager rounds, or overflows, before it goes on; and numbers that it rounds to the type they meet."""
    eight, tiny = (Tensor._wrap(np.array([a], np.float16), cpu) for a in (6.0, 1.2e-7))
    assert np.isinf(result("floordiv", TABLE["floordiv"](eight, tiny), [exact(eight), exact(tiny)], {}).error).all()
    x, one = exact(eight), exact(Tensor._wrap(np.array(0.1, np.float32), cpu))
    assert [v.exact for v in met([x, one])] == [True, False]
    assert [v.exact for v in met([one, one, 0.1])[:2]] == [True, True]


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_a_sum_in_blocks_keeps_the_nan_of_a_term(numerics: str) -> None:
    """Terms are regrouped with one another, never with what they were computed of."""
    x = np.linspace(0, 1, 112, dtype=np.float32).reshape(2, 7, 8)
    x[0, 1, 3], x[1, 4, 7] = np.inf, -3e38
    fn = lambda x: TABLE["sum"](TABLE["sub"](x, x), dim=(0, 2), keepdim=False)  # noqa: E731
    config = Config(numerics=numerics)
    plan = compile_graph(trace(fn, Tensor._wrap(x, cpu)), config)
    np.testing.assert_array_equal(build(plan, config, TINY)([x])[0], [0, np.nan, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("size", [10, 34, 35])
def test_the_last_block_of_a_reduction_against_the_grain_is_a_shorter_one(size: int) -> None:
    """Blocks that run together all run as often as their own length says."""
    x = Tensor._wrap(np.linspace(1, 3, size, dtype=np.float32), cpu)

    def fn(x: Tensor) -> Tensor:
        spread = TABLE["slice_backward"](x, dim=0, size=2 * size + 1, start=2, stop=2 * size + 1, step=2)
        return TABLE["var"](spread, dim=(0,), keepdim=True, correction=1)

    (got,) = build(compile_graph(trace(fn, x), Config()), Config(), TINY)([x._data])
    np.testing.assert_allclose(got, fn(x)._data, rtol=1e-6)


def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(n for n in range(100) if any(isinstance(s, Step) and s.name == "tanh" for s in rolled(n).steps))
    p = rolled(seed)

    def breaks(batch: list[Program], **how: object) -> None:
        if any(isinstance(s, Step) and s.name == "tanh" for q in batch for s in q.steps):
            raise DiffersError("tanh")

    monkeypatch.setattr("row_batches.check", breaks)
    small = smallest(p)
    assert isinstance(small.steps[-1], Step) and small.steps[-1].name == "tanh"
    assert len(needed(small).steps) == len(small.steps) <= len(p.steps)


def test_a_plan_with_a_nan_is_what_its_text_says() -> None:
    fn = lambda: TABLE["asin"](TABLE["full"](shape=(), value=2, dtype=float32, device=cpu))  # noqa: E731
    plan = compile_graph(trace(fn), Config())
    (kernel,) = plan.kernels
    again = parse_plan(format_plan(plan))
    assert math.isnan(kernel.body[0].value) and again == plan and hash(again.kernels[0]) == hash(kernel)


def test_a_condition_that_is_known_chooses() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        no = TABLE["full"](shape=(9,), value=0, dtype=bool_, device=cpu)
        return TABLE["where"](no, no, 2), TABLE["where"](no, x, 2.0)

    x = np.ones(9, np.float32)
    plan = compile_graph(trace(fn, Tensor._wrap(x, cpu)), Config())
    for got in (interp.run_plan(plan, [x]), build(plan, Config())([x])):
        np.testing.assert_array_equal(got[0], np.full(9, 2))
        np.testing.assert_array_equal(got[1], np.full(9, 2.0))


def test_library_calls_on_no_elements() -> None:
    """A plan whose temporaries are all empty still hands its library calls views of something."""
    x = Tensor._wrap(np.empty((1, 2, 0), np.float32), cpu)
    state = Tensor._wrap(np.empty((2, 0), np.int64), cpu)

    def fn(x: Tensor, at: Tensor) -> Tensor:
        moved = TABLE["exp"](TABLE["permute"](x, dims=(1, 2, 0)))
        return TABLE["cumargmax"](TABLE["view"](moved, shape=(2, 0)), dim=1), TABLE["scatter"](at, at, at, dim=1)

    built = build(compile_graph(trace(fn, x, state), Config()), Config())
    assert [a.shape for a in built([x._data, state._data])] == [(2, 0), (2, 0)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("row", ["matmul", "argsort", "pow"])
def test_library_calls_are_quiet(row: str) -> None:
    """NumPy's warnings of overflow and NaN come out of compiled code no more than out of eager."""
    dtype = np.complex64 if row == "pow" else np.float32
    x = Tensor._wrap(np.array([[3e38, np.inf], [-np.inf, np.nan]], dtype)[::-1, ::-1], cpu)  # BLAS takes no such layout
    args, params = {"matmul": ((x, x), {}), "argsort": ((x,), {"dim": 1, "descending": False}), "pow": ((x, x), {})}[row]
    inputs = [x] * len(args)
    built = build(compile_graph(trace(lambda *xs: TABLE[row](*xs, **params), *inputs), Config()), Config())
    assert "x0(" in built.source
    (got,) = built([t._data for t in inputs])
    np.testing.assert_array_equal(got, TABLE[row](*args, **params)._data)
