"""Write ``docs/graph_breaks.md``: every reason for which a graph can end early, from the registry of capture.

``python docs/make_graph_breaks.py`` writes; with ``--check`` it only says whether the file is current (exit status 1 if not).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "graph_breaks.md"
sys.path.insert(0, str(ROOT))

from compiler.capture.breaks import render  # noqa: E402

INTRO = """# Graph breaks

A graph ends early where a program asks for something that no graph can hold, or that this compiler has not learned. The
program stays right: what came before is compiled, the one instruction runs in Python, and the rest of the function is
compiled as a function of its own. With `fullgraph=True`, or inside `torch.compiler.error_on_graph_break(True)`, a break is
an error instead.

Each kind has an id that does not change. `TT_LOGS=graph_breaks` prints every break with its id, what was seen, what to do,
and your lines; `torch.compiler.explain` collects them. `notebooks/tutorials/04_graph_breaks.py` shows how a break works.

This page is generated from `compiler/capture/breaks.py` (`python docs/make_graph_breaks.py`).

"""


def main() -> int:
    text = INTRO + render()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.name} is not current: run python docs/make_graph_breaks.py")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
