"""``Value``: what the symbolic interpreter knows of one Python value.

Stage: capture.  In: real objects (``wrap``) or the results of traced operations.  Out: operands of ``protocol`` and
``opcodes``, and at the end text that loads or rebuilds the value (``emit``).  Read next: ``tensor``,
``sequence``, ``mapping``, ``function``, ``objects``; then ``capture.protocol``, which acts on them.

A value from outside has a *source*.  It starts ``Lazy``: moving it around needs no guard; looking at it does.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.capture.tracer import Tracer


class NotConstantError(Exception):
    """The value is not known while tracing."""


class Value:
    """The base.  ``source`` says how to find the value again, None for one made inside the trace."""

    source: Source | None = None

    def pytype(self) -> type:
        """The type the real value has."""
        raise NotImplementedError(type(self).__name__)

    def const(self) -> Any:
        """The real value, if it is known and immutable; NotConstantError if not."""
        raise NotConstantError(self)

    def is_const(self) -> bool:
        try:
            self.const()
        except NotConstantError:
            return False
        return True

    def real(self) -> Any:
        """The real object behind a value from outside, or None."""
        return None

    def reconstruct(self, emit: Emitter) -> str:
        """Text that makes an equal value in translated code; ``emit`` keeps identity by asking once."""
        breaks.unsupported(breaks.RECONSTRUCT, type(self).__name__)

    def children(self) -> list[Value]:
        """Values held inside, for reachability."""
        return []

    def describe(self) -> str:
        """A few words for messages."""
        return self.pytype().__name__


class ContainerValue(Value):
    """A list, dict or set, perhaps of a user's class, which then may have attributes of its own.

    Translated code makes and changes it as the builtin type does: the methods of a subclass have been traced already.
    """

    kind: type
    attrs_dict: Any = None

    def children(self) -> list[Value]:
        return [] if self.attrs_dict is None else [self.attrs_dict]

    def base(self) -> type:
        """The builtin type behind ``kind``."""
        return next(c for c in self.kind.__mro__ if c in _CONTAINERS)

    def method(self, emit: Emitter, name: str, where: str) -> str:
        """The beginning of a call of a method of ``where``, up to where its arguments start."""
        if self.kind is self.base():
            return f"{where}.{name}("
        return f"{emit.obj(self.base())}.{name}({where}, "

    def rebuild(self, emit: Emitter) -> str:
        """An empty one of a user's class, with its attributes."""
        kind = emit.obj(self.kind)
        name = emit.begin(self, f"{emit.obj(self.base())}.__new__({kind})")
        if self.attrs_dict is not None and self.attrs_dict.entries:
            pairs = (f"{emit.load(k)}: {emit.load(v)}" for k, v in self.attrs_dict.entries.values())
            emit.finish(f"{name}.__dict__.update({{{', '.join(pairs)}}})")
        return name


_CONTAINERS = {list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict}


class Lazy(Value):
    """A value from outside that nothing has looked at yet: no guard, and only its source to rebuild it."""

    def __init__(self, obj: Any, source: Source) -> None:
        self.obj = obj
        self.source = source
        self.value: Value | None = None

    def real(self) -> Any:
        return self.obj

    def const(self) -> Any:
        if self.value is None:
            raise NotConstantError(self)
        return self.value.const()

    def pytype(self) -> type:
        raise AssertionError(f"{self.source} is used before it was realized")

    def reconstruct(self, emit: Emitter) -> str:
        if self.value is not None:
            return emit.load(self.value)
        assert self.source is not None
        return emit.read(self.source)

    def describe(self) -> str:
        return type(self.obj).__name__


def realize(tx: Tracer, value: Value) -> Value:
    """Look at ``value``: install its guards and give it a model."""
    if type(value) is Lazy:
        if value.value is None:
            value.value = tx.wrap(value.obj, value.source)
        return value.value
    return value


class ConstantValue(Value):
    """An immutable value that is known: numbers, strings, None, types of elements, devices, enum members."""

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return type(self.value)

    def const(self) -> Any:
        return self.value

    def is_const(self) -> bool:
        return True

    def real(self) -> Any:
        return self.value

    def reconstruct(self, emit: Emitter) -> str:
        return emit.constant(self.value)

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


NONE = ConstantValue(None)
TRUE = ConstantValue(True)
FALSE = ConstantValue(False)
NOT_IMPLEMENTED = ConstantValue(NotImplemented)


class NullValue(Value):
    """The NULL that CPython's calling convention pushes."""

    def describe(self) -> str:
        return "NULL"


NULL = NullValue()


class Marker(Value):
    """Interpreter state on the value stack: the exception info saved by PUSH_EXC_INFO."""

    def __init__(self, handled: Value | None, current: Value) -> None:
        self.handled = handled  # before
        self.current = current  # since
