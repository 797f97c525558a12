"""The joint graph: a program and its backward, traced by running the ordinary tape on fake tensors.

Stage: aot.  In: a captured ``GraphModule`` (or any function of tensors) and example inputs.  Out: ``Joint``: one
functional graph of rows and what the runtime must know to stand in for the eager program.

    inputs    primals_0 ..., base_0 ..., rng_state_0 ..., tangents_0 ...
    outputs   the forward's (results, then new values of inputs written in place), then one gradient per input that has one

Nothing here knows a derivative: ``engine.backward`` does, and the tracer writes down what it does.
Mirrors ``aot_autograd``'s joint trace in PyTorch.  Read next: ``aliasing``, ``runtime``.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.aot import aliasing, overlap
from compiler.aot.aliasing import Given, owner
from compiler.aot.overlap import Base
from compiler.aot.trace import Chain, Draw, Tracer, tracing
from compiler.fake import FakeArray, fake_like, is_fake
from compiler.ir.graph import Graph, Node
from compiler.ir.interp import Interpreter
from compiler.ir.module import GraphModule
from compiler.ir.verify import verify
from compiler.passes.roots import root
from compiler.passes.tidy import tidy
from tinytorch import engine, tape
from tinytorch.device import Device
from tinytorch.grad_mode import set_mode
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor


@dataclass(frozen=True)
class Mutation:
    """Input ``primal`` is given the value of forward output ``output`` after the call; with ``base``, base ``primal``.

    ``tracked``: the write is part of the history (eager wrote under grad mode).  ``writes``: how often eager wrote.
    ``chain``: only the part of the input that it shows was written, and the output is the value of that part.
    """

    primal: int
    output: int
    tracked: bool
    writes: int
    base: bool = False
    chain: Chain = ()


@dataclass
class Joint:
    """A traced program.  ``gradients[i]`` is the joint output that holds the gradient of primal i, or None.

    ``module`` is empty for a program that was kept (``kept``).
    """

    module: GraphModule
    primals: list[Any]
    draws: list[Draw]
    drawn: list[tuple[Any, Any]]  # (generator, counters that one call uses)
    forward_outputs: int
    results: list[Given]
    mutations: list[Mutation]
    devices: list[Device]  # of outputs
    bases: list[Base] = field(default_factory=list)
    tangents: list[int] = field(default_factory=list)  # the forward outputs that have one, in order
    gradients: list[int | None] = field(default_factory=list)
    handed_on: dict[int, int] = field(default_factory=dict)  # joint output -> the tangent that it is
    cotangents: list[Tensor] = field(default_factory=list)  # what the graph takes them to be: shapes, types, strides
    depends: dict[int, frozenset[int]] = field(default_factory=dict)  # joint output -> tangents it depends on
    requires: list[bool] = field(default_factory=list)  # of forward outputs
    error: Exception | None = None  # what the backward trace raised; raised again by the first backward
    held: frozenset[int] = frozenset()  # primals whose memory eager's tape keeps
    held_outputs: frozenset[int] = frozenset()  # and forward outputs
    late: bool = False  # gradients are off where the program begins, and it switches them on

    @property
    def training(self) -> bool:
        return bool(self.tangents)


def trace_joint(
    fn: Callable[..., Any],
    examples: Sequence[Any],
    *,
    decompositions: Mapping[Op, Callable[..., Any]] | None = None,
) -> Joint:
    """Trace ``fn(*examples)`` and, if a result requires grad, its backward.  User errors come out as eager's."""
    begun = tape.mode.grad
    with tape.grad_mode(begun or switches_on(fn)):
        return _trace_joint(fn, examples, decompositions, begun)


def switches_on(fn: Callable[..., Any]) -> bool:
    """Whether a captured graph records at some place: one that begins inside of ``no_grad``, behind a break in the block,
    goes on behind the block's end."""
    if not isinstance(fn, GraphModule):
        return False
    return any(n.target is set_mode and n.args == ("grad", True) for n in fn.graph.nodes)


