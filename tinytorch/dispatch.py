"""``call``: the one door through which every operator runs.

Stage: eager.  In: an op row and its arguments.  Out: tensors, and a node on the tape where a gradient will be wanted.
Two questions, in this order: *who computes?* the current interpreter (none: ``eager``, on NumPy or CuPy; else fake
shapes, or a tracer that records a graph); *who remembers?* the tape.  The tape does not know who computes, which is why
the very same vjp rules make gradients of arrays and of graphs.  Read next: ``eager``, ``tape``, ``tensor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tinytorch import eager, tape
from tinytorch.device import Device, array_module
from tinytorch.eager import cast_array, common_device, meta_of, wrap
from tinytorch.loans import settle
from tinytorch.ops import opdef
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

__all__ = [
    "Interpreter", "call", "cast_array", "common_device", "constant", "current", "keep", "meta_of", "use", "wrap",
    "write",
]  # fmt: skip


class Interpreter(Protocol):
    """Who computes.  ``run`` gives fresh tensors (views share storage); ``write`` is the only mutation there is."""

    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any: ...

    def write(self, dst: Tensor, src: Tensor) -> None: ...

    def draw(self, generator: Any, numel: Any, device: Device) -> tuple[Tensor, Any]: ...


#: ``current.interpreter``: this thread's; it lives beside the tape's modes so that a call looks in one place
current = tape.mode


@contextmanager
def use(interpreter: Interpreter | None) -> Iterator[Interpreter | None]:
    """Let ``interpreter`` compute inside the block, in this thread; None is eager."""
    before, current.interpreter = current.interpreter, interpreter
    try:
        yield interpreter
    finally:
        current.interpreter = before


@contextmanager
def keep() -> Iterator[None]:
    """A block that changes nothing; the counterpart of ``use``."""
    yield


def call(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Run ``op``; record it if grad mode is on and an input requires grad."""
    mode = current
    interpreter = mode.interpreter
    if interpreter is not None:
        out = interpreter.run(op, args, params)
    else:
        out = None if params or op.quick is None else eager.quick(op.quick, args)
        if out is None:
            out = eager.run(op, args, params)
    if mode.grad:
        for a in args:
            # requires_grad without the property: a view asks its base only if it must
            if isinstance(a, Tensor) and (a._requires_grad or a._base is not None) and a.requires_grad:
                tape.record(op, args, params, out)
                break
    elif mode.inference:
        tape.mark_inference(out)
    return out


def constant(t: Tensor) -> Tensor:
    """A tensor made from data outside any row: an interpreter may want to know of it."""
    interpreter = current.interpreter
    seen = getattr(interpreter, "constant", None)
    return t if seen is None else seen(t)  # type: ignore[no-any-return]


def write(dst: Tensor, src: Tensor) -> None:
    """``dst[...] = src`` for equal shapes: memory, version counter and history.  All in-place operators end here."""
    tape.check_write(dst)
    if current.grad:
        tape.keep_old_value(dst, src)
    if 0 in dst._data.strides:
        _refuse_overlap(dst)
    interpreter = current.interpreter
    if interpreter is None:
        data = src._data
        if dst._storage is not None and dst._storage.loans is not None:
            settle(dst._storage)
        if dst._storage is not None and dst._storage is src._storage:
            data = data.copy()  # NumPy's copyto may read what it has just written
        array_module(dst.device).copyto(dst._data, data, casting="unsafe")
    else:
        interpreter.write(dst, src)
    dst._bump_version()
    tape.rebase(dst, src)


def _refuse_overlap(dst: Tensor) -> None:
    shape, strides = dst._data.shape, dst._data.strides
    if dst._data.size and any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


opdef.CALL = call
