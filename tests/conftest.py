"""What all tests share: a seed, a private cache, goldens, and loud skips where there is no GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Two threads of BLAS per test process fight with the other processes of a parallel run.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest

import tinytorch
from compiler.config import config
from tinytorch.device import cuda_available, emulated

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected texts in tests/golden")


def pytest_report_header(config: pytest.Config) -> str:
    found = "emulated on the CPU" if emulated() else "found" if cuda_available() else "NOT FOUND: cuda tests are skipped"
    return f"tinytorch {Path(tinytorch.__file__).parent}, GPU {found}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``test_tiny`` first: what it finds broken breaks everything."""
    items.sort(key=lambda item: item.path.name != "test_tiny.py")
    if cuda_available() and not emulated():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no GPU: this test ran nowhere today"))


@pytest.fixture(autouse=True, scope="session")
def _private_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that tests build are kept apart from the user's, and found again by the next test run."""
    kept = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("kernels") if kept is None else Path(kept.mkdir("kernels"))
    folder.chmod(0o700)
    with config.patch(cache_dir=str(folder)):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    tinytorch.manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """``golden(text)``: equal to the file named after the test; ``--update-golden`` writes it."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{request.path.stem}.{request.node.name}").strip("_")
    path = GOLDEN / f"{name}.txt"

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.rstrip() + "\n", encoding="utf-8")
        assert path.exists(), f"{path} is missing: run with --update-golden and look at what it writes"
        assert text.rstrip() + "\n" == path.read_text(encoding="utf-8")

    return check
