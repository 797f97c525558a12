"""Placing a directed acyclic graph on a page: the layered method of Sugiyama, Tagawa and Toda (1981).

Stage: ir.  In: names, edges, widths.  Out: a place for each name and a path for each edge.  Plain Python; the same
input gives the same output everywhere.  Read next: ``show``.

Four steps, one function each: *ranks* (the longest path decides the row), *dummies* (an edge over several rows becomes
a chain, so that every edge joins neighbouring rows), *order* (within a row by the median of the neighbours, sweeping
down and up, keeping the best), *x* (as near to the neighbours' mean as order and widths allow).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Name: TypeAlias = Hashable
Edge: TypeAlias = "tuple[Name, Name]"
GAP_X, GAP_Y = 18.0, 46.0


@dataclass
class Layout:
    """Centres of the nodes, a polyline for each edge, and the page's size."""

    at: dict[Name, tuple[float, float]]
    paths: dict[Edge, list[tuple[float, float]]]
    width: float
    height: float
    crossings: int


def layout(names: Sequence[Name], edges: Sequence[Edge], widths: Mapping[Name, float]) -> Layout:
    """Place ``names`` (in topological order) and route ``edges``."""
    edges = list(dict.fromkeys(edges))
    rank = ranks(names, edges)
    chains = dummies(edges, rank)
    rows: list[list[Name]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for n in (*names, *(d for chain in chains.values() for d in chain[1:-1])):
        rows[rank[n]].append(n)
    up: dict[Name, list[Name]] = {n: [] for row in rows for n in row}
    down: dict[Name, list[Name]] = {n: [] for row in rows for n in row}
    for chain in chains.values():
        for a, b in pairwise(chain):
            down[a].append(b)
            up[b].append(a)
    rows = order(rows, up, down)
    wide = {n: widths.get(n, 6.0) for row in rows for n in row}
    x = place(rows, up, down, wide)
    left = min((x[n] - wide[n] / 2 for n in x), default=0.0) - GAP_X
    at = {n: (x[n] - left, (rank[n] + 0.5) * GAP_Y) for n in x}
    paths = {e: [at[n] for n in chain] for e, chain in chains.items()}
    right = max((x[n] + wide[n] / 2 for n in x), default=0.0) - left + GAP_X
    return Layout({n: at[n] for n in names}, paths, right, len(rows) * GAP_Y, crossings(rows, down))


def ranks(names: Sequence[Name], edges: Sequence[Edge]) -> dict[Name, int]:
    """Row of each node: one below its lowest operand; a node without operands right above its first user."""
    into: dict[Name, list[Name]] = {n: [] for n in names}
    out: dict[Name, list[Name]] = {n: [] for n in names}
    for a, b in edges:
        into[b].append(a)
        out[a].append(b)
    rank: dict[Name, int] = {}
    for n in names:
        rank[n] = max((rank[a] + 1 for a in into[n]), default=0)
    for n in names:
        if not into[n] and out[n]:
            rank[n] = min(rank[b] for b in out[n]) - 1
    return rank


def dummies(edges: Sequence[Edge], rank: dict[Name, int]) -> dict[Edge, list[Name]]:
    """For each edge the chain of nodes it passes, one per row; adds the new ones to ``rank``."""
    chains: dict[Edge, list[Name]] = {}
    for a, b in edges:
        between: list[Name] = []
        for r in range(rank[a] + 1, rank[b]):
            between.append(("dummy", a, b, r))
            rank[between[-1]] = r
        chains[a, b] = [a, *between, b]
    return chains


def order(rows: list[list[Name]], up: dict[Name, list[Name]], down: dict[Name, list[Name]]) -> list[list[Name]]:
    """Rows sorted by the median position of the neighbours: the best of a few sweeps."""
    best, fewest = [list(row) for row in rows], crossings(rows, down)
    for sweep in range(12):
        neighbours = up if sweep % 2 == 0 else down
        for i in range(1, len(rows)) if sweep % 2 == 0 else range(len(rows) - 2, -1, -1):
            beside = rows[i - 1] if sweep % 2 == 0 else rows[i + 1]
            position = {n: float(p) for p, n in enumerate(beside)}
            own = {n: float(p) for p, n in enumerate(rows[i])}
            rows[i].sort(key=lambda n: (_median([position[m] for m in neighbours[n]], own[n]), own[n]))
        count = crossings(rows, down)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _median(values: list[float], otherwise: float) -> float:
    if not values:
        return otherwise
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def crossings(rows: list[list[Name]], down: dict[Name, list[Name]]) -> int:
    """Pairs of edges that cross, counted as inversions with a Fenwick tree."""
    total = 0
    for row, below in pairwise(rows):
        position = {n: p for p, n in enumerate(below)}
        tree = [0] * (len(below) + 1)
        seen = 0
        for n in row:
            ends = sorted(position[m] for m in down[n])
            for p in ends:
                i, left = p + 1, 0
                while i:
                    left += tree[i]
                    i &= i - 1
                total += seen - left
            for p in ends:
                i = p + 1
                while i < len(tree):
                    tree[i] += 1
                    i += i & -i
                seen += 1
    return total


def place(
    rows: list[list[Name]], up: dict[Name, list[Name]], down: dict[Name, list[Name]], wide: dict[Name, float]
) -> dict[Name, float]:
    """x of each node: start packed, then let every row move towards its neighbours' means, sweeping."""
    x: dict[Name, float] = {}
    for row in rows:
        edge = 0.0
        for n in row:
            x[n] = edge + wide[n] / 2
            edge += wide[n] + GAP_X
        for n in row:
            x[n] -= edge / 2
    for sweep in range(8):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            near = [up[n] + down[n] if sweep > 1 else (up[n] if sweep % 2 == 0 else down[n]) or down[n] for n in row]
            wish = [sum(x[m] for m in ms) / len(ms) if ms else x[n] for n, ms in zip(row, near, strict=True)]
            for n, at in zip(row, _apart(wish, [wide[n] for n in row]), strict=True):
                x[n] = at
    return x


def _apart(wish: list[float], wide: list[float]) -> list[float]:
    """Nearest positions in least squares that keep order and distance: pool adjacent violators."""
    offset, edge = [], 0.0
    for i, w in enumerate(wide):
        edge += (w + wide[i - 1]) / 2 + GAP_X if i else 0.0
        offset.append(edge)
    blocks: list[tuple[float, int]] = []  # mean of (wish - offset), count
    for w, o in zip(wish, offset, strict=True):
        mean, count = w - o, 1
        while blocks and blocks[-1][0] > mean:
            m, c = blocks.pop()
            mean, count = (mean * count + m * c) / (count + c), count + c
        blocks.append((mean, count))
    level = [m for m, c in blocks for _ in range(c)]
    return [m + o for m, o in zip(level, offset, strict=True)]
