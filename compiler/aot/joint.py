"""The joint graph: a program and its backward, traced by running the ordinary tape on fake tensors.

Stage: aot.  In: a captured ``GraphModule`` (or any function of tensors) and example inputs.  Out: ``Joint``: one
functional graph of rows and what the runtime must know to stand in for the eager program.

    inputs    primals_0 ..., rng_state_0 ..., tangents_0 ...
    outputs   the forward's (results, then new values of inputs written in place), then one gradient per input that has one

Nothing here knows a derivative: ``tape.backward`` does, and the tracer writes down what it does.
Mirrors ``aot_autograd``'s joint trace in PyTorch.  Read next: ``aliasing``, ``runtime``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.aot import aliasing
from compiler.aot.aliasing import Given
from compiler.aot.trace import Tracer, tracing
from compiler.fake import fake_like, is_fake
from compiler.ir.graph import Node
from compiler.ir.interp import Interpreter
from compiler.ir.module import GraphModule
from compiler.passes.tidy import tidy
from tinytorch import tape
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tensor import Tensor


@dataclass(frozen=True)
class Mutation:
    """Input ``primal`` is given the value of forward output ``output`` after the call.

    ``tracked``: the write is part of the history (eager wrote under grad mode).  ``writes``: how often eager wrote.
    """

    primal: int
    output: int
    tracked: bool
    writes: int


@dataclass
class Joint:
    """A traced program.  ``gradients[i]`` is the joint output that holds the gradient of primal i, or None."""

    module: GraphModule
    primals: list[Any]
    streams: list[Any]
    forward_outputs: int
    results: list[Given]
    mutations: list[Mutation]
    tangents: list[int] = field(default_factory=list)  # the forward outputs that have one, in order
    gradients: list[int | None] = field(default_factory=list)
    depends: dict[int, frozenset[int]] = field(default_factory=dict)  # joint output -> tangents it depends on
    requires: list[bool] = field(default_factory=list)  # of forward outputs
    error: Exception | None = None  # what the backward trace raised; raised again by the first backward

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
    tracer = Tracer(decompositions)
    before = tape.mode.grad
    try:
        with tracing(tracer):
            leaves, inputs = _inputs(tracer, examples)
            histories = [_history(t) for t in inputs]
            given = _run(tracer, fn, inputs)
            tape.mode.grad = before
            return _Finish(tracer, list(examples), leaves, inputs, histories, given).joint()
    finally:
        tape.mode.grad = before


def trace(fn: Callable[..., Any], examples: Sequence[Any], **options: Any) -> GraphModule:
    """The functional graph of a program of tensors: its results, and no backward.  Mirrors ``make_fx``."""
    with tape.grad_mode(False):
        return trace_joint(fn, examples, **options).module


# --- inputs -----------------------------------------------------------------------------------------------------------
def _inputs(tracer: Tracer, examples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(leaves to take gradients at, tensors to run the program on).

    A non-leaf input is a leaf here too, one identity step away from what the program sees: eager lets it be written
    in place, and it does not let leaves.
    """
    leaves: list[Any] = []
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    inputs: list[Any] = []
    for i, x in enumerate(examples):
        if not isinstance(x, Tensor):
            tracer.input(f"primals_{i}", x)
            leaves.append(x)
            inputs.append(x)
            continue
        leaf = fake_like(x) if not is_fake(x) else x
        leaf = Tensor._wrap(leaf._data, x.device)
        if id(leaf._data) in seen:  # the same tensor twice
            node = tracer.input(f"primals_{i}", leaf)
            node.meta["duplicate"] = True
            leaves.append(None)
            inputs.append(seen[id(leaf._data)][1])
            continue
        tracer.input(f"primals_{i}", leaf, i)
        run_on = leaf
        if x.requires_grad and tape.mode.grad:
            leaf.requires_grad = True
            if not x.is_leaf:
                run_on = Tensor._wrap(leaf._data, x.device)
                node = tape.Node(TABLE["clone"], [lambda g: g], [leaf], [(leaf.shape, leaf.dtype)])
                run_on._set_history(node, 0)
        elif x.requires_grad:
            leaf._requires_grad = True
        seen[id(leaf._data)] = (leaf, run_on)
        leaves.append(leaf)
        inputs.append(run_on)
    return leaves, inputs


