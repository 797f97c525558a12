"""Lists, tuples, ranges, slices: sequences whose elements are values.

Stage: capture.  In and out: see ``base``.  A list from outside records its length as a guard when it is looked at;
a change to it is recorded by ``effects`` and replayed as one slice assignment.  Read next: ``keys``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compiler.capture.values.base import ContainerValue, Value

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source


class SequenceValue(ContainerValue):
    """``items`` in order; ``kind`` is the real type, which may be a user's subclass."""

    kind: type
    items: list[Value]

    def pytype(self) -> type:
        return self.kind

    def children(self) -> list[Value]:
        return [*super().children(), *self.items]


class TupleValue(SequenceValue):
    """A tuple, a ``Size`` or a named tuple."""

    def __init__(self, items: list[Value], kind: type = tuple, source: Source | None = None, obj: Any = None) -> None:
        self.items = items
        self.kind = kind
        self.source = source
        self.obj = obj

    def const(self) -> Any:
        items = [v.const() for v in self.items]
        if self.kind is tuple:
            return tuple(items)
        return tuple.__new__(self.kind, items)

    def real(self) -> Any:
        return self.obj

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        items = [emit.load(v) for v in self.items]
        text = "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
        return text if self.kind is tuple else f"tuple.__new__({emit.obj(self.kind)}, {text})"


class ListValue(SequenceValue):
    """A list (or subclass, or deque).  ``attrs`` is the instance dict of a subclass.

    A list from outside that is only appended to has no known length: ``look`` gives (and guards) what is in it when
    somebody asks, and until then ``added`` holds what was appended.
    """

    def __init__(
        self,
        items: list[Value] | None,
        kind: type = list,
        source: Source | None = None,
        obj: Any = None,
        look: Callable[[], list[Value]] | None = None,
    ) -> None:
        self._items = items
        self.look = look
        self.added: list[Value] = []
        self.kind = kind
        self.source = source
        self.obj = obj
        self.maxlen: Value | None = None  # of a deque

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self._items is None:
            assert self.look is not None
            self._items = [*self.look(), *self.added]
        return self._items

    @items.setter
    def items(self, new: list[Value]) -> None:
        self._items = new

    @property
    def looked_at(self) -> bool:
        return self._items is not None

    def children(self) -> list[Value]:
        return [*ContainerValue.children(self), *(self.added if self._items is None else self._items)]

    def real(self) -> Any:
        return self.obj

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        name = emit.begin(self, "[]") if self.kind is list else self.rebuild(emit)
        if self.maxlen is not None:
            emit.finish(f"{self.method(emit, '__init__', name)}(), {emit.load(self.maxlen)})")
        items = [emit.load(v) for v in self.items]
        if items:
            emit.finish(f"{name} += [{', '.join(items)}]" if self.kind is list else f"{self.method(emit, 'extend', name)}[{', '.join(items)}])")
        return name


class SliceValue(Value):
    """``slice(start, stop, step)`` of values."""

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.parts = [start, stop, step]

    def pytype(self) -> type:
        return slice

    def const(self) -> Any:
        return slice(*[p.const() for p in self.parts])

    def children(self) -> list[Value]:
        return list(self.parts)

    def reconstruct(self, emit: Emitter) -> str:
        return f"slice({', '.join(emit.load(p) for p in self.parts)})"


class RangeValue(Value):
    """A range with a symbolic bound; constant ranges are constants."""

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.parts = [start, stop, step]

    def pytype(self) -> type:
        return range

    def children(self) -> list[Value]:
        return list(self.parts)

    def reconstruct(self, emit: Emitter) -> str:
        return f"range({', '.join(emit.load(p) for p in self.parts)})"

