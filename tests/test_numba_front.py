"""The quick front: the same machine code, or at least the same results, as by way of Numba; and Numba where it stops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loop_helpers import trace
from numba_helpers import TINY, run_source
from row_batches import together
from row_programs import rolled

from codegen_numba import kernels, translate
from codegen_numba.build import build
from codegen_numba.compile import Source
from codegen_numba.front import UnknownError
from codegen_numba.pool import SOURCES
from codegen_numba.sources import PREPARE
from compiler.config import Config, config
from compiler.loop import compile_graph

STRICT = Config().replace({"numerics": "strict", "cache": False})


def results(seeds: range, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Of random programs of rows, compiled anew."""
    monkeypatch.setattr(kernels, "_addresses", {})
    out = []
    for seed in seeds:
        fn, tensors = together([rolled(seed)])
        built = build(compile_graph(trace(fn, *tensors), STRICT), STRICT, TINY if seed % 2 else None)
        out += [a.tobytes() for a in built([t._data for t in tensors])]
    return out


def test_both_fronts_give_the_same_bits(monkeypatch):
    def stop(source: Source) -> None:
        raise UnknownError("everything")

    seeds = range(500, 512)
    quick = results(seeds, monkeypatch)
    monkeypatch.setattr(translate, "quickly", stop)
    assert results(seeds, monkeypatch) == quick


def test_kernels_of_programs_need_no_numba(monkeypatch):
    def stop(source: Source) -> None:
        raise AssertionError(source.text)

    monkeypatch.setattr(translate, "by_numba", stop)
    assert results(range(600, 640), monkeypatch)


@pytest.mark.parametrize("source", [*SOURCES.values(), PREPARE], ids=lambda s: s.name)
def test_sources_of_the_runtime_need_no_numba(source):
    assert translate.quickly(source)[1].blocks


def test_other_python_goes_to_numba():
    text = "def k(x, out, start, stop, part):\n    for i in range(start, stop):\n        out[i] = x[i] * x[i] if x[i] > 1.0 else x[i]\n"
    source = Source("k", text, (("x", "float64"), ("out", "float64")))
    with pytest.raises(UnknownError, match="if x"):
        translate.quickly(source)
    x, out = np.array([3.0, 0.5, -2.0]), np.empty(3)
    run_source(source, [x, out], 3)
    assert out.tolist() == [9.0, 0.5, -2.0]


@pytest.mark.parametrize(
    "line",
    ["a = 1.5; a = x[i]", "out[i] = y[i]", "out[i] = missing(x[i])", "a, b = x[i]",
     "out[x[i]] = 1.0", "out[i] = exp(x[i], 2)", "out[i] = u[i] + i"],
)  # fmt: skip
def test_what_it_does_not_know_it_says(line):
    text = f"def k(x, u, out, start, stop, part):\n    for i in range(start, stop):\n        {line}\n"
    with pytest.raises(UnknownError):
        translate.quickly(Source("k", text, (("x", "float32"), ("u", "uint64"), ("out", "float32"))))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("int8(100) + int8(100)", 200),  # integers of any width are added in 64 bits, as in Numba
        ("to_int8(int8(100) + int8(100))", -56),
        ("3 & 6 | 8", 10), ("1 << 40 >> 38", 4), ("-7", -7), ("to_int64(float32(2.5) + 1.25)", 3), ("2 == 2.0", 1),
        ("(2 < 1 or 3 < 4) and not 5 < 4", 1), ("(2 < 1) != (3 < 4)", 1), ("uint8(200) + uint8(100)", 300),
        ("to_int64(float32(1) / float32(3) * 3.0 == 1.0)", 0),
    ],
)  # fmt: skip
def test_arithmetic_means_what_numba_means(text, want, monkeypatch):
    source = Source("k", f"def k(out, start, stop, part):\n    out[0] = to_int64({text})\n", (("out", "int64"),))
    for front in (translate.quickly, translate.by_numba):
        monkeypatch.setattr(translate, "quickly", front)
        monkeypatch.setattr(kernels, "_addresses", {})
        out = np.empty(1, np.int64)
        with config.patch(cache=False):
            run_source(source, [out], 1)
        assert out[0] == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("range(5)", 4), ("range(2, 5)", 4), ("range(5, 2)", -1), ("range(0, 9, 4)", 8), ("range(9, 0, -4)", 1),
        ("range(0, 9, part + 2)", 8), ("range(0, 9, part - 2)", -1), ("range(9, 0, part - 2)", 1), ("range(part)", -1),
    ],
)  # fmt: skip
def test_ranges(text, want):
    """The last number a loop saw, and that changing the variable inside changes no later turn."""
    body = f"    last = -1\n    for i in {text}:\n        last = i\n        i = 100\n    out[0] = last\n"
    source = Source("k", f"def k(out, start, stop, part):\n{body}", (("out", "int64"),))
    translate.quickly(source)
    out = np.empty(1, np.int64)
    run_source(source, [out], 1)
    assert out[0] == want


def test_a_first_compiled_call_does_not_import_numba():
    program = (
        "import sys, tinytorch as torch\n"
        "f = torch.compile(lambda x, w: (torch.softmax(x @ w, -1) * x.exp()).sum(0))\n"
        "f(torch.ones(8, 8), torch.ones(8, 8))\n"
        "assert 'codegen_numba' in sys.modules and 'numba' not in sys.modules\n"
    )
    env = {**os.environ, "TT_CACHE": "0"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env, cwd=Path(__file__).parent.parent)


@pytest.mark.parametrize("join", ["bit_and(a, x[-i - 5 * j] != 0)", "select(a, x[-i - 5 * j] != 0, False)"])
def test_long_conjunctions_do_not_end_the_process(join):
    """LLVM's vectoriser of straight lines fails an assertion on them, which no Python can catch."""
    program = (
        "from codegen_numba.compile import Source, front, machine_code\n"
        "text = 'def k(x, out, start, stop, part):\\n    for i in range(start, stop):\\n        a = True\\n'\n"
        f"text += '        for j in range(31):\\n            a = {join}\\n        out[i] = to_uint8(a)\\n'\n"
        "print(len(machine_code(front(Source('k', text, (('x', 'int64'), ('out', 'uint8')))))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0 and int(done.stdout) > 100, done.stderr[-500:]
