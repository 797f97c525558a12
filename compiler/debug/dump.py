"""Every stage as a numbered, readable file: ``TT_COMPILE_DEBUG=1``, or ``with dump(folder):``.

Stage: debug.  In: what ``compiler.logs.artifact`` is given while the block runs.  Out: ``000_graph_forward.py``,
``001_joint_...`` and so on, and an ``index.txt`` that says what each is.  Read next: ``explain``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compiler import logs

ABOUT = {
    "capture": "what capture did",
    "guards": "the check that decides whether the compiled code may run",
    "graph_breaks": "where and why a graph ended early",
    "graph": "the captured graph: your program's tensor calls",
    "joint": "forward and backward in one functional graph of operator rows",
    "partition": "what the forward saves and the backward computes again",
    "loops": "the plan: fused loop nests and library calls",
    "memory": "what is alive when the plan holds the most memory",
    "kernels": "emitted source of the kernels",
    "asm": "machine code of a kernel",
    "autotune": "configurations tried, and their times",
}


@contextmanager
def dump(folder: str | Path) -> Iterator[Path]:
    """Write the artefacts of the block to ``folder``, numbered in the order in which they were made."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    names: list[str] = []

    def write(topic: str, name: str, text: str) -> None:
        suffix = logs.suffix_of(topic, name, text)
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]
        file = f"{len(names):03d}_{topic}_{safe}{suffix}"
        (path / file).write_text(text.rstrip() + "\n", encoding="utf-8")
        names.append(f"{file:60} {ABOUT.get(topic, '')}".rstrip())

    with logs.listening(write):
        try:
            yield path
        finally:
            (path / "index.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
