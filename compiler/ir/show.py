"""Pictures of a graph for terminals and notebooks.

Stage: ir.  In: a ``Graph``.  Out: a ``Picture``: text for a terminal, an image for a notebook, never a dependency.
Read next: ``layout``, which places the nodes.

The image is an SVG in a ``data:`` address, because notebook viewers keep that where they strip inline SVG; colours say
which side of a joint graph a node is on, a thick border that it is saved.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from compiler.ir import meta
from compiler.ir.graph import Graph, Node
from compiler.ir.layout import Layout, layout

COLOURS = {
    "input": "#e8e8e8", "forward": "#d5e8f7", "backward": "#fbe0cc", "recomputed": "#e3d9f2", "output": "#ffffff",
}  # fmt: skip
CHAR, PAD, HEIGHT = 6.6, 14.0, 26.0


@dataclass(frozen=True)
class Picture:
    """``print(picture)`` draws in text; a notebook shows ``svg``; ``save`` writes it."""

    text: str
    svg: str

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        data = base64.b64encode(self.svg.encode()).decode()
        image = f'<img alt="graph" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
        return {"text/plain": self.text, "text/html": image}

    def save(self, path: str) -> None:
        """Write the SVG to ``path``."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def __repr__(self) -> str:
        return self.text


def show(graph: Graph, *, colour: Callable[[Node], str] | None = None, bold: Callable[[Node], bool] | None = None) -> Picture:
    """Draw ``graph``.  ``colour`` names a kind of ``COLOURS`` (or gives a colour); ``bold`` picks the thick borders."""
    nodes = list(graph.nodes)
    labels = {n: _label(n) for n in nodes}
    widths = {n: max(map(len, labels[n])) * CHAR + PAD for n in nodes}
    edges = [(i, n) for n in nodes for i in n.all_input_nodes]
    places = layout(nodes, edges, widths)  # type: ignore[arg-type]
    return Picture(as_text(graph), _svg(nodes, labels, widths, places, colour or side, bold or (lambda n: False)))


def side(n: Node) -> str:
    """The colour of a node unless told otherwise."""
    if n.op in ("placeholder", "get_attr"):
        return "backward" if n.name.startswith("tangents") else "input"
    if n.op == "output":
        return "output"
    if n.meta.get("recomputed"):
        return "recomputed"
    return "backward" if n.meta.get("side") == "backward" else "forward"


def _label(n: Node) -> tuple[str, str]:
    target = n.name if n.op in ("placeholder", "get_attr", "output") else _short(n.target)
    return target, meta.describe(n.meta.get("val"))


def _short(target: Any) -> str:
    return str(target if isinstance(target, str) else getattr(target, "name", None) or getattr(target, "__name__", target))


# --- svg --------------------------------------------------------------------------------------------------------------
def _svg(
    nodes: list[Node],
    labels: dict[Node, tuple[str, str]],
    widths: dict[Node, float],
    places: Layout,
    colour: Callable[[Node], str],
    bold: Callable[[Node], bool],
) -> str:
    w, h = f"{places.width:.0f}", f"{places.height + 8:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
        'font-family="monospace" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    parts += [_edge(path) for path in places.paths.values()]
    for n in nodes:
        x, y = places.at[n]
        parts.append(_box(labels[n], x, y, widths[n], colour(n), bold(n), n.name))
    return "\n".join([*parts, "</svg>"])


def _edge(path: list[tuple[float, float]]) -> str:
    """A smooth line down the page, straight through its dummies."""
    (x, y), *rest = path
    y += HEIGHT / 2
    d = [f"M{x:.1f} {y:.1f}"]
    for i, (x2, y2) in enumerate(rest):
        y2 -= HEIGHT / 2 if i == len(rest) - 1 else 0
        half = (y + y2) / 2
        d.append(f"C{x:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}")
        x, y = x2, y2
    return f'<path d="{"".join(d)}" fill="none" stroke="#777" marker-end="url(#tip)"/>'


def _box(label: tuple[str, str], x: float, y: float, w: float, colour: str, bold: bool, name: str) -> str:
    fill = COLOURS.get(colour, colour)
    stroke = 'stroke="#b00020" stroke-width="2.5"' if bold else 'stroke="#555"'
    first, second = label
    lines = f'<text x="{x:.1f}" y="{y - 2 if second else y + 4:.1f}" text-anchor="middle">{escape(first)}</text>'
    if second:
        lines += f'<text x="{x:.1f}" y="{y + 10:.1f}" text-anchor="middle" fill="#666" font-size="9">{escape(second)}</text>'
    return (
        f'<g><title>{escape(name)}</title><rect x="{x - w / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{w:.1f}" '
        f'height="{HEIGHT:.0f}" rx="4" fill="{fill}" {stroke}/>{lines}</g>'
    )


# --- text -------------------------------------------------------------------------------------------------------------
def as_text(graph: Graph) -> str:
    """The graph for a terminal: one line a node, and at its left a lane for each value that is still to be read.

    ``o`` starts a lane, ``|`` carries it, ``*`` reads it, ``+`` reads it for the last time, ``@`` does so and starts
    the next value in the same lane.
    """
    nodes = list(graph.nodes)
    last: dict[Node, Node] = {i: n for n in nodes for i in n.all_input_nodes}
    lanes: list[Node | None] = []
    rows: list[tuple[str, str]] = []
    for n in nodes:
        marks = [_mark(n, lane, last) for lane in lanes]
        lanes = [None if lane is not None and last[lane] is n else lane for lane in lanes]
        if n in last:
            free = lanes.index(None) if None in lanes else len(lanes)
            lanes[free : free + 1] = [n]
            marks += [" "] * (free + 1 - len(marks))
            marks[free] = "o" if marks[free] == " " else "@"
        rows.append((" ".join(marks), _line(n)))
    wide = max((len(lane) for lane, _ in rows), default=0)
    return "\n".join(f"{lane.ljust(wide)}  {text}".rstrip() for lane, text in rows)


def _mark(n: Node, lane: Node | None, last: dict[Node, Node]) -> str:
    if lane is None:
        return " "
    if lane not in n.all_input_nodes:
        return "|"
    return "+" if last[lane] is n else "*"


def _line(n: Node) -> str:
    about = meta.describe(n.meta.get("val"))
    if n.op == "placeholder":
        text = n.name
    elif n.op == "output":
        text = f"return {', '.join(map(str, n.all_input_nodes))}"
    else:
        text = f"{n.name} = {_short(n.target)}({', '.join(map(str, n.all_input_nodes))})"
    return f"{text}  {about}" if about else text
