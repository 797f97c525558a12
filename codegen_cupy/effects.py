"""What the steps of a recipe read and write.

Stage: codegen.  In: a step.  Out: the buffers it reads and those it writes.  Two steps of which neither writes what the other
touches may change places (``many``) or run side by side (``lanes``).  Read next: ``many``, ``lanes``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from codegen_cupy.host import Call, Launch, Memory, Step, View
from codegen_cupy.kernel_text import Source
from codegen_cupy.matmul import Product

#: A kernel's parameters; of one that stands for many (``many.of_many``), those of the function it calls.
_PARAMETERS = r"(?:__global__|__forceinline__) void [^;{]*?\b%s\(([^{]*?)\) \{\n"


def effects(s: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that a step reads, and those that it writes; the end of a buffer counts as a write."""
    if isinstance(s, Launch):
        return s.buffers, tuple(b for b, is_stored in zip(s.buffers, stored(s.source), strict=True) if is_stored)
    if isinstance(s, Memory):
        return (), (s.name,)
    if isinstance(s, Product):
        return s.buffers, s.written
    if isinstance(s, Call):
        return tuple(v.buffer for v in s.args if isinstance(v, View)), tuple(v.buffer for v in s.outs)
    return (), (s.buffer,)


@lru_cache(4096)
def stored(source: Source) -> tuple[bool, ...]:
    """Which of a kernel's buffers it may store to: those whose pointers are not to constants; all, if its text does not say."""
    single, _, count = source.name.rpartition("_of_")
    for name, sets in ((single, int(count) if count.isdigit() else 0), (source.name, 1)):
        params = _parameters(source.text, name) if name and sets else None
        if params and len(source.buffers) % sets == 0 and len(params) >= len(source.buffers) // sets:
            once = tuple(not p.startswith("const ") for p in params[: len(source.buffers) // sets])
            return once * sets
    return tuple(True for _ in source.buffers)


def _parameters(text: str, name: str) -> list[str] | None:
    spelled = rf"(?:{re.escape(name)}|KERNEL)"  # what is written by hand is named by a macro
    found = re.search(_PARAMETERS % spelled, text, re.DOTALL)
    return [p.strip() for p in found[1].partition("#")[0].split(",")] if found else None  # behind an #if: perhaps others
