"""CUDA kernels from hand-written loop IR: emulated on the CPU they give what the loop IR's interpreter gives, they
compile for two architectures, and no launch races."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cuda_cases import CASES

from codegen_cupy import emulate, nvrtc, sources
from compiler.loop import interp
from compiler.loop.ir import Buffer, Kernel
from tinytorch.dtypes import DType

needs_compiler = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="no NVRTC")

ARCHITECTURES = ("sm_80", "sm_90a")


def arguments(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """Random inputs; outputs and combining targets hold random values too."""
    rng = np.random.default_rng(seed)
    return [array_for(b, rng) for b in kernel.params]


def array_for(b: Buffer, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = tuple(b.shape), b.dtype
    if dtype.kind == "f":
        flat = rng.standard_normal(shape).astype(dtype.np)
    elif b.name == "ids":
        flat = rng.integers(0, 4, shape).astype(dtype.np)
    else:
        flat = rng.integers(0, 100, shape).astype(dtype.np)
    flat = np.asarray(flat)
    item = dtype.itemsize
    if tuple(s * item for s in b.stride) == flat.strides or flat.ndim == 0:
        return flat
    if any(s < 0 for s in b.stride):
        return flat[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in b.stride)]
    out = np.lib.stride_tricks.as_strided(np.empty(flat.size, dtype.np), shape, [s * item for s in b.stride])
    out[...] = flat
    return out


def emulate_kernel(k: Kernel, arrays: list[np.ndarray], *, check: bool = False, backwards: bool = False) -> None:
    memory = {b.name: a for b, a in zip(k.params, arrays, strict=True)}
    launches = sources.sources(k, {})
    memory |= {b.name: np.full(b.shape, 77, b.dtype.np) for b in launches.carried}
    for source in launches.sources:
        scratch = [np.full(int(s.items) * s.itemsize, 0 if s.zeroed else 0xA5, np.uint8) for s in source.scratch]
        failed = [np.zeros(2, np.int64)] if source.messages else []
        grid = (min(int(source.work), source.max_blocks), source.split)
        machine = emulate.compile_kernel(source.text, source.name, check=check)
        machine(grid, source.block, [*(memory[b] for b in source.buffers), *scratch, *failed], backwards=backwards)
        for s, left in zip(source.scratch, scratch, strict=True):
            assert not s.zeroed or not left.any(), f"{s.name} is not left at zero"


def close(got: np.ndarray, want: np.ndarray, dtype: DType) -> None:
    if dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype.name]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_emulated_kernel_gives_what_the_interpreter_gives(name: str) -> None:
    k = CASES[name]()
    start = arguments(k)
    want = [a.copy() if a.flags.c_contiguous else a for a in start]
    got = [np.copy(a, order="K") if a.strides == np.copy(a, order="K").strides else a for a in start]
    emulate_kernel(k, got)
    interp_arrays = [
        w if b.name in k.writes else g for b, w, g in zip(k.params, want, got, strict=True)
    ]
    interp.run_kernel(k, interp_arrays)
    for b, g, w in zip(k.params, got, interp_arrays, strict=True):
        if b.name in k.writes:
            close(np.asarray(g), np.asarray(w), b.dtype)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_no_kernel_races_or_leaves_its_buffers(name: str) -> None:
    k = CASES[name]()
    arrays = [a if a.flags.writeable else a.copy() for a in arguments(k)]
    emulate_kernel(k, arrays, check=True, backwards=True)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_kernel_compiles_under_nvrtc(name: str, arch: str) -> None:
    for source in sources.sources(CASES[name](), {}).sources:
        assert nvrtc.compile_text(source.text, arch)[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "name", ["gelu_bfloat16", "softmax_4096", "layer_norm_backward", "column_sum", "full_sum", "permute_scale", "cumsum_aligned"]
)
def test_text(name: str, golden: Callable[[str], None]) -> None:
    """What the kernels look like; helper functions left out."""
    texts = [s.text[s.text.index('extern "C"') :] for s in sources.sources(CASES[name](), {}).sources]
    golden("\n".join(texts))
