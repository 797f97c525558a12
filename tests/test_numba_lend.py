"""Memory of large results: lent again once nothing lies in it, and never before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import tinytorch as torch
from codegen_numba import lend
from compiler.config import config
from tinytorch import dtypes

MANY = (lend.LEAST // 4 + 100,)
F32 = dtypes.float32.np


def address(x: np.ndarray) -> int:
    return int(x.ctypes.data)


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    gc.collect()
    lend.release()
    yield
    lend.release()


def test_memory_that_is_gone_is_lent_again() -> None:
    x = lend.empty(MANY, F32)
    first = address(x)
    del x
    assert address(lend.empty(MANY, F32)) == first


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x,
        lambda x: x[5:],
        lambda x: x[::-2][3:],
        lambda x: x.reshape(2, -1).T,
        lambda x: x.view(np.int32),
        lambda x: memoryview(x),
        lambda x: np.lib.stride_tricks.as_strided(x, (3,), (0,)),
        lambda x: torch.from_numpy(x)[1:],
    ],
    ids=["itself", "slice", "stepped", "turned", "other type", "memoryview", "strided", "tensor"],
)
def test_whatever_lies_in_it_keeps_it(keep) -> None:
    x = lend.empty(MANY, F32)
    x[:] = 1
    first = address(x)
    kept = keep(x)
    del x
    other = lend.empty(MANY, F32)
    assert address(other) != first
    other[:] = 2
    assert np.all(np.asarray(kept) != 2)
    del kept, other
    assert lend.waiting() >= 2 * MANY[0] * 4


@pytest.mark.parametrize("dtype", [d for d in dtypes.BY_NAME.values()], ids=str)
def test_it_is_an_ordinary_array(dtype) -> None:
    x, y = (make((3, lend.LEAST), dtype.np) for make in (lend.empty, np.empty))
    assert (x.dtype, x.shape, x.strides) == (y.dtype, y.shape, y.strides)
    assert x.flags.writeable and x.flags.c_contiguous and address(x) % 64 == 0
    x[:] = 1
    assert np.all(x == 1)


def test_small_ones_are_numpys() -> None:
    assert lend.empty((10,), F32).flags.owndata and lend.empty((0, lend.LEAST), F32).size == 0


def test_sizes_about_as_large_share() -> None:
    x = lend.empty((MANY[0] * 10,), F32)
    first = address(x)
    del x
    smaller, much_smaller = lend.empty((MANY[0] * 9,), F32), lend.empty(MANY, F32)
    assert address(smaller) == first and address(much_smaller) != first


def test_no_more_waits_than_the_setting_says() -> None:
    held = [lend.empty((1 << 20,), F32) for _ in range(8)]  # four megabytes each
    last = address(held[-1])
    with config.patch(kept_results=9):
        while held:
            held.pop(0)
        assert lend.waiting() == 8 << 20
        assert address(lend.empty((1 << 20,), F32)) == last
    with config.patch(kept_results=0):
        assert lend.empty(MANY, F32).flags.owndata


def test_threads_never_share_a_block() -> None:
    wrong: list[int] = []

    def work(me: int) -> None:
        for n in range(200):
            x = lend.empty(MANY, F32)
            x[:: 4096] = me
            y = lend.empty(MANY, F32)
            y[:: 4096] = me
            if n % 3:
                del y
            if not (x[:: 4096] == me).all():
                wrong.append(me)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_compiled_functions_results_are_its_callers() -> None:
    @torch.compile
    def f(x):
        return x + 1, x * 2

    x = torch.ones(lend.LEAST)
    held = [f(torch.full((lend.LEAST,), float(n))) for n in range(4)]
    part = f(x)[0][-3:]
    again = [f(torch.full((lend.LEAST,), 50.0)) for _ in range(3)]
    assert [float(a[7]) for a, _ in held] == [1.0, 2.0, 3.0, 4.0] and [float(b[-1]) for _, b in held] == [0.0, 2.0, 4.0, 6.0]
    assert part.tolist() == [2.0] * 3 and all(float(a[3]) == 51.0 for a, _ in again)
