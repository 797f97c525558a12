"""Where compile time goes: seconds per phase.

Stage: all.  In: ``with phase("joint"):`` around a stage.  Out: ``compile_times()``, a table.  A phase inside a phase
counts for itself alone, so the seconds add up.  Mirrors ``torch._dynamo.utils.compile_times``.
Read next: ``compiler.debug.explain``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_seconds: dict[str, float] = {}
_calls: dict[str, int] = {}


class _Inner(threading.local):
    seconds = 0.0  # spent in phases inside the running one


_inner = _Inner()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the block's time, less that of phases inside it, for ``name``."""
    outside, _inner.seconds = _inner.seconds, 0.0
    begin = time.perf_counter()
    try:
        yield
    finally:
        whole = time.perf_counter() - begin
        with _lock:
            _seconds[name] = _seconds.get(name, 0.0) + whole - _inner.seconds
            _calls[name] = _calls.get(name, 0) + 1
        _inner.seconds = outside + whole


def seconds() -> dict[str, float]:
    """Seconds by phase so far, in order of first use."""
    return dict(_seconds)


def compile_times() -> str:
    """The table as text."""
    rows = [f"{name:12} {s:8.3f} s {_calls[name]:6} calls" for name, s in _seconds.items()]
    return "\n".join([*rows, f"{'all':12} {sum(_seconds.values()):8.3f} s"])


def reset() -> None:
    with _lock:
        _seconds.clear()
        _calls.clear()
