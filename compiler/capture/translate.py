"""``Frame``: CPython's evaluation loop over values instead of objects.

Stage: capture.  In: a function and its bound arguments.  Out: its result as a value, nodes in the tracer's graph,
guards and effects.  One method per opcode, grouped in ``opcodes``; a called Python function is a frame inside.
Read next: ``opcodes.stack`` .. ``opcodes.refused``, ``protocol`` (what the operations mean), ``entry`` (who starts it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.instrs import Instr, decode
from compiler.capture.opcodes.calls import CallOps
from compiler.capture.opcodes.containers import ContainerOps
from compiler.capture.opcodes.control import ControlOps
from compiler.capture.opcodes.exceptions import ExceptionOps
from compiler.capture.opcodes.generators import GeneratorOps
from compiler.capture.opcodes.matching import MatchOps
from compiler.capture.opcodes.names import NameOps
from compiler.capture.opcodes.operators import OperatorOps
from compiler.capture.opcodes.refused import RefusedOps
from compiler.capture.opcodes.stack import StackOps
from compiler.capture.values.base import ConstantValue, Lazy, NotConstantError, Value, realize
from compiler.capture.values.function import BoundMethod
from compiler.capture.values.objects import ObjectValue, Observed
from compiler.errors import Location, Unsupported

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer
    from compiler.capture.values.function import CellValue, UserFunction


class Frame(
    StackOps, NameOps, OperatorOps, ContainerOps, ControlOps, CallOps, ExceptionOps, GeneratorOps, MatchOps, RefusedOps
):
    """One activation of a Python function.  ``before_step`` is called before each instruction of the outermost one."""

    def __init__(self, tx: Tracer, fn: UserFunction, variables: dict[str, Value]) -> None:
        self.tx = tx
        self.fn = fn
        self.instrs = decode(fn.code).instrs
        self.globals = fn.globals
        self.trusted = tx.is_trusted_globals(fn.globals)
        self.locals = variables
        self.cells: dict[str, CellValue] = {}
        self.stack: list[Value] = []
        self.ip = 0
        self.current = self.instrs[0]
        self.result: Value | None = None
        self.yielded: Value | None = None
        self.finished = False
        self.kw_names: tuple[str, ...] = ()
        self.before_step: Callable[[Frame, Instr], None] | None = None

    def run(self, thrown: ObjectValue | None = None) -> None:
        """Step until the function returns or yields; an unhandled exception leaves as ``Observed``."""
        tx = self.tx
        if len(tx.frames) > tx.config.inline_depth:
            breaks.unsupported(breaks.TOO_DEEP, self.fn.qualname)
        self.finished = False
        tx.frames.append(self)
        try:
            if thrown is not None:
                if not self.unwind(thrown):
                    raise Observed(thrown)
            while not self.finished:
                self.step()
        finally:
            tx.frames.pop()

    def step(self) -> None:
        instr = self.current = self.instrs[self.ip]
        if self.before_step is not None:
            self.before_step(self, instr)
        self.ip += 1
        self.tx.count_step()
        try:
            OPCODES[instr.op](self, instr)
        except Observed as e:
            if not self.unwind(e.value):
                raise  # and not a function that gets ``e``: an exception must not sit in a frame of its own traceback
        except NotConstantError as e:
            what = e.args[0].describe() if e.args else ""
            error = Unsupported(breaks.OPERATION.id, f"{breaks.OPERATION.name}: {instr.op} of {what}", breaks.OPERATION.hint)
            raise self._placed(error) from None
        except Unsupported as e:
            raise self._placed(e) from None
        except RecursionError:  # ours: Python has no room left to follow a call that it had room to make
            error = Unsupported(breaks.TOO_DEEP.id, f"{breaks.TOO_DEEP.name}: {self.fn.qualname}", breaks.TOO_DEEP.hint)
            raise self._placed(error) from None

    def _placed(self, e: Unsupported) -> Unsupported:
        """The user's frames at the break, known only while they stand."""
        if not e.stack:
            e.stack = tuple(self.tx.user_stack())
            e.args = (e._text(),)
        return e

    def unwind(self, exc: ObjectValue) -> bool:
        """Go to the handler of the current instruction; False if there is none and the frame is to be left."""
        handler = self.current.handler
        if handler is None:
            return False
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(ConstantValue(self.current.index))
        self.push(exc)
        self.ip = handler.target.index
        return True

    def catches(self) -> bool:
        """Whether an exception raised by the current instruction may stay in this frame."""
        handler = self.current.handler
        while handler is not None:
            at = handler.target
            following = self.instrs[at.index + 1].op
            if at.op == "PUSH_EXC_INFO" and following == "WITH_EXCEPT_START":
                if _may_suppress(self.tx, self.stack[handler.depth - 1]):
                    return True
            elif at.op == "PUSH_EXC_INFO" and (following == "POP_TOP" or self._asks_for_type(at)):
                return True
            handler = at.handler
        return False

    def _asks_for_type(self, at: Instr) -> bool:
        """An ``except`` clause, not a ``finally``: the type of the exception is looked at before it goes on."""
        for instr in self.instrs[at.index :]:
            if instr.op in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH"):
                return True
            if instr.op in ("RERAISE", "POP_EXCEPT"):
                break
        return False

    def location(self) -> Location:
        """The user's line that is being traced."""
        code = self.fn.code
        line = self.current.place.line or code.co_firstlineno
        return self.tx.location(code, line)


def _may_suppress(tx: Tracer, leave: Value) -> bool:
    """Whether ``__exit__`` may say that an exception is dealt with: the library's own managers never do."""
    owner = leave.owner if isinstance(leave, BoundMethod) else leave
    if isinstance(owner, Lazy):
        owner = realize(tx, owner)
    kind = owner.pytype()
    return kind.__module__ == "contextlib" or not tx.is_trusted_module(kind.__module__)


Opcode = Callable[[Frame, Instr], None]


class _Table(dict[str, Opcode]):
    """Opcode name to method; a name without one is refused."""

    def __missing__(self, op: str) -> Opcode:
        method: Any = getattr(Frame, op, None) if op.isupper() else None
        if method is None:

            def method(frame: Frame, instr: Instr) -> None:
                breaks.unsupported(breaks.OPCODE, instr.op)

        self[op] = method
        return method  # type: ignore[no-any-return]


OPCODES = _Table()
