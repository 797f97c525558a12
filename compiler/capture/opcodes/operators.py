"""Operators and subscripts.

Stage: capture.  See ``stack``.  Read next: ``containers``.
"""

from __future__ import annotations

from compiler.capture.instrs import Instr
from compiler.capture.opcodes import checked
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import FALSE, TRUE, ConstantValue
from compiler.capture.values.sequence import SliceValue

BINARY = {
    "ADD": "+", "AND": "&", "FLOOR_DIVIDE": "//", "LSHIFT": "<<", "MATRIX_MULTIPLY": "@", "MULTIPLY": "*",
    "REMAINDER": "%", "OR": "|", "POWER": "**", "RSHIFT": ">>", "SUBTRACT": "-", "TRUE_DIVIDE": "/", "XOR": "^",
}  # fmt: skip
COMPARE = {"LT": "<", "LE": "<=", "EQ": "==", "NE": "!=", "GT": ">", "GE": ">="}


class OperatorOps(Ops):
    def UNARY_NEGATIVE(self, instr: Instr) -> None:
        self.push(self.tx.protocol.unary(self.tx, "-", self.pop()))

    def UNARY_POSITIVE(self, instr: Instr) -> None:
        self.push(self.tx.protocol.unary(self.tx, "+", self.pop()))

    def UNARY_INVERT(self, instr: Instr) -> None:
        self.push(self.tx.protocol.unary(self.tx, "~", self.pop()))

    def UNARY_NOT(self, instr: Instr) -> None:
        self.push(FALSE if self.tx.protocol.truth(self.tx, self.pop()) else TRUE)

    def TO_BOOL(self, instr: Instr) -> None:
        """3.13: conditional jumps want a bool."""
        value = self.pop()
        if not checked.kept_for_jump(self, value):
            value = TRUE if self.tx.protocol.truth(self.tx, value) else FALSE
        self.push(value)

    def BINARY_OP(self, instr: Instr) -> None:
        b, a = self.pop(), self.pop()
        name = instr.arg.name
        inplace = name.startswith("INPLACE_")
        self.push(self.tx.protocol.binary(self.tx, BINARY[name.removeprefix("INPLACE_")], a, b, inplace))

    def COMPARE_OP(self, instr: Instr) -> None:
        b, a = self.pop(), self.pop()
        name = instr.arg.name
        found = self.tx.protocol.compare(self.tx, COMPARE[name.removesuffix("_CAST")], a, b)
        if name.endswith("_CAST") and not checked.kept_for_jump(self, found):
            found = TRUE if self.tx.protocol.truth(self.tx, found) else FALSE
        self.push(found)

    def IS_OP(self, instr: Instr) -> None:
        b, a = self.pop(), self.pop()
        self.push(ConstantValue(self.tx.protocol.is_(self.tx, a, b) != bool(instr.arg)))

    def CONTAINS_OP(self, instr: Instr) -> None:
        container, element = self.pop(), self.pop()
        self.push(ConstantValue(self.tx.protocol.contains(self.tx, container, element) != bool(instr.arg)))

    # --- subscripts ---
    def BINARY_SUBSCR(self, instr: Instr) -> None:
        key, container = self.pop(), self.pop()
        self.push(self.tx.protocol.getitem(self.tx, container, key))

    def STORE_SUBSCR(self, instr: Instr) -> None:
        key, container = self.pop(), self.pop()
        self.tx.protocol.setitem(self.tx, container, key, self.pop_raw())

    def DELETE_SUBSCR(self, instr: Instr) -> None:
        key, container = self.pop(), self.pop()
        self.tx.protocol.delitem(self.tx, container, key)

    def BINARY_SLICE(self, instr: Instr) -> None:
        stop, start, container = self.pop(), self.pop(), self.pop()
        self.push(self.tx.protocol.getitem(self.tx, container, SliceValue(start, stop, ConstantValue(None))))

    def STORE_SLICE(self, instr: Instr) -> None:
        stop, start, container = self.pop(), self.pop(), self.pop()
        key = SliceValue(start, stop, ConstantValue(None))
        self.tx.protocol.setitem(self.tx, container, key, self.pop_raw())

    def BUILD_SLICE(self, instr: Instr) -> None:
        parts = [self.pop() for _ in range(instr.arg)][::-1]
        self.push(SliceValue(parts[0], parts[1], parts[2] if len(parts) == 3 else ConstantValue(None)))

    def GET_LEN(self, instr: Instr) -> None:
        self.push(self.tx.protocol.len_(self.tx, self.top()))
