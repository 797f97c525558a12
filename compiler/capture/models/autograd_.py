"""``autograd.Function`` and ``checkpoint``: parts of a program that say how their backward is made.

Stage: capture.  A call of a ``Function`` is one node: its forward and backward are run again, on the tape's terms, when
the joint graph is traced.  Neither is followed here, so each may use nothing that a guard could not hold: arguments,
constants, modules and functions of the library.  All else is a break, and the call runs natively.
A checkpointed block is followed; its nodes carry ``meta["recompute"] = "must"`` and the number of their ``region``.
Read next: ``compiler.aot.joint``, which opens the regions' boundaries.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from compiler.capture import breaks, graphs
from compiler.capture.models.registry import model
from compiler.capture.protocol import attributes, calls
from compiler.capture.values.base import NONE, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import BoundMethod, BuiltinValue, ClassValue, ModuleValue, UserFunction
from compiler.capture.values.number import NumberValue
from compiler.capture.values.tensor import SymIntValue
from compiler.errors import Unsupported
from tinytorch import dispatch, tape
from tinytorch.autograd.function import Function
from tinytorch.ops.opdef import TABLE
from tinytorch.tensor import Tensor
from tinytorch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

_PARTS = ("forward", "setup_context", "backward")
_WORLD = frozenset((print, input, open, exec, eval, breakpoint))


@model(Function.apply.__func__)  # type: ignore[attr-defined]
def apply(tx: Tracer, cls: Value, *args: Value) -> Value:
    """``cls.apply(*args)`` as a node."""
    assert isinstance(cls, ClassValue)
    for name in _PARTS:
        _closed(tx, realize(tx, attributes.getattr_(tx, cls, name)), set())
    _try_backward(tx, cls.cls, args)
    function: Any = cls.cls
    return graphs.call(tx, function.apply, list(args), {})


def _closed(tx: Tracer, fn: Value, seen: set[Value]) -> None:
    """Guard all that a function reads besides its arguments; a break for what no guard can hold."""
    if isinstance(fn, BoundMethod):
        fn = realize(tx, fn.func)
    if not isinstance(fn, UserFunction):
        _refuse(fn, "a part of an autograd.Function")
    if fn in seen:
        return
    seen.add(fn)
    ours = tx.is_trusted_module(fn.globals.get("__name__") or "")  # then only what it wraps is the program's
    for name in () if ours else _globals_of(fn.code):
        if name in fn.globals:
            _fixed(tx, realize(tx, tx.module_entry(fn.globals, name, False)), name, seen)
    for name, cell in zip(fn.code.co_freevars, fn.closure, strict=True):
        content = tx.read_cell(cell)
        if content is not None:
            _fixed(tx, realize(tx, content), name, seen)


def _globals_of(code: CodeType) -> Iterator[str]:
    for instr in dis.get_instructions(code):
        if instr.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
            breaks.unsupported(breaks.CUSTOM_FUNCTION, f"{instr.opname} inside an autograd.Function")
        if instr.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if any(instr.argval == fn.__name__ for fn in _WORLD):
                breaks.unsupported(breaks.CUSTOM_FUNCTION, f"{instr.argval} inside an autograd.Function")
            yield instr.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _fixed(tx: Tracer, value: Value, name: str, seen: set[Value]) -> None:
    if isinstance(value, SymIntValue):
        tx.specialize(value)
    elif isinstance(value, NumberValue):
        value.specialize()
    elif isinstance(value, UserFunction):
        _closed(tx, value, seen)
    elif isinstance(value, ModuleValue) and tx.is_trusted_module(value.module.__name__):
        return
    elif isinstance(value, ClassValue) and (tx.is_trusted_module(value.cls.__module__) or value.cls.__module__ == "builtins"):
        return
    elif isinstance(value, ClassValue) and issubclass(value.cls, Function):
        for part in _PARTS:
            _closed(tx, realize(tx, attributes.getattr_(tx, value, part)), seen)
    elif not isinstance(value, ConstantValue | BuiltinValue):
        _refuse(value, name)


def _refuse(value: Value, name: str) -> NoReturn:
    breaks.unsupported(breaks.CUSTOM_FUNCTION, f"an autograd.Function that uses {name}: {value.describe()}")


def _try_backward(tx: Tracer, cls: type[Function], args: tuple[Value, ...]) -> None:
    """A break if the backward needs values; its other errors come when it runs, as in eager."""
    fakes = [graphs.example(tx, a) for a in args]
    fakes = [f._alias_with_history() if isinstance(f, Tensor) else f for f in fakes]

    def both() -> None:
        out = cls.apply(*fakes)
        outs = out if isinstance(out, tuple) else (out,)
        made = [o for o in outs if isinstance(o, Tensor) and o.requires_grad and o.grad_fn is not None]
        if made:
            given = [TABLE["full"](shape=tuple(o.shape), value=1.0, dtype=o.dtype, device=o.device) for o in outs]
            with tape.grad_mode(False):
                made[0].grad_fn.whole(given, False, True)

    tx.interp.begin()
    try:
        with dispatch.use(tx.interp):
            both()
    except Unsupported as e:
        breaks.unsupported(breaks.CUSTOM_FUNCTION, f"the backward of {cls.__name__} needs values: {e.reason}")
    except Exception as e:  # the program's own is raised again: the forward's by the node, the backward's when that runs
        if isinstance(e, RuntimeError) and ("traced tensor" in str(e) or "depends on the data" in str(e)):
            breaks.unsupported(breaks.CUSTOM_FUNCTION, f"the backward of {cls.__name__} needs values: {e}")


@model(checkpoint)
def checkpointed(
    tx: Tracer, function: Value, *args: Value, use_reentrant: Value = NONE, preserve_rng_state: Value = TRUE, **kwargs: Value
) -> Value:
    """The block's nodes, marked as one region; of nested regions the outermost counts."""
    before = set(tx.graph.nodes)
    out = calls.call(tx, function, list(args), kwargs)
    for node in tx.graph.nodes:
        if node not in before and node.op.startswith("call_"):
            node.meta.update(recompute="must", region=len(before))
    return out
