"""The disk cache: content-addressed, private, and never trusted further than its checksum."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from compiler import cache, logs
from compiler.config import config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path):
    with config.patch(cache=True, cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def test_what_is_put_is_got(folder):
    key = cache.key_of("a", [1, 2], {"b": None})
    assert cache.get("thing", key) is None
    cache.put("thing", key, b"pay\nload\x00\xff", {"about": "a test"})
    assert cache.get("thing", key) == b"pay\nload\x00\xff"
    assert cache.get("other", key) is None
    assert cache.clear() == 1 and cache.get("thing", key) is None


def test_keys_follow_content():
    assert cache.key_of(1, "a") == cache.key_of(1, "a")
    assert len({cache.key_of(*k) for k in [(1, "a"), (1, "b"), ("1", "a"), (1, ["a"]), (1,)]}) == 5


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "no json", "foreign json"])
def test_corrupt_entries_are_misses(folder, harm):
    key = cache.key_of("x")
    cache.put("thing", key, b"0123456789" * 20)
    path = folder / f"thing-{key}"
    data = path.read_bytes()
    bad = {
        "truncate": data[:-3], "flip": data[:-1] + b"x", "empty": b"", "no json": b"\xff\xfe" + data,
        "foreign json": b"[1]\n" + data,
    }[harm]  # fmt: skip
    path.write_bytes(bad)
    assert cache.get("thing", key) is None
    cache.put("thing", key, b"again")
    assert cache.get("thing", key) == b"again"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_folder_is_private(folder):
    cache.put("thing", cache.key_of("x"), b"data")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    assert cache.folder() is None and cache.get("thing", cache.key_of("x")) is None
    folder.chmod(0o700)
    assert cache.get("thing", cache.key_of("x")) == b"data"


def test_no_temporary_files_are_left(folder):
    for n in range(5):
        cache.put("thing", cache.key_of(n), b"x" * n)
    assert not [p for p in folder.iterdir() if p.name.startswith(".tmp")]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with config.patch(cache_dir=str(tmp_path / "file" / "cache")):
        cache.put("thing", cache.key_of("x"), b"data")
        assert cache.get("thing", cache.key_of("x")) is None


def test_hits_and_misses_are_counted(folder):
    before = dict(logs.counters["cache"])
    key = cache.key_of("counted")
    cache.get("thing", key)
    cache.put("thing", key, b"1")
    cache.get("thing", key)
    after = logs.counters["cache"]
    assert after["thing miss"] - before.get("thing miss", 0) == 1
    assert after["thing hit"] - before.get("thing hit", 0) == 1


def test_long_texts_become_bytecode_once(folder):
    text = "".join(f"def f{n}(x):\n    return [x + {n} for _ in range(2)]\n" for n in range(cache.LONG // 30))
    made = cache.bytecode(text, "<one>")
    before = logs.counters["cache"]["code hit"]
    found = cache.bytecode(text, "<two>")
    assert logs.counters["cache"]["code hit"] == before + 1
    for code, name in ((made, "<one>"), (found, "<two>")):
        scope: dict = {}
        exec(code, scope)
        assert scope["f7"](1) == [8, 8]
        assert scope["f7"].__code__.co_filename == name == code.co_filename
    cache.bytecode("x = 1", "<short>")
    assert sum(p.name.startswith("code-") for p in folder.iterdir()) == 1


PROGRAM = """
import sys
import numpy as np
from numba_helpers import run_kernel
from compiler.loop.build import kernel
from tinytorch.dtypes import float32

@kernel
def double(k):
    x = k.param("x", float32, (100,), (1,))
    out = k.param("out", float32, (100,), (1,))
    for i in k.map(100):
        k.store(out, i, k.exp(k.load(x, i)))

x = np.linspace(-1, 1, 100).astype(np.float32)
assert np.allclose(run_kernel(double, [x])[0], np.exp(x))
print("codegen_numba.translate" in sys.modules, "numba" in sys.modules)
"""


def run(folder: Path) -> str:
    env = {**os.environ, "TT_CACHE_DIR": str(folder), "TT_CACHE": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_warm_process_compiles_nothing(tmp_path):
    folder = tmp_path / "cache"
    assert run(folder) == "True False"
    assert run(folder) == "False False"
    # entries hold text a person can read: what was compiled
    heads = [json.loads(p.read_bytes().partition(b"\n")[0]) for p in folder.iterdir() if p.name.startswith("object")]
    assert any("exp(" in h["source"] for h in heads)
    # a damaged object is compiled anew, not run
    for p in folder.iterdir():
        p.write_bytes(p.read_bytes()[:-8] + b"\0" * 8)
    assert run(folder) == "True False"
