"""Where NVIDIA's libraries lie: in wheels of their own, in the CUDA toolkit, or where the loader looks.

Stage: codegen (run time).  In: a library's name.  Out: the library, opened.  Read next: ``nvrtc``, ``cublaslt``, ``graph_driver``.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Iterable


def paths(name: str, wheel: str) -> list[str]:
    """Files of ``lib<name>`` in wheels (``nvidia/<wheel>`` or all of a CUDA version) and in the toolkit, then the plain
    names."""
    found: list[str] = []
    for base in sys.path:
        for inside in (wheel, "cu13", "cu12"):
            found += sorted(glob.glob(os.path.join(base, "nvidia", inside, "lib", f"lib{name}.so.*")))
    for root in (os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        if root:
            found += sorted(glob.glob(os.path.join(root, "lib64", f"lib{name}.so.*")))
    found = [p for p in found if ".alt." not in p]
    return [*dict.fromkeys(found), f"lib{name}.so.13", f"lib{name}.so.12", f"lib{name}.so"]


def opened(names: Iterable[str]) -> ctypes.CDLL | None:
    """The first that there is."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
