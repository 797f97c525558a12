"""The ``match`` statement and formatted strings.

Stage: capture.  See ``stack``.  Read next: ``refused``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import FALSE, NONE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import ClassValue
from compiler.capture.values.keys import key_of
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.objects import Observed
from compiler.capture.values.sequence import TupleValue

#: Classes whose one positional pattern matches the whole value.
_WHOLE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)

_MISSING = object()  # what ``get`` gives where there is no such key


class MatchOps(Ops):
    def MATCH_MAPPING(self, instr: Instr) -> None:
        self.push(TRUE if issubclass(self.top().pytype(), Mapping) else FALSE)

    def MATCH_SEQUENCE(self, instr: Instr) -> None:
        kind = self.top().pytype()
        yes = issubclass(kind, Sequence) and not issubclass(kind, str | bytes | bytearray)
        self.push(TRUE if yes else FALSE)

    def MATCH_KEYS(self, instr: Instr) -> None:
        """[subject, keys] -> [subject, keys, values or None]."""
        keys, subject = self.top(), self.top(2)
        assert isinstance(keys, TupleValue)
        values: list[Value] = []
        for key in keys.items:
            if not isinstance(subject, DictValue):
                got = realize(self.tx, self.tx.protocol.call_method(self.tx, subject, "get", [key, self.tx.constant(_MISSING)]))
                if got.real() is _MISSING:
                    self.push(NONE)
                    return
            else:
                found = subject.get(self.tx, key_of(self.tx, key), realize(self.tx, key))
                if found is None:
                    self.push(NONE)
                    return
                got = found
            values.append(got)
        self.push(TupleValue(values))

    def MATCH_CLASS(self, instr: Instr) -> None:
        """[subject, class, keyword names] -> attributes, or None."""
        names, cls, subject = self.pop().const(), self.pop(), self.pop()
        if not isinstance(cls, ClassValue):
            self.tx.raise_(TypeError, "called match pattern must be a class")
        if not self.tx.protocol.isinstance_(self.tx, subject, cls):
            self.push(NONE)
            return
        values: list[Value] = []
        if instr.arg:
            positional = self._positional(cls, instr.arg)
            if positional is None:
                values.append(subject)
            else:
                names = (*positional, *names)
        try:
            values += [self.tx.protocol.getattr_(self.tx, subject, name) for name in names]
        except Observed as e:
            if not issubclass(e.value.cls, AttributeError):
                raise
            self.push(NONE)
            return
        self.push(TupleValue(values))

    def _positional(self, cls: ClassValue, count: int) -> tuple[str, ...] | None:
        names = getattr(cls.cls, "__match_args__", None)
        if names is None and issubclass(cls.cls, _WHOLE) and count == 1:
            return None
        have = len(names or ())
        if have < count:
            noun = "sub-pattern" if have == 1 else "sub-patterns"
            self.tx.raise_(TypeError, f"{cls.cls.__name__}() accepts {have} positional {noun} ({count} given)")
        assert names is not None
        return tuple(names[:count])

    # --- f-strings ---
    def FORMAT_VALUE(self, instr: Instr) -> None:
        flags = int(instr.arg)
        spec = self.pop() if flags & 4 else ConstantValue("")
        value = self.pop()
        if flags & 3:
            value = self._convert(value, flags & 3)
        self.push(self.tx.protocol.format_(self.tx, value, spec))

    def CONVERT_VALUE(self, instr: Instr) -> None:
        self.push(self._convert(self.pop(), int(instr.arg)))

    def _convert(self, value: Value, how: int) -> Value:
        fn = {1: str, 2: repr, 3: ascii}[how]
        return self.tx.protocol.call(self.tx, self.tx.constant(fn), [value], {})

    def FORMAT_SIMPLE(self, instr: Instr) -> None:
        self.push(self.tx.protocol.format_(self.tx, self.pop(), ConstantValue("")))

    def FORMAT_WITH_SPEC(self, instr: Instr) -> None:
        spec, value = self.pop(), self.pop()
        self.push(self.tx.protocol.format_(self.tx, value, spec))
