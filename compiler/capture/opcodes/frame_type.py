"""What the opcode methods may use of a ``Frame``.

Stage: capture.  Declares the attributes, so that each group of opcodes reads alone.  Read next: ``stack``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture.instrs import Instr
from compiler.capture.values.base import Lazy, Value, realize

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer
    from compiler.capture.values.function import CellValue, UserFunction


class Ops:
    """The frame as opcodes see it: a value stack, local variables, cells, and the tracer."""

    tx: Tracer
    fn: UserFunction
    instrs: list[Instr]
    stack: list[Value]
    locals: dict[str, Value]
    cells: dict[str, CellValue]
    globals: dict[str, Any]
    ip: int
    result: Value | None
    finished: bool
    yielded: Value | None
    kw_names: tuple[str, ...]
    handled: Value | None
    trusted: bool

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        """The top of the stack, looked at."""
        value = self.stack.pop()
        return realize(self.tx, value) if type(value) is Lazy else value

    def pop_raw(self) -> Value:
        """The top of the stack, only to move it."""
        return self.stack.pop()

    def pop_many(self, n: int) -> list[Value]:
        """The last ``n`` values in the order in which they were pushed, only to move them."""
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def top(self, depth: int = 1) -> Value:
        value = self.stack[-depth]
        if type(value) is Lazy:
            value = self.stack[-depth] = realize(self.tx, value)
        return value

    def jump(self, target: Instr | None) -> None:
        assert target is not None
        self.ip = target.index
