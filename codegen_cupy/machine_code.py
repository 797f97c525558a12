"""Machine code for kernel texts: from memory, from disk, or from NVRTC in worker processes.

Stage: codegen.  In: texts, architecture, options.  Out: cubins.  NVRTC compiles one program at a time per process, so
several texts go to several processes.  Read next: ``nvrtc``, ``launch``.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from codegen_cupy import nvrtc
from compiler import cache

_memory: dict[str, bytes] = {}
_lock = threading.Lock()


def cubin(text: str, arch: str, *, fmad: bool = True, name: str = "kernel") -> bytes:
    """The machine code of one text; CompileError with NVRTC's log."""
    return cubins([(text, name)], arch, fmad=fmad)[0]


def cubins(texts: Sequence[tuple[str, str]], arch: str, *, fmad: bool = True) -> list[bytes]:
    """Machine code of several (text, name), compiled side by side where the caches know none."""
    keys = [_key(text, arch, fmad) for text, _ in texts]
    missing: dict[str, tuple[str, str]] = {}
    for key, item in zip(keys, texts, strict=True):
        if key not in _memory:
            kept = cache.get("cubin", key)
            if kept is None:
                missing[key] = item
            else:
                _memory[key] = kept
    asks: list[dict[str, Any]] = [dict(text=t, arch=arch, fmad=fmad, name=f"{n}.cu") for t, n in missing.values()]
    made = [nvrtc.compile_text(**a) for a in asks] if len(asks) < 3 else _in_workers(asks)
    for key, code in zip(missing, made, strict=True):
        _memory[key] = code
        cache.put("cubin", key, code)
    return [_memory[k] for k in keys]


def _key(text: str, arch: str, fmad: bool) -> str:
    return cache.key_of("cubin", text, arch, fmad, nvrtc.version(), nvrtc.OPTIONS)


# --- worker processes -----------------------------------------------------------------------------------------------
class Worker:
    """One process that compiles; see ``nvrtc.serve``."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "codegen_cupy.nvrtc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
        )

    def ask(self, request: dict[str, Any]) -> bytes:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise nvrtc.CompileError("the NVRTC worker process died")
        answer = json.loads(line)
        if "error" in answer:
            raise nvrtc.CompileError(answer["error"])
        return base64.b64decode(answer["cubin"])

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait(timeout=10)


_workers: list[Worker] = []


def _in_workers(asks: list[dict[str, Any]]) -> list[bytes]:
    """All answers, in order; as many processes as cores, at most eight, kept until this process ends."""
    with _lock:
        count = min(len(asks), os.cpu_count() or 1, 8)
        while len(_workers) < count:
            _workers.append(Worker())
        todo: SimpleQueue[int] = SimpleQueue()
        for i in range(len(asks)):
            todo.put(i)
        out: list[bytes | Exception] = [b""] * len(asks)
        threads = [threading.Thread(target=_drain, args=(w, todo, asks, out)) for w in _workers[:count]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for x in out:
        if isinstance(x, Exception):
            raise x
    return out  # type: ignore[return-value]


def _drain(worker: Worker, todo: SimpleQueue[int], asks: list[dict[str, Any]], out: list[bytes | Exception]) -> None:
    while not todo.empty():
        try:
            i = todo.get_nowait()
        except Exception:  # another worker took the last one
            return
        try:
            out[i] = worker.ask(asks[i])
        except Exception as e:
            out[i] = e


@atexit.register
def _close_workers() -> None:
    for w in _workers:
        try:
            w.close()
        except Exception:  # at exit nobody is left to tell
            w.process.kill()
