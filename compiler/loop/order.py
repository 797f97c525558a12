"""In which order the tasks run: the program's, as far as it respects data.

Stage: loop.  In: groups and extern calls.  Out: a list.  Read next: ``peak``, ``memory``.
"""

from __future__ import annotations

import heapq

from compiler.loop.fuse import Group, Task
from compiler.loop.nest import Nest
from compiler.loop.program import ExternCall


def parts(t: Task) -> tuple[Nest | ExternCall, ...]:
    return t.nests if isinstance(t, Group) else (t,)


def accessed(part: Nest | ExternCall, *, writes: bool) -> frozenset[str]:
    """The buffers that a nest or call writes, or all that it touches."""
    if isinstance(part, Nest):
        return frozenset(a.buffer for a in (part.writes if writes else part.accesses))
    return part.writes if writes else part.writes | part.reads


def last_number(t: Task) -> int:
    return parts(t)[-1].number


def ordered(tasks: list[Task]) -> list[Task]:
    """Topological; among ready tasks the one first that comes first in the program (a joint counts as its last part).

    A part needs every part before it, in program order, that writes a buffer it touches.
    """
    writers: dict[str, list[tuple[int, int]]] = {}
    for n, t in enumerate(tasks):
        for part in parts(t):
            for b in accessed(part, writes=True):
                writers.setdefault(b, []).append((part.number, n))
    needs: list[set[int]] = []
    for n, t in enumerate(tasks):
        touched = ((part, b) for part in parts(t) for b in accessed(part, writes=False))
        needs.append({w for part, b in touched for number, w in writers.get(b, ()) if number < part.number and w != n})
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

