"""The page of the API subset is generated; this says when it is stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_is_current() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_api_subset.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stdout + run.stderr
