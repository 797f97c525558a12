"""What a partition did, as a table.

Stage: partition.  In: a joint graph and its cut.  Out: ``Report``: bytes saved against eager, what is saved, what is
computed again, each with the user's line.  Read next: ``budget``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from compiler.ir import meta
from compiler.ir.graph import Node
from compiler.ir.module import GraphModule
from compiler.partition import cost
from compiler.partition.cost import Joint
from compiler.partition.mincut import Cut


@dataclass(frozen=True)
class Entry:
    """One value: its name in the joint graph, type, bytes, and the user's line."""

    name: str
    type: str
    bytes: int
    op: str
    line: str = ""


@dataclass(frozen=True)
class Report:
    """``saved_bytes`` and ``eager_bytes`` leave out inputs and parameters, which are alive in any case."""

    saved: tuple[Entry, ...]
    inputs: tuple[str, ...]
    recomputed: tuple[Entry, ...]
    saved_bytes: int
    eager_bytes: int
    recompute_ns: float
    budget: float = 1.0
    waits: str | None = None  # why gradients wait for the backward; "": they need not; None: nobody asked
    ahead: GraphModule | None = None  # the forward that gives them too

    @property
    def ratio(self) -> float:
        """Eager's bytes over ours; infinite if nothing is saved."""
        return self.eager_bytes / self.saved_bytes if self.saved_bytes else float("inf")

    def __str__(self) -> str:
        times = f"{self.ratio:.2f} times less" if self.saved_bytes else "nothing but inputs"
        lines = [f"saved for backward: {human(self.saved_bytes)}, eager {human(self.eager_bytes)} ({times})"]
        if self.inputs:
            lines.append(f"inputs kept: {', '.join(self.inputs)}")
        if self.waits is not None:
            where = f"in the backward: {self.waits}" if self.waits else "in the forward, for a cotangent of one"
            lines.append(f"gradients {where}")
        lines += ["", "saved", *_table(self.saved)] if self.saved else []
        if self.recomputed:
            counts = Counter(e.op for e in self.recomputed)
            shown = ", ".join(f"{n} {op}" if n > 1 else op for op, n in counts.most_common())
            lines += ["", f"computed again: {shown}", *_table(self.recomputed)]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/plain": str(self)}


def make_report(joint: Joint, cut: Cut, budget: float) -> Report:
    order = [n for n in joint.graph.nodes if n in cut.saved or n in cut.recomputed]
    saved = [n for n in order if n in cut.saved]
    again = [n for n in order if n in cut.recomputed and not cost.is_view(n)]
    return Report(
        saved=tuple(_entry(n) for n in saved if not cost.is_given(n)),
        inputs=tuple(n.name for n in saved if cost.is_given(n)),
        recomputed=tuple(_entry(n) for n in again),
        saved_bytes=cut.bytes,
        eager_bytes=cost.total_bytes(cost.eager_saves(joint)),
        recompute_ns=sum(cost.runtime(n) for n in again),
        budget=budget,
    )


def _entry(n: Node) -> Entry:
    where = meta.frame(n)
    line = meta.frame_comment(where)[2:] if where else ""
    op = str(getattr(n.target, "name", None) or getattr(n.target, "__name__", n.target))
    val = n.meta.get("val")
    return Entry(n.name, meta.describe(val), meta.nbytes(val), op, line)


def _table(entries: tuple[Entry, ...]) -> list[str]:
    rows = [(e.name, e.type, human(e.bytes), e.line) for e in entries]
    wide = [max(len(r[c]) for r in rows) for c in range(3)]
    return [f"  {r[0].ljust(wide[0])}  {r[1].ljust(wide[1])}  {r[2].rjust(wide[2])}  {r[3]}".rstrip() for r in rows]


def human(n: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or n == int(n) else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"
