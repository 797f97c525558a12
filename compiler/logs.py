"""What the stages say about themselves: topics on standard error, and numbered stage files.

Stage: all.  In: ``TT_LOGS=graph,kernels`` (or ``all``, ``-topic`` to leave one out), ``TT_COMPILE_DEBUG=1``.
Out: lines on ``sys.stderr``; ``<debug_dir>/run_<pid>/003_joint_f.py`` and so on.  Mirrors ``TORCH_LOGS`` and
``TORCH_COMPILE_DEBUG``.  Read next: ``compiler.debug``, which shows the same artefacts in one page.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compiler.config import config

TOPICS: tuple[str, ...] = (
    "capture", "guards", "graph_breaks", "recompiles", "graph", "joint", "partition", "loops", "memory", "kernels",
    "autotune", "asm", "cache",
)  # fmt: skip

#: Counts of things worth counting, by topic: ``counters["graph_breaks"]["TT0101"] += 1``.
counters: dict[str, Counter[str]] = {topic: Counter() for topic in TOPICS}

_lock = threading.Lock()
_serial = 0
_listeners: list[Callable[[str, str, str], None]] = []


def parse_topics(text: str) -> frozenset[str]:
    """``"graph,-joint,all"`` as a set of topics; ValueError for one that does not exist."""
    on: set[str] = set()
    off: set[str] = set()
    for word in filter(None, (w.strip().lstrip("+") for w in text.split(","))):
        name = word.lstrip("-")
        if name != "all" and name not in TOPICS:
            raise ValueError(f"TT_LOGS: no topic {name!r}; topics are all, {', '.join(TOPICS)}")
        (off if word[0] == "-" else on).update(TOPICS if name == "all" else (name,))
    return frozenset(on - off)


_enabled: frozenset[str] = parse_topics(os.environ.get("TT_LOGS", ""))


def set_logs(topics: str) -> None:
    """Switch topics from code, as ``TT_LOGS`` does; ``""`` is silence.  Mirrors ``torch._logging.set_logs``."""
    global _enabled
    _enabled = parse_topics(topics)


def enabled(topic: str) -> bool:
    """Would anybody see an artefact of ``topic``?  Ask before building an expensive text."""
    return topic in _enabled or config.debug or bool(_listeners)


def log(topic: str, message: str) -> None:
    """One line (or a few) on standard error, if the topic is on."""
    if topic in _enabled:
        sys.stderr.write("".join(f"[{topic}] {line}\n" for line in message.splitlines()))


def artifact(topic: str, name: str, text: str, suffix: str = ".py") -> Path | None:
    """Show one stage's result: on standard error if its topic is on, as a numbered file under ``TT_COMPILE_DEBUG``.

    Returns the path of the file, if one was written.
    """
    if topic in _enabled:
        sys.stderr.write(f"[{topic}] ===== {name} =====\n{text.rstrip()}\n")
    for listen in list(_listeners):
        listen(topic, name, text)
    return _write(topic, name, text, suffix) if config.debug else None


def suffix_of(topic: str, name: str, text: str) -> str:
    """How a file with this artefact should end: most are Python."""
    if topic == "asm":
        return ".s"
    if topic in ("graph_breaks", "autotune", "memory") or name in ("report", "lanes"):
        return ".txt"
    return ".cu" if topic == "kernels" and "__global__" in text else ".py"


@contextmanager
def listening(listener: Callable[[str, str, str], None]) -> Iterator[None]:
    """Call ``listener(topic, name, text)`` for every artefact made inside the block: how ``explain`` collects them."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def collecting() -> Iterator[list[tuple[str, str, str]]]:
    """All artefacts of the block as ``(topic, name, text)``."""
    found: list[tuple[str, str, str]] = []
    with listening(lambda topic, name, text: found.append((topic, name, text))):
        yield found


def _write(topic: str, name: str, text: str, suffix: str) -> Path:
    global _serial
    with _lock:
        serial, _serial = _serial, _serial + 1
    folder = Path(config.debug_dir) / f"run_{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{serial:03d}_{topic}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:60]}{suffix}"
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
    return path
