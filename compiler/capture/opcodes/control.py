"""Jumps and loops.

Stage: capture.  See ``stack``.  A jump on the truth of a tensor is a break (``protocol.truth`` says so), unless one side only
raises (``checked``).  Read next: ``calls``.
"""

from __future__ import annotations

from compiler.capture.instrs import VERSION, Instr
from compiler.capture.opcodes import checked
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import ConstantValue


class ControlOps(Ops):
    def JUMP_FORWARD(self, instr: Instr) -> None:
        self.jump(instr.target)

    JUMP_BACKWARD = JUMP_BACKWARD_NO_INTERRUPT = JUMP = JUMP_NO_INTERRUPT = JUMP_FORWARD

    def POP_JUMP_IF_TRUE(self, instr: Instr) -> None:
        if checked.truth(self, self.pop(), instr):
            self.jump(instr.target)

    def POP_JUMP_IF_FALSE(self, instr: Instr) -> None:
        if not checked.truth(self, self.pop(), instr):
            self.jump(instr.target)

    def POP_JUMP_IF_NONE(self, instr: Instr) -> None:
        if self._pop_is_none():
            self.jump(instr.target)

    def POP_JUMP_IF_NOT_NONE(self, instr: Instr) -> None:
        if not self._pop_is_none():
            self.jump(instr.target)

    def _pop_is_none(self) -> bool:
        value = self.pop()
        return isinstance(value, ConstantValue) and value.value is None

    # 3.11 has one opcode per direction
    POP_JUMP_FORWARD_IF_TRUE = POP_JUMP_BACKWARD_IF_TRUE = POP_JUMP_IF_TRUE
    POP_JUMP_FORWARD_IF_FALSE = POP_JUMP_BACKWARD_IF_FALSE = POP_JUMP_IF_FALSE
    POP_JUMP_FORWARD_IF_NONE = POP_JUMP_BACKWARD_IF_NONE = POP_JUMP_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE = POP_JUMP_BACKWARD_IF_NOT_NONE = POP_JUMP_IF_NOT_NONE

    def JUMP_IF_TRUE_OR_POP(self, instr: Instr) -> None:
        if self.tx.protocol.truth(self.tx, self.top()):
            self.jump(instr.target)
        else:
            self.stack.pop()

    def JUMP_IF_FALSE_OR_POP(self, instr: Instr) -> None:
        if self.tx.protocol.truth(self.tx, self.top()):
            self.stack.pop()
        else:
            self.jump(instr.target)

    def GET_ITER(self, instr: Instr) -> None:
        self.push(self.tx.protocol.iter_(self.tx, self.pop()))

    def FOR_ITER(self, instr: Instr) -> None:
        element = self.tx.protocol.next_(self.tx, self.top())
        if element is not None:
            self.push(element)
            return
        self.stack.pop()
        assert instr.target is not None
        self.ip = instr.target.index + FOR_EXIT


#: How many instructions the exhausted loop skips: END_FOR (3.12), END_FOR and POP_TOP (3.13).
FOR_EXIT = {(3, 11): 0, (3, 12): 1, (3, 13): 2}.get(VERSION, 0)
