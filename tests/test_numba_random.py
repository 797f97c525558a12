"""Random programs by machine code: equal to eager, with ordinary tuning and with every block and part tiny."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_helpers import trace
from numba_helpers import TINY
from test_loop_random import programs

from codegen_numba.build import build
from compiler.config import Config
from compiler.loop import compile_graph
from compiler.loop.printer import format_plan
from tinytorch import dtypes, tape
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

EXAMPLES = int(os.environ.get("TT_FUZZ_EXAMPLES", 10_000 if os.environ.get("TT_LONG_TESTS") else 40))


def check(fn: Any, tensors: list[Tensor], tune: Any = None, tolerance: float = 1e-4, **config: Any) -> None:
    settings_ = Config().replace(config)
    plan = compile_graph(trace(fn, *tensors), settings_)
    built = build(plan, settings_, tune)
    with tape.grad_mode(False):
        expected = fn(*tensors)
    for _ in range(2):  # the second call meets used memory
        got = built([t._data for t in tensors])
        for g, e in zip(got, expected, strict=True):
            e = e._data
            text = "\n".join([format_plan(plan), built.source, *built.kernels.values()])
            assert g.dtype == e.dtype and g.shape == e.shape, text
            kind = np.float64 if g.dtype.kind in "fV" else g.dtype
            np.testing.assert_allclose(
                g.astype(kind), e.astype(kind), rtol=tolerance, atol=tolerance / 10, err_msg=text
            )


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([None, TINY]), st.sampled_from(["fast", "strict"]))
def test_machine_code_is_eager(program, tune, numerics):
    fn, tensors = program
    check(fn, tensors, tune, numerics=numerics)


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(6), st.sampled_from(["float16", "bfloat16", "float64"]), st.sampled_from([None, TINY]))
def test_other_types(program, dtype, tune):
    fn, tensors = program
    wide = dtypes.BY_NAME[dtype]
    cast = [Tensor._wrap(t._data.astype(wide.np), cpu) if t._data.dtype.kind == "f" else t for t in tensors]
    check(fn, cast, tune, {"float16": 0.02, "bfloat16": 0.2, "float64": 1e-10}[dtype])
