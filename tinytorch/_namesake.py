"""Two libraries are called tinytorch; refuse to start where both could be meant.

Harvard's course "TinyTorch" installs a package of the same name (it has ``tinytorch/core/autograd.py``).  With both in
one environment Python would take whichever comes first on its path, silently, and half of each where they share a folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def refuse_namesake(path: Iterable[str]) -> None:
    """ImportError if the course's package is on ``path`` too."""
    for entry in path:
        found = os.path.join(entry or ".", "tinytorch", "core", "autograd.py")
        if os.path.exists(found):
            raise ImportError(
                f"another package called tinytorch is installed: {os.path.dirname(os.path.dirname(found))} (Harvard's course "
                "TinyTorch). One environment can hold only one of them: uninstall it, or use a virtual environment for each."
            )


refuse_namesake(sys.path)
