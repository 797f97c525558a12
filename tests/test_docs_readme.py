"""The README's example prints what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(blocks("python")[0])
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    out = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert out.returncode == 0, out.stderr
    assert out.stdout.rstrip() == blocks("text")[0].rstrip()


def test_the_first_lines_say_what_this_is_not() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:6]
    assert "not Harvard's TinyTorch" in " ".join(head)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    files = ["/" + str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if "/." not in str(p)]
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {"example.py"}
    missing = [n for n in sorted(named) if not any(f.endswith("/" + n) for f in files)]
    assert not missing, f"{page} names {missing}"
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / page).parent.joinpath(link).exists()]
    assert not links, f"{page} links to {links}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"])
def test_variables_that_pages_name_are_read_somewhere(page: str) -> None:
    rooms = ("tinytorch", "compiler", "codegen_numba", "codegen_cupy", "tests")
    read = {v for room in rooms for p in (ROOT / room).rglob("*.py") for v in re.findall(r"\"(TT_\w+)\"", p.read_text(encoding="utf-8"))}
    named = set(re.findall(r"\bTT_\w+", (ROOT / page).read_text(encoding="utf-8")))
    assert named <= read, f"{page} names {sorted(named - read)}"