def _trace_joint(fn: Callable[..., Any], examples: Sequence[Any], decompositions: Any, begun: bool) -> Joint:
    storages: dict[int, Any] = {}
    once = {id(x): x if is_fake(x) else _faked(x, storages) for x in examples if isinstance(x, Tensor)}
    fakes = [once.get(id(x), x) for x in examples]
    together = overlap.groups(fakes)
    found = _trace(fn, fakes, decompositions, [], begun)
    written = {m.primal for m in found.mutations}
    shared = [g for g in together if written & set(g)]
    if not shared:
        return found
    return _trace(fn, fakes, decompositions, [overlap.base_of(g, fakes) for g in shared], begun)


def _faked(x: Tensor, storages: dict[int, Any]) -> Tensor:
    fake = fake_like(x, storages=storages)
    if not x.is_leaf:  # all that the trace asks of what made it
        fake._set_history(tape.Node(TABLE["clone"], [], [], []), 0)
        fake._view_input = x._base is not None  # type: ignore[attr-defined]
    return fake


def _trace(
    fn: Callable[..., Any], examples: Sequence[Any], decompositions: Any, bases: list[Base], begun: bool
) -> Joint:
    """``begun``: whether gradients are on where the program begins; here they are on if they ever are."""
    tracer = Tracer(decompositions)
    before = tape.mode.grad
    try:
        with tracing(tracer):
            leaves, inputs = _inputs(tracer, examples)
            based = _bases(tracer, bases, inputs)
            histories = [_history(t) for t in inputs]
            tape.mode.grad = begun
            given = _run(tracer, fn, inputs)
            tape.mode.grad = before
            joint = _Finish(tracer, list(examples), leaves, inputs, histories, given, bases, based).joint()
            joint.late = before and not begun
            return joint
    finally:
        tape.mode.grad = before


def trace(fn: Callable[..., Any], examples: Sequence[Any], **options: Any) -> GraphModule:
    """The functional graph of a program of tensors: its results, and no backward.  Mirrors ``make_fx``."""
    with tape.grad_mode(False):
        return trace_joint(fn, examples, **options).module


# --- inputs -----------------------------------------------------------------------------------------------------------
def _inputs(tracer: Tracer, examples: Sequence[Any]) -> tuple[list[Tensor | None], list[Any]]:
    """(leaves to take gradients at, or None; tensors to run the program on).

    A non-leaf input is a leaf here too, one identity step away from what the program sees: eager lets it be written
    in place, and it does not let leaves.
    """
    leaves: list[Tensor | None] = []
    seen: dict[int, Tensor] = {}
    inputs: list[Any] = []
    for i, x in enumerate(examples):
        leaf = None
        if not isinstance(x, Tensor):
            run_on = x
            tracer.input(f"primals_{i}", x)
        elif id(x._data) in seen:  # the same tensor twice
            run_on = seen[id(x._data)]
            node = tracer.graph_input(f"primals_{i}")
            node.meta["val"] = Tensor._wrap(x._data, x.device)
        else:
            leaf, run_on = _leaf(x)
            tracer.input(f"primals_{i}", run_on, i)
            seen[id(x._data)] = run_on
        leaves.append(leaf)
        inputs.append(run_on)
    return leaves, inputs


def _leaf(x: Tensor) -> tuple[Tensor | None, Tensor]:
    run_on = Tensor._wrap(x._data, x.device)
    if not x.requires_grad:
        return None, run_on
    run_on._requires_grad = True
    if not tape.mode.grad:
        return None, run_on
    if x.is_leaf:
        return run_on, run_on
    leaf, run_on = run_on, Tensor._wrap(x._data, x.device)
    run_on._set_history(tape.Node(TABLE["clone"], [lambda g: g], [leaf], [(x._data.shape, x._data.dtype)]), 0)
    if x._base is None and not getattr(x, "_view_input", False):
        return leaf, run_on
    # A write through a view goes to the history of its base, so the trace has a base too, of which it sees all.
    seen = Tensor._view(run_on, x._data, TABLE["view"], {"shape": tuple(x._data.shape)})
    seen._node, seen._number, seen._requires_grad = run_on._node, run_on._number, True
    return leaf, seen


def _bases(tracer: Tracer, bases: list[Base], inputs: list[Any]) -> list[Tensor]:
    """A placeholder for each base; its members become views of it."""
    made = []
    for n, base in enumerate(bases):
        lead = inputs[base.lead]
        t = Tensor._wrap(FakeArray((base.numel,), lead._data.dtype), lead.device)
        tracer.input(f"base_{n}", t)
        for m in base.members:
            tracer.alias(inputs[m.index], t, m.chain)
        tracer.place(t).memory.members = {id(m.chain[0][1]): (m.index, len(m.chain)) for m in base.members}
        made.append(t)
    return made


