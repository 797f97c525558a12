"""Opcodes that are known and refused by name.

Stage: capture.  Each of these breaks the graph (or, in a compile target of that kind, makes it run eager).
Read next: ``capture.translate``, which puts the groups together.
"""

from __future__ import annotations

from compiler.capture import breaks
from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops

REFUSED = (
    # coroutines and asynchronous iteration
    "ASYNC_GEN_WRAP", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "GET_AITER", "GET_ANEXT", "GET_AWAITABLE",
    # class and module bodies
    "DELETE_NAME", "IMPORT_STAR", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS",
    "PRINT_EXPR", "SETUP_ANNOTATIONS", "STORE_NAME",
    # the interpreter's own, never in a code object
    "ENTER_EXECUTOR", "EXIT_INIT_CHECK", "INTERPRETER_EXIT", "RESERVED",
    # pseudo-instructions of the compiler, gone before a code object is made
    "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "LOAD_ZERO_SUPER_METHOD", "POP_BLOCK", "SETUP_CLEANUP",
    "SETUP_FINALLY", "SETUP_WITH",
)  # fmt: skip


class RefusedOps(Ops):
    """One method per name of ``REFUSED``."""


def _refuse(self: RefusedOps, instr: Instr) -> None:
    breaks.unsupported(breaks.OPCODE, instr.op)


for _name in REFUSED:
    setattr(RefusedOps, _name, _refuse)
