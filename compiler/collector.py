"""The garbage collector, held off while a stage makes many objects that all live until it ends.

Stage: all.  In: ``with held():`` around a trace.  Out: no collections inside.  Each would walk whatever the program has, and
find next to nothing: what a trace makes it still needs.  Reference counts free as ever.  Read next: ``timing``.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holders = 0
_was_enabled = False


@contextmanager
def held() -> Iterator[None]:
    """No collection inside the block, in any thread; afterwards as before the first of blocks that overlap."""
    global _holders, _was_enabled
    with _lock:
        if _holders == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()
