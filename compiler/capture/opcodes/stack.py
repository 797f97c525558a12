"""Instructions that move values or do nothing.

Stage: capture.  One method per opcode, named after it; ``self`` is the ``Frame`` that steps (``capture.translate``).
Read next: ``names``.
"""

from __future__ import annotations

from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import NULL, ConstantValue


class StackOps(Ops):
    def NOP(self, instr: Instr) -> None:
        pass

    RESUME = NOP  # a place for the interpreter to look at signals and tracing
    PRECALL = NOP  # 3.11: specialisation point of CALL
    CACHE = NOP
    EXTENDED_ARG = NOP

    def POP_TOP(self, instr: Instr) -> None:
        self.stack.pop()

    def END_FOR(self, instr: Instr) -> None:
        """Reached only through an exhausted FOR_ITER, which has cleaned the stack already."""
        raise AssertionError("END_FOR is jumped over")

    def COPY(self, instr: Instr) -> None:
        self.stack.append(self.stack[-instr.arg])

    def SWAP(self, instr: Instr) -> None:
        self.stack[-1], self.stack[-instr.arg] = self.stack[-instr.arg], self.stack[-1]

    def PUSH_NULL(self, instr: Instr) -> None:
        self.push(NULL)

    def LOAD_CONST(self, instr: Instr) -> None:
        self.push(self.tx.constant(instr.arg))

    def LOAD_ASSERTION_ERROR(self, instr: Instr) -> None:
        self.push(self.tx.constant(AssertionError))

    def RETURN_VALUE(self, instr: Instr) -> None:
        self.result = self.stack.pop()
        self.finished = True

    def RETURN_CONST(self, instr: Instr) -> None:
        self.result = ConstantValue(instr.arg)
        self.finished = True
