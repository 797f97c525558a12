"""What library products do on their way to memory: which nests they take over, what that means, and without the library."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import tinytorch as torch
from codegen_cupy import launch, unfused
from codegen_cupy.host import Memory, Recipe, View
from codegen_cupy.machine import machine
from codegen_cupy.matmul import Product, by_numpy, describe, followed
from compiler.config import config
from compiler.loop import epilogue, host
from compiler.loop.ir import Extern, Plan, Store, walk
from compiler.loop.printer import format_plan, parse_plan
from tinytorch.dtypes import bfloat16, float16, float32

F = torch.nn.functional
requires_emulator = pytest.mark.usefixtures("emulated")


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")


@pytest.fixture
def plans(monkeypatch) -> Iterator[list[Plan]]:
    """The plans made in a test."""
    made: list[Plan] = []
    original = host.shared

    def shared(plan):
        made.append(original(plan))
        return made[-1]

    monkeypatch.setattr(host, "shared", shared)
    with config.patch(cache=False):  # made before is made no more
        yield made


def words(plans: list[Plan]) -> list[tuple[str, ...]]:
    assert all(parse_plan(format_plan(p)) == p for p in plans)
    steps = [s for p in plans for s in p.steps if isinstance(s, Extern) and s.fn == "matmul"]
    return [tuple(s.params.get("then", ())) for s in steps]


def numbers(*shape: int, seed: int = 0, dtype=torch.float32, grad: bool = False):
    a = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    t = torch.from_numpy(a).to("cuda").to(dtype)
    return t.requires_grad_() if grad else t


def compare(fn, *args, rtol: float = 1e-5) -> None:
    want, got = fn(*args), torch.compile(fn)(*args)
    for w, g in zip(want, got, strict=True):
        assert w.dtype is g.dtype
        np.testing.assert_allclose(g.float().cpu().numpy(), w.float().cpu().numpy(), rtol=rtol, atol=rtol)


@requires_emulator
@pytest.mark.parametrize("dtype,rtol", [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 6e-2)])
def test_a_linear_layer_adds_its_bias_itself(plans, dtype, rtol) -> None:
    x, w, b = numbers(3, 5, 8, dtype=dtype), numbers(16, 8, seed=1, dtype=dtype), numbers(16, seed=2, dtype=dtype)
    compare(lambda x, w, b: (F.linear(x, w, b),), x, w, b, rtol=rtol)
    assert words(plans) == [("bias",)] and not plans[0].kernels


@requires_emulator
def test_under_autocast_the_bias_is_rounded_first(plans) -> None:
    x, w, b = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2)

    def fn(x, w, b):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = F.linear(x, w, b)
            return y, F.gelu(y)

    compare(fn, x, w, b, rtol=6e-2)
    assert words(plans) == [("bias",)]


@requires_emulator
def test_gradients_that_meet_are_added_by_the_product(plans) -> None:
    g, h, w, v = numbers(6, 8), numbers(6, 4, seed=1), numbers(8, 16, seed=2), numbers(4, 16, seed=3)
    compare(lambda g, h, w, v: (g @ w + h @ v,), g, h, w, v)
    assert sorted(words(plans)) == [(), ("add",)]


@requires_emulator
def test_bias_and_residual(plans) -> None:
    x, w, b, r = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2), numbers(6, 16, seed=3)
    compare(lambda x, w, b, r: (r + F.linear(x, w, b),), x, w, b, r)
    assert words(plans) == [("bias", "add")]


@requires_emulator
def test_what_kernels_read_they_add_themselves(plans) -> None:
    x, w, b, v = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2), numbers(16, 4, seed=3)
    compare(lambda x, w, b: (F.gelu(F.linear(x, w, b)),), x, w, b)
    compare(lambda x, w, b, v: (F.linear(x, w, b) @ v,), x, w, b, v)
    assert sorted(words(plans)) == [(), (), ("bias",)]


@requires_emulator
def test_a_training_step(plans) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("cuda")
    x, y = numbers(16, 8), torch.from_numpy(np.arange(16) % 4).to("cuda")

    def step():
        model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    loss = step()
    want = [p.grad.cpu().numpy() for p in model.parameters()]
    got = torch.compile(step)()
    np.testing.assert_allclose(got.item(), loss.item(), rtol=1e-5)
    for p, w in zip(model.parameters(), want, strict=True):
        np.testing.assert_allclose(p.grad.cpu().numpy(), w, rtol=1e-4, atol=1e-6)
    assert not any(words(plans))  # each sum goes to a kernel, which adds
    gelu = next(k for p in plans for k in p.kernels if "erf" in k.origin)
    assert sum(isinstance(s, Store) for s in walk(gelu.body)) == 1  # and backward adds again


@requires_emulator
@pytest.mark.parametrize("settings", [{"numerics": "strict"}, {"epilogue_fusion": False}])
def test_where_eager_rounds_nothing_moves(plans, settings) -> None:
    x, w, b = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2)
    with config.patch(settings):
        compare(lambda x, w, b: (F.linear(x, w, b),), x, w, b)
    assert words(plans) == [()]


@requires_emulator
def test_a_product_that_others_read_stays_as_it_is(plans) -> None:
    x, w, b = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2)
    compare(lambda x, w, b: ((m := x @ w.t()), m + b), x, w, b)
    assert words(plans) == [()]


@requires_emulator
def test_other_vectors_are_no_bias(plans) -> None:
    x, w, c = numbers(6, 8), numbers(6, 8, seed=1), numbers(6, 1, seed=2)
    compare(lambda x, w, c: (x @ w.t() + c,), x, w, c)
    compare(lambda x, w, c: (x @ w.t() + c.reshape(6).flip(0),), x, w, c)
    assert words(plans) == [(), ()]


@requires_emulator
def test_sizes_that_vary(plans) -> None:
    w, b = numbers(16, 8, seed=1), numbers(16, seed=2)
    fn = torch.compile(lambda x: F.linear(x, w, b), dynamic=True)
    for n in (3, 5):
        x = numbers(n, 8)
        np.testing.assert_allclose(fn(x).cpu().numpy(), F.linear(x, w, b).cpu().numpy(), rtol=1e-5, atol=1e-5)
    assert ("bias",) in words(plans)


# --- a GELU by tanh --------------------------------------------------------------------------------------------------
def gelu(x):
    return F.gelu(x, approximate="tanh")


def by_hand(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


@requires_emulator
@pytest.mark.parametrize("form", [gelu, by_hand])
@pytest.mark.parametrize("dtype,rtol", [(torch.float16, 4e-2), (torch.bfloat16, 2e-1)])
def test_a_product_ends_in_its_gelu(plans, dtype, rtol, form) -> None:
    x, w, b = (numbers(*s, seed=n, dtype=dtype) for n, s in enumerate([(3, 5, 8), (16, 8), (16,)]))
    v, r = numbers(4, 16, seed=3, dtype=dtype), numbers(3, 5, 16, seed=4, dtype=dtype)
    with torch.no_grad():
        compare(lambda x, w, b, v: (F.linear(form(F.linear(x, w, b)), v),), x, w, b, v, rtol=rtol)
        compare(lambda x, w, v: (F.linear(form(F.linear(x, w)), v),), x, w, v, rtol=rtol)
        compare(lambda x, w, b, r, v: (F.linear(form(r + F.linear(x, w, b)), v),), x, w, b, r, v, rtol=rtol)
    assert words(plans)[::2] == [("bias", "gelu"), ("gelu",), ("bias", "add", "gelu")]
    assert not any(p.kernels for p in plans)


@requires_emulator
@pytest.mark.parametrize("whole,dtype", [(True, torch.float16), (False, torch.float16), (True, torch.bfloat16)])
def test_the_slope_is_the_products_too(plans, monkeypatch, whole, dtype) -> None:
    monkeypatch.setattr(epilogue, "KEEPING_TYPES", (bfloat16, float16))
    monkeypatch.setattr(epilogue, "SLOPE_TYPES", (float16,))
    shapes = (6, 8), (16, 8), (16,), (4, 16)
    made = [numbers(*s, seed=n, dtype=dtype) for n, s in enumerate(shapes)]

    def loss(x, w, b, v):
        return (F.linear(gelu(F.linear(x, w, b)), v).float() ** 2).sum()

    def step(*args):
        out = loss(*args)
        out.backward()
        return out

    grads = []
    for fn in (step, torch.compile(step) if whole else lambda *args: torch.compile(loss)(*args).backward()):
        args = [t.clone().requires_grad_() for t in made]
        fn(*args)
        grads.append([a.grad.float().cpu().numpy() for a in args])
    for want, got in zip(*grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=4e-2, atol=4e-2 * np.abs(want).max())
    found = words(plans)
    assert found.count(("dgelu",)) == (dtype is torch.float16) and found.count(("bias", "aux", "gelu")) == whole  # apart, backward's operand is a result


@requires_emulator
def test_one_kernel_for_all_that_read_the_argument(plans, monkeypatch) -> None:
    monkeypatch.setattr(epilogue, "KEEPING_TYPES", (bfloat16,))
    x, w, b, v = (numbers(*s, seed=n, dtype=torch.bfloat16) for n, s in enumerate([(6, 8), (16, 8), (16,), (4, 16)]))
    with torch.no_grad():
        compare(lambda x, w, b, v: (F.linear(gelu(y := F.linear(x, w, b)), v), torch.sigmoid(y)), x, w, b, v, rtol=2e-1)
    assert words(plans) == [(), ()] and len(plans[0].kernels) == 1


@requires_emulator
def test_under_autocast_the_gelu_is_the_products(plans) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(16, 4)).to("cuda")

    def fn(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return (model(x),)

    with torch.no_grad():
        compare(fn, numbers(6, 8), rtol=6e-2)
    assert words(plans) == [("bias", "gelu"), ("bias",)]


OTHERS = {
    "exact": lambda x, y: F.gelu(y),
    "other numbers": lambda x, y: 0.5 * y * (1.0 + torch.tanh(0.9 * (y + 0.044715 * y * y * y))),
    "another power": lambda x, y: 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y * y))),
    "of two": lambda x, y: 0.5 * x[:, :1] * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y * y * y))),
    "and more": lambda x, y: gelu(y) * 2.0,
    "less": lambda x, y: 0.5 * y * torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y * y * y)),
}


@requires_emulator
@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_gelu_by_tanh(plans, what) -> None:
    x, w, b = numbers(6, 8, dtype=torch.bfloat16), numbers(16, 8, seed=1, dtype=torch.bfloat16), numbers(16, seed=2, dtype=torch.bfloat16)
    with torch.no_grad():
        compare(lambda x, w, b: (OTHERS[what](x, F.linear(x, w, b)),), x, w, b, rtol=6e-2)
    assert words(plans) == [()]


@requires_emulator
def test_a_gelu_that_stays_a_kernel(plans) -> None:
    """float32, for which the library's is too rough; one that a kernel reads; one that is a result, whose zeros have signs."""
    x, w, b, v = numbers(6, 8), numbers(16, 8, seed=1), numbers(16, seed=2), numbers(16, 4, seed=3)
    with torch.no_grad():
        compare(lambda x, w, b, v: (gelu(F.linear(x, w, b)) @ v,), x, w, b, v)
        x, w, b = (t.to(torch.bfloat16) for t in (x, w, b))
        compare(lambda x, w, b: (F.softmax(gelu(F.linear(x, w, b)), -1),), x, w, b, rtol=6e-2)
        compare(lambda x, w, b: (gelu(F.linear(x, w, b)),), x, w, b, rtol=6e-2)
    assert words(plans) == [(), (), (), ()]


