"""What cublasLt is asked for, without cublasLt: a ``Product`` run by NumPy on raw memory gives ``x @ y`` for every layout."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from codegen_cupy import cublaslt, matmul
from codegen_cupy.host import View
from codegen_cupy.matmul import Product, by_numpy, describe
from compiler.config import config
from tinytorch.dtypes import bfloat16, complex64, float16, float32, float64, int32


def view(a: np.ndarray, base: np.ndarray, name: str) -> View:
    item = a.itemsize
    return View(name, a.shape, tuple(s // item for s in a.strides), (a.ctypes.data - base.ctypes.data) // item)


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], order: tuple[int, ...], pad: int, dtype: str = "float32"):
    """Random numbers of ``shape`` whose dimensions lie in memory in ``order``, ``pad`` elements after each row."""
    lying = [shape[d] for d in order]
    base = rng.standard_normal((*lying[:-1], lying[-1] + pad)).astype(dtype)
    return base[..., : lying[-1]].transpose(np.argsort(order)), base


def run(p: Product, x: np.ndarray, y: np.ndarray, d: np.ndarray) -> None:
    at = {"x": x.ctypes.data, "y": y.ctypes.data, "d": d.ctypes.data}
    by_numpy(p, *(at[b] for b in p.buffers))


LAST = [(0, 1), (1, 0)]


@pytest.mark.parametrize("orders", [(a, b, c) for a in LAST for b in LAST for c in LAST])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1)])
@pytest.mark.parametrize("pad", [0, 3])
def test_every_order_of_two_dimensions(orders, sizes, pad) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(0)
    (x, bx), (y, by), (d, bd) = (
        laid_out(rng, s, o, pad) for s, o in zip([(m, k), (k, n), (m, n)], orders, strict=True)
    )
    want, before = x @ y, bd.copy()
    p = describe(view(x, bx, "x"), view(y, by, "y"), view(d, bd, "d"), float32)
    assert p is not None and (p.m, p.n, p.k) in ((m, n, k), (n, m, k))
    run(p, bx, by, bd)
    np.testing.assert_allclose(d, want, rtol=1e-5, atol=1e-6)
    d[...] = 0  # and nothing between the rows was touched
    inside = before[...]
    laid = inside[..., : inside.shape[-1] - pad] if pad else inside
    laid[...] = 0
    np.testing.assert_array_equal(bd, before)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_batches_lie_anyhow(data) -> None:
    nd = data.draw(st.integers(2, 4))
    batch = tuple(data.draw(st.integers(1, 3)) for _ in range(nd - 2))
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    rng = np.random.default_rng(1)
    made = []
    for shape in ((*batch, m, k), (*batch, k, n), (*batch, m, n)):
        order = tuple(data.draw(st.permutations(range(nd))))
        made.append(laid_out(rng, shape, order, data.draw(st.integers(0, 2))))
    (x, bx), (y, by), (d, bd) = made
    p = describe(view(x, bx, "x"), view(y, by, "y"), view(d, bd, "d"), float32)
    if p is None:
        rows = [a.strides[-1] != 4 and a.strides[-2] != 4 for a in (x, y, d)]
        assert any(rows), "refused, though every matrix has an inner dimension without gaps"
        return
    want = x @ y
    run(p, bx, by, bd)
    np.testing.assert_allclose(d, want, rtol=1e-5, atol=1e-5)


def test_heads_of_attention_take_one_call_or_one_per_row_of_the_batch() -> None:
    b, h, t, e = 2, 3, 5, 4
    heads = View("x", (b, h, t, e), (t * h * e, e, h * e, 1), 0)  # a (b, t, h, e) array looked at by heads
    plain = View("y", (b, h, e, t), (h * e * t, e * t, t, 1), 0)
    out = View("d", (b, h, t, t), (h * t * t, t * t, t, 1), 0)
    p = describe(heads, plain, out, float32)
    assert p is not None and p.batch == h and len(p.repeats) == b
    p = describe(View("x", (b, h, t, e), (h * t * e, t * e, e, 1), 0), plain, out, float32)
    assert p is not None and p.batch == b * h and len(p.repeats) == 1


def test_a_shared_operand_has_no_stride() -> None:
    p = describe(View("x", (7, 2, 3), (6, 3, 1), 0), View("y", (7, 3, 4), (0, 4, 1), 0), View("d", (7, 2, 4), (8, 4, 1), 0), float32)
    assert p is not None and p.batch == 7 and 0 in (p.a.stride, p.b.stride) and len(p.repeats) == 1


def test_alignment_follows_offsets() -> None:
    def of(offset: int, row: int = 8):
        return describe(View("x", (4, 8), (row, 1), offset), View("y", (8, 8), (8, 1), 0), View("d", (4, 8), (8, 1), 0), bfloat16)

    assert of(0).alignment == of(8).alignment == 16
    assert of(1).alignment == 2


@pytest.mark.parametrize("dtype", [float16, bfloat16, float64, complex64])
def test_types(dtype) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal((4, 4)).astype(dtype.np) for _ in range(2))
    d = np.empty((4, 4), dtype.np)
    p = describe(view(x, x, "x"), view(y, y, "y"), view(d, d, "d"), dtype)
    assert p is not None
    run(p, x, y, d)
    wide = np.complex128 if dtype is complex64 else np.float64
    np.testing.assert_allclose(d.astype(wide), x.astype(wide) @ y.astype(wide), rtol=1e-2, atol=5e-2)


def test_what_the_library_cannot_do_is_left_to_the_row() -> None:
    x = View("x", (4, 4), (4, 1), 0)
    assert describe(x, x, x, int32) is None
    assert describe(View("x", (4, 0), (1, 1), 0), View("y", (0, 4), (4, 1), 0), x, float32) is None  # all zeros
    assert describe(View("x", (4, 4), (8, 2), 0), x, x, float32) is None  # every second column
    assert describe(View("x", (4, 4), (-4, 1), 12), x, x, float32) is None


def test_tf32_is_for_float32_only() -> None:
    x = View("x", (4, 4), (4, 1), 0)
    assert describe(x, x, x, float32, tf32=True).tf32
    assert not describe(x, x, x, bfloat16, tf32=True).tf32


class FakeLibrary:
    """Counts how the fastest of three choices is found."""

    def __init__(self) -> None:
        self.choices, self.choice, self.runs = ["slow", "refused", "fast"], "slow", []

    def use(self, choice: str) -> None:
        self.choice = choice

    def enqueue(self, *_: int) -> None:
        self.runs.append(self.choice)
        if self.choice == "refused":
            raise RuntimeError("status 15")


def test_the_tuner_keeps_the_fastest_that_runs() -> None:
    fake = FakeLibrary()

    def timer(fn) -> float:
        fn()
        return {"slow": 2.0, "fast": 1.0}[fake.choice]

    assert cublaslt.tune(fake, timer, [0, 0, 0], 0) == 1.0
    assert fake.choice == "fast" and fake.runs == ["slow", "refused", "fast"]


def test_the_tf32_switch_has_two_names() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32 and not matmul.allow_tf32()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert torch.get_float32_matmul_precision() == "high" and matmul.allow_tf32()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not torch.backends.cuda.matmul.allow_tf32


class FakePrepared:
    """Three choices that differ in their first word; how long each takes is told by ``us``."""

    def __init__(self, p: Product, us: list[float]) -> None:
        self.product, self.us, self.runs, self.wins = p, us, 0, True
        self.choices = [cublaslt.Heuristic() for _ in us]
        for n, c in enumerate(self.choices):
            c.algo[0] = n + 1
        self.choice = self.choices[0]

    def use(self, choice) -> None:
        self.choice = choice

    def tell(self, *more: int) -> None:
        self.told = more

    def enqueue(self, *memory: int) -> None:
        assert self.told == memory[3:-1]  # not what the descriptor knew for the choice
        self.runs += 1


def test_what_was_fastest_is_found_again_on_disk(tmp_path) -> None:
    x = View("x", (4096, 4096), (4096, 1), 0)
    p = describe(x, x, x, bfloat16)
    tmp_path.chmod(0o700)

    def handle(made: FakePrepared, device: str):
        h = object.__new__(cublaslt.Handle)
        h.device, h.timed, h.lib, h.stream, h.noise = device, 0, SimpleNamespace(cublasLtGetVersion=lambda: 1), int, lambda *_: None
        h.alloc = lambda size: SimpleNamespace(ptr=0)

        def timer(fn) -> float:
            fn()
            return made.us[made.choice.algo[0] - 1]

        h.timer = timer
        h._choose(made)
        return h.timed

    assert cublaslt.worth_timing(p) and not cublaslt.worth_timing(describe(*[View("x", (64, 64), (64, 1), 0)] * 3, bfloat16))
    with config.patch(cache_dir=str(tmp_path)):
        for device, us, timed, best in [("a", [3, 1, 2], 1, 2), ("a", [1, 2, 3], 0, 2), ("b", [1, 2, 3], 1, 1)]:
            made = FakePrepared(p, us)
            assert handle(made, device) == timed and made.choice.algo[0] == best and made.runs == 3 * timed


@pytest.mark.parametrize("apart,wins", [(2.0, False), (5.0, True)])
def test_a_gelu_that_takes_longer_than_a_kernel_is_left_to_one(tmp_path, monkeypatch, apart, wins) -> None:
    x = View("x", (4096, 4096), (4096, 1), 0)
    p = replace(describe(x, x, x, bfloat16), then=("gelu",))
    tmp_path.chmod(0o700)
    ran: list[FakePrepared] = []

    def handle() -> cublaslt.Handle:
        h = object.__new__(cublaslt.Handle)
        h.device, h.timed, h.lib, h.stream, h.noise = "a", 0, SimpleNamespace(cublasLtGetVersion=lambda: 1), int, lambda *_: None
        h.plans, h.lock = {}, threading.Lock()
        h.alloc = lambda size: SimpleNamespace(ptr=0, copy_from_device_async=lambda block, size: ran.clear())

        def timer(fn) -> float:
            fn()
            return ran[-1].us[0] if ran else 1.0

        h.timer = timer
        return h

    class Made(FakePrepared):
        def __init__(self, handle: object, p: Product) -> None:
            super().__init__(p, [4.0 if "gelu" in p.then else apart])

        def enqueue(self, *_: int) -> None:
            super().enqueue()
            ran.append(self)

    monkeypatch.setattr(cublaslt, "Prepared", Made)
    with config.patch(cache_dir=str(tmp_path)):
        for timed in (1, 0):  # the second time from disk
            h = handle()
            if wins:
                assert h.prepared(p).product == p
            else:
                with pytest.raises(RuntimeError, match="a kernel is faster"):
                    h.prepared(p)
            assert h.timed == timed and h.prepared(replace(p, then=())).wins
