"""Weaving: which loops of a group's nests become one.

Stage: loop.  In: nests in the order they run.  Out: a tree of loops, with marks where each nest begins, computes and ends.
Two loops are joined where their extents agree and the later nest reads only what the earlier one has stored in the same
turn.  Read next: ``write`` (the tree as statements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compiler.loop import deps
from compiler.loop.emit import Names
from compiler.loop.nest import Axis, Nest


class Weaver:
    """Joins the loop nests of a group level by level; ``names`` of axes are unified as loops are joined."""

    def __init__(self, nests: Sequence[Nest], spine: tuple[str, ...], fresh: Names) -> None:
        self.nests = {n.number: n for n in nests}
        self.spine = spine
        self.fresh = fresh
        self.opened: set[str] = set()

    def weave(self, items: list[tuple[int, int]]) -> list[Any]:
        """``items``: (nest number, how many of its axes are open).  Gives a list of ``(axis, subtree)`` and of
        ``("init" | "body" | "post", nest number)``."""
        segments: list[tuple[Axis | None, list[tuple[int, int]]]] = []
        for number, depth in items:
            nest = self.nests[number]
            if depth == len(nest.axes):  # before any loop it does not need, so as not to stand between two
                needed = [k for k, (_, ns) in enumerate(segments) if any(_needs(nest, self.nests[n]) for n, _ in ns)]
                segments.insert(max(needed, default=-1) + 1, (None, [(number, depth)]))
                continue
            axis = nest.axes[depth]
            at = self._joinable(segments, number, depth)
            if at is None:
                if axis.name in self.opened:  # the same loop in principle, but it has to be run again
                    axis = replace(axis, name=self.fresh("x"))
                    self.nests[number] = nest.renamed({nest.axes[depth].name: axis.name})
                self.opened.add(axis.name)
                segments.append((axis, [(number, depth + 1)]))
                continue
            shared, inside = segments[at]
            assert shared is not None
            self.nests[number] = nest.renamed({axis.name: shared.name}) if axis.name != shared.name else nest
            inside.append((number, depth + 1))
        out: list[Any] = []
        for loop, inside in segments:
            if loop is None:
                out.append(("body", inside[0][0]))
                continue
            begun = [n for n, d in inside if self.begins(n, d - 1)]
            out += [("init", n) for n in begun]
            kinds = {self.nests[n].axes[d - 1].kind for n, d in inside}
            kind = "scan" if "scan" in kinds else "reduce" if "reduce" in kinds else "map"
            out.append((replace(loop, kind=kind), self.weave(inside)))
            out += [("post", n) for n in begun]
        return out

    def begins(self, number: int, depth: int) -> bool:
        """Is the loop at ``depth`` the outermost of those over which the nest reduces?"""
        nest = self.nests[number]
        return nest.update is not None and all(a.kind == "map" for a in nest.axes[:depth]) and nest.axes[depth].kind != "map"

    def _joinable(self, segments: list[tuple[Axis | None, list[tuple[int, int]]]], number: int, depth: int) -> int | None:
        nest = self.nests[number]
        axis = nest.axes[depth]
        for at in range(len(segments) - 1, -1, -1):
            shared, inside = segments[at]
            if shared is not None and deps.same(shared.extent, axis.extent) and all(
                self._may_share(self.nests[n], d - 1, nest, depth) for n, d in inside
            ) and (axis.name in self.spine or any(list(deps.shared_buffers(self.nests[n], nest)) for n, _ in inside)):  # fmt: skip
                return at
            if any(_needs(nest, self.nests[n]) for n, _ in inside):
                return None
        return None

    def _may_share(self, a: Nest, da: int, b: Nest, db: int) -> bool:
        """May the loop of ``a`` at depth ``da`` also be that of the later nest ``b`` at ``db``?"""
        kinds = {a.axes[da].kind, b.axes[db].kind}
        if "scan" in kinds and kinds != {"scan"}:
            return False
        for buffer in {w.buffer for w in a.writes} & {r.buffer for r in b.reads}:
            if (a.axes[da].name, b.axes[db].name) not in deps.in_step(a, b, buffer, [a.axes[da]], [b.axes[db]]):
                return False
        return True


def _needs(b: Nest, a: Nest) -> bool:
    made = {w.buffer for w in a.writes}
    return any(x.buffer in made for x in b.accesses)
