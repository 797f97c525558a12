"""Picks from ``helpers.cuh`` and its like the device functions that a kernel names, so that its text needs no include.

Stage: codegen.  In: kernel text.  Out: the pieces it needs, in file order.  Read next: ``helpers.cuh``, ``body``.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from tinytorch.ops.philox import DEVICE_TEXT

_WORD = re.compile(r"[A-Za-z_]\w*")


@cache
def pieces() -> tuple[tuple[frozenset[str], str], ...]:
    """(names defined, text) of each piece of the files, and of the function that eager's random numbers share."""
    out = []
    files = [(Path(__file__).parent / file).read_text(encoding="utf-8") for file in ("helpers.cuh", "tensor_cores.cuh")]
    for text in (DEVICE_TEXT, *files):
        for part in text.split("\n//: ")[1:]:
            names, _, body = part.partition("\n")
            out.append((frozenset(names.split()), body.strip()))
    return tuple(out)


def free(name: str) -> str:
    """A kernel's name that no helper has."""
    return f"{name}_kernel" if any(name in names for names, _ in pieces()) else name


@cache
def _words_of_piece(i: int) -> frozenset[str]:
    return frozenset(_words(pieces()[i][1]))


def _words(text: str) -> set[str]:
    code = re.sub(r"//[^\n]*", "", text)
    found = set(_WORD.findall(code))
    for half in ("f16", "bf16"):  # overloads of to_float are told apart by their operand's type
        if half in found and "to_float" in found:
            found.add(f"to_float_{half}")
    return found


@lru_cache(256)
def needed(kernel_text: str) -> str:
    """The helper pieces named by the text, and by those pieces in turn."""
    wanted = _words(kernel_text)
    chosen: set[int] = set()
    for i in range(len(pieces()) - 1, -1, -1):  # a piece names only pieces above it
        if pieces()[i][0] & wanted:
            chosen.add(i)
            wanted |= _words_of_piece(i)
    return "\n".join(pieces()[i][1] for i in sorted(chosen))
