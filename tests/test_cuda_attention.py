"""The attention kernels' text on the emulated machine: equal to the row on NumPy, no races, and it compiles for GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen_cupy import attention, attention_tiles, cuda_machine, emulate, machine, machine_code, nvrtc
from codegen_cupy.attention import Problem
from codegen_cupy.attention_tiles import Tiles
from codegen_cupy.host import Call, Launch, Memory, Release, View
from codegen_cupy.launch import Block
from compiler.config import config
from tinytorch import dtypes
from tinytorch.ops import flash

pytestmark = pytest.mark.skipif(not emulate.available(), reason="the emulator needs a C++ compiler")
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "float64": np.float64}
TOLERANCE = {"bfloat16": 1.2e-2, "float16": 2e-3, "float32": 5e-6, "float64": 1e-12}


def view(name: str, a: np.ndarray) -> View:
    return View(name, a.shape, tuple(s // a.itemsize for s in a.strides), 0)


def run(launches: list[Launch], arrays: dict[str, Any], check: bool) -> None:
    for launch in launches:
        kernel = emulate.compile_kernel(launch.source.text, launch.source.name, check=check)
        args = [arrays[b] for b in launch.buffers] + [np.int64(n) for n in launch.sizes]
        kernel(launch.grid, launch.source.block, args)


def memory(a: np.ndarray) -> np.ndarray:
    """The bytes of an array without gaps, in the order in which they lie."""
    return a.transpose(np.argsort([-s for s in a.strides], kind="stable")).reshape(-1).view(np.uint8)


def run_on_device(launches: list[Launch], arrays: dict[str, Any]) -> None:
    import cupy as cp

    m = machine.machine(False)
    there = {n: cp.asarray(memory(a)) for n, a in arrays.items()}
    kernels = m.functions([launch.source for launch in launches], fmad=True)
    for launch, kernel in zip(launches, kernels, strict=True):
        block = Block(launch)
        for i, name in enumerate(launch.buffers):
            block.cells[i] = there[name].data.ptr
        m.launch(kernel.ptr, *launch.grid, 1, *launch.source.block, 1, launch.source.shared, 0, block.pointer, 0)
    for name, a in arrays.items():
        memory(a)[...] = there[name].get()


class Case:
    """Random arrays, what the row makes of them on NumPy, and room for what the kernels make."""

    def __init__(self, sizes: Any, kind: str, causal: bool = False, mask: str = "", dropout: float = 0.0) -> None:
        self.rng = np.random.default_rng(7)
        b, h, hk, t, s, d, e = sizes
        self.type = TYPES[kind]
        wide = np.float64 if kind == "float64" else np.float32
        sideways = (0, 2, 1, 3)  # queries as a projection leaves them
        q, g = self.new(b, t, h, d).transpose(sideways), self.new(b, t, h, e).transpose(sideways)
        k, v = self.new(b, hk, s, d), self.new(b, hk, s, e)
        m = {"": None, "bool": self.rng.random((1, h, t, s)) > 0.3, "added": self.new(b, 1, 1, s)}[mask]
        if mask == "bool":
            m[0, 0, 0] = False  # a row that sees nobody
        state = np.array([77, 5], np.int64) if dropout else None
        params = {"causal": causal, "scale": 0.3, "dropout": dropout, "shift": 4}
        with np.errstate(all="ignore"):
            out, lse = flash._kernel(np, q, k, v, m, state, **params)
            delta = (out.astype(wide) * g.astype(wide)).sum(-1)
            grads = flash._backward_kernel(np, g, q, k, v, delta, lse, m, state, **params)
        self.inputs = {n: a for n, a in dict(q=q, k=k, v=v, mask=m, state=state).items() if a is not None}
        self.forward = dict(out=out, lse=lse)
        self.back_inputs = dict(g=g, delta=delta, lse=lse)
        self.backward = dict(zip(("dq", "dk", "dv"), grads, strict=True))
        self.params = (causal, 0.3, dropout, 4)

    def new(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(self.type)

    def problem(self, arrays: dict[str, np.ndarray]) -> Problem:
        m = arrays.get("mask")
        views = {n: view(n, a) for n, a in arrays.items()}
        return Problem(dtypes.from_numpy(np.dtype(self.type)), views, None if m is None else dtypes.from_numpy(m.dtype), *self.params)

    def both(self) -> list[tuple[Problem, dict[str, Any], dict[str, Any]]]:
        """(problem, its arrays, what must come) forward and backward; results are poisoned first."""
        out = []
        for inputs, wants in ((self.inputs, self.forward), (self.inputs | self.back_inputs, self.backward)):
            made = {n: np.empty_like(w) for n, w in wants.items()}
            for a in made.values():
                a[...] = np.nan
            out.append((self.problem(inputs | made), inputs | made, wants))
        return out


def compare(arrays: dict[str, Any], wants: dict[str, Any], tolerance: float) -> None:
    for name, want in wants.items():
        got, want = arrays[name].astype(np.float64), want.astype(np.float64)
        scale = np.abs(want[np.isfinite(want)]).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale, err_msg=name)


GROUP = Tiles(4, 1, 64, 2, 1, True, True, True)  # products by groups of four warps
CASES: list[tuple[Any, str, dict[str, Any], Tiles]] = [
    ((1, 2, 1, 64, 64, 32, 32), "bfloat16", {}, Tiles(2, 1, 32, 2, 1, True)),
    ((2, 2, 2, 90, 71, 64, 64), "float16", {"causal": True}, Tiles(2, 1, 32, 2, 1, False)),
    ((1, 1, 1, 30, 171, 64, 64), "bfloat16", {"causal": True}, Tiles(1, 2, 16, 3, 1, True, ahead=True)),
    ((1, 2, 2, 50, 71, 40, 40), "float16", {"mask": "bool"}, Tiles(2, 1, 32, 2, 1, True)),
    ((2, 4, 2, 50, 70, 48, 48), "bfloat16", {"mask": "added", "dropout": 0.3}, Tiles(1, 2, 16, 2, 1, False)),
    ((1, 2, 1, 33, 47, 96, 96), "float16", {"causal": True, "dropout": 0.2}, Tiles(2, 1, 16, 2, 1, False)),
    ((1, 2, 1, 50, 71, 19, 19), "float32", {"causal": True}, Tiles()),
    ((1, 2, 2, 40, 71, 24, 40), "float32", {"mask": "bool", "dropout": 0.3}, Tiles()),
    ((2, 2, 1, 50, 37, 33, 33), "float64", {"mask": "added"}, Tiles()),
    ((1, 2, 1, 34, 37, 20, 20), "bfloat16", {"causal": True}, Tiles()),  # rows that are no multiple of 16 bytes
    ((1, 2, 1, 90, 75, 64, 64), "bfloat16", {"causal": True}, GROUP),
    ((1, 1, 1, 150, 130, 64, 64), "float16", {}, replace(GROUP, warps=8, stages=3, registers=False)),
    ((1, 1, 1, 70, 130, 120, 120), "bfloat16", {"mask": "bool"}, replace(GROUP, other=128, ahead=False)),
    ((1, 1, 1, 70, 75, 72, 72), "bfloat16", {"causal": True}, GROUP),  # a panel and an eighth
    ((1, 2, 1, 80, 90, 56, 56), "float16", {"causal": True, "mask": "added", "dropout": 0.3}, GROUP),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_are_the_row(number: int) -> None:
    sizes, kind, params, tiles = CASES[number]
    check = number in (0, 1, 4, 6, 10)
    (forward, arrays, wants), (backward, back_arrays, back_wants) = Case(sizes, kind, **params).both()
    run(attention.forward(forward, tiles), arrays, check)
    compare(arrays, wants, TOLERANCE[kind])
    run(attention.backward(backward, tiles, tiles), back_arrays, check)
    compare(back_arrays, back_wants, TOLERANCE[kind])


@pytest.mark.parametrize(("d", "groups"), [(64, False), (64, True), (96, True), (256, False), (256, True)])
def test_proposed_tiles(d: int, groups: bool) -> None:
    """The first of each kind; long heads have no groups for keys."""
    forward_tiles, keys_tiles, queries_tiles = (
        next((t for t in propose(d) if t.groups == groups), propose(d)[0])
        for propose in (attention_tiles.forward_tiles, attention_tiles.keys_tiles, attention_tiles.queries_tiles)
    )
    (forward, arrays, wants), (backward, back_arrays, back_wants) = Case((1, 1, 1, 140, 140, d, d), "bfloat16", causal=True).both()
    run(attention.forward(forward, forward_tiles), arrays, False)
    compare(arrays, wants, 1.2e-2)
    run(attention.backward(backward, keys_tiles, queries_tiles), back_arrays, False)
    compare(back_arrays, back_wants, 1.2e-2)


@pytest.mark.parametrize(("number", "check", "tiles"), [(1, True, Tiles(2, 1, 32, 2, 1, True)), (4, False, Tiles(2, 1, 32, 2, 1, True)), (10, False, replace(GROUP, registers=False))])
def test_fused_backward(number: int, check: bool, tiles: Tiles) -> None:
    """The gradient of queries summed atomically by the kernel of keys."""
    sizes, kind, params, _ = CASES[number]
    _, (backward, arrays, wants) = Case(sizes, kind, **params).both()
    arrays["dq_sum"] = np.zeros(sizes[:2] + (sizes[3], sizes[5]), np.float32)
    backward = replace(backward, views={**backward.views, "dq_sum": view("dq_sum", arrays["dq_sum"])})
    run(attention.fused_backward(backward, tiles), arrays, check)
    compare(arrays, wants, TOLERANCE[kind])


def test_one_text_for_all_lengths() -> None:
    """Sizes and strides are arguments, so other lengths cost no compilation."""
    texts = set()
    for t in (40, 41):
        (forward, *_), (backward, *_) = Case((1, 2, 1, t, t, 32, 32), "bfloat16", causal=True).both()
        texts.add("".join(x.source.text for x in [*attention.forward(forward), *attention.backward(backward)]))
    assert len(texts) == 1


def test_a_barrier_left_out_is_caught() -> None:
    (forward, arrays, _), _ = Case((1, 1, 1, 64, 96, 32, 32), "bfloat16").both()
    (launch,) = attention.forward(forward, Tiles(2, 1, 32, 2, 1, True))
    broken = launch.source.text.replace("__syncthreads();", "", 1)
    assert broken != launch.source.text
    with pytest.raises(emulate.EmulationError, match=r"race|before anything is written"):
        run([replace(launch, source=replace(launch.source, text=broken))], arrays, True)


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")
@pytest.mark.parametrize(("number", "arch"), [*((n, "sm_90a") for n in range(len(CASES))), (0, "sm_80"), (4, "sm_80"), (6, "sm_80")])
def test_compiles_for_gpus(number: int, arch: str) -> None:
    sizes, kind, params, tiles = CASES[number]
    (forward, *_), (backward, *_) = Case(sizes, kind, **params).both()
    for launch in [*attention.forward(forward, tiles), *attention.backward(backward, tiles, tiles)]:
        assert nvrtc.compile_text(launch.source.text, arch)


def test_every_proposed_tile_fits() -> None:
    for d in (32, 64, 96, 128, 192, 200, 256):
        for propose, shared in (
            (attention_tiles.forward_tiles, attention_tiles.forward_shared),
            (attention_tiles.keys_tiles, attention_tiles.keys_shared),
            (attention_tiles.queries_tiles, attention_tiles.queries_shared),
            (attention_tiles.fused_tiles, partial(attention_tiles.keys_shared, atomic=True)),
        ):
            for tiles in propose(d):
                assert tiles.stages >= 2 and shared(d, tiles) * tiles.resident <= attention_tiles.SHARED_LIMIT


def deterministic_backward() -> Any:
    """What a plan runs for a backward whose sums could be atomic."""
    _, (p, _, _) = Case((1, 1, 1, 64, 64, 64, 64), "bfloat16").both()
    args = [p.views.get(n) for n in ("g", "q", "k", "v", "delta", "lse", "mask", "state")]
    params = dict(causal=False, scale=0.3, dropout=0.0, shift=0)
    call = Call("attention_backward", tuple(args), tuple(p.views[n] for n in ("dq", "dk", "dv")), params)  # type: ignore[arg-type]
    types = {n: dtypes.float32 if n in ("delta", "lse") else dtypes.bfloat16 for n in p.views}
    return attention.backward_call(call, types, True)


def test_deterministic_backward_sums_nothing_atomically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ATOMIC", True)
    filled, *atomic, released = deterministic_backward()
    assert isinstance(filled, Memory) and isinstance(released, Release)
    assert [x.source.name for x in atomic] == ["attention_fused", "attention_round"]
    with config.patch(deterministic=True):
        apart = deterministic_backward()
    assert [x.source.name for x in apart] == ["attention_keys", "attention_queries"]
    assert "#define ATOMIC 0" in apart[0].source.text


@pytest.mark.cuda
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 96, 128, 192, 256])
def test_every_proposed_tile_on_a_gpu(d: int, causal: bool) -> None:
    """Over walks of several tiles, so that what a round leaves to the next one is seen."""
    (forward, arrays, wants), (backward, back_arrays, back_wants) = Case((1, 2, 1, 400, 400, d, d), "bfloat16", causal=causal).both()
    starts = {n: a.copy(order="K") for n, a in (arrays | back_arrays).items()}
    jobs = [
        *((t, attention.forward(forward, t), arrays, wants) for t in attention_tiles.forward_tiles(d)),
        *((t, [attention.keys_launch(backward, t)], back_arrays, {n: back_wants[n] for n in ("dk", "dv")}) for t in attention_tiles.keys_tiles(d)),
        *((t, [attention.queries_launch(backward, t)], back_arrays, {"dq": back_wants["dq"]}) for t in attention_tiles.queries_tiles(d)),
    ]
    machine_code.cubins([(x.source.text, x.source.name) for _, launches, _, _ in jobs for x in launches], cuda_machine.architecture())
    for tiles, launches, of, expected in jobs:
        for name in expected:
            of[name][...] = np.nan
        run_on_device(launches, of)
        try:
            compare(of, expected, 1.2e-2)
        except AssertionError as e:
            raise AssertionError(f"{launches[0].source.name} {tiles}") from e
        assert all(memory(of[n]).tobytes() == memory(starts[n]).tobytes() for n in of if n not in wants and n not in back_wants)


@pytest.mark.cuda
def test_the_same_bits_each_time_on_a_gpu() -> None:
    _, (backward, arrays, _) = Case((2, 4, 2, 500, 500, 64, 64), "bfloat16", causal=True, dropout=0.2).both()
    seen = set()
    for _ in range(4):
        run_on_device(attention.backward(backward), arrays)
        seen.add(b"".join(memory(arrays[n]).tobytes() for n in ("dq", "dk", "dv")))
    assert len(seen) == 1
