"""Pictures of a graph for terminals and notebooks.

Stage: ir.  In: a ``Graph``.  Out: a ``Picture`` that displays as text.  Read next: ``printer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.ir.graph import Graph


@dataclass(frozen=True)
class Picture:
    text: str

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def show(graph: Graph) -> Picture:
    return Picture(str(graph))
