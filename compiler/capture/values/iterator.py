"""Iterators: positions in sequences, and the lazy builtins over other iterators.

Stage: capture.  In and out: see ``base``.  ``next`` gives the next value or None at the end.  Each rebuilds as the
real iterator at the same position, so a loop can be left at a break and entered again.
Read next: ``generator``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.values.base import ConstantValue, Value, realize
from compiler.capture.values.mapping import SetValue
from compiler.capture.values.sequence import ListValue, SequenceValue, TupleValue

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.capture.tracer import Tracer


_TUPLE_ITERATOR = type(iter(()))


class IteratorValue(Value):
    """The base of all iterators."""

    kind: type = type(iter(()))

    def pytype(self) -> type:
        return self.kind

    def next(self, tx: Tracer) -> Value | None:
        """The next value as the program sees it (perhaps untouched), or None at the end."""
        raise NotImplementedError


class SequenceIterator(IteratorValue):
    """Over a list or tuple, which may grow while it is walked."""

    def __init__(self, over: SequenceValue, index: int = 0) -> None:
        self.over = over
        self.index = index
        self.kind = type(iter([])) if isinstance(over, ListValue) else type(iter(()))

    def children(self) -> list[Value]:
        return [self.over]

    def next(self, tx: Tracer) -> Value | None:
        if self.index < 0 or self.index >= len(self.over.items):
            self.index = -1
            return None
        self.index += 1
        return self.over.items[self.index - 1]

    def reconstruct(self, emit: Emitter) -> str:
        if self.index < 0:
            return "iter(())"
        name = emit.begin(self, f"iter({emit.load(self.over)})")
        if self.index:
            emit.finish(f"{name}.__setstate__({self.index})")
        return name


class ItemsIterator(IteratorValue):
    """Over values that cannot change: the characters of a string, a range, the keys of a dict."""

    def __init__(self, items: list[Value], kind: type = _TUPLE_ITERATOR) -> None:
        self.items = items
        self.index = 0
        self.kind = kind

    def children(self) -> list[Value]:
        return self.items[self.index :]

    def next(self, tx: Tracer) -> Value | None:
        if self.index >= len(self.items):
            return None
        self.index += 1
        return self.items[self.index - 1]

    def reconstruct(self, emit: Emitter) -> str:
        rest = self.items[self.index :]
        return "iter((" + "".join(f"{emit.load(v)}, " for v in rest) + "))"


class SetIterator(ItemsIterator):
    """Over a set, which must not grow meanwhile."""

    def __init__(self, of: SetValue, items: list[Value]) -> None:
        super().__init__(items, type(iter(set())))
        self.of = of

    def next(self, tx: Tracer) -> Value | None:
        if len(self.of.items) != len(self.items):
            tx.raise_(RuntimeError, "Set changed size during iteration")
        return super().next(tx)


class RangeIterator(IteratorValue):
    """Over a constant range, element by element, so that a long one costs nothing."""

    kind = type(iter(range(0)))

    def __init__(self, over: range) -> None:
        self.over = over

    def next(self, tx: Tracer) -> Value | None:
        if not self.over:
            return None
        value, self.over = self.over[0], self.over[1:]
        return ConstantValue(value)

    def reconstruct(self, emit: Emitter) -> str:
        return f"iter({self.over!r})"


class EnumerateIterator(IteratorValue):
    """``enumerate``."""

    kind = enumerate

    def __init__(self, inner: Value, count: Value) -> None:
        self.inner = inner
        self.count = count

    def children(self) -> list[Value]:
        return [self.inner, self.count]

    def next(self, tx: Tracer) -> Value | None:
        element = tx.protocol.next_(tx, self.inner)
        if element is None:
            return None
        count, self.count = self.count, tx.protocol.binary(tx, "+", self.count, ConstantValue(1))
        return TupleValue([count, element])

    def reconstruct(self, emit: Emitter) -> str:
        return f"enumerate({emit.load(self.inner)}, {emit.load(self.count)})"


class ZipIterator(IteratorValue):
    """``zip``."""

    kind = zip

    def __init__(self, inner: list[Value], strict: bool) -> None:
        self.inner = inner
        self.strict = strict

    def children(self) -> list[Value]:
        return list(self.inner)

    def next(self, tx: Tracer) -> Value | None:
        found: list[Value] = []
        for i, it in enumerate(self.inner):
            element = tx.protocol.next_(tx, it)
            if element is None:
                if self.strict:
                    self._check_lengths(tx, i)
                return None
            found.append(element)
        return TupleValue(found) if self.inner else None

    def _check_lengths(self, tx: Tracer, ended: int) -> None:
        def plural(n: int) -> str:
            return "argument 1" if n == 1 else f"arguments 1-{n}"

        if ended > 0:
            tx.raise_(ValueError, f"zip() argument {ended + 1} is shorter than {plural(ended)}")
        for i, it in enumerate(self.inner[1:], 1):
            if tx.protocol.next_(tx, it) is not None:
                tx.raise_(ValueError, f"zip() argument {i + 1} is longer than {plural(i)}")

    def reconstruct(self, emit: Emitter) -> str:
        strict = ", strict=True" if self.strict else ""
        return f"zip({', '.join(emit.load(v) for v in self.inner)}{strict})"


class MapIterator(IteratorValue):
    """``map``."""

    kind = map

    def __init__(self, fn: Value, inner: list[Value]) -> None:
        self.fn = fn
        self.inner = inner

    def children(self) -> list[Value]:
        return [self.fn, *self.inner]

    def next(self, tx: Tracer) -> Value | None:
        args: list[Value] = []
        for it in self.inner:
            element = tx.protocol.next_(tx, it)
            if element is None:
                return None
            args.append(element)
        return tx.protocol.call(tx, self.fn, args, {})

    def reconstruct(self, emit: Emitter) -> str:
        return f"map({emit.load(self.fn)}, {', '.join(emit.load(v) for v in self.inner)})"


class FilterIterator(IteratorValue):
    """``filter``; ``keep`` is the truth that stays (False for ``itertools.filterfalse``)."""

    kind = filter

    def __init__(self, fn: Value, inner: Value) -> None:
        self.fn = fn
        self.inner = inner

    def children(self) -> list[Value]:
        return [self.fn, self.inner]

    def next(self, tx: Tracer) -> Value | None:
        while True:
            element = tx.protocol.next_(tx, self.inner)
            if element is None:
                return None
            fn = realize(tx, self.fn)
            none = isinstance(fn, ConstantValue) and fn.value is None
            if tx.protocol.truth(tx, element if none else tx.protocol.call(tx, fn, [element], {})):
                return element

    def reconstruct(self, emit: Emitter) -> str:
        return f"filter({emit.load(self.fn)}, {emit.load(self.inner)})"


class ReversedIterator(IteratorValue):
    """``reversed`` of a list or tuple."""

    kind: type = type(reversed(()))

    def __init__(self, over: SequenceValue) -> None:
        self.over = over
        self.index = len(over.items) - 1

    def children(self) -> list[Value]:
        return [self.over]

    def next(self, tx: Tracer) -> Value | None:
        if self.index < 0 or self.index >= len(self.over.items):
            self.index = -1
            return None
        self.index -= 1
        return self.over.items[self.index + 1]

    def reconstruct(self, emit: Emitter) -> str:
        rest = self.over.items[: self.index + 1][::-1]
        return "iter((" + "".join(f"{emit.load(v)}, " for v in rest) + "))"


class CallIterator(IteratorValue):
    """``iter(callable, sentinel)``."""

    kind = type(iter(lambda: 0, 0))

    def __init__(self, fn: Value, sentinel: Value) -> None:
        self.fn = fn
        self.sentinel = sentinel

    def children(self) -> list[Value]:
        return [self.fn, self.sentinel]

    def next(self, tx: Tracer) -> Value | None:
        element = tx.protocol.call(tx, self.fn, [], {})
        return None if tx.protocol.equal(tx, element, self.sentinel) else element

    def reconstruct(self, emit: Emitter) -> str:
        return f"iter({emit.load(self.fn)}, {emit.load(self.sentinel)})"


class OutsideIterator(IteratorValue):
    """An iterator from outside the trace: how much is left is not known, so a step of it is a break."""

    def __init__(self, obj: Any, source: Source) -> None:
        self.obj = obj
        self.source = source
        self.kind = type(obj)

    def real(self) -> Any:
        return self.obj

    def next(self, tx: Tracer) -> Value | None:
        breaks.unsupported(breaks.OPAQUE_ITERATOR, type(self.obj).__name__)

    def reconstruct(self, emit: Emitter) -> str:
        assert self.source is not None
        return emit.read(self.source)
