"""Generators: a frame that is run piece by piece.

Stage: capture.  In and out: see ``base``.  The trace owns the frame and resumes it like CPython does; a generator that
leaves the trace before it started is rebuilt by calling its function.  Read next: ``capture.translate.Frame``.
"""

from __future__ import annotations

from collections.abc import Generator
from types import GeneratorType
from typing import TYPE_CHECKING

from compiler.capture import breaks
from compiler.capture.values.base import NONE, Value, realize
from compiler.capture.values.iterator import IteratorValue
from compiler.capture.values.objects import ObjectValue, Observed
from compiler.errors import Unsupported

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.tracer import Tracer
    from compiler.capture.translate import Frame


class StartedGenerator(Unsupported):
    """A generator that has started is needed outside of the trace."""

    def __init__(self, name: str, began_at: int) -> None:
        row = breaks.RECONSTRUCT
        super().__init__(row.id, f"{row.name}: generator {name} that has started", row.hint)
        self.name, self.began_at = f"generator {name}", began_at


class GeneratorValue(IteratorValue):
    """A generator made in the trace.  ``call`` is how it was made: function, arguments, keywords."""

    kind = GeneratorType

    def __init__(self, frame: Frame, call: tuple[Value, list[Value], dict[str, Value]]) -> None:
        self.frame = frame
        self.call = call
        self.started = False
        self.ended = False
        self.running = False
        self.began_at = 0  # the outermost frame's step that first advanced it

    def __del__(self) -> None:
        """The program has let go of it, for values refer to one another as its objects do: CPython closes it here."""
        frame = getattr(self, "frame", None)
        if frame is not None and self.started and not (self.ended or self.running) and frame.current.handler is not None:
            frame.tx.dropped.append(self)

    def children(self) -> list[Value]:
        if not self.started:
            return [self.call[0], *self.call[1], *self.call[2].values()]
        return [*self.frame.stack, *self.frame.locals.values()]

    def next(self, tx: Tracer) -> Value | None:
        done, value = self.resume(tx, NONE)
        return None if done else value

    def resume(self, tx: Tracer, sent: Value | None, thrown: ObjectValue | None = None) -> tuple[bool, Value]:
        """Run to the next yield: (False, value), or to the end: (True, result)."""
        if self.ended:
            if thrown is not None:
                raise Observed(thrown)
            return True, NONE
        if self.running:
            tx.raise_(ValueError, "generator already executing")
        if not self.started and thrown is not None:
            self.started = self.ended = True
            raise Observed(thrown)
        if not self.started and sent is not None and not (sent.is_const() and sent.const() is None):
            tx.raise_(TypeError, "can't send non-None value to a just-started generator")
        frame = self.frame
        if self.started and thrown is None:
            assert sent is not None
            frame.push(sent)
        if not self.started:
            self.began_at = tx.outer_step
        self.started = self.running = True
        handled = tx.handled
        try:
            frame.run(thrown)
        except Observed as e:
            self.ended = True
            if issubclass(e.value.cls, StopIteration):
                error = tx.new_exception(RuntimeError, [tx.constant("generator raised StopIteration")])
                error.slots["__cause__"] = e.value
                raise Observed(error) from None
            raise
        finally:
            self.running = False
            tx.handled = handled
        if frame.yielded is not None:
            value, frame.yielded = frame.yielded, None
            return False, value
        self.ended = True
        assert frame.result is not None
        return True, frame.result

    def delegate(self) -> Value | None:
        """The inner iterator while suspended in ``yield from``."""
        frame = self.frame
        at = frame.instrs[frame.ip] if frame.ip < len(frame.instrs) else None
        if self.started and not self.ended and at is not None and at.op == "RESUME" and at.arg & 3 == 2:
            return frame.stack[-1]
        return None

    def throw(self, tx: Tracer, exc: ObjectValue) -> tuple[bool, Value]:
        """Raise ``exc`` where the generator stands, innermost first."""
        inner = self.delegate()
        if isinstance(inner, GeneratorValue):
            if issubclass(exc.cls, GeneratorExit):
                inner.close(tx)
                return self.resume(tx, None, exc)
            try:
                done, value = inner.throw(tx, exc)
            except Observed as e:
                return self.resume(tx, None, e.value)
            if not done:
                return False, value
            return self._finish_delegation(tx, value)
        return self.resume(tx, None, exc)

    def _finish_delegation(self, tx: Tracer, result: Value) -> tuple[bool, Value]:
        """The inner generator returned while being thrown into: go on after ``yield from``."""
        frame = self.frame
        send = next(i for i in reversed(frame.instrs[: frame.ip]) if i.op == "SEND")
        assert send.target is not None
        if send.target.op == "END_SEND":
            frame.push(result)
        else:
            frame.stack[-1] = result
        frame.ip = send.target.index
        self.started = True
        handled = tx.handled
        try:
            frame.run(None)
        except Observed:
            self.ended = True
            raise
        finally:
            tx.handled = handled
        if frame.yielded is not None:
            value, frame.yielded = frame.yielded, None
            return False, value
        self.ended = True
        assert frame.result is not None
        return True, frame.result

    def close(self, tx: Tracer) -> None:
        if self.ended or not self.started:
            self.started = self.ended = True
            return
        try:
            done, _ = self.throw(tx, tx.new_exception(GeneratorExit, []))
        except Observed as e:
            if issubclass(e.value.cls, GeneratorExit | StopIteration):
                return
            raise
        if not done:
            tx.raise_(RuntimeError, "generator ignored GeneratorExit")

    def reconstruct(self, emit: Emitter) -> str:
        if self.ended:
            return f"{emit.obj(_ended)}()"
        if self.started:
            raise StartedGenerator(self.frame.fn.qualname, self.began_at)
        fn, args, kwargs = self.call
        parts = [emit.load(a) for a in args] + [f"{k}={emit.load(v)}" for k, v in kwargs.items()]
        return f"{emit.load(fn)}({', '.join(parts)})"


def _ended() -> Generator[None, None, None]:
    """A generator with nothing left."""

    def empty() -> Generator[None, None, None]:
        return
        yield

    g = empty()
    next(g, None)
    return g


def send_into(tx: Tracer, receiver: Value, sent: Value) -> tuple[bool, Value]:
    """One step of ``yield from``: (False, yielded) or (True, result)."""
    receiver = realize(tx, receiver)
    if isinstance(receiver, GeneratorValue):
        return receiver.resume(tx, sent)
    if sent.is_const() and sent.const() is None:
        found = tx.protocol.next_(tx, receiver)
        return (True, NONE) if found is None else (False, found)
    try:
        return False, tx.protocol.call_method(tx, receiver, "send", [sent])
    except Observed as e:
        if not issubclass(e.value.cls, StopIteration):
            raise
        items = e.value.args().items
        return True, items[0] if items else NONE
