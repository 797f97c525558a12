"""``aot_autograd``: captured graphs for backends that want functional ones.

Stage: aot.  In: compilers for a forward and a backward graph, a partition.  Out: a backend,
``(graph_module, example_inputs) -> callable``.  Mirrors ``torch._dynamo.backends.common.aot_autograd`` and
``functorch.compile.aot_module``.  Read next: ``compiler.partition``, which decides what the forward saves.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler import collector, logs, timing
from compiler.aot import runtime
from compiler.aot.ahead import Forward, on_demand
from compiler.aot.joint import Joint, trace_joint
from compiler.aot.kept import Memory, find, keep, key_of
from compiler.aot.runtime import Compiled, Raw, Saved
from compiler.config import config
from compiler.errors import InvalidGradError
from compiler.fake import is_fake
from compiler.ir.graph import Graph, Node
from compiler.ir.interp import Interpreter
from compiler.ir.meta import loose_sizes
from compiler.ir.module import GraphModule
from compiler.passes.roots import root
from compiler.passes.tidy import tidy
from tinytorch import tape
from tinytorch.device import array_module
from tinytorch.grad_mode import get_modes, set_modes
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

Compiler = Callable[[GraphModule, list[Any]], Callable[..., Any]]
Partition = Callable[[GraphModule, int], tuple[Any, ...]]


def aot_autograd(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    *,
    partition_fn: Partition | None = None,
    decompositions: Mapping[Op, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
    memory: Memory | None = None,
) -> Callable[[Any, Sequence[Any]], Callable[..., list[Any]]]:
    """A backend that gives ``fw_compiler`` and ``bw_compiler`` functional graphs of rows.  With a ``memory``, programs that
    were compiled before are found again (``kept``).

    A compiler gets ``(graph_module, example_inputs)`` and returns a callable of tensors that gives a list; or, marked
    by an attribute ``boxed_raw = True``, a callable from a list of arrays to a list of arrays.
    ``partition_fn(joint, number_of_forward_outputs)`` returns ``(forward, backward, ...)``; the default saves all that
    the backward reads.  A third graph is a forward that also gives all gradients for a cotangent of one.
    """

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., list[Any]]:
        with timing.phase("kept"):
            key = "" if memory is None or decompositions else key_of(gm, example_inputs, memory)
            found = find(key, example_inputs, memory) if key and memory is not None else None
        if found is not None:
            if found.joint.training:
                trace = functools.partial(trace_joint, gm, example_inputs)
                found.double = _double_later(trace, fw_compiler, bw_compiler or fw_compiler, partition_fn or save_everything)
            return runtime.build(found)
        with timing.phase("joint"), collector.held():
            joint = trace_joint(gm, example_inputs, decompositions=decompositions)
        kind = "joint" if joint.training else "graph"
        if logs.enabled("joint"):
            logs.artifact("joint", f"{kind} {getattr(gm, 'class_name', '')}".strip(), joint.module.code)
        return compile_joint(
            joint,
            fw_compiler if joint.training else inference_compiler or fw_compiler,
            bw_compiler or fw_compiler,
            partition_fn or save_everything,
            made=(lambda compiled: keep(key, compiled)) if key else None,
        )

    return backend


def compile_joint(
    joint: Joint, fw: Compiler, bw: Compiler, partition: Partition, *, hold: bool = False,
    made: Callable[[Compiled], None] | None = None,
) -> Callable[..., list[Any]]:  # fmt: skip
    """Partition, compile both halves, wire the runtime.  ``made`` is shown what is all compiled now."""
    if not joint.training or joint.error is not None:
        joint.module.meta["inplace"] = overwritten(joint, ())
        compiled = Compiled(joint, _raw(fw, joint.module), extras=0)
        if made is not None:
            made(compiled)
        return runtime.build(compiled)
    with timing.phase("partition"):
        forward, backward, *more = partition(joint.module, joint.forward_outputs)
    with_gradients = more[0] if more and isinstance(more[0], GraphModule) and not joint.mutations else None
    saved, extras = _saved(joint, forward, backward)
    donated = _donated(joint, forward, saved)
    names = [p.name for p in backward.graph.placeholders]
    backward.meta["donated"] = [n for n, given in zip(names, donated, strict=False) if given]
    needless = _drop_repeats(forward, joint.forward_outputs)
    forward.meta["inplace"] = overwritten(joint, saved)
    ahead = None
    if with_gradients is not None:
        _drop(with_gradients, needless)
        ahead = Forward(_raw(fw, with_gradients), lambda: _raw(fw, forward))
    compiled = Compiled(
        joint,
        forward=_raw(fw, forward) if ahead is None else ahead,
        backward=_raw(bw, backward) if ahead is None else on_demand(lambda: _raw(bw, backward)),
        ahead=ahead,
        saved=saved,
        extras=extras,
        donated=donated,
        double=_double(joint, fw, bw, partition),
        hold=hold,
    )
    if made is not None and ahead is None:
        made(compiled)
    return runtime.build(compiled)


def overwritten(joint: Joint, saved: Sequence[Saved]) -> dict[int, str]:
    """Forward outputs that the runtime only copies over an input, which nobody reads after: a compiler may write them
    there itself, and then hand back the input's array."""
    names = [p.name for p in joint.module.graph.placeholders]
    kept = {s.index for s in saved if s.kind == "primal"}
    return {m.output: names[m.primal] for m in joint.mutations if not (m.tracked or m.base or m.chain or m.primal in kept)}


