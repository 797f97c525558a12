"""Sources: how a value of the running program is found again.

Stage: capture.  In: a path such as *attribute ``fc`` of argument ``self``*.  Out: Python text.  The same text serves
both faces of a source: guards read it to check what the trace relied on, and translated code reads it to load what it
needs.  Two sources are equal if their texts are.  Read next: ``guards`` and ``emit``, the two readers.
"""

from __future__ import annotations

import keyword
from types import ModuleType
from typing import Any


class Source:
    """A path to a value.  ``parts`` are the sources that ``form`` mentions as ``{0}``, ``{1}``.  ``built``: does it lead through
    a module of ``nn``?  Its numbers say how it is built, and are not taken to vary until they do."""

    __slots__ = ("text", "form", "parts", "depth", "built")

    def __init__(self, form: str, *parts: Source) -> None:
        self.form = form
        self.parts = parts
        self.built: bool = any([p.built for p in parts])
        self.text: str
        self.depth: int
        if not parts:
            self.text, self.depth = form, 0
        elif len(parts) == 1:
            self.text, self.depth = form.format(parts[0].text), parts[0].depth + 1
        else:
            self.text, self.depth = form.format(*[p.text for p in parts]), 1 + max([p.depth for p in parts])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def is_name(self) -> bool:
        """A plain name: reading it again costs nothing."""
        return not self.parts

    def attr(self, name: str) -> Source:
        if not name.isidentifier() or keyword.iskeyword(name):
            return Source(f"getattr({{0}}, {name!r})", self)
        return Source(f"{{0}}.{name}", self)

    def item(self, key: Any) -> Source:
        """``self[key]`` for a key that prints as Python."""
        return Source(f"{{0}}[{escape(repr(key))}]", self)

    def item_at(self, key: Source) -> Source:
        """``self[key]`` for a key that has a source itself."""
        return Source("{0}[{1}]", self, key)

    def type(self) -> Source:
        return Source("type({0})", self)

    def cell(self, index: int) -> Source:
        """The closure cell ``index`` of a function."""
        return Source(f"{{0}}.__closure__[{index}]", self)

    def nth(self, index: int) -> Source:
        """Element ``index`` in iteration order: how keys of dicts are reached."""
        return Source(f"tuple({{0}})[{index}]", self)


def name(text: str) -> Source:
    """A name: an argument, or an object of the generated code's own namespace."""
    return Source(text)


def escape(text: str) -> str:
    """``text`` as a literal part of a form."""
    return text.replace("{", "{{").replace("}", "}}")


class Namespace:
    """The globals of generated code: objects the trace took by identity, under readable names."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._sources: dict[str, Source] = {}

    def name(self, obj: Any, hint: str = "") -> str:
        """A name bound to ``obj``, the same for the same object."""
        known = self._names.get(id(obj))
        if known is not None:
            return known
        base = "K_" + (_identifier(hint or _hint(obj)) or "object")
        text, n = base, 1
        while text in self.objects:
            n += 1
            text = f"{base}_{n}"
        self.objects[text] = obj
        self._names[id(obj)] = text
        return text

    def source(self, obj: Any, hint: str = "") -> Source:
        text = self.name(obj, hint)
        found = self._sources.get(text)
        if found is None:
            found = self._sources[text] = Source(text)
        return found


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() or c == "_" else "_" for c in text).strip("_")


def _hint(obj: Any) -> str:
    if isinstance(obj, ModuleType):
        return obj.__name__
    return getattr(obj, "__qualname__", None) or getattr(obj, "co_qualname", None) or type(obj).__name__


def literal(value: Any) -> str | None:
    """``value`` as Python text that evaluates to an equal value of the same type, or None."""
    kind = type(value)
    if kind in (int, bool, str, bytes, type(None)) or value is Ellipsis:
        return repr(value) if value is not Ellipsis else "..."
    if kind is float:
        return repr(value) if value == value and abs(value) != float("inf") else f"float({str(value)!r})"
    if kind is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind is tuple:
        parts = [literal(v) for v in value]
        if any(p is None for p in parts):
            return None
        return "(" + ", ".join(str(p) for p in parts) + ("," if len(parts) == 1 else "") + ")"
    if kind is range:
        return repr(value)
    return None
