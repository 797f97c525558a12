"""A loop over many streams of memory at once becomes several loops over few.

Stage: codegen_numba.  In: straight statements of a map loop's body.  Out: bodies to run one after the other.  Fusion puts
nests of equal extent side by side, which saves loops but no memory traffic where they share no data.  A core follows
about a dozen streams; beyond that they push each other out of its nearest cache, which has few places for addresses a
large power of two apart.  Statements that share a value or what they read stay together.  Read next: ``emit``.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen_numba import analysis
from codegen_numba.analysis import Body
from compiler.loop.ir import Check, Int, Load, Loop, Stmt, Store, Update

#: Streams that one loop may follow, and how far apart (in elements) two places of one array make two.
MOST, FAR = 12, 1024


def apart(body: Body) -> list[Body]:
    """``body`` in pieces that do not need one another; itself if its streams are few, or it hangs together."""
    if len(_streams(body)) <= MOST or any(isinstance(s, Check | Loop | Update) for s in body):
        return [body]
    out: list[list[int]] = []
    for piece in _components(body):
        if out and len(_streams(body[n] for n in (*out[-1], *piece))) <= MOST:
            out[-1] += piece
        else:
            out.append(piece)
    return [tuple(body[n] for n in sorted(piece)) for piece in out]


def _constant(index: Int) -> int:
    return index if isinstance(index, int) else index.split()[0]


def _streams(body: Iterable[Stmt]) -> set[tuple[str, int]]:
    return {(s.buffer, _constant(s.index) // FAR) for s in body if isinstance(s, Load | Store)}


def _tying(body: Body) -> set[str]:
    """Arrays whose accesses must keep their order: all but those only read, or only written, each place once.  Stores a
    constant apart never meet in one iteration, and in two iterations of a map loop no stores meet."""
    accesses: dict[str, list[Load | Store]] = {}
    for s in body:
        if isinstance(s, Load | Store):
            accesses.setdefault(s.buffer, []).append(s)
    return {name for name, found in accesses.items() if not _free(found)}


def _free(accesses: list[Load | Store]) -> bool:
    if all(isinstance(s, Load) for s in accesses):
        return True
    bases = {str(s.index - _constant(s.index)) for s in accesses}
    places = [_constant(s.index) for s in accesses]
    stores = all(isinstance(s, Store) and s.mode == "set" for s in accesses)
    return stores and len(bases) == 1 and len(set(places)) == len(places)


def _components(body: Body) -> list[list[int]]:
    """Places of statements that hang together, in the order of their first statements."""
    group = list(range(len(body)))

    def top(n: int) -> int:
        while group[n] != n:
            n = group[n]
        return n

    first: dict[str, int] = {}
    made, tying = {x for s in body for x in analysis.defines(s)}, _tying(body)
    for n, s in enumerate(body):
        arrays = {f"[{s.buffer}]"} if isinstance(s, Store) and s.buffer in tying else set()
        if isinstance(s, Load):  # one load of a stream serves all who want it
            arrays = {f"[{s.buffer}]" if s.buffer in tying else f"[{s.buffer}]{s.index}"}
        for tie in {*analysis.defines(s), *(analysis.uses(s) & made), *arrays}:
            a, b = top(first.setdefault(tie, n)), top(n)
            group[max(a, b)] = min(a, b)
    found: dict[int, list[int]] = {}
    for n in range(len(body)):
        found.setdefault(top(n), []).append(n)
    return list(found.values())
