"""Recorded results as two compact files: a table (JSON) and the bytes of all arrays (compressed).

A table row is [error or None, notes, [(NumPy type, shape, place), ...]].
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from harness import Result

DATA = Path(__file__).parent.parent / "data"


def save(name: str, results: dict[str, Result], about: dict[str, Any]) -> None:
    blob = bytearray()
    table = {}
    for key, r in results.items():
        places = []
        for a in r.arrays:
            places.append([a.dtype.str, list(a.shape), len(blob)])
            blob += np.ascontiguousarray(a).tobytes()
        table[key] = [r.error, r.notes, places]
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in table.items())
    (DATA / f"{name}.json").write_text(f'{{"about": {json.dumps(about)},\n"cases": {{\n{lines}\n}}}}\n')
    (DATA / f"{name}.bin").write_bytes(zlib.compress(bytes(blob), 9))


def load(name: str) -> dict[str, Result]:
    table = json.loads((DATA / f"{name}.json").read_text())["cases"]
    blob = zlib.decompress((DATA / f"{name}.bin").read_bytes())
    found = {}
    for key, (error, notes, places) in table.items():
        arrays = []
        for kind, shape, at in places:
            n = int(np.prod(shape))
            arrays.append(np.frombuffer(blob, np.dtype(kind), n, at).reshape(shape))
        found[key] = Result(tuple(error) if error else None, notes, arrays)
    return found
