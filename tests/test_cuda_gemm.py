"""Own products and convolutions on the emulated machine: equal to NumPy for odd sizes, layouts and types, without races;
what follows a product becomes part of it; the tuner keeps only what is right; the text compiles for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from codegen_cupy import channels_last, convolution, emulate, gemm, gemm_schedules, nvrtc, ways
from codegen_cupy.gemm import Problem, Tiles
from codegen_cupy.host import Call, Launch, Memory, Step, View
from codegen_cupy.program import Program
from compiler.config import config
from compiler.loop.ir import Let
from tinytorch import dtypes
from tinytorch.ops import convolution as rows

needs_compiler = pytest.mark.skipif(not emulate.available(), reason="the emulator needs a C++ compiler")
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
TOLERANCE = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-6, "tf32": 1e-3}


def view(name: str, a: np.ndarray) -> View:
    return View(name, a.shape, tuple(s // a.itemsize for s in a.strides), 0)


def run(steps: list[Step], arrays: dict[str, np.ndarray], check: bool) -> None:
    for s in steps:
        if isinstance(s, Memory):
            arrays[s.name] = np.full(s.items, np.nan, s.dtype.np)
        elif isinstance(s, Launch):
            kernel = emulate.compile_kernel(s.source.text, s.source.name, check=check)
            kernel(s.grid, s.source.block, [arrays[b] for b in s.buffers])


def compare(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    want = want.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=tolerance * np.abs(want).max())


# --- products ---------------------------------------------------------------------------------------------------------
def matmul(kind: str, sizes: tuple[int, ...], turned: str, tiles: Tiles, *, check: bool) -> None:
    *batch, m, k, n = sizes
    rng, dtype = np.random.default_rng(3), TYPES.get(kind, np.float32)

    def new(letter: str, *shape: int) -> np.ndarray:
        if letter and letter in turned:
            return new("", *shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
        return rng.standard_normal(shape).astype(dtype)

    x, y, out = new("x", *batch, m, k), new("y", *batch, k, n), new("d", *batch, m, n)
    out[...] = np.nan
    p = gemm.matmul(view("x", x), view("y", y), view("out", out), dtypes.from_numpy(np.dtype(dtype)), tf32=kind == "tf32")
    assert p is not None and gemm.possible(p, tiles)
    run(gemm.launches(p, tiles), {"x": x, "y": y, "out": out}, check)
    compare(out, x.astype(np.float64) @ y.astype(np.float64), TOLERANCE[kind])


TENSOR, PLAIN = Tiles(32, 32, 32, 1, 2, 2), Tiles(32, 64, 16, 2, 1, 3)
MATMULS = [
    ("bfloat16", (40, 72, 48), "", TENSOR), ("bfloat16", (40, 72, 48), "x", TENSOR), ("float16", (40, 72, 48), "y", TENSOR),
    ("float16", (40, 72, 48), "xyd", TENSOR), ("bfloat16", (37, 45, 29), "y", Tiles(32, 64, 32, 1, 2, 3)),
    ("bfloat16", (70, 40, 136), "", Tiles(64, 128, 64, 2, 2, 3)), ("float16", (2, 37, 200, 32), "y", Tiles(32, 32, 32, 1, 2, 3, parts=3)),
    ("bfloat16", (72, 136, 136), "", Tiles(128, 64, 64, 8, 1, 2, grouped=True)), ("float16", (72, 136, 136), "xy", Tiles(64, 128, 64, 4, 1, 3, grouped=True)),
    ("tf32", (40, 72, 48), "", TENSOR), ("tf32", (40, 72, 48), "xy", TENSOR), ("tf32", (33, 50, 31), "x", TENSOR),
    ("float32", (40, 72, 48), "", PLAIN), ("float32", (40, 72, 48), "xy", PLAIN), ("float32", (37, 45, 29), "d", PLAIN),
    ("float32", (3, 1, 9, 5, 34), "y", Tiles(32, 32, 16, 2, 1, 2)), ("float32", (17, 300, 20), "", Tiles(32, 64, 16, 1, 2, 4, parts=4)),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("number", range(len(MATMULS)))
def test_products_are_numpys(number: int) -> None:
    kind, sizes, turned, tiles = MATMULS[number]
    matmul(kind, sizes, turned, tiles, check=number % 2 == 0)


@needs_compiler
def test_a_block_order_reaches_every_tile() -> None:
    """More than eight rows of tiles, the last band not full."""
    matmul("bfloat16", (11 * 32 + 3, 32, 96), "", TENSOR, check=False)


def test_what_does_not_fit_is_said_before_it_is_tried() -> None:
    p = gemm.matmul(View("x", (64, 64), (64, 1), 0), View("y", (64, 64), (64, 1), 0), View("d", (64, 64), (64, 1), 0), dtypes.float32)
    assert p is not None and gemm.possible(p, Tiles(64, 64, 16, 2, 2, 3))
    assert not gemm.possible(p, Tiles(256, 256, 64, 2, 4, 3))  # shared memory, registers
    assert not gemm.possible(p, Tiles(64, 64, 16, 4, 4, 3))  # a warp's part is too narrow
    assert all(gemm.possible(p, t) for t in gemm_schedules.candidates(p)) and gemm_schedules.default_tiles(p) in gemm_schedules.candidates(p)
    assert gemm.matmul(View("x", (4, 4), (4, 1), 0), View("y", (4, 4), (4, 1), 0), View("d", (4, 4), (8, 2), 0), dtypes.float32) is None
    assert gemm.matmul(View("x", (4, 4), (4, 1), 0), View("y", (4, 4), (4, 1), 0), View("d", (4, 4), (4, 1), 0), dtypes.float64) is None


# --- convolutions -----------------------------------------------------------------------------------------------------
CONVOLUTIONS: list[tuple[str, tuple[int, int, int], tuple[int, ...], int, dict[str, Any]]] = [
    ("float32", (2, 3, 5), (9, 8), 3, {"padding": 1}),
    ("bfloat16", (2, 8, 6), (7, 9), 3, {"stride": 2, "padding": 1}),
    ("float16", (2, 6, 8), (10, 11), 3, {"padding": 2, "dilation": 2, "groups": 2}),
    ("tf32", (2, 4, 4), (30,), 5, {"stride": 3, "padding": 2}),
    ("bfloat16", (3, 16, 16), (8, 8), 1, {}),
    ("float32", (2, 4, 4), (8, 6), 2, {"groups": 4, "stride": 2}),
    ("float16", (2, 8, 8), (8, 8), 3, {"padding": 1}),
    ("float32", (1, 3, 4), (11, 10), 3, {"stride": 2, "dilation": 2, "padding": 1}),
    ("tf32", (2, 8, 4), (16,), 2, {"stride": 3}),
    ("float32", (2, 8, 4), (4, 4), 1, {"groups": 2}),
]


@needs_compiler
@pytest.mark.parametrize("fn", ["conv", "conv_input", "conv_weight"])
@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_convolutions_are_the_rows(number: int, fn: str) -> None:
    kind, channels, size, window, params = CONVOLUTIONS[number]
    call, arrays, want = convolution_case(kind, channels, size, window, params, fn)
    p = convolution.problem(call, dtypes.from_numpy(np.dtype(TYPES.get(kind, np.float32))))
    assert p is not None
    p = replace(p, tf32=kind == "tf32")
    tiles = gemm_schedules.default_tiles(p)
    if fn == "conv_weight" and number % 2:
        tiles = replace(tiles, parts=2)
    run(gemm.launches(p, tiles), arrays, check=number < 3)
    compare(arrays["out"], want, TOLERANCE[kind])


@needs_compiler
@pytest.mark.parametrize("fn", ["conv", "conv_input", "conv_weight"])
@pytest.mark.parametrize("number", [1, 4])
def test_convolutions_by_groups_of_warps(number: int, fn: str) -> None:
    """Strided and gathered, then of one pixel and copied."""
    kind, channels, size, window, params = CONVOLUTIONS[number]
    call, arrays, want = convolution_case(kind, channels, size, window, params, fn)
    p = convolution.problem(call, dtypes.from_numpy(np.dtype(TYPES[kind])))
    tiles = Tiles(64, 128, 64, 4, 1, 3, grouped=True)
    assert p is not None and gemm.possible(p, tiles)
    run(gemm.launches(p, tiles), arrays, check=True)
    compare(arrays["out"], want, TOLERANCE[kind])


def convolution_case(kind: str, channels: Any, size: Any, window: int, params: dict[str, Any], fn: str) -> tuple[Call, dict[str, Any], np.ndarray]:
    rng, dtype, nd = np.random.default_rng(5), TYPES.get(kind, np.float32), len(size)
    n, c, o = channels
    given: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, **params}
    groups = given.pop("groups", 1)
    full = {**{k: (v,) * nd for k, v in given.items()}, "groups": groups}
    x = rng.standard_normal((n, c, *size)).astype(dtype)
    w = rng.standard_normal((o, c // groups, *(window,) * nd)).astype(dtype)
    y = rows._conv_kernel(np, x, w, **full)
    g = rng.standard_normal(y.shape).astype(dtype)
    args, more, want = {
        "conv": ((x, w), {}, y),
        "conv_input": ((g, w), {"size": size}, rows._conv_input_kernel(np, g, w, size, **full)),
        "conv_weight": ((x, g), {"kernel": w.shape[2:]}, rows._conv_weight_kernel(np, x, g, w.shape[2:], **full)),
    }[fn]
    out = np.full(want.shape, np.nan, dtype)
    call = Call(fn, (view("a", args[0]), view("b", args[1])), (view("out", out),), {**full, **more})
    return call, {"a": args[0], "b": args[1], "out": out}, want


def test_three_dimensions_are_left_to_the_row() -> None:
    call, *_ = convolution_case("float32", (1, 2, 2), (4, 4, 4), 2, {}, "conv")
    assert convolution.problem(call, dtypes.float32) is None


# --- in programs ------------------------------------------------------------------------------------------------------
@pytest.fixture
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    if not emulate.available():
        pytest.skip("the emulator needs a C++ compiler")
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What each program does: names of kernels, types of other steps."""
    seen: list[list[str]] = []
    made = Program.recipe

    def recipe(self: Program, *args: Any, **kwargs: Any) -> Any:
        out = made(self, *args, **kwargs)
        seen.append([s.source.name if isinstance(s, Launch) else type(s).__name__ for s in out.steps])
        return out

    monkeypatch.setattr(Program, "recipe", recipe)
    return seen


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The first of our schedules wins every contest; gives the problems."""
    problems: list[Problem] = []

    def won(self: ways.Contest, make: dict[str, Callable[[], list[Step]]]) -> list[Step]:
        problems.append(self.problem)
        return next(steps() for way, steps in make.items() if way != "apart")

    monkeypatch.setattr(ways.Contest, "won", won)
    monkeypatch.setattr(ways, "WORTH", 1)
    return problems


def both(fn: Callable[..., Any], *args: Any, mode: str = "max-autotune-no-cudagraphs") -> None:
    got, want = torch.compile(fn, mode=mode)(*(a.to("cuda") for a in args)), fn(*args)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        compare(g.cpu().float().numpy(), w.float().numpy(), 1e-2 if w.dtype is torch.bfloat16 else 2e-6)


def numbers(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bias_gelu_and_residual_are_part_of_the_product(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]], dtype: Any) -> None:
    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.gelu(x @ w.T + b) + r

    both(fn, numbers(2, 20, 64, dtype=dtype), numbers(96, 64, dtype=dtype, seed=1), numbers(96, dtype=dtype), numbers(2, 20, 96, dtype=dtype))
    assert recipes[-1] == ["Memory", "gemm"] and len(ours) == 1


def test_what_the_library_would_do_after_a_product_ours_does_too(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    def fn(x: Any, w: Any, b: Any, r: Any, v: Any) -> Any:
        return F.gelu(r + F.linear(x, w, b), approximate="tanh") @ v

    with torch.no_grad():
        shapes = (2, 20, 64), (96, 64), (96,), (2, 20, 96), (96, 32)
        both(fn, *(numbers(*s, dtype=torch.bfloat16, seed=n) for n, s in enumerate(shapes)))
    assert recipes[-1].count("gemm") == len(ours) == 2
    assert "tanh" in [s.fn for s in ours[0].following.nest.body if isinstance(s, Let)]


def test_the_product_itself_is_stored_only_where_it_is_wanted(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    def used_twice(x: Any, w: Any) -> Any:
        product = x @ w
        return product, torch.relu(product).double()

    both(used_twice, numbers(24, 40), numbers(40, 33))
    assert recipes[-1].count("gemm") == 1 and recipes[-1].count("Memory") == 2


def test_a_kernel_that_turns_the_result_follows_too(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    def fn(x: Any, w: Any) -> Any:
        return (x @ w).reshape(2, 12, 3, 16).transpose(1, 2).contiguous() * 2

    both(fn, numbers(24, 40), numbers(40, 48))
    assert recipes[-1] == ["Memory", "gemm"]


def test_a_sum_over_the_result_does_not_follow(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    both(lambda x, w: torch.softmax(x @ w, -1), numbers(24, 40), numbers(40, 48))
    assert len(recipes[-1]) > 2 and "gemm" in recipes[-1]


def test_factors_are_not_overwritten_by_what_follows(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    """The result may take over a factor's memory when kernels run one after the other; here other blocks still read it."""

    def fn(x: Any, w: Any) -> Any:
        a = torch.relu(x)
        return torch.sin(a @ w) + a

    both(fn, numbers(48, 48), numbers(48, 48, seed=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bias_and_activation_are_part_of_a_convolution(on_the_emulator: None, recipes: list[list[str]], dtype: Any) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.relu(F.conv2d(x, w, b, padding=1, stride=2))

    both(fn, numbers(2, 3, 9, 8, dtype=dtype), numbers(8, 3, 3, 3, dtype=dtype), numbers(8, dtype=dtype), mode="default")
    assert recipes[-1] == ["Memory", "conv"]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_training_through_convolutions_by_channels(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]], monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """What lays images and weights out is part of the recipe, and what follows a convolution still does."""
    monkeypatch.setattr(gemm_schedules, "WORTH_LAYING", float("inf"))
    monkeypatch.setattr(ways.Contest, "won", lambda self, make: next((steps() for way, steps in make.items() if "by channels" in way), None))

    def fn(x: Any, w1: Any, b: Any, w2: Any) -> Any:
        return F.conv2d(F.relu(F.conv2d(x, w1, b, padding=1)), w2, stride=2).float().square().sum()

    def gradients(fn: Callable[..., Any], device: str) -> list[np.ndarray]:
        leaves = [a.detach().clone().to(device).requires_grad_() for a in given]
        for _ in range(3 if device == "cuda" else 1):
            for t in leaves:
                t.grad = None
            fn(*leaves).backward()
        return [t.grad.cpu().float().numpy() for t in leaves]

    shapes = (2, 8, 9, 6), (16, 8, 3, 3), (16,), (8, 16, 3, 3)
    given = [numbers(*s, dtype=torch.bfloat16, seed=n) * 0.3 for n, s in enumerate(shapes)]
    for got, want in zip(gradients(torch.compile(fn, mode=mode), "cuda"), gradients(fn, "cpu"), strict=True):
        compare(got, want, 2e-2)
    names = [name.split("_kernel")[0] for r in recipes for name in r]
    assert {"by_channels", "by_taps", "by_outputs"} <= set(names) and "Call" not in names


def test_training_through_convolutions(on_the_emulator: None, recipes: list[list[str]]) -> None:
    def step(x: Any, w1: Any, b: Any, w2: Any) -> Any:
        return (F.conv1d(torch.tanh(F.conv2d(x, w1, b, padding=1)).flatten(2), w2, groups=2) ** 2).sum()

    def gradients(fn: Callable[..., Any], device: str) -> list[np.ndarray]:
        leaves = [a.detach().clone().to(device).requires_grad_() for a in (x, w1, b, w2)]
        fn(*leaves).backward()
        return [t.grad.cpu().numpy() for t in leaves]

    x, w1, b, w2 = numbers(2, 2, 5, 6), numbers(4, 2, 3, 3, seed=1), numbers(4, seed=2), numbers(4, 2, 5, seed=3)
    for got, want in zip(gradients(torch.compile(step), "cuda"), gradients(step, "cpu"), strict=True):
        compare(got, want, 5e-6)
    assert {"conv", "conv_input", "conv_weight"} <= {name.split("_joined")[0] for r in recipes for name in r}


def test_what_follows_a_strided_gradient_is_in_each_of_its_pieces(on_the_emulator: None, recipes: list[list[str]]) -> None:
    def step(z: Any, w: Any) -> Any:
        return (F.conv2d(torch.tanh(z), w, padding=1, stride=2) ** 2).sum()

    def gradients(fn: Callable[..., Any], device: str) -> list[np.ndarray]:
        leaves = [a.detach().clone().to(device).requires_grad_() for a in (z, w)]
        fn(*leaves).backward()
        return [t.grad.cpu().numpy() for t in leaves]

    z, w = numbers(2, 3, 7, 6), numbers(4, 3, 3, 3, seed=1)
    for got, want in zip(gradients(torch.compile(step), "cuda"), gradients(step, "cpu"), strict=True):
        compare(got, want, 5e-6)
    backward = next(r for r in recipes if "conv_input" in r)
    at = backward.index("conv_input")
    assert backward[at : at + 4] == ["conv_input"] * 4 and set(backward[at:]) == {"conv_input", "conv_weight", "Release"}


def test_windows_of_one_pixel_may_be_the_librarys_products(on_the_emulator: None, monkeypatch: pytest.MonkeyPatch, recipes: list[list[str]]) -> None:
    """Forward and the input's gradient; the weight's is a sum over images, too."""
    monkeypatch.setattr(ways, "WORTH", 1)
    monkeypatch.setattr(ways.Contest, "won", lambda self, make: make["library"]() if "library" in make else None)
    x, w, b = numbers(2, 6, 5, 4), numbers(3, 6, 1, 1, seed=1), numbers(3, seed=2)

    def gradients(fn: Callable[..., Any], device: str) -> list[np.ndarray]:
        leaves = [a.detach().clone().to(device).requires_grad_() for a in (x, w, b)]
        out = fn(*leaves)
        out.sum().backward()
        return [out.detach().cpu().numpy(), *(t.grad.cpu().numpy() for t in leaves)]

    def fn(x: Any, w: Any, b: Any) -> Any:
        return torch.sin(F.conv2d(torch.sin(x), w, b))

    for got, want in zip(gradients(torch.compile(fn, mode="max-autotune-no-cudagraphs"), "cuda"), gradients(fn, "cpu"), strict=True):
        compare(got, want, 5e-6)
    assert sum(r.count("Product") for r in recipes) == 2 and not any("conv" in r for r in recipes)


# --- before a product ---
@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The first way that computes an operand wins, where there is one."""
    problems: list[Problem] = []

    def won(self: ways.Contest, make: dict[str, Callable[[], list[Step]]]) -> list[Step] | None:
        first = next((steps for way, steps in make.items() if way.startswith("computed")), None)
        if first is not None:
            problems.append(self.problem)
        return first() if first else None

    monkeypatch.setattr(ways.Contest, "won", won)
    monkeypatch.setattr(ways, "WORTH", 1)
    return problems


@pytest.mark.parametrize("turned", [False, True])
def test_a_cast_is_done_while_a_product_loads(on_the_emulator: None, computing: list[Problem], recipes: list[list[str]], turned: bool) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = w.to(torch.bfloat16)
        return F.relu(x @ (y.T if turned else y) + b)

    w = numbers(48, 40, seed=1) if turned else numbers(40, 48, seed=1)
    both(fn, numbers(24, 40, dtype=torch.bfloat16), w, numbers(48, dtype=torch.bfloat16))
    assert recipes[-1] == ["Memory", "gemm"] and len(computing) == 1


def test_a_cast_before_a_product_may_stay_a_kernel(on_the_emulator: None, ours: list[Problem], recipes: list[list[str]]) -> None:
    both(lambda x, w: torch.relu(x @ w.to(torch.bfloat16)), numbers(24, 40, dtype=torch.bfloat16), numbers(40, 48, seed=1))
    assert [n for n in recipes[-1] if n not in ("Memory", "Release")][1:] == ["gemm"] and recipes[-1].count("Memory") == 2


def test_an_activation_with_a_row_of_numbers_is_computed_too(on_the_emulator: None, computing: list[Problem], recipes: list[list[str]]) -> None:
    both(lambda x, s, w: F.gelu(x * s) @ w, numbers(3, 20, 36), numbers(36, seed=1), numbers(3, 36, 33, seed=2))
    assert recipes[-1] == ["Memory", "gemm"] and len(computing) == 1


def test_an_operand_that_others_want_is_stored(on_the_emulator: None, computing: list[Problem], recipes: list[list[str]]) -> None:
    def fn(x: Any, w: Any) -> Any:
        y = torch.sin(x)
        return y @ w, y

    both(fn, numbers(24, 40), numbers(40, 33))
    assert not computing and len(recipes[-1]) > 2


# --- the tuner --------------------------------------------------------------------------------------------------------
def test_no_more_stages_than_steps() -> None:
    for depth, most in ((64, 3), (32, 2), (256, 4)):
        p = gemm.matmul(View("x", (512, depth), (depth, 1), 0), View("y", (depth, 512), (512, 1), 0), View("d", (512, 512), (512, 1), 0), dtypes.bfloat16)
        assert p is not None
        found = gemm_schedules.candidates(p, grouped=True)
        assert max(t.stages for t in found) == most and all(t.stages <= max(2, -(-depth // t.k) + 1) for t in found)


def test_the_tuner_throws_wrong_schedules_away(on_the_emulator: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every one of our schedules is far faster than the library by this clock; one is right, and one cannot run."""
    monkeypatch.setattr(ways, "WORTH", 1)
    monkeypatch.setattr(ways, "MOST_TRIED", 3)
    made, tried = gemm.launches, []

    def launches(p: Problem, t: Tiles, *, strict: bool = False) -> list[Step]:
        steps = made(p, t, strict=strict)
        tried.append(gemm_schedules.label(t))
        if len(tried) == 1:
            return [replace(s, source=replace(s.source, text=s.source.text.replace("clear(sums);", "clear(sums); sums.at[0][0] = 1;"))) for s in steps]
        if len(tried) == 2:
            raise ValueError("no such kernel")
        return steps

    monkeypatch.setattr(gemm, "launches", launches)
    clock = iter([1.0, 0.5, 0.25])
    monkeypatch.setattr(ways.tune, "cold_seconds", lambda device, run: next(clock))
    won: list[str] = []
    search = ways.autotune.search
    monkeypatch.setattr(ways.autotune, "search", lambda *args: won.append(search(*args)) or won[-1])
    with config.patch(cache_dir=str(tmp_path)):  # an earlier run's choice would be taken untried
        both(lambda x, w: x @ w, numbers(64, 64), numbers(64, 64))
    assert len(tried) == 3 and [w.way for w in won] == [tried[2]]


# --- the text ---------------------------------------------------------------------------------------------------------
def texts(*, grouped: bool) -> dict[str, str]:
    """A product and the three convolutions in each arithmetic, small convolutions' tiles, large products'."""
    out = {}
    for kind, tf32, turned, fn in (
        ("bfloat16", False, True, "conv"), ("float16", False, False, "conv_weight"), ("float32", False, True, "conv_input"), ("float32", True, False, "conv_weight"),
    ):  # fmt: skip
        dtype = dtypes.from_numpy(np.dtype(TYPES[kind]))
        x = View("x", (256, 256), (1, 256) if turned else (256, 1), 0)
        p = gemm.matmul(x, View("y", (256, 256), (256, 1), 0), View("d", (256, 256), (256, 1), 0), dtype, tf32=tf32)
        call, *_ = convolution_case(kind, (2, 8, 8), (8, 8), 3, {"padding": 1}, fn)
        q = convolution.problem(call, dtype)
        assert p is not None and q is not None
        out[f"gemm {kind} {tf32}"] = gemm.write(p, gemm_schedules.grouped_tiles(p, 128, 128) if grouped and dtype is not dtypes.float32 else gemm_schedules.tiles(p, 128, 128))[0].text
        laid = channels_last.problem(call, dtype)
        assert laid is not None
        for name, r in ((f"{fn} {kind} {tf32}", q), (f"{fn} {kind} {tf32} by channels", laid)):
            group = gemm_schedules.grouped_tiles(r, 64, 128) if grouped and dtype is not dtypes.float32 else gemm_schedules.default_tiles(r)
            out[name] = gemm.write(replace(r, tf32=tf32), group)[0].text
    return out


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_compiles_every_kind(arch: str) -> None:
    for name, text in texts(grouped=arch == "sm_90a").items():
        assert nvrtc.compile_text(text, arch, name=f"{name.replace(' ', '_')}.cu")[:4] == b"\x7fELF", name


def test_text(golden: Callable[[str], None]) -> None:
    """The whole of a small kernel: a product with a bias behind it."""
    p = gemm.matmul(View("x", (64, 96), (96, 1), 0), View("y", (96, 80), (1, 96), 0), View("d", (64, 80), (80, 1), 0), dtypes.bfloat16)
    assert p is not None
    golden(gemm.write(p, Tiles(64, 64, 32, 2, 2, 3))[0].text)


def test_what_is_not_there_is_no_null_pointer() -> None:
    """ptxas tests a null pointer that it has just set before it is set, and copies from address zero."""
    for part in Path(gemm.__file__).parent.glob("*.cuh"):
        assert "nullptr" not in part.read_text(encoding="utf-8"), part.name
