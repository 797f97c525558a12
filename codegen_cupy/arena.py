"""Memory planning: temporaries of a plan at fixed offsets of one block.

Stage: codegen.  In: ``Recipe``.  Out: ``Places``: whose memory each buffer uses, where in the block it lies, which buffers
leave the plan and need memory of their own.  Read next: ``launch`` (a block per call), ``graphs`` (a block for good).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from codegen_cupy.host import Memory, Recipe, Release, View

ROUND = 256  # bytes to which temporaries are aligned
SMALL = 64 << 10  # bytes of a buffer that has memory of its own rather than a fill of its own
#: Results that start at zero lie in one block, which lives as long as any of them: not a single number, that somebody may
#: collect, and not too many together.
TINY, TOGETHER = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Places:
    """``home``: the buffer whose memory a buffer uses.  ``kept``: homes that hold outputs.  ``offsets`` of the others.

    The first ``zone`` bytes of the block hold the buffers ``zeroed``, which one fill makes zero before anything runs.
    """

    home: dict[str, str]
    kept: frozenset[str]
    offsets: dict[str, int]
    total: int
    zone: int = 0
    zeroed: frozenset[str] = frozenset()
    #: Where outputs that start at zero lie in a block of their own, with one fill for all.
    together: dict[str, int] = field(default_factory=dict)
    together_size: int = 0


def places(recipe: Recipe) -> Places:
    """First fit, largest first, among buffers alive at the same time."""
    home = {b: b for b in recipe.inputs}
    for s in recipe.steps:
        if isinstance(s, Memory):
            home[s.name] = home[s.reuse] if s.reuse else s.name
    kept = frozenset(home[o.buffer] for o in recipe.outputs if isinstance(o, View))
    size = {s.name: bytes_of(s) for s in recipe.steps if isinstance(s, Memory) and not s.reuse and s.name not in kept}
    born, died = _lives(recipe, home)
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    zone = 0
    zeroed = [s.name for s in recipe.steps if isinstance(s, Memory) and s.name in size and starts_at_zero(s)]
    zeroed = [n for n in zeroed if size[n] <= SMALL]
    for name in zeroed if len(zeroed) > 1 else ():
        offsets[name], zone = zone, zone + rounded(size.pop(name))
    for name in sorted(size, key=lambda n: -size[n]):
        need, at = rounded(size[name]), zone
        neighbours = (p for p in placed if born[name] < died[p[2]] and born[p[2]] < died[name])
        for low, high, _ in sorted(neighbours):
            if low < at + need and at < high:
                at = high
        placed.append((at, at + need, name))
        offsets[name] = at
    total = max((high for _, high, _ in placed), default=zone)
    own, own_size = _together([s for s in recipe.steps if isinstance(s, Memory) and s.name in kept])
    return Places(home, kept, offsets, total, zone, frozenset(zeroed if zone else ()), own, own_size)


def _together(kept: list[Memory]) -> tuple[dict[str, int], int]:
    """Offsets of small results that start at zero, and the size of their block."""
    found: dict[str, int] = {}
    end = 0
    for m in kept:
        need = rounded(bytes_of(m))
        if not m.reuse and starts_at_zero(m) and TINY <= bytes_of(m) <= SMALL and end + need <= TOGETHER:
            found[m.name], end = end, end + need
    return (found, end) if len(found) > 1 else ({}, 0)


def _lives(recipe: Recipe, home: dict[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """The steps at which each home begins and ends."""
    born: dict[str, int] = {}
    died: dict[str, int] = {}
    for i, s in enumerate(recipe.steps):
        if isinstance(s, Memory):
            born.setdefault(home[s.name], i)
            died[home[s.name]] = len(recipe.steps)
        elif isinstance(s, Release) and s.buffer in home:
            died[home[s.buffer]] = i
    return born, died


def rounded(size: int) -> int:
    return -(-size // ROUND) * ROUND


def bytes_of(m: Memory) -> int:
    return m.items * m.dtype.itemsize


def starts_at_zero(m: Memory) -> bool:
    return m.fill is not None and not any(pattern(m))


def pattern(m: Memory) -> bytes:
    """The bytes of one element of the fill."""
    return np.array(m.fill).astype(m.dtype.np).tobytes()