def _history(t: Any) -> Any:
    return t._made_by() if isinstance(t, Tensor) else None


class _Stepper(Interpreter):
    """Runs a captured graph under the tracer, telling it which line of the user's program is running."""

    def __init__(self, module: GraphModule, tracer: Tracer) -> None:
        super().__init__(module)
        self.tracer = tracer

    def run_node(self, node: Node) -> Any:
        with self.tracer.at(node.meta.get("stack") or []):
            return super().run_node(node)


def _run(tracer: Tracer, fn: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    out = _Stepper(fn, tracer).run(*inputs) if isinstance(fn, GraphModule) else fn(*inputs)
    return list(out) if isinstance(out, tuple | list) else [out]


# --- outputs ----------------------------------------------------------------------------------------------------------
class _Finish:
    """From the values a program returned to a graph's outputs."""

    def __init__(
        self, tracer: Tracer, examples: list[Any], leaves: list[Any], inputs: list[Any], histories: list[Any], given: list[Any]
    ) -> None:
        self.tracer = tracer
        self.examples = examples
        self.leaves = leaves
        self.inputs = inputs
        self.histories = histories
        self.given = given
        self.tensors: list[Tensor] = []  # whose values the forward gives, in order

    def joint(self) -> Joint:
        results, self.tensors = aliasing.classify(self.tracer, self.inputs, self.given)
        mutations = self._mutations()
        nodes = aliasing.separate(self.tracer, self.tensors)
        tangents = [k for k, t in enumerate(self.tensors) if tape.mode.grad and t.requires_grad]
        gradients: list[Node | None] = [None] * len(self.examples)
        error = None
        if tangents:
            try:
                gradients = self._backward(tangents)
            except RuntimeError as e:
                error = e
                gradients = [None] * len(self.examples)
        outputs = [*nodes, *(g for g in gradients if g is not None)]
        self.tracer.graph.output(tuple(outputs))
        where = iter(range(len(nodes), len(outputs)))
        joint = Joint(
            module=GraphModule(self.tracer.attributes, self.tracer.graph, "Joint" if tangents else "Forward"),
            primals=self.examples,
            streams=list(self.tracer.streams.values()),
            forward_outputs=len(nodes),
            results=results,
            mutations=mutations,
            tangents=tangents,
            gradients=[None if g is None else next(where) for g in gradients],
            requires=[t.requires_grad for t in self.tensors],
            error=error,
        )
        joint.depends = _depends(joint)
        tidy(joint.module)
        return joint

    def _mutations(self) -> list[Mutation]:
        found = []
        for i, t in enumerate(self.inputs):
            if not isinstance(t, Tensor) or self.leaves[i] is None:
                continue
            memory = self.tracer.place(t).memory
            if memory.version and memory.origin == i:
                tracked = _history(t) != self.histories[i]
                found.append(Mutation(i, len(self.tensors), tracked, memory.version))
                now = t._alias_with_history()  # its value now, with its history if eager recorded the write
                now._requires_grad = tracked and t.requires_grad
                self.tensors.append(now)
        return found

    def _backward(self, tangents: list[int]) -> list[Node | None]:
        """Run the tape on fakes; the node of each input's gradient."""
        roots = [self.tensors[k] for k in tangents]
        cotangents = [_tangent(self.tracer, i, root) for i, root in enumerate(roots)]
        wanted = [t for t in self.leaves if isinstance(t, Tensor) and t.requires_grad]
        grads = iter(tape.backward(roots, cotangents, inputs=wanted, accumulate=False))
        nodes: list[Node | None] = []
        for t, x in zip(self.leaves, self.examples, strict=True):
            g = next(grads) if isinstance(t, Tensor) and t.requires_grad else None
            nodes.append(None if g is None or x is None else self.tracer.node_of(g))
        return nodes


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
