"""Products by groups of four warps: where the tensor cores look for the numbers of a panel, on the emulator and a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen_cupy import cuda_machine, emulate, nvrtc
from codegen_cupy.helpers import needed

KERNEL = """
// One group of four warps, x of 64 rows and columns: out = x y^T, y of 64 CHUNKS rows; or, TURNED, out = x y, y of 64 rows
// and 64 CHUNKS columns in panels side by side.  HELD: x comes from registers.
template <int FROM> __device__ __forceinline__ void multiply(
    float (&c)[8 * CHUNKS][4], const unsigned (&a)[4][4], const elem* x, const elem* y) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        if constexpr (HELD) wgmma_64x64x16<TURNED, FROM, false>(c, a[step], y + FROM / 8 * 4096, step);
        else wgmma_64x64x16<TURNED, FROM, false>(c, x, y + FROM / 8 * 4096, step);
    }
    if constexpr (FROM + 8 < 8 * CHUNKS) multiply<FROM + 8>(c, a, x, y);
}

extern "C" __global__ void __launch_bounds__(128) product(const elem* x, const elem* y, float* out) {
    SHARED_POOL(pool, 8192 * (1 + CHUNKS));
    elem* x_panel = (elem*)pool;
    elem* y_panels = x_panel + 4096;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < 64 * 64; i += 128) x_panel[i / 64 * 64 + (i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8] = x[i];
    for (int i = threadIdx.x; i < 64 * 64 * CHUNKS; i += 128) {
        int row = TURNED ? i / (64 * CHUNKS) : i / 64, column = TURNED ? i % (64 * CHUNKS) : i % 64;
        y_panels[column / 64 * 4096 + row * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8] = y[i];
    }
    wgmma_sees_shared();
    __syncthreads();
    float c[8 * CHUNKS][4];
    unsigned a[4][4];
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < 4; ++step)
        load_matrices(a[step], x_panel + (16 * warp + lane % 16) * 64 + (2 * step + lane / 16 ^ lane % 8) * 8);
    wgmma_begin();
    multiply<0>(c, a, x_panel, y_panels);
    wgmma_end();
    wgmma_wait<0>(c);
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            out[(16 * warp + lane / 4 + e / 2 * 8) * 64 * CHUNKS + 8 * n + lane % 4 * 2 + e % 2] = c[n][e];
}
"""
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
FORMS = [("bf16", turned, held, chunks) for turned in (0, 1) for held in (0, 1) for chunks in (1, 2)] + [("f16", 1, 1, 2), ("f16", 0, 0, 1)]


def text(kind: str, turned: int, held: int, chunks: int) -> str:
    body = f"using elem = {kind};\nconstexpr int TURNED = {turned}, HELD = {held}, CHUNKS = {chunks};\n{KERNEL}"
    return f"{needed(body)}\n\n{body}"


def emulated(source: str, x: Any, y: Any, out: Any) -> None:
    emulate.compile_kernel(source, "product", check=True)((1,), (128,), [x, y, out])


def on_device(source: str, x: Any, y: Any, out: Any) -> None:
    import cupy as cp

    if cuda_machine.architecture() != "sm_90a":
        pytest.skip("only compute capability 9.0 has wgmma")
    module = cp.cuda.function.Module()
    module.load(nvrtc.compile_text(source, "sm_90a"))
    arrays = [cp.asarray(a) for a in (x, y, out)]
    shared = 8192 * (1 + out.shape[1] // 64)
    module.get_function("product")((1, 1, 1), (128, 1, 1), arrays, shared_mem=shared)
    out[...] = arrays[2].get()


def check(run: Any, form: tuple[str, int, int, int]) -> None:
    """First a unit matrix on either side, which shows where each number of the other one went; then random numbers."""
    kind, turned, _, chunks = form
    source, wide = text(*form), 64 * chunks
    one, rng = np.eye(64), np.random.default_rng(1)
    across, along = np.meshgrid(np.arange(wide), np.arange(64))  # both of shape (64, wide): column and row of y as multiplied
    cases = {
        "column of y": (one, across), "row of y": (one, along),
        "column of x": (along[:, :64].T, np.eye(64, wide)), "row of x": (along[:, :64], np.eye(64, wide)),
        "random": (rng.integers(-8, 9, (64, 64)), rng.integers(-8, 9, (64, wide))),
    }  # fmt: skip
    for what, (x, y) in cases.items():
        given = np.ascontiguousarray(y if turned else np.asarray(y).T).astype(TYPES[kind])
        out = np.full((64, wide), np.nan, np.float32)
        run(source, np.ascontiguousarray(x).astype(TYPES[kind]), given, out)
        want = np.asarray(x, np.float64) @ y
        bad = np.argwhere(out != want)
        shown = [f"[{i}, {j}] is {out[i, j]}, not {want[i, j]}" for i, j in bad[:: max(1, len(bad) // 24)]]
        assert not len(bad), f"{form}, {what}: {len(bad)} of {out.size} wrong:\n" + "\n".join(shown)


@pytest.mark.skipif(not emulate.available(), reason="the emulator needs a C++ compiler")
@pytest.mark.parametrize("form", FORMS)
def test_on_the_emulator(form: tuple[str, int, int, int]) -> None:
    check(emulated, form)


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_on_a_gpu(form: tuple[str, int, int, int]) -> None:
    check(on_device, form)


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("form", FORMS)
def test_compiles(form: tuple[str, int, int, int]) -> None:
    assert nvrtc.compile_text(text(*form), "sm_90a").startswith(b"\x7fELF")
