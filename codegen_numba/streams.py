"""A loop over many streams of memory at once becomes several loops over few.

Stage: codegen_numba.  In: straight statements of a map loop's body.  Out: bodies to run one after the other.  Fusion puts
nests of equal extent side by side, which saves loops but no memory traffic where they share no data.  A core follows
about a dozen streams; beyond that they push each other out of its nearest cache, which has few places for addresses a
large power of two apart.  Statements that share a value or what they read stay together.  Places of one array may be any
distance apart, also one that only run time knows: then LLVM has to be told what it cannot see (``hidden``).
Read next: ``parallel``, ``emit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from codegen_numba import analysis
from codegen_numba.analysis import Body
from compiler.loop.ir import Check, Init, Int, Load, Loop, Stmt, Store, Update
from compiler.sym.expr import Expr, Symbol
from compiler.sym.ranges import Interval, Ranges, positive

#: Streams that one loop may follow, and how far apart (in elements) two places of one array make two.
MOST, FAR = 12, 1024


def apart(body: Body, axis: str, ranges: Ranges) -> list[Body]:
    """``body`` in pieces that do not need one another; itself if its streams are few, or it hangs together."""
    if len(_streams(body, axis)) <= MOST or any(isinstance(s, Check | Loop | Update) for s in body):
        return [body]
    out: list[list[int]] = []
    for piece in _components(body, ranges):
        if out and len(_streams((body[n] for n in (*out[-1], *piece)), axis)) <= MOST:
            out[-1] += piece
        else:
            out.append(piece)
    return [tuple(body[n] for n in sorted(piece)) for piece in out]


def hidden(body: Body, axis: str) -> bool:
    """Are its iterations independent in a way that LLVM cannot see?  So they are where an array that is written has places
    a symbolic distance apart: LLVM would compare a few of these at run time, but not many, and then do one element after the
    other.  Only where all that touches a written array runs along it: an index loaded from memory may come twice, and LLVM
    could exchange accesses that jump with others of their iteration.  Iterations of a map loop may combine in one place."""
    if any(isinstance(s, Check | Init | Loop | Update) for s in body):
        return False
    made = {name for s in body for name in analysis.defines(s)}
    found = False
    for accesses in _accesses(body).values():
        stores = [s for s in accesses if isinstance(s, Store)]
        if not stores:
            continue
        places = {s.index for s in accesses}
        if any(analysis.stride(x, axis) != 1 or analysis.names_in(x) & made for x in places):
            return False
        if len(places) > 1 and any(s.mode != "set" for s in stores):
            return False
        found = found or len({_split(x)[0] for x in places}) > 1
    return found


def facts(dims: Iterable[Int], axes: Mapping[Symbol, Interval]) -> Ranges:
    """What holds where a loop's body runs: no dimension of an array is negative, and no loop around has no iterations."""
    out = {s[0]: Interval(0) for s in map(_product, dims) if len(s) == 1}
    for known in axes.values():
        extent = _product(known.hi + 1) if isinstance(known.hi, Expr) else []
        if len(extent) == 1 or all(s in out for s in extent):
            out |= dict.fromkeys(extent, Interval(1))
    return {**out, **axes}


def _product(n: Int) -> list[Symbol]:
    """The symbols of a positive multiple of their product; none of anything else."""
    constant, terms = n.split() if isinstance(n, Expr) else (n, ())
    if constant or len(terms) != 1 or terms[0][1] < 0:
        return []
    factors = terms[0][0].factors()
    return [s for s in factors if isinstance(s, Symbol)] if all(isinstance(s, Symbol) for s in factors) else []


def _split(index: Int) -> tuple[str, int]:
    """An index as the text of what varies, and what is added to it."""
    constant = index.split()[0] if isinstance(index, Expr) else index
    return str(index - constant), constant


def _streams(body: Iterable[Stmt], axis: str) -> set[tuple[str, str, int]]:
    """Where the accesses begin: array, what is added that varies, which stretch of memory behind it."""
    starts = [(s.buffer, *_split(analysis.at_zero(s.index, axis))) for s in body if isinstance(s, Load | Store)]
    return {(buffer, base, constant // FAR) for buffer, base, constant in starts}


def _accesses(body: Body) -> dict[str, list[Load | Store]]:
    out: dict[str, list[Load | Store]] = {}
    for s in analysis.accesses(body):
        out.setdefault(s.buffer, []).append(s)
    return out


def _tying(body: Body, ranges: Ranges) -> set[str]:
    """Arrays whose accesses must keep their order: all but those only read, or only written, each place once."""
    return {name for name, found in _accesses(body).items() if not _free(found, ranges)}


def _free(accesses: list[Load | Store], ranges: Ranges) -> bool:
    """Stores in order of their places, each provably behind the one before, never meet in one iteration; and in two
    iterations of a map loop no stores meet."""
    if all(isinstance(s, Load) for s in accesses):
        return True
    if not all(isinstance(s, Store) and s.mode == "set" for s in accesses):
        return False
    places = sorted((s.index for s in accesses), key=analysis.hint)
    return all(positive(b - a, ranges) for a, b in pairwise(places))


def _components(body: Body, ranges: Ranges) -> list[list[int]]:
    """Places of statements that hang together, in the order of their first statements."""
    group = list(range(len(body)))

    def top(n: int) -> int:
        while group[n] != n:
            n = group[n]
        return n

    first: dict[str, int] = {}
    made, tying = {x for s in body for x in analysis.defines(s)}, _tying(body, ranges)
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
