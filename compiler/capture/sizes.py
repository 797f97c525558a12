"""Symbolic sizes at the border: which sizes and numbers become symbols, and symbols as text in guards.

Stage: capture.  In: tensors and numbers with the places they were found at, call after call (``Sizes``); an expression
over symbols (``size_form``).  Out: dimensions to make symbolic; the expression over the sources of its symbols.  What a
symbol is belongs to ``compiler.sym``.  Read next: ``inputs``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compiler.capture.source import Source
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


class Sizes:
    """Which sizes and integers are symbolic: all, none, or (``dynamic=None``) those seen to differ between calls."""

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        self.seen: dict[str, Any] = {}
        self.differing: set[tuple[str, int]] = set()
        self.pinned: set[str] = set()  # numbers that Python control flow needs

    def dims(self, where: str, t: Tensor) -> dict[int, tuple[int, int | float]]:
        """Dimensions of the tensor at ``where`` to make symbolic, with their ranges."""
        shape = tuple(t._data.shape)
        marks = getattr(t, "_dynamic_dims", None) or {}
        static = getattr(t, "_static_dims", None) or ()
        before = self.seen.get(where)
        if self.dynamic is None and isinstance(before, tuple) and len(before) == len(shape):
            self.differing |= {(where, d) for d in range(len(shape)) if before[d] != shape[d]}
        self.seen[where] = shape
        wanted: dict[int, tuple[int, int | float]] = {}
        for d, size in enumerate(shape):
            if size < 2 or d in static:
                continue
            if d in marks:
                wanted[d] = marks[d]
            elif self.dynamic or (self.dynamic is None and (where, d) in self.differing):
                wanted[d] = (2, float("inf"))
        return wanted

    def number(self, where: str, value: Any, built: bool = False) -> bool:
        """Whether the number at ``where`` is symbolic; ``built``: it says how a module is built, and is not before it differs."""
        if where in self.pinned:
            return False
        before = self.seen.get(where, value)
        if type(before) is type(value) and before != value and (self.dynamic is None or built and self.dynamic):
            self.differing.add((where, -1))
        self.seen[where] = value
        return bool(self.dynamic) and not built or (where, -1) in self.differing


def size_form(tx: Tracer, text: str, first: int) -> tuple[str, list[Source]]:
    """Text over symbol names as a guard's form over the sources of these symbols."""
    parts: list[Source] = []
    for name in sorted(tx.symbols, key=len, reverse=True):
        pieces = _split_name(text, name)
        if len(pieces) > 1:
            text = f"{{{first + len(parts)}}}".join(pieces)
            parts.append(tx.symbol_source(name))
    return text, parts


def _split_name(text: str, name: str) -> list[str]:
    return re.split(rf"\b{re.escape(name)}\b", text)
