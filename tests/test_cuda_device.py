"""The kernels of ``cuda_cases`` on a real GPU, through the program that users run: equal to the loop interpreter.

Skipped without a GPU.  ``compute-sanitizer --tool memcheck python -m pytest tests/test_cuda_device.py`` and ``--tool racecheck`` watch
every launch of the suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_cases import CASES
from test_cuda_kernels import arguments, close

import tinytorch as torch
from codegen_cupy.emulated_machine import memory_of
from codegen_cupy.program import Program
from compiler.loop import interp
from compiler.loop.ir import ArrayView, Kernel, Plan, Run

pytestmark = pytest.mark.cuda


def in_place(k: Kernel) -> Plan:
    """A plan whose kernel writes to its inputs."""
    views = tuple(ArrayView(b.name, b.shape, b.stride) for b in k.params if b.name in k.writes)
    return Plan(tuple(k.params), views, (k,), (Run(0, tuple(b.name for b in k.params)),))


def on_device(a: np.ndarray) -> Any:
    """A CuPy array of the same strides."""
    import cupy

    if a.flags.c_contiguous:
        return cupy.asarray(a)
    memory = memory_of(a)
    return cupy.ndarray(a.shape, a.dtype, cupy.asarray(memory.block).data + memory.offset, a.strides)


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_what_the_interpreter_gives(name: str) -> None:
    k = CASES[name]()
    start = arguments(k)
    host = [np.array(a) if b.name in k.writes else a for b, a in zip(k.params, start, strict=True)]
    got = Program(in_place(k))([on_device(a) for a in start])
    interp.run_kernel(k, host)
    wanted = [h for b, h in zip(k.params, host, strict=True) if b.name in k.writes]
    for b, g, w in zip((b for b in k.params if b.name in k.writes), got, wanted, strict=True):
        close(g.get(), np.asarray(w), b.dtype)


@pytest.mark.parametrize("name", ["full_sum", "column_sum", "layer_norm", "softmax_long", "batch_statistics_large"])
def test_ten_runs_give_the_same_bits(name: str) -> None:
    """No result depends on which block came first."""
    k = CASES[name]()
    device = [on_device(a) for a in arguments(k)]
    program = Program(in_place(k))
    first = [g.get().tobytes() for g in program(device)]
    for _ in range(9):
        assert [g.get().tobytes() for g in program(device)] == first


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_the_least_integer_is_its_own_absolute_value_when_widened(dtype: str) -> None:
    x = torch.tensor([torch.iinfo(getattr(torch, dtype)).min, -5, 7], dtype=getattr(torch, dtype))
    got = torch.compile(lambda x: x.abs().long())(x.cuda())
    assert got.cpu().tolist() == x.abs().long().tolist()
