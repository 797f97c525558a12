"""The recording interpreter: programs on fake tensors leave a functional graph of rows behind.

Stage: aot.  In: any program of eager calls, run under ``dispatch.use(tracer)``.  Out: nodes of ``tracer.graph``, each an
``Op`` row without side effect.  In-place programs become functional on the way: every block of memory has a *current
value*, a node; a view is a path of view rows from the block; a write computes the block's next value (``scatter``), and
a view that is older than its block is looked up again.  Mirrors what FunctionalTensor does in PyTorch.
Read next: ``scatter``, ``joint``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from compiler.aot import scatter
from compiler.errors import CompileError
from compiler.fake import FakeArray, FakeInterp, fake_like, is_fake
from compiler.ir.graph import Graph, Node
from compiler.passes.cse import freeze
from tinytorch import dispatch, tape
from tinytorch.device import Device
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor

_MARKS = ("recompute", "region")

Chain: TypeAlias = "tuple[tuple[Op, dict[str, Any]], ...]"


class Memory:
    """One block of memory: its value now, how often it was written, and the input it belongs to, if any.

    ``origin``: an input's index; -1 for a constant; None for what the program made.  ``members``: for the base of
    inputs that overlap, the input behind each first step of a chain.  ``part``: the tensor through which all writes went,
    if it was one and the same part of the block each time.
    """

    __slots__ = ("base", "members", "node", "origin", "part", "version")

    def __init__(self, base: Any, node: Node, origin: int | None = None) -> None:
        self.base = base  # the fake array of the whole block
        self.node = node
        self.version = 0
        self.origin = origin
        self.part: Tensor | None = None
        self.members: dict[int, tuple[int, int]] = {}  # id of the first step's params -> input, number of steps


class Place:
    """Where a fake array lies: a chain of view rows from a block, and the node of its value at ``version``."""

    __slots__ = ("chain", "data", "memory", "node", "version")

    def __init__(self, data: Any, memory: Memory, chain: Chain, node: Node) -> None:
        self.data = data  # held, so that its id stays its own
        self.memory = memory
        self.chain = chain
        self.node = node
        self.version = memory.version


@dataclass(frozen=True)
class Draw:
    """One draw: the graph takes a state of its own, ``shift`` after where the generator stands when the call begins.

    The place in the stream is data, not text: draws of equal layers then have equal kernels.
    """

    generator: Any
    shift: Any
    state: Tensor


class Tracer:
    """A ``dispatch`` interpreter that records.  ``attributes`` holds real tensors the program met."""

    def __init__(self, decompositions: Mapping[Op, Callable[..., Any]] | None = None) -> None:
        self.graph = Graph()
        self.fake = FakeInterp()
        self.attributes: dict[str, Any] = {}
        self.draws: list[Draw] = []
        self.drawn: dict[int, tuple[Any, Any]] = {}  # generator -> (itself, counters used so far)
        self.decompositions = dict(decompositions or {})
        self.stack: list[Any] = []  # of the user's line that is traced now
        self.marks: dict[str, Any] = {}  # what the captured node that is traced now says of its fate (``_MARKS``)
        self._places: dict[int, Place] = {}
        self._lifted: dict[int, tuple[Any, Tensor]] = {}
        self._opening: set[Op] = set()
        self._marks: list[tuple[int, list[Any]]] = []

    # --- the interpreter's three methods ---
    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        opened = self.decompositions.get(op)
        if opened is not None and op not in self._opening:
            return self._decomposed(op, opened, args, params)
        args = tuple(self.lift(a) if isinstance(a, Tensor) else a for a in args)
        out = self.fake.run(op, args, params)
        node = self.record(op, tuple(self.node_of(a) if isinstance(a, Tensor) else a for a in args), params, out)
        if isinstance(out, tuple):
            for i, o in enumerate(out):
                item = self.graph.call_function(operator.getitem, (node, i))
                self._describe(item, o)
                self.own(o, item)
        elif op.kind == "view":
            at = self.place(args[0])
            self._places[id(out._data)] = Place(out._data, at.memory, (*at.chain, (op, params)), node)
        else:
            self.own(out, node)
        return out

    def write(self, dst: Tensor, src: Tensor) -> None:
        at = self.place(dst)
        if at.memory.origin == -1:
            raise CompileError("a constant of the graph is written to in place; make it an input")
        value = self.node_of(src)
        if src.dtype is not dst.dtype:
            value = self.emit(TABLE["cast"], value, dtype=dst.dtype)
        value = scatter.laid_out(self, value, dst._data)
        part = at.memory.part
        if at.memory.version == 0 or (part is not None and freeze(self.place(part).chain) == freeze(at.chain)):
            at.memory.part = Tensor._wrap(dst._data, dst.device)
        else:
            at.memory.part = None
        at.memory.node = scatter.put(self, at.memory.node, at.chain, value)
        at.memory.version += 1
        at.node, at.version = value, at.memory.version

    def draw(self, generator: Any, numel: Any, device: Device) -> tuple[Tensor, Any]:
        _, used = self.drawn.get(id(generator), (generator, 0))
        self.drawn[id(generator)] = generator, used + (numel + 3) // 4
        state = Tensor._wrap(FakeArray((2,), np.dtype(np.int64)), device)
        self.draws.append(Draw(generator, used, state))
        self.input(f"rng_state_{len(self.draws) - 1}", state)
        return state, 0

    def constant(self, t: Tensor) -> Tensor:
        """A tensor that the program makes from numbers: as data it is a constant, as memory it is new in each call."""
        fake = self.lift(t)
        self._places[id(fake._data)].memory.origin = None
        return fake

    # --- places and values ---
    def graph_input(self, name: str) -> Node:
        """A placeholder after those there are."""
        return self.graph.input(name)

    def input(self, name: str, t: Any, origin: int | None = None) -> Node:
        """A placeholder whose value ``t``, a tensor or a size, is."""
        node = self.graph_input(name)
        self._describe(node, t)
        for key in ("stack", *_MARKS):
            node.meta.pop(key, None)
        if isinstance(t, Tensor):
            self.own(t, node, origin)
        return node

    def own(self, t: Tensor, node: Node, origin: int | None = None) -> None:
        """``t`` is a new block of memory with the value ``node``."""
        self._places[id(t._data)] = Place(t._data, Memory(t._data, node, origin), (), node)

    def alias(self, t: Tensor, of: Tensor, chain: Chain) -> None:
        """``t`` lies in the memory of ``of``, at ``chain``."""
        at = self.place(of)
        place = self._places[id(t._data)] = Place(t._data, at.memory, (*at.chain, *chain), at.node)
        place.version = -1

    def origin(self, t: Tensor) -> tuple[int | None, Chain]:
        """(the input whose memory ``t`` lies in, how it is seen from there); None for memory of the program's own."""
        at = self.place(t)
        if at.memory.members:
            index, steps = at.memory.members[id(at.chain[0][1])]
            return index, at.chain[steps:]
        return (at.memory.origin if at.memory.origin != -1 else None), at.chain

    def place(self, t: Tensor) -> Place:
        known = self._places.get(id(t._data))
        return known if known is not None else self._places[id(self.lift(t)._data)]

    def lift(self, t: Tensor) -> Tensor:
        """A real tensor met while tracing is a constant of the graph."""
        if is_fake(t):
            if id(t._data) not in self._places:
                raise CompileError("a fake tensor of another trace was used")
            return t
        known = self._lifted.get(id(t._data))
        if known is not None:
            return known[1]
        if t.requires_grad:
            raise CompileError("a tensor that requires grad is used in a graph that does not take it as an input")
        name = f"constant_{len(self.attributes)}"
        self.attributes[name] = t
        fake = Tensor._wrap(fake_like(t)._data, t.device)
        inputs = self.graph.placeholders
        with self.graph.inserting_after(inputs[-1]) if inputs else self.graph.inserting_before(None):
            node = self.graph.get_attr(name)
        self._describe(node, fake)
        for key in _MARKS:
            node.meta.pop(key, None)
        self.own(fake, node, -1)
        self._lifted[id(t._data)] = (t._data, fake)
        return fake

    def node_of(self, t: Tensor) -> Node:
        """The node of ``t``'s value now."""
        at = self.place(t)
        if at.version != at.memory.version:
            at.node = self.replay(at.memory.node, at.chain)
            at.version = at.memory.version
        return at.node

    def replay(self, node: Node, chain: Chain) -> Node:
        for op, params in chain:
            node = scatter.look(self, op, node, params)
        return node

    # --- nodes ---
    def emit(self, op: Op, *args: Any, **params: Any) -> Node:
        """A call on nodes, with its meta."""
        vals = tuple(a.meta["val"] if isinstance(a, Node) else a for a in args)
        return self.record(op, args, params, self.fake.run(op, vals, params))

    def record(self, op: Op, args: tuple[Any, ...], params: dict[str, Any], out: Any) -> Node:
        node = self.graph.call_function(op, args, params)
        self._describe(node, out)
        return node

    def _describe(self, node: Node, out: Any) -> None:
        """The value's type; a fresh tensor, so that the graph does not hold the tape."""
        if isinstance(out, tuple):
            node.meta["val"] = tuple(Tensor._wrap(o._data, o.device) for o in out)
        else:
            node.meta["val"] = Tensor._wrap(out._data, out.device) if isinstance(out, Tensor) else out
        if self.marks and tape.mode.running is None:
            node.meta.update(self.marks)
        stack = self._stack_of_backward() if tape.mode.running is not None else self.stack
        if stack:
            node.meta["stack"] = stack

    def _decomposed(self, op: Op, opened: Callable[..., Any], args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        self._opening.add(op)
        try:
            with tape.grad_mode(False):
                return opened(*args, **params)
        finally:
            self._opening.discard(op)

    # --- whose line is it? ---
    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """What is recorded inside is the captured ``node``: it comes from that place of the user's program, and so do
        its gradients; it is saved or computed again as that node says."""
        before, self.stack = self.stack, node.meta.get("stack") or []
        self.marks = {key: node.meta[key] for key in _MARKS if key in node.meta}
        self._marks.append((next(tape._numbers), self.stack))
        try:
            yield
        finally:
            self.stack, self.marks = before, {}
            self._marks.append((next(tape._numbers), before))

    def _stack_of_backward(self) -> list[Any]:
        number = tape.mode.running.number  # type: ignore[union-attr]
        low, high = 0, len(self._marks)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._marks[middle][0] < number else (low, middle)
        return self._marks[low - 1][1] if low else []


def tracing(tracer: Tracer) -> Any:
    """Let ``tracer`` compute inside the block."""
    return dispatch.use(tracer)
