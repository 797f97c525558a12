"""Raising, handling, and ``with``.

Stage: capture.  See ``stack``.  An exception of the traced program is an ``Observed``; ``Frame.unwind`` looks up its
handler.  ``tx.handled`` is the exception being handled, what a bare ``raise`` raises.  Read next: ``generators``.
"""

from __future__ import annotations

from compiler.capture import breaks
from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import FALSE, NONE, TRUE, Marker, Value, realize
from compiler.capture.values.function import ClassValue
from compiler.capture.values.objects import ObjectValue, Observed, TracebackValue
from compiler.capture.values.sequence import TupleValue


class ExceptionOps(Ops):
    def RAISE_VARARGS(self, instr: Instr) -> None:
        if instr.arg == 0:
            if self.tx.handled is None:
                self.tx.raise_(RuntimeError, "No active exception to reraise")
            raise Observed(self.tx.handled)
        cause = self.pop() if instr.arg == 2 else None
        exc = self._instance(self.pop())
        if cause is not None:
            exc.slots["__cause__"] = NONE if cause is NONE or self._is_none(cause) else self._instance(cause)
            exc.slots["__suppress_context__"] = TRUE
        self.tx.raise_value(exc)

    def _is_none(self, v: Value) -> bool:
        return v.is_const() and v.const() is None

    def _instance(self, v: Value) -> ObjectValue:
        if isinstance(v, ClassValue) and issubclass(v.cls, BaseException):
            v = self.tx.protocol.call(self.tx, v, [], {})
        if isinstance(v, ObjectValue) and v.is_exception():
            return v
        self.tx.raise_(TypeError, "exceptions must derive from BaseException")

    def RERAISE(self, instr: Instr) -> None:
        exc = self.pop()
        assert isinstance(exc, ObjectValue)
        raise Observed(exc)

    def PUSH_EXC_INFO(self, instr: Instr) -> None:
        exc = self.pop()
        self.push(Marker(self.tx.handled, exc))
        self.push(exc)
        assert isinstance(exc, ObjectValue)
        self.tx.handled = exc

    def POP_EXCEPT(self, instr: Instr) -> None:
        saved = self.stack.pop()
        assert isinstance(saved, Marker)
        self.tx.handled = saved.handled  # type: ignore[assignment]

    def CHECK_EXC_MATCH(self, instr: Instr) -> None:
        wanted = self.pop()
        self.push(TRUE if self._matches(self.top(), wanted) else FALSE)

    def _matches(self, exc: Value, wanted: Value) -> bool:
        if isinstance(wanted, TupleValue):
            return any(self._matches(exc, realize(self.tx, w)) for w in wanted.items)
        if not (isinstance(wanted, ClassValue) and issubclass(wanted.cls, BaseException)):
            self.tx.raise_(TypeError, "catching classes that do not inherit from BaseException is not allowed")
        return issubclass(exc.pytype(), wanted.cls)

    # --- except* ---
    def CHECK_EG_MATCH(self, instr: Instr) -> None:
        """[group, type] -> [rest, match]: split the group, natively where it is made of known parts."""
        wanted, group = self.pop(), self.pop()
        if not isinstance(group, ObjectValue):
            breaks.unsupported(breaks.OPERATION, "except*")
        if not issubclass(group.cls, BaseExceptionGroup):
            if self._matches(group, wanted):
                wrapped = self.tx.new_exception(
                    ExceptionGroup if issubclass(group.cls, Exception) else BaseExceptionGroup,
                    [self.tx.constant(""), TupleValue([group])],
                )
                self.push(NONE)
                self.push(wrapped)
            else:
                self.push(group)
                self.push(NONE)
            return
        match, rest = self._split(group, wanted)
        self.push(rest or NONE)
        self.push(match or NONE)
        if match is not None:
            self.tx.handled = match

    def _split(self, group: ObjectValue, wanted: Value) -> tuple[ObjectValue | None, ObjectValue | None]:
        message, parts = group.args().items[:2]
        yes: list[Value] = []
        no: list[Value] = []
        for part in self.tx.protocol.unpack(self.tx, realize(self.tx, parts)):
            assert isinstance(part, ObjectValue)
            if self._matches(part, wanted):
                yes.append(part)
            elif issubclass(part.cls, BaseExceptionGroup):
                inner_yes, inner_no = self._split(part, wanted)
                yes += [inner_yes] if inner_yes else []
                no += [inner_no] if inner_no else []
            else:
                no.append(part)
        made = [
            self.tx.new_exception(group.cls, [message, TupleValue(side)]) if side else None for side in (yes, no)
        ]
        return made[0], made[1]

    def PREP_RERAISE_STAR(self, instr: Instr) -> None:
        """[original, list of what the handlers left] -> what to raise, or None."""
        left, original = self.pop(), self.pop()
        found = [v for v in self.tx.protocol.unpack(self.tx, left) if not self._is_none(v)]
        if not found:
            self.push(NONE)
        elif len(found) == 1:
            self.push(found[0])
        else:
            message = original.args().items[0] if isinstance(original, ObjectValue) else self.tx.constant("")
            self.push(self.tx.new_exception(ExceptionGroup, [message, TupleValue(found)]))

    # --- with ---
    def BEFORE_WITH(self, instr: Instr) -> None:
        manager = self.pop()
        for name in ("__enter__", "__exit__"):
            if not self.tx.protocol.has_special(self.tx, manager, name):
                kind = manager.pytype().__name__
                missed = " (missed __exit__ method)" if name == "__exit__" else ""
                self.tx.raise_(TypeError, f"'{kind}' object does not support the context manager protocol{missed}")
        leave = self.tx.protocol.special(self.tx, manager, "__exit__")
        self.push(leave)
        self.push(self.tx.protocol.call_special(self.tx, manager, "__enter__", []))

    def WITH_EXCEPT_START(self, instr: Instr) -> None:
        """[exit, offset, saved, exception] -> ..., what ``__exit__`` says."""
        exc = self.top()
        leave = self.top(4)
        args: list[Value] = [self.tx.constant(exc.pytype()), exc, TracebackValue()]
        self.push(self.tx.protocol.call(self.tx, leave, args, {}))