# --- the two halves ---------------------------------------------------------------------------------------------------
def save_everything(joint: GraphModule, forward_outputs: int) -> tuple[GraphModule, GraphModule]:
    """The partition without a thought: the forward is what the results need, the backward is the rest, and all that the
    backward reads is saved."""
    graph = joint.graph
    outs = list(graph.output_node.args[0])
    early = _needed_by(outs[:forward_outputs])
    early.update(p for p in graph.placeholders if not p.name.startswith("tangents_"))
    reads: dict[Node, None] = {}
    for node in graph.nodes:
        if node not in early and node.op != "output":
            reads.update((n, None) for n in node.all_input_nodes if n in early)
    reads.update((n, None) for n in outs[forward_outputs:] if n in early)
    for node in [n for n in reads if isinstance(n.meta.get("val"), tuple)]:  # save the items of a tuple instead
        del reads[node]
        items = [item for item in node.users if item.target is operator.getitem]
        early.update(items)
        reads.update((item, None) for item in items)
    saved = [n for n in reads if n.op != "get_attr"]
    fw = extract(joint, graph.placeholders, [*outs[:forward_outputs], *saved], early.__contains__, "Forward")
    tangents = [n for n in graph.placeholders if n not in early]
    bw = extract(joint, [*saved, *tangents], outs[forward_outputs:], lambda n: True, "Backward")
    output = fw.graph.output_node
    output.args = ((*output.args[0], *loose_sizes(bw.graph, (n for n in graph.nodes if n in early)).values()),)
    return fw, bw