def _history(t: Any) -> Any:
    """What made a tensor, or its base: that is where writes are recorded."""
    return owner(t)._made_by() if isinstance(t, Tensor) else None


class _Stepper(Interpreter):
    """Runs a captured graph under the tracer, telling it which line of the user's program is running."""

    def __init__(self, module: GraphModule, tracer: Tracer) -> None:
        super().__init__(module)
        self.tracer = tracer

    def run_node(self, node: Node) -> Any:
        with self.tracer.at(node):
            return super().run_node(node)


def _run(tracer: Tracer, fn: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    out = _Stepper(fn, tracer).run(*inputs) if isinstance(fn, GraphModule) else fn(*inputs)
    return list(out) if isinstance(out, tuple | list) else [out]


# --- outputs ----------------------------------------------------------------------------------------------------------
class _Finish:
    """From the values a program returned to a graph's outputs."""

    def __init__(
        self, tracer: Tracer, examples: list[Any], leaves: list[Any], inputs: list[Any], histories: list[Any],
        given: list[Any], bases: list[Base], based: list[Tensor],
    ) -> None:  # fmt: skip
        self.tracer = tracer
        self.examples = examples
        self.leaves = leaves
        self.inputs = inputs
        self.histories = histories
        self.given = given
        self.bases = bases
        self.based = based
        self.tensors: list[Tensor] = []  # whose values the forward gives, in order

    def joint(self) -> Joint:
        results, self.tensors = aliasing.classify(self.tracer, self.inputs, self.given)
        mutations = self._mutations()
        nodes = aliasing.separate(self.tracer, self.tensors)
        _open_regions(self.tracer.graph)
        tangents = [k for k, t in enumerate(self.tensors) if tape.mode.grad and t.requires_grad]
        gradients: list[Node | None] = [None] * len(self.examples)
        error = None
        kept: set[Node] = set()
        if tangents:
            last = next(reversed(self.tracer.graph.nodes))
            try:
                gradients = self._backward(tangents)
            except Exception as e:
                lines = _lines_of_program(e)
                if not isinstance(e, RuntimeError) and not lines:
                    raise
                error = _without_frames(e, lines)
            kept = _kept_by_tape(self.tracer.graph, last)
            aliasing.separate_gradients(self.tracer, nodes, gradients)
        found = list(dict.fromkeys(g for g in gradients if g is not None))  # one tensor for equal ones: the engine copies it
        outputs = [*nodes, *found]
        self.tracer.graph.output(tuple(outputs))
        joint = Joint(
            module=GraphModule(self.tracer.attributes, self.tracer.graph, "Joint" if tangents else "Forward"),
            primals=self.examples,
            draws=self.tracer.draws,
            drawn=list(self.tracer.drawn.values()),
            forward_outputs=len(nodes),
            results=results,
            mutations=mutations,
            devices=[n.meta["val"].device for n in outputs],
            bases=self.bases,
            tangents=tangents,
            gradients=[None if g is None else len(nodes) + found.index(g) for g in gradients],
            requires=[t.requires_grad for t in self.tensors],
            error=error,
            held=frozenset(i for i, p in enumerate(self.tracer.graph.placeholders[: len(self.examples)]) if p in kept),
            held_outputs=frozenset(k for k, node in enumerate(nodes) if root(node) in kept),
        )
        joint.depends = _depends(joint)
        tidy(joint.module)
        verify(joint.module, functional=True)
        given = [p for p in joint.module.graph.placeholders if p.name.startswith("tangents_")]
        if error is not None:
            for p in given:
                joint.module.graph.erase_node(p)
            return joint
        joint.cotangents = [p.meta["val"] for p in given]
        made = enumerate(joint.module.graph.output_node.args[0])
        joint.handed_on = {k: given.index(n) for k, n in made if k >= len(nodes) and n in given}
        return joint

    def _mutations(self) -> list[Mutation]:
        found = []
        seen: set[int] = set()
        for i, t in enumerate(self.inputs):
            if not isinstance(t, Tensor) or id(t) in seen:
                continue
            seen.add(id(t))
            memory = self.tracer.place(t).memory
            if memory.version and memory.origin == i:
                tracked = _history(t) != self.histories[i]
                if memory.part is not None and not tracked:
                    chain = self.tracer.place(memory.part).chain
                    found.append(Mutation(i, len(self.tensors), False, memory.version, chain=chain))
                    self.tensors.append(memory.part)
                    continue
                found.append(Mutation(i, len(self.tensors), tracked, memory.version))
                t._made_by()  # a view reads its history again from its base
                now = t._alias_with_history()  # its value now, with its history if eager recorded the write
                now._requires_grad = tracked and t.requires_grad
                self.tensors.append(now)
        for n, t in enumerate(self.based):
            memory = self.tracer.place(t).memory
            if memory.version:
                found.append(Mutation(n, len(self.tensors), False, memory.version, base=True))
                self.tensors.append(t)
        return found

    def _backward(self, tangents: list[int]) -> list[Node | None]:
        """Run the tape on fakes; the node of each input's gradient."""
        roots = [self.tensors[k] for k in tangents]
        cotangents = [_tangent(self.tracer, i, root) for i, root in enumerate(roots)]
        wanted = [i for i, t in enumerate(self.leaves) if t is not None]
        grads = engine.backward(roots, cotangents, inputs=[self.leaves[i] for i in wanted], accumulate=False)
        nodes: list[Node | None] = [None] * len(self.leaves)
        for i, g in zip(wanted, grads, strict=True):
            nodes[i] = None if g is None else self.tracer.node_of(g)
        return nodes


def _lines_of_program(error: BaseException) -> list[traceback.FrameSummary]:
    """Where a backward or a hook of the program's own raised it, which then comes when the backward runs, as in eager; else none."""
    own = tuple(f"{folder}{os.sep}" for folder in (Path(tape.__file__).parent, Path(__file__).parents[1]))
    return [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(own)]


def _without_frames(error: Exception, lines: list[traceback.FrameSummary]) -> Exception:
    """The error as it is kept: frames hold the model and its inputs, so the program's own lines become a note."""
    if lines:
        error.add_note("Raised when the backward was traced:\n" + "".join(traceback.format_list(lines)).rstrip())
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _kept_by_tape(graph: Graph, last: Node) -> set[Node]:
    """The nodes whose memory is read by what a backward recorded behind ``last``: eager's tape keeps it."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node is last:
            break
        found.update(root(n) for n in node.all_input_nodes)
    return found


def _open_regions(graph: Graph) -> None:
    """What leaves a checkpointed region is not computed again for those who use it outside: else the second run of one
    region would begin with that of the one before, and all of them would be in memory at once."""
    for node in graph.nodes:
        region = node.meta.get("region")
        if region is None or (node.users and all(u.meta.get("region") == region for u in node.users)):
            continue
        used = bool(node.users)  # or it is a result only
        while isinstance(node.target, Op) and node.target.kind == "view" and node.meta.get("region") == region:
            node.meta.pop("recompute", None)
            node = node.args[0]
        if node.meta.get("region") == region:
            node.meta.pop("recompute", None)
            if used:
                node.meta["recompute"] = "never"


def _tangent(tracer: Tracer, i: int, root: Tensor) -> Tensor:
    """The placeholder for the cotangent of a result, laid out as the result is."""
    t = Tensor._wrap(aliasing.fresh_like(root), root.device)
    tracer.input(f"tangents_{i}", t)
    return t


def _depends(joint: Joint) -> dict[int, frozenset[int]]:
    """Which tangents each gradient is made of: with those absent the gradient is None, as in eager."""
    if not joint.tangents:
        return {}
    reach: dict[Node, frozenset[int]] = {}
    empty: frozenset[int] = frozenset()
    for node in joint.module.graph.nodes:
        if node.op == "placeholder" and node.name.startswith("tangents_"):
            reach[node] = frozenset([int(node.name.removeprefix("tangents_"))])
        else:
            reach[node] = empty.union(*(reach[n] for n in node.all_input_nodes))
    outputs = joint.module.graph.output_node.args[0]
    return {k: reach[outputs[k]] for k in joint.gradients if k is not None}
