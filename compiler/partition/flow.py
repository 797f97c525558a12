"""Maximum flow and minimum cut: Dinic's algorithm.

Stage: partition.  In: a network of integer capacities.  Out: the flow's value and the cut nearest to the sink.
Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970: repeat (layer the
network by distance from the source; saturate all shortest paths).  Read next: ``mincut``.

    >>> net = Network()
    >>> net.edge("s", "a", 3); net.edge("a", "t", 2)
    >>> net.max_flow("s", "t"), sorted(net.sink_side("t"))
    (2, ['t'])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

INF = 1 << 140  # more than any sum of real capacities; ints do not overflow


class Network:
    """A directed graph with capacities.  Edge ``e`` and its reverse ``e ^ 1`` are stored in pairs: ``to[e]`` is where
    it leads, ``left[e]`` what it can still take."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.names: list[Hashable] = []
        self.out: list[list[int]] = []
        self.to: list[int] = []
        self.left: list[int] = []

    def node(self, name: Hashable) -> int:
        found = self.number.get(name)
        if found is None:
            found = self.number[name] = len(self.names)
            self.names.append(name)
            self.out.append([])
        return found

    def edge(self, a: Hashable, b: Hashable, capacity: int) -> None:
        """An edge from ``a`` to ``b``; parallel edges add up."""
        u, v = self.node(a), self.node(b)
        for x, y, c in ((u, v, capacity), (v, u, 0)):
            self.out[x].append(len(self.to))
            self.to.append(y)
            self.left.append(c)

    def max_flow(self, source: Hashable, sink: Hashable) -> int:
        """The value of a maximum flow, at least ``INF`` if nothing bounds it.  Leaves the residual network behind."""
        s, t = self.node(source), self.node(sink)
        total = 0
        while (level := self._layers(s))[t] >= 0:
            at = [0] * len(self.out)
            while pushed := self._augment(s, t, level, at):
                total += pushed
                if total >= INF:
                    return total
        return total

    def _layers(self, s: int) -> list[int]:
        """Distance of every node from ``s`` along edges with capacity left; -1 where there is no way."""
        level = [-1] * len(self.names)
        level[s] = 0
        queue = deque([s])
        while queue:
            u = queue.popleft()
            for e in self.out[u]:
                v = self.to[e]
                if self.left[e] and level[v] < 0:
                    level[v] = level[u] + 1
                    queue.append(v)
        return level

    def _augment(self, s: int, t: int, level: list[int], at: list[int]) -> int:
        """Send flow along one path that goes down the layers; 0 if there is none left.

        ``at[u]`` counts the edges of ``u`` found useless; they stay so until the next layering.
        """
        path: list[int] = []
        u = s
        while u != t:
            edges = self.out[u]
            while at[u] < len(edges):
                e = edges[at[u]]
                if self.left[e] and level[self.to[e]] == level[u] + 1:
                    break
                at[u] += 1
            else:  # a dead end: step back and do not come here again
                if not path:
                    return 0
                u = self.to[path.pop() ^ 1]
                at[u] += 1
                continue
            path.append(e)
            u = self.to[e]
        amount = min(self.left[e] for e in path)
        for e in path:
            self.left[e] -= amount
            self.left[e ^ 1] += amount
        return amount

    def sink_side(self, sink: Hashable) -> set[Hashable]:
        """After ``max_flow``: the nodes that can still reach ``sink``.  The edges into this set are a minimum cut, the
        one nearest to the sink."""
        t = self.node(sink)
        seen = {t}
        stack = [t]
        while stack:
            for e in self.out[stack.pop()]:
                v = self.to[e]
                if v not in seen and self.left[e ^ 1]:
                    seen.add(v)
                    stack.append(v)
        return {self.names[v] for v in seen}

