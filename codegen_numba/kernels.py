"""Source to address, by the shortest way: this process's memory, the disk, the compiler.

Stage: codegen_numba.  In: a ``Source``.  Out: the address of its entry.  Equal sources (comments and the function's
name aside) are compiled once.  Read next: ``build``.
"""

from __future__ import annotations

import re
import threading
import time
from functools import cache as remember
from importlib.metadata import version

from codegen_numba import compile as compiler_
from codegen_numba import target
from codegen_numba.compile import Source
from codegen_numba.load import load
from compiler import cache, logs

_addresses: dict[str, int] = {}
_lock = threading.RLock()


def address(source: Source) -> int:
    """Where the entry of ``source`` is; compiled now if it never was."""
    key = content_key(source)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key)
            if found is None:
                found = _addresses[key] = load(_object(source, key))
    return found


def content_key(source: Source) -> str:
    return cache.key_of(
        plain(source.text), [t for _, t in source.params], source.contract, source.alias, source.pool,
        target.description(), versions(), cache.package_hash("codegen_numba"),
    )  # fmt: skip


@remember
def versions() -> list[str]:
    return [version(package) for package in ("numba", "llvmlite")]


def plain(text: str) -> str:
    """Source without its comment lines; the function's own name does not count either."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    kept[0] = re.sub(r"^def \w+", "def kernel", kept[0])
    return "\n".join(kept)


def _object(source: Source, key: str) -> bytes:
    code = cache.get("object", key)
    if code is None:
        began = time.perf_counter()
        code = compiler_.compile_source(source)
        logs.log("kernels", f"{source.name}: compiled in {time.perf_counter() - began:.3f} s, {len(code)} bytes")
        cache.put("object", key, code, {"name": source.name, "source": source.text})
    if logs.enabled("asm"):
        logs.artifact("asm", source.name, compiler_.assembly(source), ".s")
    return code