def _needed_by(nodes: Sequence[Node]) -> set[Node]:
    """The nodes and all they are computed from."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def extract(
    module: GraphModule, inputs: Sequence[Node], outputs: Sequence[Node], inside: Callable[[Node], bool], name: str
) -> GraphModule:
    """The part of a graph between ``inputs`` and ``outputs``, as a module of its own."""
    graph = Graph()
    mapped: dict[Node, Node] = {}
    for node in inputs:
        if inside(node):
            mapped[node] = graph.placeholder(node.name)
            mapped[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or node in mapped or not inside(node):
            continue
        if all(n in mapped for n in node.all_input_nodes):
            mapped[node] = graph.node_copy(node, mapped.__getitem__)
    graph.output(tuple(mapped[n] for n in outputs))
    return tidy(GraphModule(module.attributes, graph, name))


def _saved(joint: Joint, forward: GraphModule, backward: GraphModule) -> tuple[list[Saved], int]:
    """Where each input of the backward comes from, and how many values the forward gives besides its outputs."""
    outs = list(forward.graph.output_node.args[0])
    count = joint.forward_outputs
    extras = outs[count:]
    place: dict[Node, Saved] = {}
    inputs = forward.graph.placeholders
    kinds = [("primal", i) for i in range(len(joint.primals))] + [("base", i) for i in range(len(joint.bases))]
    kinds += [("state", i) for i in range(len(joint.draws))]
    for p, (kind, i) in zip(inputs, kinds, strict=True):
        place[p] = Saved(kind, i)
    for k, n in enumerate(outs[:count]):
        place.setdefault(n, Saved("output", k))
    fresh = [n for n in dict.fromkeys(extras) if isinstance(n, Node) and n not in place]
    memory = {p: place[p] for p in inputs[: len(joint.primals)]}
    for k, n in enumerate(outs[:count]):
        if isinstance(n, Node):
            memory.setdefault(root(n), Saved("output", k))
    for e, n in enumerate(fresh):
        place[n] = Saved("extra", e, memory.get(root(n)))
    saved = [place[n] if isinstance(n, Node) else Saved("size", n) for n in extras]
    names = [p.name for p in backward.graph.placeholders if not p.name.startswith("tangents_")]
    if len(names) != len(saved):
        raise AssertionError(f"the backward takes {names}, but the forward saves {extras}")
    return saved, len(fresh)


def _donated(joint: Joint, forward: GraphModule, saved: Sequence[Saved]) -> list[bool]:
    """Which saved values nobody but the backward sees: it may put its own results into their memory.

    Values made for the backward alone, in memory of their own: no views of results, of inputs or of each other.
    """
    outs = list(forward.graph.output_node.args[0])
    count = joint.forward_outputs
    memory = Counter(root(n) for n in dict.fromkeys(n for n in outs if isinstance(n, Node)))
    extras = list(outs[count:])
    return [
        s.kind == "extra" and isinstance(n, Node) and memory[root(n)] == 1 and extras.count(n) == 1
        for s, n in zip(saved, extras, strict=True)
    ]


def _drop_repeats(forward: GraphModule, count: int) -> set[int]:
    """The forward need not give back what the caller has: inputs, sizes, and outputs a second time.  Their places."""
    outs = list(forward.graph.output_node.args[0])
    needless = {
        i for i, n in enumerate(outs[count:], count) if not isinstance(n, Node) or n.op == "placeholder" or n in outs[:i]
    }
    _drop(forward, needless)
    return needless


def _drop(module: GraphModule, places: set[int]) -> None:
    """Outputs that nobody wants."""
    node = module.graph.output_node
    node.args = (tuple(n for i, n in enumerate(node.args[0]) if i not in places),)
    module.changed()


# --- compilers --------------------------------------------------------------------------------------------------------
def _raw(compiler: Compiler, module: GraphModule) -> Raw:
    """A compiled module as a function of arrays."""
    vals = [p.meta["val"] for p in module.graph.placeholders]
    compiled = compiler(module, vals)
    if getattr(compiled, "boxed_raw", False):
        return compiled
    return on_arrays(compiled, vals)


def on_arrays(fn: Callable[..., Any], examples: Sequence[Any]) -> Raw:
    """A function of tensors as one of arrays; it runs outside of the tape."""
    devices = [x.device if isinstance(x, Tensor) else None for x in examples]

    def raw(arrays: list[Any]) -> list[Any]:
        tensors = [a if d is None else Tensor._wrap(a, d) for a, d in zip(arrays, devices, strict=True)]
        with tape.grad_mode(False):
            out = fn(*tensors)
        return [o._data if isinstance(o, Tensor) else o for o in (out if isinstance(out, list | tuple) else (out,))]

    return raw


# --- double backward --------------------------------------------------------------------------------------------------
def _double(joint: Joint, fw: Compiler, bw: Compiler, partition: Partition) -> Callable[..., Any]:
    """Gradients as a differentiable function: the joint graph's gradient part, as a program of primals and tangents,
    goes through ``aot_autograd`` once more when a backward first runs with ``create_graph``."""
    built: list[Any] = []

    def double(primals: tuple[Any, ...], states: tuple[Any, ...], cotangents: list[Any], shapes: Any) -> Any:
        _refuse_overwritten(joint)
        devices = [d.state.device for d in joint.draws]
        inputs = [
            *_alive(joint, primals),
            *(Tensor._wrap(array_module(d).asarray(s), d) for s, d in zip(states, devices, strict=True)),  # inputs like others now
            *(_cotangent(g, like, shape) for g, like, shape in zip(cotangents, joint.cotangents, shapes, strict=True)),
        ]
        if not built:
            outs = joint.module.graph.output_node.args[0]
            gradients = list(dict.fromkeys(outs[g] for g in joint.gradients if g is not None))
            module = extract(joint.module, joint.module.graph.placeholders, gradients, lambda n: True, "Gradient")
            built.append(_by_inputs(module, fw, bw, partition))
        return built[0](inputs)

    return double


def _double_later(trace: Callable[[], Joint], *how: Any) -> Callable[..., Any]:
    """The same for a program that was kept: it is traced after all, as it would have been now, when somebody asks."""
    modes, allowed = get_modes(), tape.mode.sdpa
    made: list[Callable[..., Any]] = []

    def double(*args: Any) -> Any:
        if not made:
            now = get_modes(), tape.mode.sdpa
            try:
                set_modes(modes)
                tape.mode.sdpa = allowed
                made.append(_double(trace(), *how))
            finally:
                set_modes(now[0])
                tape.mode.sdpa = now[1]
        return made[0](*args)

    return double


def _alive(joint: Joint, primals: tuple[Any, ...]) -> list[Any]:
    """The inputs of the forward; InvalidGradError if one is needed that nobody holds any more."""
    out = []
    for x, p in zip(primals, joint.module.graph.placeholders, strict=False):
        t = x() if isinstance(x, weakref.ref) else x
        if t is None and p.users:
            raise InvalidGradError(
                f"create_graph=True needs the input {p.name} of a compiled function, and it is gone: keep a reference to it"
            )
        out.append(p.meta["val"] if t is None else t)
    return out


def _by_inputs(module: GraphModule, fw: Compiler, bw: Compiler, partition: Partition) -> Callable[..., Any]:
    """Compiled once for each kind of inputs: no guard stands before a backward, whose cotangents come from anywhere.
    Too many kinds are run row by row."""
    known: dict[Any, Any] = {}

    def call(inputs: list[Any]) -> Any:
        key = tape.mode.grad, _kinds(inputs)
        if key not in known and len(known) >= config.recompile_limit:
            return Interpreter(module).run(*inputs)
        if key not in known:
            known[key] = compile_joint(trace_joint(module, inputs), fw, bw, partition, hold=True)
        return known[key](*inputs)

    return call


def _kinds(inputs: list[Any]) -> tuple[Any, ...]:
    """What a trace relies on: how each tensor lies, and which input it is once more; the values of sizes."""
    first: dict[int, int] = {}
    return tuple(
        (x.requires_grad, x.is_leaf, tuple(x._data.shape), tuple(x._data.strides), x.dtype, first.setdefault(id(x._data), i))
        if isinstance(x, Tensor) and not is_fake(x)
        else None if isinstance(x, Tensor) else x
        for i, x in enumerate(inputs)
    )  # fmt: skip


def _cotangent(g: Tensor | None, like: Tensor, shape: Any) -> Tensor:
    return Tensor._wrap(runtime.Layout(like).array(None, shape), like.device) if g is None else g


def _refuse_overwritten(joint: Joint) -> None:
    if joint.mutations:
        raise InvalidGradError(
            "create_graph=True through a compiled function that writes its inputs in place: their old values are gone. "
            "Write out of place, or run this function eagerly (tinytorch.compiler.disable)."
        )

