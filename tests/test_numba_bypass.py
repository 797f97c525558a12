"""Results that go around the caches: the copying itself at every alignment, which results do, and that values stay."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loop_helpers import trace
from numba_helpers import run_source

from codegen_numba import bypass
from codegen_numba.build import build
from codegen_numba.compile import Source, assembly
from codegen_numba.schedule import Tune
from compiler.config import Config
from compiler.loop.host import compile_graph
from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.tensor import Tensor

COPY = """\
def k(source, out, at, count, start, stop, part):
    row = scratch_{t}(1024)
    for i in range(count):
        row[i] = source[i]
    write_around(out, at, row, count)
    fetch(source, count, count)
    settle()
"""


def copying(t: str) -> Source:
    return Source("k", COPY.format(t=t), (("source", t), ("out", t), ("at", "size"), ("count", "size")))


@pytest.mark.parametrize("t", ["uint8", "uint16", "float32", "float64"])
def test_every_place_and_length(t: str) -> None:
    source = np.arange(1, 400).astype(t)
    for at in (0, 1, 3, 7, 8, 13, 16, 31):
        for count in (0, 1, 2, 7, 15, 16, 17, 33, 64, 129, 300):
            out = np.zeros(400, t)
            run_source(copying(t), [source, out, at, count], 1)
            want = np.zeros(400, t)
            want[at : at + count] = source[:count]
            np.testing.assert_array_equal(out, want)


@pytest.mark.skipif(not hasattr(bypass.target, "machine") or "x86_64" not in bypass.target.machine().triple, reason="x86-64's name")
def test_whole_lines_are_vectors() -> None:
    text = assembly(copying("float32"))
    assert "vmovnt" in text and "sfence" in text and "prefetcht0" in text


def normal(*shape: int, dtype: dtypes.DType = dtypes.float32) -> Tensor:
    return Tensor._wrap(np.random.default_rng(1).normal(size=shape).astype(dtype.np), cpu)


def gate(x, y):
    return ops.add(ops.mul(x, y), ops.exp(x))


def rms(x, y):
    return ops.mul(x, ops.rsqrt(ops.sum(ops.mul(x, x), dim=(1,), keepdim=True)))


def turned(x, y):
    return ops.add(ops.permute(x, dims=(1, 0)), ops.permute(y, dims=(1, 0)))


def two(x, y):
    return ops.sub(x, y), ops.mul(x, y)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("fn", [gate, rms, two, turned], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(70, 64), (33, 1029), (5, 2500)], ids=str)
def test_values_do_not_depend_on_the_way(shape, fn, dtype) -> None:
    x, y = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    plan = compile_graph(trace(fn, x, y), Config())
    ways = [build(plan, Config(), Tune(around=n)) for n in (1, 1 << 60)]
    around, plain = (built([x._data, y._data]) for built in ways)
    texts = ["".join(built.kernels.values()) for built in ways]
    assert "write_around" not in texts[1] and ("write_around" in texts[0] or fn is turned)
    for a, b in zip(around, plain, strict=True):
        np.testing.assert_array_equal(*(np.ascontiguousarray(v).view(np.uint8) for v in (a, b)))


def test_the_next_row_is_fetched_while_this_one_is_written() -> None:
    x = normal(70, 64)
    built = build(compile_graph(trace(rms, x, x), Config()), Config(), Tune(around=1))
    (text,) = built.kernels.values()
    assert text.index("accumulate(") < text.index("fetch(in0, 64 * i0 + 64, 64)") < text.index("write_around(")


def kernels_of(fn, *args: Tensor):
    return compile_graph(trace(fn, *args), Config()).kernels


def test_only_what_is_written_and_not_read() -> None:
    (kernel,) = kernels_of(two, normal(8, 16), normal(8, 16))
    assert bypass.results(kernel, 1) == kernel.writes
    assert not bypass.results(kernel, 4 * 8 * 16 * 4)
    assert bypass.last_cache() > 0
    (kernel,) = kernels_of(lambda x: ops.sum(x, dim=(0,), keepdim=False), normal(4096, 16))
    assert not bypass.results(kernel, 64 << 10)  # a result that is small beside what is read


@pytest.mark.parametrize("shape", [(40, 37), (130, 300)])
@pytest.mark.parametrize("tune", [Tune(around=1), Tune(around=1, tile=(3, 5), parallel=1)], ids=["tuned", "tiny"])
def test_tiles_go_around_too(shape: tuple[int, int], tune: Tune) -> None:
    """Rows of a tile whose other operand is turned; the next row and the next tile are asked for meanwhile: of the turned
    operand so many of its rows at each row of the tile that all are asked for."""
    x, y = normal(*shape), normal(*reversed(shape))
    built = build(compile_graph(trace(lambda x, y: ops.add(ops.permute(x, dims=(1, 0)), y), x, y), Config()), Config(), tune)
    text = "".join(built.kernels.values())
    assert "turn_in(" in text and "write_around(" in text and text.count("fetch(") == 1
    assert text.count("fetch_later(") == 1 + math.ceil(tune.tile[1] / tune.tile[0])
    (got,) = built([x._data, y._data])
    np.testing.assert_array_equal(got, x._data.T + y._data)
