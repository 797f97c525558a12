"""The gradients of a scalar loss in the forward already, where that reads memory once instead of twice.

Stage: partition.  In: a joint graph and its cut.  Out: a forward that gives the gradients too, for a cotangent of one, or
the reason why there is none.  Read next: ``compiler.aot.ahead``, which hands them out.

The backward of a loss such as cross entropy reads nothing but what the forward has read, and one number: its cotangent.
``loss.backward()`` sends the number one.  A forward that assumes so can write the gradient while a row of the input lies
in registers.  The backward is kept for all other cotangents: it reads the input again, which is alive.

That is worth it where the backward only streams (no products, which take longer than memory does, and no convolutions),
where it would read what the forward reads, and where what lies between forward and backward is no more than eager keeps.
"""

from __future__ import annotations

from compiler.ir import meta
from compiler.ir.graph import Graph, Node, map_nodes, nodes_in
from compiler.ir.module import GraphModule
from compiler.partition import cost
from compiler.partition.cost import Joint
from compiler.partition.mincut import Cut, emit, in_order
from compiler.partition.report import human
from compiler.passes.roots import root
from compiler.passes.tidy import tidy
from tinytorch.ops.opdef import TABLE, Op

LEAST = 1 << 20  # bytes read twice, from which a second kind of forward is worth compiling
STREAMS = ("pointwise", "view", "reduce", "create", "index", "random")


def refusal(joint: Joint, cut: Cut) -> str:
    """Why the gradients wait for the backward, or ""."""
    if len(joint.tangents) != 1 or meta.numel(joint.tangents[0].meta["val"]) != 1:
        return "not one scalar loss"
    late = {n for n in (*joint.backward, *joint.between, *cut.recomputed) if n.op == "call_function"}
    work = sorted({str(n.target.name) for n in late if isinstance(n.target, Op) and n.target.kind not in STREAMS})
    if work:
        return f"the backward does more than stream memory: {', '.join(work)}"
    if any(n.meta.get("recompute") == "must" for n in joint.forward):
        return "a checkpointed region is computed in the backward"
    again = reads_twice(joint, cut)
    if again < LEAST:
        return f"only {human(again)} would be read twice"
    written = sum(meta.nbytes(n.meta["val"]) for n in {n for n in joint.gradients if isinstance(n, Node)})
    if again * 2 < written:
        return f"{human(again)} would be read twice, but {human(written)} are written"
    eager = cost.total_bytes(cost.eager_saves(joint))
    if cut.bytes + written > eager:
        return f"the gradients are {human(written)}, and eager keeps {human(eager)} for the backward"
    return ""


def reads_twice(joint: Joint, cut: Cut) -> int:
    """Bytes of the inputs that forward and backward both read."""
    early = {i for n in joint.forward for i in n.all_input_nodes}
    given = {cost.base(n) for n in cut.saved if cost.is_given(cost.base(n))}
    return sum(meta.nbytes(n.meta["val"]) for n in given & early)


def forward_with_gradients(module: GraphModule, joint: Joint, cut: Cut, forward: GraphModule) -> GraphModule:
    """What ``forward`` gives, then the gradients for a cotangent of one."""
    results = [*joint.forward_outputs, *in_order(joint, cut)]
    sizes = forward.graph.output_node.args[0][len(results) :]
    graph = Graph()
    done: dict[Node, Node] = {p: graph.node_copy(p) for p in joint.inputs}
    (tangent,) = joint.tangents
    val = tangent.meta["val"]
    one = graph.call_function(
        TABLE["full"], (), {"shape": tuple(val.shape), "value": 1.0, "dtype": val.dtype, "device": val.device}
    )
    one.meta = {"val": val}
    done[tangent] = one
    outs = (*results, *sizes, *joint.gradients)
    emit(graph, done, nodes_in(outs))
    graph.output(map_nodes(outs, done.__getitem__))
    made = tidy(GraphModule(module.attributes, graph, "ForwardAndGradients"))
    _separate(made, len(results) + len(sizes))
    return made


def _separate(module: GraphModule, count: int) -> None:
    """Gradients are memory of their own: what became another result, or an input, is copied."""
    graph = module.graph
    outs = list(graph.output_node.args[0])
    taken = {root(n) for n in outs[:count] if isinstance(n, Node)}
    for i, n in enumerate(outs[count:], count):
        if not isinstance(n, Node) or n in outs[count:i]:
            continue
        if root(n) in taken or root(n).op in ("placeholder", "get_attr"):
            with graph.inserting_before(graph.output_node):
                copy = graph.call_function(TABLE["clone"], (n,))
            copy.meta = dict(n.meta)
            outs = [copy if x is n and k >= count else x for k, x in enumerate(outs)]
            n = copy
        taken.add(root(n))
    graph.output_node.args = (tuple(outs),)
    module.changed()
