"""Instances of classes, ``super()``, exceptions.

Stage: capture.  In and out: see ``base``.  An object keeps its attributes as an instance dict of values (and slots);
methods are found on the real class.  Modules of ``nn``, optimizers and context managers are ordinary objects here.
Read next: ``iterator``, then ``capture.protocol.getattr_``.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.values.base import NotConstantError, Value
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.sequence import TupleValue
from tinytorch.nn.module import Module

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source


class ObjectValue(Value):
    """An instance.  ``slots`` holds what C structures hold: ``__slots__``, an exception's args, a wrapped number."""

    def __init__(self, cls: type, source: Source | None = None, obj: Any = None) -> None:
        self.cls = cls
        self.source = source
        self.obj = obj
        self.slots: dict[str, Value | None] = {}
        self.new_args: list[Value] = []  # what rebuilds the C part of a new object
        self._dict: DictValue | None = None

    @property
    def dict(self) -> DictValue | None:
        """The instance dict, or None for classes without one."""
        if self._dict is None:
            if self.obj is None:
                if self.cls.__dictoffset__ == 0:
                    return None
                self._dict = DictValue()
            else:
                real = getattr(self.obj, "__dict__", None)
                if type(real) is not dict or self.source is None:
                    return None
                source = self.source.attr("__dict__")
                source.built |= isinstance(self.obj, Module)
                self._dict = DictValue.wrap(real, source)
            self._dict.owner = self
        return self._dict

    def pytype(self) -> type:
        return self.cls

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        inner: list[Value] = [] if self._dict is None else [self._dict]
        return [*inner, *(v for v in self.slots.values() if v is not None), *self.new_args]

    def is_exception(self) -> bool:
        return issubclass(self.cls, BaseException)

    def args(self) -> TupleValue:
        """An exception's arguments."""
        args = self.slots.get("args")
        return args if isinstance(args, TupleValue) else TupleValue(list(self.new_args))

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        cls = emit.obj(self.cls)
        args = "".join(f", {emit.load(v)}" for v in (self.args().items if self.is_exception() else self.new_args))
        name = emit.begin(self, f"{cls}.__new__({cls}{args})")
        for slot, v in self.slots.items():
            if v is not None and not (slot == "args" and self.is_exception()):
                emit.finish(f"{emit.obj(object)}.__setattr__({name}, {slot!r}, {emit.load(v)})")
        if self._dict is not None and self._dict.entries:
            pairs = (f"{emit.load(k)}: {emit.load(v)}" for k, v in self._dict.entries.values())
            emit.finish(f"{name}.__dict__.update({{{', '.join(pairs)}}})")
        return name


class OutsideValue(Value):
    """A real object that is read again where it came from."""

    def __init__(self, obj: Any, source: Source) -> None:
        self.obj = obj
        self.source = source

    def pytype(self) -> type:
        return type(self.obj)

    def real(self) -> Any:
        return self.obj

    def reconstruct(self, emit: Emitter) -> str:
        assert self.source is not None
        return emit.read(self.source)


class OpaqueValue(OutsideValue):
    """An object from outside with no model: it can be passed on, and its calls run natively."""


class TracebackValue(Value):
    """A traceback: there is one, and that is all that a trace knows of it."""

    def pytype(self) -> type:
        return TracebackType


class SuperValue(Value):
    """``super(cls, owner)``: attribute lookup starts after ``cls`` in the order of ``owner``'s type."""

    def __init__(self, cls: type, owner: Value, owner_type: type) -> None:
        self.cls, self.owner, self.owner_type = cls, owner, owner_type

    def pytype(self) -> type:
        return super

    def children(self) -> list[Value]:
        return [self.owner]

    def reconstruct(self, emit: Emitter) -> str:
        return f"super({emit.obj(self.cls)}, {emit.load(self.owner)})"


class ModeValue(OutsideValue):
    """The thread's modes (``tinytorch.tape.mode``): reads are guarded, writes take effect in the trace and the graph."""


class Observed(Exception):  # noqa: N818 - not an error of ours
    """A Python exception raised by the traced program; ``value`` models it."""

    def __init__(self, value: ObjectValue) -> None:
        super().__init__(value.cls.__name__)
        self.value = value


def exception_text(value: ObjectValue) -> str:
    """For messages."""
    try:
        shown = ", ".join(repr(v.const()) for v in value.args().items)
    except NotConstantError:
        shown = "..."
    return f"{value.cls.__name__}({shown})"


__all__ = ["ModeValue", "ObjectValue", "Observed", "OpaqueValue", "SuperValue", "breaks", "exception_text"]
