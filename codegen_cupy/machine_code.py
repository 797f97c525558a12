"""Machine code for kernel texts: from memory, from disk, or from NVRTC in worker processes.

Stage: codegen.  In: texts, architecture, options.  Out: cubins.  NVRTC compiles one program at a time per process, so
several texts go to several processes.  Read next: ``nvrtc``, ``launch``.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from codegen_cupy import nvrtc

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
        if key not in _memory and not _from_disk(key):
            missing[key] = item
    asks = [dict(text=t, arch=arch, fmad=fmad, name=f"{n}.cu") for t, n in missing.values()]
    made = [nvrtc.compile_text(**a) for a in asks] if len(asks) < 3 else _in_workers(asks)
    for key, code in zip(missing, made, strict=True):
        _memory[key] = code
        _to_disk(key, code)
    return [_memory[k] for k in keys]


def _key(text: str, arch: str, fmad: bool) -> str:
    parts = [text, arch, str(fmad), str(nvrtc.version()), *nvrtc.OPTIONS]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# --- disk -----------------------------------------------------------------------------------------------------------
@cache
def _directory() -> Path | None:
    """A private directory of cubins, or None where there can be none."""
    root = os.environ.get("TT_CACHE_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "tinytorch")
    path = Path(root) / "cubins"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = path.stat().st_uid == os.getuid()
    except OSError:
        return None
    return path if mine else None


def _from_disk(key: str) -> bool:
    """Load into memory; a file whose checksum does not fit counts as missing."""
    place = _directory()
    try:
        raw = (place / f"{key}.cubin").read_bytes() if place else b""
    except OSError:
        return False
    if len(raw) < 32 or hashlib.sha256(raw[32:]).digest() != raw[:32]:
        return False
    _memory[key] = raw[32:]
    return True


def _to_disk(key: str, code: bytes) -> None:
    place = _directory()
    if place is None:
        return
    try:
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as f:
            f.write(hashlib.sha256(code).digest() + code)
        os.replace(f.name, place / f"{key}.cubin")
    except OSError:
        pass  # a full disk costs time, not correctness


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
