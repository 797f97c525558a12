"""The page of graph breaks is generated; this says when it is stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from compiler.capture.breaks import REGISTRY

ROOT = Path(__file__).parent.parent


def test_the_page_is_current() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_graph_breaks.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_kind_says_why_and_what_to_do() -> None:
    page = (ROOT / "docs" / "graph_breaks.md").read_text()
    for row in REGISTRY.values():
        assert f"### {row.id} {row.name}" in page
        assert row.explanation in page and row.hint in page
