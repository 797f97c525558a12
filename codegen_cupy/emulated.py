"""Runs a recipe on NumPy arrays: every kernel through the CPU emulator, library calls by the rows' NumPy kernels.

Stage: codegen.  In: ``Recipe``, arrays.  Out: arrays.  Used under ``TT_CUDA_EMULATE=1``; ``TT_CUDA_CHECK=1`` adds the
race and bounds check to every launch.  Read next: ``emulate``, ``launch`` (the same on a GPU).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen_cupy import emulate
from codegen_cupy.host import Call, Launch, Memory, Recipe, Release, View
from tinytorch.ops.opdef import TABLE

Array = np.ndarray[Any, Any]


def prepared(recipe: Recipe) -> Callable[[Sequence[Array]], list[Any]]:
    """A callable that runs the recipe; compiles all of its kernels first."""
    check = os.environ.get("TT_CUDA_CHECK", "") not in ("", "0")
    kernels = {s.source.text: emulate.compile_kernel(s.source.text, s.source.name, check=check) for s in recipe.launches}

    def call(inputs: Sequence[Array]) -> list[Any]:
        memory = dict(zip(recipe.inputs, inputs, strict=True))
        for step in recipe.steps:
            if isinstance(step, Memory):
                memory[step.name] = _allocate(step, memory)
            elif isinstance(step, Launch):
                launch(kernels[step.source.text], step, memory)
            elif isinstance(step, Call):
                library_call(np, step, memory)
            elif isinstance(step, Release):
                pass  # an output may still look at it; garbage collection knows
        return [look(memory[o.buffer], o) if isinstance(o, View) else o for o in recipe.outputs]

    return call


def launch(kernel: emulate.EmulatedKernel, step: Launch, memory: dict[str, Array], *, backwards: bool = False) -> None:
    source = step.source
    integer = np.int64 if source.size_bytes == 8 else np.int32
    args: list[Any] = [memory[b] for b in step.buffers]
    args += [integer(n) for n in step.sizes]
    args += [np.zeros(n, np.uint8) if s.zeroed else np.full(n, 0xA5, np.uint8)
             for s, n in zip(source.scratch, step.scratch_bytes, strict=True)]  # fmt: skip
    failed = np.zeros(1, np.int32)
    if source.messages:
        args.append(failed)
    kernel(step.grid, source.block, args, backwards=backwards)
    if failed[0]:
        raise IndexError(source.messages[failed[0] - 1])


def _allocate(step: Memory, memory: dict[str, Array]) -> Array:
    """Undefined contents should look it, so that a kernel that reads them is found out."""
    if step.reuse is not None:
        flat = elements(memory[step.reuse]).view(np.uint8)[: step.items * step.dtype.itemsize].view(step.dtype.np)
    else:
        flat = np.full(step.items * step.dtype.itemsize, 0xA5, np.uint8).view(step.dtype.np)
    if step.fill is not None:
        flat[...] = step.fill
    return np.lib.stride_tricks.as_strided(flat, step.shape, [s * step.dtype.itemsize for s in step.stride])


def elements(array: Array) -> Array:
    """The whole block of memory an array without negative strides spans, as one row."""
    item = array.dtype.itemsize
    span = 0 if array.size == 0 else 1 + sum((n - 1) * s // item for n, s in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array.reshape(-1)[:0] if not span else array, (span,), (item,))


def look(array: Any, v: View) -> Any:
    """A strided view of a block, given in elements from the array's first one; NumPy or CuPy."""
    item = array.dtype.itemsize
    strides = tuple(s * item for s in v.stride)
    if array.shape == v.shape and array.strides == strides and not v.offset:
        return array
    if 0 in v.shape:
        return array.reshape(-1)[:0].reshape(v.shape)
    if isinstance(array, np.ndarray):
        return np.ndarray(v.shape, array.dtype, _Bytes(array), v.offset * item, strides)
    import cupy

    return cupy.ndarray(v.shape, array.dtype, array.data + v.offset * item, strides)


class _Bytes:
    """Memory from an array's first element on, whatever its strides, for ``numpy.ndarray(buffer=...)``."""

    def __new__(cls, array: Array) -> Any:
        import ctypes

        low, high = np.lib.array_utils.byte_bounds(array)
        size = high - array.ctypes.data
        block = (ctypes.c_char * size).from_address(array.ctypes.data)
        block._keeps_alive = array  # type: ignore[attr-defined]
        del low
        return block


def library_call(xp: Any, step: Call, memory: dict[str, Any]) -> None:
    """An op row's eager kernel on views of memory, copied into its outputs."""
    kernel = TABLE[step.fn].kernel
    assert kernel is not None, f"{step.fn} has no kernel"
    args = [look(memory[a.buffer], a) if isinstance(a, View) else a for a in step.args]
    with np.errstate(all="ignore"):
        made = kernel(xp, *args, **step.params)
    results = made if isinstance(made, (tuple, list)) else (made,)
    for view, result in zip(step.outs, results, strict=True):
        target = look(memory[view.buffer], view)
        target[...] = result
