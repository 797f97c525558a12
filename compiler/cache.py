"""What survives the process: a private folder of files named by the hash of what they were made from.

Stage: all.  In: a key (any JSON) and bytes.  Out: those bytes, in this process or a later one.  An entry is one line of
JSON (the checksum and whatever describes it) and the payload.  Writing goes to a temporary file and ``os.replace``, so
readers see all or nothing; anything unreadable, altered or foreign is a miss.  The folder belongs to the user alone
(0700, owner checked).  Mirrors Inductor's ``FxGraphCache``.  Read next: ``autotune``.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from compiler import logs
from compiler.config import config

#: Raised when the layout of entries changes.
FORMAT = 1
#: Generated Python shorter than this is compiled sooner than it is found on disk.
LONG = 10_000


def key_of(*parts: Any) -> str:
    """The name of an entry: a hash of its parts, of Python's version and of the layout."""
    text = json.dumps([FORMAT, sys.version_info[:3], sys.implementation.cache_tag, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def package_hash(package: str) -> str:
    """A hash of the source files of an imported package: editing one makes new keys."""
    folder = Path(sys.modules[package].__path__[0])
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def sources_hash(package: str) -> str:
    """A hash of all source files under an imported package."""
    top = Path(sys.modules[package].__path__[0])
    digest = hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        digest.update(str(path.relative_to(top)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def folder() -> Path | None:
    """The cache's folder, made if needed; None if the cache is off or the folder is not ours alone."""
    if not config.cache:
        return None
    path = Path(config.cache_dir) if config.cache_dir else _default()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as e:
        logs.log("cache", f"no cache: {e}")
        return None
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        logs.log("cache", f"no cache: {path} belongs to another user")
        return None
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        logs.log("cache", f"no cache: {path} is open to others (mode {stat.S_IMODE(status.st_mode):o}, wants 700)")
        return None
    return path


def _default() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tinytorch"


def get(kind: str, key: str) -> bytes | None:
    """The payload under ``key``, verified; None if there is none that can be trusted."""
    where = folder()
    if where is None:
        return None
    try:
        data = (where / f"{kind}-{key}").read_bytes()
    except OSError:
        logs.counters["cache"][f"{kind} miss"] += 1
        return None
    head, _, payload = data.partition(b"\n")
    try:
        good = json.loads(head)["sha256"] == hashlib.sha256(payload).hexdigest()
    except (ValueError, KeyError, TypeError):
        good = False
    logs.counters["cache"][f"{kind} {'hit' if good else 'corrupt'}"] += 1
    return payload if good else None


def put(kind: str, key: str, payload: bytes, about: Mapping[str, Any] | None = None) -> None:
    """Keep ``payload``; a full disk or a read-only folder is no error."""
    where = folder()
    if where is None:
        return
    head = json.dumps({"sha256": hashlib.sha256(payload).hexdigest(), **(about or {})})
    try:
        handle, temporary = tempfile.mkstemp(dir=where, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(head.encode() + b"\n" + payload)
            os.replace(temporary, where / f"{kind}-{key}")
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as e:
        logs.log("cache", f"not kept: {e}")


def bytecode(text: str, filename: str) -> CodeType:
    """``compile(text, filename, "exec")``; for long texts, that of an earlier process."""
    if len(text) < LONG or folder() is None:
        return compile(text, filename, "exec")
    key = key_of("code", text)
    kept = get("code", key)
    if kept is None:
        code = compile(text, "<kept>", "exec")
        put("code", key, marshal.dumps(code))
    else:
        code = marshal.loads(kept)
    return _renamed(code, filename)


def _renamed(code: CodeType, filename: str) -> CodeType:
    """The same code, said to come from ``filename``, and so are the functions in it."""
    constants = tuple(_renamed(c, filename) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def clear() -> int:
    """Delete every entry; returns how many there were."""
    where = folder()
    entries = [] if where is None else [p for p in where.iterdir() if p.is_file()]
    for p in entries:
        p.unlink(missing_ok=True)
    return len(entries)
