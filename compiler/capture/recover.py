"""When a graph raises: the function runs again, in eager, from where it began.

Stage: capture (run time).  In: a graph that may raise for what its inputs hold (an index out of range, a singular matrix).
Out: the state, the exception and the traceback that eager leaves: what the program did before that place is done, what
stands after it is not, and a handler of the program gets its exception.

This is sound because translated code changes nothing before its graph has run, but for random numbers of Python, whose
generator is put back; and because a graph that raises leaves its inputs as they were: compiled ones say so by an
attribute ``atomic``, around any other ``atomic`` below keeps copies.  A run without an exception pays for none of it.
Read next: ``session``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compiler.capture.runtime import call_native, warn
from compiler.capture.source import name
from compiler.capture.values.tensor import TensorValue
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.tracer import Tracer


def lines(tx: Tracer, emit: Emitter, arguments: Sequence[str]) -> list[str]:
    """What translated code does when its graph has raised for what its inputs hold.  Where eager would leave no other
    state, it is for the traceback, which then ends in the program's own line."""
    if not tx.may_raise:
        return []
    fn, *values = [emit.read(name(a)) for a in ("F", *arguments)]
    rewind = []
    if tx.prologue:
        state = tx.namespace.name(random.getstate, "random_state")
        tx.prologue.insert(0, f"drawn_before = {state}()")
        rewind = [f"{tx.namespace.name(random.setstate, 'set_random_state')}(drawn_before)"]
    again = tx.namespace.name(call_native if tx.caught else call_again, "again")
    told = "" if tx.caught else ", raised"
    return [*rewind, f"return {again}({fn}, {fn}.__code__, ({''.join(v + ', ' for v in values)}){told})"]


def call_again(fn: Any, code: Any, values: tuple[Any, ...], raised: str) -> Any:
    """Eager's exception, with eager's state; if there is none, the graph was wrong to raise, and that is said."""
    result = call_native(fn, code, values)
    warn(f"tinytorch.compile: the graph of {code.co_qualname} raised {raised}, which eager does not; the result is eager's")
    return result


def written(tx: Tracer) -> list[int]:
    """Which inputs of the graph it writes to."""
    inputs = [v.fake._data.storage if isinstance(v, TensorValue) else None for v in tx.inputs]
    return [i for i, storage in enumerate(inputs) if storage in tx.written]


def atomic(tx: Tracer, graph: Callable[..., Any]) -> Callable[..., Any]:
    """``graph``, all or nothing."""
    places, generators = written(tx), tuple(tx.interp.drew_from)
    if getattr(graph, "atomic", False) or not (places or generators):
        return graph

    def run(*args: Any) -> Any:
        tensors = [t for i in places for t in (args[i], args[i]._base) if t is not None]
        kept = [_Kept(t) for t in tensors]
        offsets = [g.offset for g in generators]
        try:
            return graph(*args)
        except Exception:
            for k in kept:
                k.put_back()
            for g, offset in zip(generators, offsets, strict=True):
                g.offset = offset
            raise

    return run


class _Kept:
    """A tensor as it was: its values, its place in the history, and how often it was written."""

    def __init__(self, t: Tensor) -> None:
        self.t = t
        self.values = t._data.copy()
        self.fields = dict(t.__dict__)
        self.version = t._storage.version if t._storage is not None else 0

    def put_back(self) -> None:
        t = self.t
        t.__dict__.clear()
        t.__dict__.update(self.fields)
        t._data[...] = self.values
        if t._storage is not None:
            t._storage.version = self.version
