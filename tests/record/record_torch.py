"""Ask PyTorch for the right answers and keep them: ``python tests/record/record_torch.py [theme ...]``.

Needs an interpreter with torch 2.13 (CPU); the tests themselves need none.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from harness import run
from store import save

THEMES = ("pointwise", "reduction", "shape", "indexing", "linalg", "creation", "inplace", "errors")


def main(themes: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for theme in themes:
        cases = importlib.import_module(f"cases_{theme}").CASES
        results = {}
        for case in cases:
            for key, dtype in case.variants():
                if key in results:
                    raise ValueError(f"two cases are named {key}")
                results[key] = run(torch, case, dtype)
        save(f"torch_{theme}", results, {"torch": torch.__version__})
        failed = [f"  {k}: {r.error}" for k, r in results.items() if r.error]
        print(f"{theme}: {len(results)} results, {len(failed)} errors", *(failed if "-v" in sys.argv else []), sep="\n")


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if not a.startswith("-")] or list(THEMES))
