"""Branches on data of which one side only raises: ``assert ok.all()``, ``if bad.any(): raise ValueError``.

Stage: capture.  In: a conditional jump and a tensor.  Out: a node that raises where the program would, and the side on
which the trace goes on.  The other side is never traced: when the graph raises, ``recover`` runs the function again in
eager, which raises what the program raises, with its message.  A tensor on a GPU is not known in time, and an error that
the program would catch is not an error: these stay graph breaks.  Read next: ``compiler.capture.recover``.
"""

from __future__ import annotations

from compiler.capture import graphs
from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import ConstantValue, Value
from compiler.capture.values.tensor import TensorValue
from tinytorch.ops.composite import require_truth

#: Instructions that may stand in the raising side and lead elsewhere: then it is not known to raise.
_LEAVES = ("RETURN", "YIELD", "SEND", "FOR_ITER", "POP_JUMP", "JUMP_IF", "RETURN_GENERATOR")
_LONGEST = 200


def jumps_on(instr: Instr) -> bool | None:
    """The truth on which a conditional jump jumps; None for another instruction."""
    if instr.op.startswith("POP_JUMP") and instr.op.endswith(("_IF_TRUE", "_IF_FALSE")):
        return instr.op.endswith("_IF_TRUE")
    return None


def kept_for_jump(frame: Ops, value: Value) -> bool:
    """Whether the tensor that an instruction would make a bool of may stay one: the jump behind it deals with it."""
    return isinstance(value, TensorValue) and side_that_goes_on(frame, value, frame.instrs[frame.ip]) is not None


def side_that_goes_on(frame: Ops, value: TensorValue, jump: Instr) -> bool | None:
    """The truth with which the program goes on, if with the other it only raises, uncaught."""
    wanted = jumps_on(jump)
    one = all(type(n) is int and n == 1 for n in value.fake.shape)
    if wanted is None or jump.target is None or not one or value.fake.device.type != "cpu" or frame.tx.would_be_caught():
        return None
    jumped, not_jumped = _raises(frame.instrs, jump.target.index), _raises(frame.instrs, jump.index + 1)
    if jumped == not_jumped:
        return None
    return not wanted if jumped else wanted


def _raises(instrs: list[Instr], at: int) -> bool:
    """Whether the straight way from an instruction ends in a ``raise``."""
    for _ in range(_LONGEST):
        if at >= len(instrs):
            return False
        instr = instrs[at]
        if instr.op == "RAISE_VARARGS":
            return True
        if instr.op.startswith(_LEAVES) or "BACKWARD" in instr.op:
            return False
        at = instr.target.index if instr.op.startswith("JUMP") and instr.target is not None else at + 1
    return False


def truth(frame: Ops, value: Value, jump: Instr) -> bool:
    """``bool(value)`` for this jump; of a tensor, what it has to be, with a node that checks it."""
    if isinstance(value, TensorValue):
        side = side_that_goes_on(frame, value, jump)
        if side is not None:
            graphs.call(frame.tx, require_truth, [value, ConstantValue(side)], {})
            return side
    return frame.tx.protocol.truth(frame.tx, value)
