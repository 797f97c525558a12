"""What saving and recomputing a value costs.

Stage: partition.  In: a joint graph with ``meta["val"]``.  Out: for each node its memory, whether backward may compute
it again, and an estimate of the time that takes.  All that is particular to an operator comes from its row.
Read next: ``mincut``.

Memory counts storages: a view costs nothing and keeps its base alive; the graph's inputs are alive anyway, so keeping
one is free.  Times are in nanoseconds of an imaginary machine; only their ratios are used.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from compiler.ir import meta
from compiler.ir.graph import Graph, Node
from tinytorch.ops.opdef import Op

BYTES_PER_NS = 10.0
FLOPS_PER_NS = 50.0
GROWS = 2  # a product this many times larger than its operands may be computed again
REDUCES = 4  # a result this many times smaller than its operands is saved rather than computed again


@dataclass
class Joint:
    """A joint graph, sorted out.

    forward   needed by the forward's outputs
    backward  depends on a tangent
    between   neither (a mask, a transpose that only backward wants): may be computed on either side
    """

    graph: Graph
    forward_outputs: list[Any]
    gradients: list[Any]
    inputs: list[Node]
    tangents: list[Node]
    forward: set[Node] = field(default_factory=set)
    backward: set[Node] = field(default_factory=set)
    between: set[Node] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph, num_fwd_outputs: int) -> Joint:
        """Sort out ``graph``, whose output is the forward's results followed by the gradients."""
        outs = list(graph.output_node.args[0])
        tangents = [p for p in graph.placeholders if p.name.startswith("tangents")]
        inputs = [p for p in graph.placeholders if p not in set(tangents)]
        joint = Joint(graph, outs[:num_fwd_outputs], outs[num_fwd_outputs:], inputs, tangents)
        late = set(tangents)
        for n in graph.nodes:
            if n.op != "output" and any(i in late for i in n.all_input_nodes):
                late.add(n)
        early = _needed([n for n in joint.forward_outputs if isinstance(n, Node)])
        if early & late:
            raise ValueError(f"forward output depends on a tangent: {sorted(map(str, early & late))}")
        wanted = _needed([n for n in joint.gradients if isinstance(n, Node)])
        joint.forward = early | set(inputs)
        joint.backward = (late & wanted) | set(tangents)
        joint.between = {n for n in graph.nodes if n in wanted and n not in joint.forward and n not in joint.backward}
        return joint

    def demanded(self) -> set[Node]:
        """The tangent-free nodes that backward reads directly."""
        found = {i for n in self.backward for i in n.all_input_nodes}
        found |= {n for n in self.gradients if isinstance(n, Node)}
        return found - self.backward


def _needed(outputs: list[Node]) -> set[Node]:
    seen = set(outputs)
    stack = list(outputs)
    while stack:
        for n in stack.pop().all_input_nodes:
            if n not in seen:
                seen.add(n)
                stack.append(n)
    return seen


# --- kinds of nodes ---------------------------------------------------------------------------------------------------
def is_view(n: Node) -> bool:
    return isinstance(n.target, Op) and n.target.kind == "view"


def is_item(n: Node) -> bool:
    """One of the results of an operator with several."""
    return n.target is operator.getitem


def is_tuple(n: Node) -> bool:
    return isinstance(n.meta.get("val"), tuple | list)


def is_given(n: Node) -> bool:
    """Alive whatever we do: an input or a constant of the module."""
    return n.op in ("placeholder", "get_attr")


def base(n: Node) -> Node:
    """The node whose memory ``n`` lies in."""
    while is_view(n):
        n = n.args[0]
    return n


# --- memory -----------------------------------------------------------------------------------------------------------
def saved_bytes(n: Node) -> int:
    """Memory that stays alive until backward because ``n`` is saved."""
    return 0 if is_given(base(n)) else meta.nbytes(base(n).meta.get("val"))


def total_bytes(nodes: Any) -> int:
    """Memory of several saved values; those in the same memory count once."""
    return sum(saved_bytes(n) for n in {base(n) for n in nodes})


def can_save(n: Node) -> bool:
    """Views are made again rather than kept (their base is kept); of a tuple the items are kept."""
    return not is_view(n) and not is_tuple(n) and n.meta.get("recompute") != "must"


