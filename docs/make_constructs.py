"""Write ``docs/constructs.md``: the constructs of Python that capture takes whole, and those at which a graph ends.

``python docs/make_constructs.py`` writes; with ``--check`` it only says whether the file is current (exit status 1 if not).
The rows are the cases that ``tests/test_capture_constructs.py`` runs on every supported version.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "constructs.md"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from capture_cases import CASES  # noqa: E402
from capture_more_cases import BREAKS, WHOLE  # noqa: E402

from compiler.capture.breaks import REGISTRY  # noqa: E402
from compiler.capture.instrs import SUPPORTED  # noqa: E402

INTRO = """# Constructs of Python

What a compiled function may contain. *Whole* means: one graph under `fullgraph=True`, with eager's results, exceptions and side
effects, on the first call and the second. An id is the graph break that happens instead (`docs/graph_breaks.md`); the program
still gives eager's answer, and the rest of it is compiled.

An error that depends on data (an index out of range, a singular matrix) leaves the state that eager leaves, and reaches the
program's own handlers: the graph changes nothing and raises, then the function runs in eager. On a GPU such errors come late, so
there the graph ends before an operation whose error the program would catch (TT0106).

Each row is a test (`tests/test_capture_constructs.py`), run on every version. This page is generated
(`python docs/make_constructs.py`).

"""


def page() -> str:
    versions = [f"{a}.{b}" for a, b in SUPPORTED]
    lines = ["| construct | " + " | ".join(versions) + " |", "|---|" + "---|" * len(versions)]
    rows = {name: "whole" for name in CASES | WHOLE}
    rows |= {name: f"{id} {REGISTRY[id].name}" for name, (_, id) in BREAKS.items()}
    lines += [f"| {name.strip('_').replace('_', ' ')} | " + " | ".join([what] * len(versions)) + " |" for name, what in rows.items()]
    count = f"{len(CASES | WHOLE)} constructs are captured whole, {len(BREAKS)} break with a named reason, on each version.\n\n"
    return INTRO + count + "\n".join(lines) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.name} is not current: run python docs/make_constructs.py")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
