"""Building and filling containers and strings.

Stage: capture.  See ``stack``.  Read next: ``control``.
"""

from __future__ import annotations

from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import ConstantValue, realize
from compiler.capture.values.keys import key_of
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.sequence import ListValue, TupleValue


class ContainerOps(Ops):
    def BUILD_TUPLE(self, instr: Instr) -> None:
        self.push(TupleValue(self.pop_many(instr.arg)))

    def BUILD_LIST(self, instr: Instr) -> None:
        self.push(ListValue(self.pop_many(instr.arg)))

    def BUILD_SET(self, instr: Instr) -> None:
        made = SetValue()
        for v in self.pop_many(instr.arg):
            made.add(key_of(self.tx, v), v)
        self.push(made)

    def BUILD_MAP(self, instr: Instr) -> None:
        flat = self.pop_many(2 * instr.arg)
        made = DictValue()
        for k, v in zip(flat[::2], flat[1::2], strict=True):
            key = key_of(self.tx, k)
            made.entries[key] = (made.entries.get(key, (k,))[0], v)  # the first of equal keys stays
        self.push(made)

    def BUILD_CONST_KEY_MAP(self, instr: Instr) -> None:
        keys = self.pop().const()
        values = self.pop_many(instr.arg)
        self.push(DictValue({k: (ConstantValue(k), v) for k, v in zip(keys, values, strict=True)}))

    def BUILD_STRING(self, instr: Instr) -> None:
        parts = [realize(self.tx, v) for v in self.pop_many(instr.arg)]
        self.push(ConstantValue("".join(p.const() for p in parts)))

    # --- filling; the argument says how deep the container lies ---
    def LIST_APPEND(self, instr: Instr) -> None:
        value = self.pop_raw()
        found = self.top(instr.arg)
        assert isinstance(found, ListValue)
        self.tx.effects.touch(found)
        found.items.append(value)

    def SET_ADD(self, instr: Instr) -> None:
        value = self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, SetValue)
        self.tx.effects.touch(found)
        found.add(key_of(self.tx, value), value)

    def MAP_ADD(self, instr: Instr) -> None:
        value, key = self.pop_raw(), self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, DictValue)
        self.tx.effects.touch(found)
        hashed = key_of(self.tx, key)
        found.entries[hashed] = (found.entries.get(hashed, (key, value))[0], value)

    def LIST_EXTEND(self, instr: Instr) -> None:
        iterable = self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, ListValue)
        self.tx.effects.touch(found)
        found.items.extend(self.tx.protocol.unpack(self.tx, iterable))

    def SET_UPDATE(self, instr: Instr) -> None:
        iterable = self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, SetValue)
        self.tx.effects.touch(found)
        self.tx.models.sets.join(self.tx, found, iterable)

    def DICT_UPDATE(self, instr: Instr) -> None:
        other = self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, DictValue)
        self.tx.effects.touch(found)
        for key, entry in self.tx.protocol.mapping_entries(self.tx, other):
            found.entries[key] = (found.entries.get(key, entry)[0], entry[1])

    def DICT_MERGE(self, instr: Instr) -> None:
        """Like DICT_UPDATE for ``f(**a, **b)``: a repeated keyword is an error."""
        other = self.pop()
        found = self.top(instr.arg)
        assert isinstance(found, DictValue)
        self.tx.effects.touch(found)
        for key, entry in self.tx.protocol.mapping_entries(self.tx, other):
            if key in found.entries:
                self.tx.raise_(TypeError, f"got multiple values for keyword argument '{key}'")
            found.entries[key] = entry

    def LIST_TO_TUPLE(self, instr: Instr) -> None:
        found = self.pop()
        assert isinstance(found, ListValue)
        self.push(TupleValue(list(found.items)))

    # --- taking apart ---
    def UNPACK_SEQUENCE(self, instr: Instr) -> None:
        iterable = self.pop()
        items = self.tx.protocol.unpack(self.tx, iterable, limit=instr.arg + 1)
        if len(items) < instr.arg:
            self.tx.raise_(ValueError, f"not enough values to unpack (expected {instr.arg}, got {len(items)})")
        if len(items) > instr.arg:
            self.tx.raise_(ValueError, f"too many values to unpack (expected {instr.arg})")
        self.stack.extend(reversed(items))

    def UNPACK_EX(self, instr: Instr) -> None:
        before, after = instr.arg & 0xFF, instr.arg >> 8
        items = self.tx.protocol.unpack(self.tx, self.pop())
        if len(items) < before + after:
            self.tx.raise_(
                ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
            )
        tail = items[len(items) - after :] if after else []
        middle = ListValue(items[before : len(items) - after])
        self.stack.extend(reversed([*items[:before], middle, *tail]))
