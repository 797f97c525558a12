"""Modes of the thread (gradients, inference, autocast), as a trace reads and sets them.

Stage: capture.  In: a read or a write of ``tape.mode``.  Out: a value, or a node that sets the mode while the graph runs.
The trace sets the thread's own modes as it goes; ``session`` puts them back.  Read next: ``tinytorch.grad_mode``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.values.base import Value, realize
from tinytorch import grad_mode, tape

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def read_mode(tx: Tracer, mode: Value, name: str) -> Value:
    """``tape.mode.name``, as the trace has set it."""
    tx.used_modes = True
    if name not in grad_mode.MODES:
        breaks.unsupported(breaks.ATTRIBUTE, f"mode.{name}")
    return tx.from_python(getattr(tape.mode, name))


def write_mode(tx: Tracer, mode: Value, name: str, new: Value | None) -> None:
    tx.used_modes = True
    flag = realize(tx, new).const() if new is not None else None
    if name not in grad_mode.MODES:
        breaks.unsupported(breaks.ATTRIBUTE, f"mode.{name}")
    if getattr(tape.mode, name) != flag:
        setattr(tape.mode, name, flag)
        _node(tx, name, flag)


def _node(tx: Tracer, name: str, flag: Any) -> None:
    node = tx.graph.call_function(grad_mode.set_mode, (name, flag))
    node.meta["impure"] = True
    node.meta["stack"] = tx.stack_rows()
    tx.mode_nodes += 1


def restore_modes(tx: Tracer, emit: Any) -> None:
    """A graph leaves the modes as it found them; translated code sets what the program has set."""
    for name, before in zip(grad_mode.MODES, tx.modes, strict=True):
        now = getattr(tape.mode, name)
        if now != before:
            _node(tx, name, before)
            emit.finish(f"{tx.namespace.name(tape.mode, 'mode')}.{name} = {tx.namespace.name(now, name)}")
