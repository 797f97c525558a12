"""Effects: what the traced program changed outside of itself, replayed once, in order, after the graph has run.

Stage: capture.  In: ``touch`` before every change of a value.  Out: statements for translated code: one per list, per
changed key, per cell, per global.  Values made inside the trace need none of this; they are rebuilt as they ended.
Read next: ``emit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.values.base import Value
from compiler.capture.values.function import CellValue, UserFunction
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ObjectValue
from compiler.capture.values.sequence import ListValue
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source


class Effects:
    """The changed values from outside, in the order of their first change."""

    def __init__(self) -> None:
        self.touched: dict[int, Value] = {}
        self.globals: dict[tuple[int, str], tuple[Source, Value | None]] = {}
        self.classes: dict[tuple[type, str], Value] = {}  # attributes given to classes

    def touch(self, value: Value) -> None:
        """``value`` is about to change."""
        if value.source is not None:
            self.touched.setdefault(id(value), value)

    def is_touched(self, value: Value) -> bool:
        return id(value) in self.touched

    def __bool__(self) -> bool:
        return bool(self.touched or self.globals or self.classes)

    def roots(self) -> list[Value]:
        """Values that must exist because an effect stores them."""
        found = [v for t in self.touched.values() for v in t.children()]
        return [*found, *(v for _, v in self.globals.values() if v is not None), *self.classes.values()]

    def replay(self, emit: Emitter) -> None:
        """Write the statements.  New values are built before the first of them changes anything."""
        steps = [(value, self._prepare(value, emit)) for value in self.touched.values()]
        stores = [(where, name, None if v is None else emit.load(v)) for (_, name), (where, v) in self.globals.items()]
        attributes = [f"{emit.obj(cls)}.{name} = {emit.load(v)}" for (cls, name), v in self.classes.items()]
        emit.effects_begin()
        for _, lines in steps:
            for line in lines:
                emit.finish(line)
        for where, name, text in stores:
            target = f"{emit.read(where)}[{name!r}]"
            emit.finish(f"del {target}" if text is None else f"{target} = {text}")
        for line in attributes:
            emit.finish(line)

    def _prepare(self, value: Value, emit: Emitter) -> list[str]:
        where = emit.read(value.source) if value.source is not None else ""
        if isinstance(value, ListValue):
            return self._list(value, where, emit)
        if isinstance(value, DictValue):
            return self._dict(value, where, emit)
        if isinstance(value, SetValue):
            return [
                f"{value.method(emit, name, where)}{', '.join(emit.load(a) for a in args)})" for name, args in value.changes
            ]
        if isinstance(value, CellValue):
            if value.contents is None:
                return [f"del {where}.cell_contents"]
            return [f"{where}.cell_contents = {emit.load(value.contents)}"]
        if isinstance(value, ObjectValue):
            return [
                f"del {where}.{k}" if v is None else f"{emit.obj(object)}.__setattr__({where}, {k!r}, {emit.load(v)})"
                for k, v in value.slots.items()
            ]
        if isinstance(value, TensorValue):
            return [
                f"del {where}.{k}" if v is None else f"{where}.{k} = {emit.load(v)}" for k, v in value.attrs.items()
            ]
        if isinstance(value, UserFunction):
            return []
        breaks.unsupported(breaks.RECONSTRUCT, f"a change of {value.describe()}")

    def _list(self, value: ListValue, where: str, emit: Emitter) -> list[str]:
        if not value.looked_at:
            return [f"{value.method(emit, 'append', where)}{emit.load(v)})" for v in value.added]
        items = f"[{', '.join(emit.load(v) for v in value.items)}]"
        if issubclass(value.kind, list):
            return [f"{emit.obj(list)}.__setitem__({where}, slice(None), {items})"] if value.kind is not list else [
                f"{where}[:] = {items}"
            ]
        return [f"{value.method(emit, 'clear', where)})", f"{value.method(emit, 'extend', where)}{items})"]

    def _dict(self, value: DictValue, where: str, emit: Emitter) -> list[str]:
        """Only what changed, unless the order of keys did."""
        before, after = value.before, value.entries
        kept = [k for k in before if k in after]
        first = list(after)[: len(kept)]
        lines: list[str] = []
        if kept != first:
            return [f"{value.method(emit, 'clear', where)})", *(value.store(emit, where, k, v) for k, v in after.values())]
        for key, (key_value, element) in after.items():
            old = before.get(key)
            if old is None or not _same(old[1], element):
                lines.append(value.store(emit, where, key_value, element))
        delete = value.method(emit, "__delitem__", where)
        lines += [f"{delete}{emit.load(before[k][0])})" for k in before if k not in after]
        return lines


def _same(old: Value, new: Any) -> bool:
    """Whether an element is still the one that was found there."""
    return old is new or getattr(old, "value", None) is new and type(old).__name__ == "Lazy"
