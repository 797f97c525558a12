"""What each stage made of the program, shown on a page and saved as numbered files.

Stage: demo.  In: the artefacts the compiler announced while it compiled.  Out: text.  Read next: ``__main__``.
"""

from __future__ import annotations

import re
from pathlib import Path

from compiler import logs

#: topic -> (title, what to look for)
TITLES: dict[str, tuple[str, str]] = {
    "graph": ("The captured graph, as Python", "bytecode was stepped through symbolically; each call of ours is one line"),
    "guards": ("The guards, as Python", "what capture relied on; checked at every call, False means compile anew"),
    "joint": ("The joint graph", "forward and backward in rows of the op table, made by running the tape on fake tensors"),
    "partition": ("What the partitioner saves", "a minimum cut: bytes kept for backward against work done twice"),
    "loops": ("The fused loop nests", "what became one loop; buffers, and which are used again"),
    "kernels": ("One kernel's source", "what Numba (or NVRTC) compiles"),
}

Artifact = tuple[str, str, str]  # topic, name, text


def pick(artifacts: list[Artifact], topic: str) -> Artifact | None:
    """The artefact of a stage worth showing: the first, of kernels the longest that fits a page."""
    found = [a for a in artifacts if a[0] == topic]
    if topic == "kernels":
        own = [a for a in found if a[1] != "host"]
        fits = [a for a in own if a[2].count("\n") <= 60] or own or found
        return max(fits, key=lambda a: len(a[2]), default=None)
    return found[0] if found else None


def page(artifacts: list[Artifact], lines: int | None) -> str:
    """All stages in order, each cut to ``lines`` (None: whole)."""
    out = []
    for number, (topic, (title, about)) in enumerate(TITLES.items(), 1):
        chosen = pick(artifacts, topic)
        out.append(f"\n── {number} ─ {title} {'─' * max(0, 88 - len(title))}\n   {about}\n")
        if chosen is None:
            out.append("   (this backend shows nothing here)")
            continue
        text = chosen[2].rstrip().splitlines()
        kept = text if lines is None else text[:lines]
        out += [f"   {line}" for line in kept]
        if len(kept) < len(text):
            out.append(f"   ... {len(text) - len(kept)} more lines (--full shows them, --save DIR keeps every stage)")
    return "\n".join(out)


def save(artifacts: list[Artifact], folder: Path) -> list[Path]:
    """Every artefact as ``NNN_topic_name.py`` (or what else it is), in the order it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (topic, name, text) in enumerate(artifacts):
        suffix = logs.suffix_of(topic, name, text)
        clean = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]
        path = folder / f"{number:03d}_{topic}_{clean}{suffix}"
        path.write_text(text.rstrip() + "\n", encoding="utf-8")
        paths.append(path)
    return paths
