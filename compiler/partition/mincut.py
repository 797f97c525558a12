"""Which values to save: a minimum cut through the joint graph.

Stage: partition.  In: a joint graph.  Out: the set of forward values to save, and the two graphs.
Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, posed as a cut as PyTorch's partitioner does.
Read next: ``budget`` (less memory for more time), ``report``.

Every tangent-free node v is split into ``v in -> v out``:

    source ──▶ v in    capacity: the price of computing v again in backward; infinite if that is not allowed
    v in ──▶ v out     capacity: the price of saving v; infinite for views and tuples, which are not saved
    v out ──▶ w in     infinite: to compute w again, v must be there
    v out ──▶ sink     infinite, if backward reads v

What the cut leaves on the sink's side is present in backward: saved if only ``v out`` is there, computed again if both
are.  Prices are bytes: one byte of memory until backward is worth ``WEIGHT`` bytes of traffic (``cost``), or, where
memory is all that counts (``exact``), more than any traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.ir.graph import Graph, Node, map_nodes, nodes_in
from compiler.ir.meta import loose_sizes, nbytes
from compiler.ir.module import GraphModule
from compiler.partition import cost
from compiler.partition.cost import Joint
from compiler.partition.flow import INF, Network

WEIGHT = 8
EXACT = 1 << 60  # one byte of memory outweighs all traffic together


@dataclass(frozen=True)
class Cut:
    """``saved``: forward values kept for backward.  ``recomputed``: forward values computed again there."""

    saved: frozenset[Node]
    recomputed: frozenset[Node]

    @property
    def bytes(self) -> int:
        return cost.total_bytes(self.saved)


def find_cut(joint: Joint, keep: Iterable[Node] = (), *, exact: bool = False, frugal: bool = False) -> Cut:
    """The cheapest set to save.

    ``keep`` is never computed again; ``exact`` minimises bytes alone; ``frugal`` does, and lifts the ban on expensive
    nodes.
    """
    prices = Prices(joint, frozenset(keep), EXACT if exact or frugal else WEIGHT, frugal)
    free = joint.forward | joint.between
    net = Network()
    net.node("source")
    net.node("sink")
    for n in joint.graph.nodes:
        if n not in free:
            continue
        again = prices.again(n)
        if again:
            net.edge("source", (n, "in"), again)
        net.edge((n, "in"), (n, "out"), prices.saved(n))
        for user in n.users:
            if user in free:
                net.edge((n, "out"), (user, "in"), INF)
    for n in joint.demanded():
        net.edge((n, "out"), "sink", INF)
    if net.max_flow("source", "sink") >= INF:
        raise ValueError("no partition: a value that may not be recomputed cannot be saved either")
    there = net.sink_side("sink")
    present = [n for n in joint.graph.nodes if (n, "out") in there]
    saved = frozenset(n for n in present if (n, "in") not in there)
    return Cut(saved, frozenset(n for n in present if n not in saved and n in joint.forward and not cost.is_given(n)))


@dataclass(frozen=True)
class Prices:
    """What the two fates of a value cost."""

    joint: Joint
    keep: frozenset[Node]
    weight: int
    frugal: bool

    def saved(self, n: Node) -> int:
        if not cost.can_save(n):
            return INF
        written = 0 if cost.is_given(n) or not cost.stays_in_registers(self.joint, n) else nbytes(n.meta.get("val"))
        return cost.saved_bytes(n) * self.weight + written + 1

    def again(self, n: Node) -> int:
        """Zero for constants, which are there already, and for what only backward wants: that is computed for the
        first time then."""
        if n.op == "get_attr" or (n in self.joint.between and n not in self.keep):
            return 0
        if n.op == "placeholder" or n in self.keep or n.meta.get("recompute") == "never":
            return INF
        if cost.is_expensive(n) and not self.frugal:
            return INF
        return cost.again_bytes(self.joint, n) + 1


# --- building the two graphs ------------------------------------------------------------------------------------------
def split(module: GraphModule, joint: Joint, cut: Cut) -> tuple[GraphModule, GraphModule]:
    """The forward, whose outputs are the results and the saved values, and the backward, which takes the saved values
    and the tangents.  Nodes that backward computes again stand right before their first use."""
    saved = in_order(joint, cut)
    backward = _backward_graph(joint, saved)
    sizes = loose_sizes(backward, (n for n in joint.graph.nodes if n in joint.forward))
    forward = Graph()
    done: dict[Node, Node] = {}
    for p in joint.inputs:
        done[p] = forward.node_copy(p)
    results = [*joint.forward_outputs, *saved]
    emit(forward, done, nodes_in(results))
    forward.output((*map_nodes(tuple(results), done.__getitem__), *sizes.values()))
    fw = GraphModule(module.attributes, forward, "Forward")
    bw = GraphModule(module.attributes, backward, "Backward")
    return fw, bw


def in_order(joint: Joint, cut: Cut) -> list[Node]:
    """What is saved, in the order of the graph."""
    return [n for n in joint.graph.nodes if n in cut.saved]


def _backward_graph(joint: Joint, saved: list[Node]) -> Graph:
    graph = Graph()
    done: dict[Node, Node] = {}
    for n in (*saved, *joint.tangents):
        new = graph.placeholder(n.name)
        new.meta = dict(n.meta)
        done[n] = new
    for n in joint.graph.nodes:
        if n in joint.backward and n not in done:
            emit(graph, done, [n])
    emit(graph, done, nodes_in(joint.gradients))
    for n, new in done.items():
        if n in joint.forward and new.op == "call_function":
            new.meta["recomputed"] = True
    graph.output(map_nodes(tuple(joint.gradients), done.__getitem__))
    return graph


def emit(graph: Graph, done: dict[Node, Node], wanted: list[Node]) -> None:
    """Copy ``wanted`` and what they need, operands first."""
    stack = list(reversed(wanted))
    while stack:
        n = stack[-1]
        missing = [i for i in n.all_input_nodes if i not in done] if n not in done else []
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if n not in done:
            done[n] = graph.node_copy(n, done.__getitem__)
