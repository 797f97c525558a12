"""Yielding, inside generators that the trace runs.

Stage: capture.  See ``stack``; the generator's frame is suspended by returning from ``Frame.run``
(``values.generator``).  Read next: ``matching``.
"""

from __future__ import annotations

from compiler.capture.instrs import VERSION, Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import NONE, ConstantValue
from compiler.capture.values.generator import GeneratorValue, send_into
from compiler.capture.values.objects import ObjectValue, Observed


class GeneratorOps(Ops):
    def RETURN_GENERATOR(self, instr: Instr) -> None:
        """The call that makes the generator ends here; its first resumption finds None on the stack."""
        self.push(NONE)

    def YIELD_VALUE(self, instr: Instr) -> None:
        self.yielded = self.pop_raw()
        self.finished = True

    def GET_YIELD_FROM_ITER(self, instr: Instr) -> None:
        value = self.pop()
        self.push(value if isinstance(value, GeneratorValue) else self.tx.protocol.iter_(self.tx, value))

    def SEND(self, instr: Instr) -> None:
        """[receiver, sent] -> [receiver, yielded], or the receiver's result and a jump."""
        sent = self.pop()
        done, value = send_into(self.tx, self.top(), sent)
        if not done:
            self.push(value)
            return
        if VERSION == (3, 11):
            self.stack.pop()  # later versions leave this to END_SEND
        self.push(value)
        self.jump(instr.target)

    def END_SEND(self, instr: Instr) -> None:
        result = self.pop_raw()
        self.stack.pop()
        self.push(result)

    def CLEANUP_THROW(self, instr: Instr) -> None:
        """[receiver, sent, exception]: a StopIteration is the receiver's result, all else goes on."""
        exc = self.pop()
        assert isinstance(exc, ObjectValue)
        if not issubclass(exc.cls, StopIteration):
            raise Observed(exc)
        self.stack.pop()
        self.stack.pop()
        self.push(NONE)
        items = exc.args().items
        self.push(items[0] if items else ConstantValue(None))
