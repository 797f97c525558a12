"""Random numbers: the published Philox stream, places in it, and the distributions made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from codegen_cupy import emulate, nvrtc
from tinytorch.ops import philox


def test_philox_known_answers() -> None:
    """The test vectors of the Random123 distribution, for Philox 4x32-10."""
    ones = (1 << 64) - 1
    for key, low, want in [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ]:
        words = philox.block(np, key, np.array([low], np.uint64))
        assert tuple(int(w[0]) for w in words) == want
    assert all(int(w[0]) < 1 << 32 for w in philox.block(np, ones, np.array([ones], np.uint64)))


class DeviceModule:
    """NumPy, but for kernels: those are compiled as a GPU's, and run by the emulator, which watches where they write."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def RawKernel(self, text: str, name: str) -> Any:
        nvrtc.available() and nvrtc.compile_text(text, "sm_90a")
        return emulate.compile_kernel(text, name, check=True)


@pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")
@pytest.mark.parametrize("draw", [philox.WORD, philox.LONG, philox.UNIFORM], ids=lambda d: d.name)
def test_a_gpu_draws_the_same_bits_in_one_kernel(draw: philox.Draw) -> None:
    device = DeviceModule()
    for seed, offset, numel in ((7, 0, 1), (7, 3, 4), (-5, 1 << 33, 1027), ((1 << 64) - 1, (1 << 32) - 2, 2048), (1, 2, 0)):
        want, got = (philox.fill(xp, seed, offset, numel, draw) for xp in (np, device))
        assert got.dtype == want.dtype == draw.dtype and np.array_equal(got, want)
    place = np.arange(300).reshape(2, 150)[:, ::-1]
    for counter, lane in ((5 + place // 4, place % 4), (place, 3), (place[:0], 0)):
        want, got = (philox.draw_at(xp, -3, counter, lane, draw) for xp in (np, device))
        assert got.dtype == want.dtype and np.array_equal(got, want)


def test_the_same_seed_gives_the_same_stream() -> None:
    torch.manual_seed(7)
    first = [torch.rand(5), torch.randn(3), torch.randint(0, 9, (4,)), torch.randperm(6)]
    torch.manual_seed(7)
    for a, b in zip(first, [torch.rand(5), torch.randn(3), torch.randint(0, 9, (4,)), torch.randperm(6)], strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(8)
    assert not torch.equal(first[0], torch.rand(5))


def test_a_draw_moves_the_offset_by_a_quarter() -> None:
    g = torch.Generator().manual_seed(3)
    for n, offset in ((1, 1), (4, 2), (5, 4), (0, 4), (128, 36)):
        torch.rand(n, generator=g)
        assert g.offset == offset


def test_a_long_draw_continues_a_short_one() -> None:
    """Element i depends on the place in the stream alone."""
    g = torch.Generator().manual_seed(3)
    whole = torch.rand(16, generator=g)
    g.manual_seed(3)
    parts = [torch.rand(4, generator=g) for _ in range(4)]
    assert torch.equal(whole, torch.cat(parts))


def test_states_can_be_kept() -> None:
    torch.manual_seed(1)
    torch.rand(3)
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    assert torch.equal(a, torch.rand(3))
    with torch.random.fork_rng():
        b = torch.rand(2)
    assert torch.equal(b, torch.rand(2))


def test_distributions_have_their_moments() -> None:
    torch.manual_seed(0)
    n = 40000
    u, z = torch.rand(n), torch.randn(n)
    assert abs(u.mean().item() - 0.5) < 0.01 and 0 <= u.min().item() and u.max().item() < 1
    assert abs(z.mean().item()) < 0.02 and abs(z.std().item() - 1) < 0.02
    assert abs((z**4).mean().item() - 3) < 0.2
    e = torch.empty(n).exponential_(2.0)
    assert abs(e.mean().item() - 0.5) < 0.01
    x = torch.empty(n).uniform_(-2, 4)
    assert abs(x.mean().item() - 1) < 0.05 and x.min().item() >= -2 and x.max().item() < 4
    b = torch.bernoulli(torch.full((n,), 0.3))
    assert abs(b.mean().item() - 0.3) < 0.01
    k = torch.randint(-3, 5, (n,))
    assert k.min().item() == -3 and k.max().item() == 4 and k.dtype is torch.int64
    assert abs(torch.normal(5.0, 2.0, (n,)).mean().item() - 5) < 0.05


def test_permutations_and_choices() -> None:
    torch.manual_seed(0)
    p = torch.randperm(1000)
    assert torch.equal(p.sort().values, torch.arange(1000)) and not torch.equal(p, torch.arange(1000))
    weights = torch.tensor([0.0, 1.0, 3.0])
    counts = torch.bincount(torch.multinomial(weights, 20000, replacement=True), minlength=3)
    assert counts[0] == 0 and abs(counts[2].item() / 20000 - 0.75) < 0.02
    for _ in range(20):
        assert sorted(torch.multinomial(weights, 2).tolist()) == [1, 2]
    firsts = torch.multinomial(weights.expand(20000, 3), 1).float().mean().item()
    assert abs(firsts - 1.75) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    for t in (torch.rand(9, dtype=dtype), torch.randn(9, dtype=dtype), torch.empty(9, dtype=dtype).normal_()):
        assert t.dtype is dtype and torch.isfinite(t).all()


@pytest.mark.parametrize("emulate", [True, pytest.param(False, marks=pytest.mark.cuda)], ids=["emulated", "gpu"])
def test_bits_do_not_depend_on_the_device(emulate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and what integer arithmetic and comparison make of them are equal to the bit; logarithms and cosines to the last
    few."""
    if emulate:
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    exact = {
        "rand": lambda d: torch.rand(1001, device=d),
        "rand double": lambda d: torch.rand(10, 7, device=d, dtype=torch.float64),
        "rand half": lambda d: torch.rand(77, device=d, dtype=torch.bfloat16),
        "randint": lambda d: torch.randint(-5, 1000, (333,), device=d),
        "randint wide": lambda d: torch.randint(0, 1 << 40, (33,), device=d),
        "randperm": lambda d: torch.randperm(500, device=d),
        "bernoulli": lambda d: torch.bernoulli(torch.full((500,), 0.3, device=d)),
        "bernoulli_": lambda d: torch.empty(50, device=d).bernoulli_(0.2),
        "uniform_": lambda d: torch.empty(50, device=d).uniform_(0, 4),
        "random_": lambda d: torch.empty(50, device=d, dtype=torch.int32).random_(10),
        "dropout": lambda d: torch.nn.functional.dropout(torch.ones(40, 50, device=d), 0.25),
        "multinomial": lambda d: torch.multinomial(torch.tensor([[1.0, 2.0, 4.0, 8.0]], device=d), 50, replacement=True),
        "from a generator": lambda d: torch.rand(9, device=d, generator=torch.Generator().manual_seed(5)),
    }
    near = {
        "randn": lambda d: torch.randn(1001, device=d),
        "normal_": lambda d: torch.empty(50, device=d).normal_(1, 3),
        "exponential_": lambda d: torch.empty(50, device=d).exponential_(),
    }
    for name, draw in {**exact, **near}.items():
        torch.manual_seed(11)
        here, then = draw("cpu"), torch.get_rng_state()
        torch.manual_seed(11)
        there = draw("cuda")
        assert there.device.type == "cuda" and torch.equal(then, torch.get_rng_state())
        assert torch.allclose(here.float(), there.cpu().float(), rtol=0 if name in exact else 1e-5, atol=0 if name in exact else 1e-6), name


def test_likeness() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.rand_like(x).dtype is torch.float64 and torch.randn_like(x).shape == (2, 3)
    assert torch.rand(2, 3, requires_grad=True).requires_grad


def test_random_numbers_are_no_part_of_the_tape() -> None:
    p = torch.full((3,), 0.5, requires_grad=True)
    assert not torch.bernoulli(p).requires_grad
    assert math.isfinite(torch.randn(()).item())
