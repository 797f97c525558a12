"""From an object to an address: LLVM's linker in this process.

Stage: codegen_numba.  In: the bytes ``compile`` made (or the cache kept).  Out: addresses of entries, valid for the
life of the process.  Read next: ``runtime``.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import llvmlite.binding as llvm

from codegen_numba import target

#: The one name an object exports; each lives in a library of its own.
ENTRY = "tt_entry"

_lock = threading.Lock()
_jit: Any = None
_names = (f"kernel{n}" for n in itertools.count())  # also of objects that could not be linked
_kept: list[Any] = []


def load(code: bytes) -> int:
    """The address of the entry of ``code``."""
    global _jit
    with _lock:
        if _jit is None:
            target.machine()
            # JITLink lays an object out in one piece.  The older linker maps code and constants apart, and ends the
            # process by an assertion where a process with large arrays has no room for both within 2 GB.
            _jit = llvm.create_lljit_compiler(use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(ENTRY)
        tracker = builder.link(_jit, next(_names))
        _kept.append(tracker)
        return int(tracker[ENTRY])