def eager_saves(joint: Joint) -> set[Node]:
    """What the tape keeps: every forward value that the vjp rules' functions read, by the memory it lies in."""
    reads = {i for n in joint.backward | joint.between for i in n.all_input_nodes}
    reads |= {n for n in joint.gradients if isinstance(n, Node)}
    return {base(n) for n in reads & joint.forward}


# --- time -------------------------------------------------------------------------------------------------------------
def moved_bytes(n: Node) -> int:
    """Bytes read and written by running ``n`` alone; a gather reads no more than it writes."""
    out = meta.nbytes(n.meta.get("val"))
    reads = [meta.nbytes(i.meta.get("val")) for i in n.all_input_nodes]
    if isinstance(n.target, Op) and n.target.kind == "index":
        reads = [min(r, out) for r in reads]
    return out + sum(reads)


def flops(n: Node) -> int:
    """Arithmetic of a contraction: two per element of the result and of the summed axis (attention is two of them);
    else one per element."""
    val = n.meta.get("val")
    out = sum(map(meta.numel, val)) if isinstance(val, tuple | list) else meta.numel(val) if meta.is_tensor(val) else 0
    if isinstance(n.target, Op) and n.target.kind == "contract":
        return 2 * out * meta.hint(n.args[0].meta["val"]._data.shape[-1])
    if isinstance(n.target, Op) and n.target.name == "attention":
        columns = meta.hint(n.args[1].meta["val"]._data.shape[2])
        return 2 * columns * (meta.numel(n.args[0].meta["val"]) + out)
    return out


def runtime(n: Node) -> float:
    """Nanoseconds to run ``n`` alone; views are free."""
    if n.op != "call_function" or is_view(n) or is_item(n):
        return 0.0
    return max(flops(n) / FLOPS_PER_NS, moved_bytes(n) / BYTES_PER_NS)


def is_expensive(n: Node) -> bool:
    """Not to be computed twice unless memory is short: by its row, or because saving its small result is better."""
    if is_given(n) or n.meta.get("recompute") == "must":
        return False
    if n.meta.get("recompute") == "never":
        return True
    if not isinstance(n.target, Op):
        return False
    if n.target.recompute == "save":
        return not outgrows(n)
    return n.target.kind in ("reduce", "scan") and meta.nbytes(n.meta.get("val")) * REDUCES <= moved_bytes(n)


def outgrows(n: Node) -> bool:
    """A product of two activations much larger than these, such as the scores of attention: flash attention computes
    them again, and where bytes are dear enough, so do we."""
    if not isinstance(n.target, Op) or n.target.kind != "contract" or any(is_given(base(i)) for i in n.all_input_nodes):
        return False
    return meta.nbytes(n.meta.get("val")) >= GROWS * sum(meta.nbytes(i.meta.get("val")) for i in n.all_input_nodes)


def is_fusible(n: Node) -> bool:
    """Runs inside another kernel, so that its result need not reach memory."""
    return isinstance(n.target, Op) and n.target.kind in ("pointwise", "view", "create", "random")


def stays_in_registers(joint: Joint, n: Node) -> bool:
    """Whether the forward would not write ``n`` to memory unless it is saved: all its users there fuse with it."""
    users = [u for u in n.users if u in joint.forward]
    return is_fusible(n) and all(is_fusible(u) for u in users) and n not in joint.forward_outputs


def again_bytes(joint: Joint, n: Node) -> int:
    """What computing ``n`` again in backward costs, as bytes of traffic: a little arithmetic if it fuses with all its
    users, also a write if not; the whole of its time if it is expensive, and more than its bytes if random."""
    if n.op != "call_function" or is_view(n) or is_item(n):
        return 0
    if is_expensive(n) or outgrows(n):
        return int(runtime(n) * BYTES_PER_NS)
    out = meta.nbytes(n.meta.get("val"))
    work = out if isinstance(n.target, Op) and n.target.kind == "random" else out // 16
    written = not is_fusible(n) or any(not is_fusible(u) for u in n.users if u not in joint.forward)
    return work + (out if written else 0)
