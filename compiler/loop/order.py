"""In which order the tasks run: one that respects data, and lets memory die early.

Stage: loop.  In: groups and extern calls.  Out: a list.  Read next: ``memory``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from compiler.loop.fuse import Group, Task, hint
from compiler.loop.ir import Buffer


def reads(t: Task) -> frozenset[str]:
    return t.reads


def writes(t: Task) -> frozenset[str]:
    return t.writes


def last_number(t: Task) -> int:
    return t.nests[-1].number if isinstance(t, Group) else t.number


def ordered(tasks: list[Task], buffers: Mapping[str, Buffer]) -> list[Task]:
    """Topological; among ready tasks the one first that comes first in the program (a joint counts as its last part)."""
    writers: dict[str, list[int]] = {}
    for n, t in enumerate(tasks):
        for b in writes(t):
            writers.setdefault(b, []).append(n)
    needs: list[set[int]] = []
    for n, t in enumerate(tasks):
        need = {w for b in reads(t) for w in writers.get(b, ()) if w != n}
        for b in writes(t):  # earlier writers of the same buffer: fills before scatters
            need |= {w for w in writers[b] if w != n and tasks[w].number < t.number}
        needs.append(need)
    users: list[list[int]] = [[] for _ in tasks]
    for n, need in enumerate(needs):
        for w in need:
            users[w].append(n)
    left = [len(need) for need in needs]
    ready = [(last_number(t), n) for n, t in enumerate(tasks) if not left[n]]
    heapq.heapify(ready)
    out: list[Task] = []
    while ready:
        _, n = heapq.heappop(ready)
        out.append(tasks[n])
        for u in users[n]:
            left[u] -= 1
            if not left[u]:
                heapq.heappush(ready, (last_number(tasks[u]), u))
    assert len(out) == len(tasks), "fusion made a cycle"
    return out


def size_of(b: Buffer) -> int:
    """Bytes of a buffer, by hints."""
    return hint(b.numel) * b.dtype.itemsize