CASES = [(then, dtype, lies) for then in (("bias",), ("add",), ("bias", "add"), ("gelu",), ("bias", "gelu"), ("add", "gelu"),
                       ("aux", "gelu"), ("bias", "add", "aux", "gelu"), ("dgelu",))
         for dtype in (float32, bfloat16, float16) for lies in ("rows", "columns")]  # fmt: skip


def product_of(then, dtype, lies) -> tuple[Product, dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    m, k, n = 6, 10, 4
    x, y, bias, matrix = (rng.standard_normal(s).astype(dtype.np) for s in ((m, k), (k, n), (n,), (m, n)))
    memory = {"x": x if lies == "rows" else x.T.copy(), "y": y if lies == "rows" else y.T.copy(), "d": np.zeros((m, n), dtype.np)}
    vx = View("x", (m, k), (k, 1) if lies == "rows" else (1, m), 0)
    vy = View("y", (k, n), (n, 1) if lies == "rows" else (1, k), 0)
    p = describe(vx, vy, View("d", (m, n), (n, 1), 0), dtype)
    assert p is not None
    wide = x.astype(np.float32) @ y.astype(np.float32)
    more, want = [], {}
    for word in (w for w in then if w != "gelu"):
        memory[word] = {"bias": bias, "add": matrix, "dgelu": matrix, "aux": np.zeros((m, n), dtype.np)}[word]
        more.append(View(word, memory[word].shape, (1,), 0))
    want["d"] = wide + ("bias" in then) * bias.astype(np.float32) + ("add" in then) * matrix.astype(np.float32)
    x = want["d"].astype(np.float64)
    if "aux" in then:
        want["aux"] = x
    if "gelu" in then:
        want["d"] = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if "dgelu" in then:
        h = torch.from_numpy(matrix.astype(np.float64)).requires_grad_()
        gelu(h).sum().backward()
        want["d"] = x * h.grad.numpy()
    return followed(p, then, more), memory, {b: v for b, v in want.items() if b in memory}


@pytest.mark.parametrize("then,dtype,lies", CASES)
def test_a_product_says_what_it_does(then, dtype, lies) -> None:
    p, memory, want = product_of(then, dtype, lies)
    assert set(p.written) == set(want)
    by_numpy(p, *(memory[b].ctypes.data for b in p.buffers))
    for b, w in want.items():
        np.testing.assert_allclose(memory[b].astype(np.float32), w, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("then,dtype,lies", CASES)
def test_a_refused_product_is_run_in_parts(then, dtype, lies) -> None:
    p, memory, want = product_of(then, dtype, lies)
    given = tuple(Memory(b, dtype, a.shape, tuple(s // a.itemsize for s in a.strides)) for b, a in memory.items())
    recipe = Recipe(tuple(memory), (p,), (), given)
    parts = unfused.where_refused(recipe, lambda _: True, aligned=False)
    assert len(parts.steps) == 1 + len([w for w in then if w != "aux"]) and unfused.where_refused(recipe, lambda _: False, aligned=False) == recipe
    launch.prepared(parts, machine(True))(list(memory.values()))
    for b, w in want.items():
        np.testing.assert_allclose(memory[b].astype(np.float32), w, rtol=2e-2, atol=5e-2)
