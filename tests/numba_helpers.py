"""Running kernel source and plans of the Numba codegen in tests."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen_numba import kernels
from codegen_numba.build import build
from codegen_numba.compile import Source
from codegen_numba.schedule import Tune
from compiler.config import Config
from compiler.loop import interp
from compiler.loop.ir import Alloc, ArrayView, Kernel, Plan, Run

#: Everything small, so that little data has several blocks, parts and private copies.
TINY = Tune(block=4, scratch=5, few=2, parallel=1, parts=3, strip=3, tile=(3, 5), around=1)

_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def run_source(source: Source, arguments: Sequence[Any], stop: int) -> None:
    """Call one piece of kernel source on arrays and ints, over [0, stop)."""
    words = np.array([a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments], np.int64)
    _ENTRY(kernels.address(source))(words.ctypes.data, 0, stop, 0)


def plan_of(kernel: Kernel, fills: dict[str, Any] | None = None) -> Plan:
    """A plan that runs one kernel: what it only reads is input, what it writes is allocated and put out."""
    fills = fills or {}
    inputs = tuple(b for b in kernel.params if b.name not in kernel.writes)
    outputs = [b for b in kernel.params if b.name in kernel.writes]
    allocs = tuple(Alloc(b, fills.get(b.name)) for b in outputs)
    views = tuple(ArrayView(b.name, b.shape, b.stride) for b in outputs)
    run = Run(0, tuple(b.name for b in kernel.params))
    return Plan(inputs, views, (kernel,), (*allocs, run), kernel.sizes)


def run_kernel(
    kernel: Kernel, arrays: Sequence[np.ndarray], sizes: tuple[int, ...] = (), fills: dict[str, Any] | None = None,
    tune: Tune | None = None, **config: Any,
) -> list[np.ndarray]:  # fmt: skip
    """By machine code."""
    return build(plan_of(kernel, fills), Config().replace(config), tune)(list(arrays), sizes)


def interpret(
    kernel: Kernel, arrays: Sequence[np.ndarray], sizes: tuple[int, ...] = (), fills: dict[str, Any] | None = None
) -> list[np.ndarray]:
    """By the loop interpreter."""
    return interp.run_plan(plan_of(kernel, fills), arrays, sizes)
