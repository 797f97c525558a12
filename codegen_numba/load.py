"""From an object to an address: LLVM's linker in this process.

Stage: codegen_numba.  In: the bytes ``compile`` made (or the cache kept).  Out: addresses of entries, valid for the
life of the process.  Read next: ``runtime``.
"""

from __future__ import annotations

import threading
from typing import Any

import llvmlite.binding as llvm

from codegen_numba import target

#: The one name an object exports; each lives in a library of its own.
ENTRY = "tt_entry"

_lock = threading.Lock()
_jit: Any = None
_kept: list[Any] = []


def load(code: bytes) -> int:
    """The address of the entry of ``code``."""
    global _jit
    with _lock:
        if _jit is None:
            target.machine()
            _jit = llvm.create_lljit_compiler()
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(ENTRY)
        tracker = builder.link(_jit, f"kernel{len(_kept)}")
        _kept.append(tracker)
        return int(tracker[ENTRY])
