"""Regions: a block that repeats is compiled once and called many times.

Stage: capture.  In: a captured graph in which calls of functions marked ``nested_compile_region`` are known.  Out: one
callable for the graph, made of pieces: each such call is a piece, and so is what lies between.  Pieces of equal structure
over inputs of equal kind share one compilation.  Autograd joins the pieces, as it would join compiled functions.
A graph that cannot be cut (gradients taken inside, writes, symbolic sizes, views across a cut) is compiled as one.
Read next: ``session``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler import logs
from compiler.capture.guards import compile_text
from compiler.ir.graph import Graph, Node, map_nodes, nodes_in
from compiler.ir.module import GraphModule
from compiler.sym.env import SymInt
from tinytorch import autograd, grad_mode, tape
from tinytorch.tensor import Tensor

Backend = Callable[[Any, Sequence[Any]], Callable[..., Any]]


@dataclass
class Piece:
    """Consecutive nodes; ``region`` numbers the call they belong to, None between calls."""

    region: int | None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)


def compile_graph(gm: GraphModule, examples: Sequence[Any], backend: Backend) -> Callable[..., Any]:
    """``backend(gm, examples)``, with a compilation for each different region."""
    if not any("call_region" in n.meta for n in gm.graph.nodes):
        return backend(gm, examples)
    pieces = cut(gm.graph)
    why = obstacle(gm.graph, pieces)
    if why:
        logs.log("capture", f"{gm.class_name}: regions are compiled with the rest: {why}")
        return backend(gm, examples)
    given = dict(zip(gm.graph.placeholders, examples, strict=True))
    made: dict[Any, Callable[..., Any]] = {}
    compiled = []
    for piece in pieces:
        key = structure(piece)
        if key not in made:
            inputs = [given[n] if n in given else example(n) for n in piece.inputs]
            made[key] = backend(module_of(piece, f"{gm.class_name}_{len(made)}"), inputs)
        compiled.append(made[key])
    gm.meta["regions"] = {"calls": sum(p.region is not None for p in pieces), "compiled": len(made)}
    return stitched(gm, pieces, compiled)


def cut(graph: Graph) -> list[Piece]:
    """The graph's calls in order, in pieces that know what comes in and goes out."""
    pieces: list[Piece] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        region = node.meta.get("call_region")
        if not pieces or pieces[-1].region != region:
            pieces.append(Piece(region))
        pieces[-1].nodes.append(node)
    for piece in pieces:
        own = set(piece.nodes)
        read = [n for node in piece.nodes for n in nodes_in((node.args, node.kwargs)) if n not in own]
        piece.inputs = list(dict.fromkeys(read))
        piece.outputs = [n for n in piece.nodes if any(user not in own for user in n.users)]
    return pieces


def obstacle(graph: Graph, pieces: list[Piece]) -> str:
    """Why the graph is to stay whole, or nothing."""
    calls = [p.region for p in pieces if p.region is not None]
    if len(calls) != len(set(calls)):
        return "a region is not in one piece"
    for node in graph.nodes:
        if node.target is autograd.grad:
            return "gradients are taken inside"
        if "writes" in node.meta or node.op not in ("placeholder", "output") and node.is_impure() and "impure" not in node.meta:
            return f"{node.name} writes"
        if node.target is grad_mode.set_mode:
            return "a mode is switched"
        if any(isinstance(leaf, SymInt) for leaf in _leaves((node.args, node.kwargs))) or _is_symbolic(node.meta.get("val")):
            return "its sizes are symbolic"
    for piece in pieces:
        crossing = [n.meta.get("val") for n in piece.inputs if n.op != "placeholder"]
        if not all(isinstance(v, Tensor) and v._base is None for v in crossing):
            return "a view, or something that is no tensor, crosses its border"
    return ""


def _leaves(arg: Any) -> list[Any]:
    if isinstance(arg, tuple | list):
        return [leaf for a in arg for leaf in _leaves(a)]
    if isinstance(arg, dict):
        return [leaf for a in arg.values() for leaf in _leaves(a)]
    return _leaves((arg.start, arg.stop, arg.step)) if isinstance(arg, slice) else [arg]


def _is_symbolic(val: Any) -> bool:
    if isinstance(val, tuple | list):
        return any(map(_is_symbolic, val))
    return isinstance(val, SymInt) or isinstance(val, Tensor) and not all(type(s) is int for s in val._data.shape)


def example(node: Node) -> Tensor:
    """What a piece is told of a value that another piece makes."""
    val = node.meta["val"]
    out = Tensor._wrap(val._data, val.device)
    out._requires_grad = val.requires_grad
    if val.requires_grad:
        out._set_history(tape.Node(_PIECE, [], [], []), 0)
    return out


class _PieceOp:
    """Stands for the piece that made an input."""

    name = "input"
    vjp = None


_PIECE: Any = _PieceOp()


# --- equal pieces -----------------------------------------------------------------------------------------------------
def structure(piece: Piece) -> Any:
    """Equal for pieces that one compilation serves."""
    number = {n: i for i, n in enumerate([*piece.inputs, *piece.nodes])}
    nodes = tuple(
        (n.op, n.target if isinstance(n.target, str) else id(n.target), _frozen((n.args, n.kwargs), number), _marks(n))
        for n in piece.nodes
    )
    return nodes, tuple(map(_kind, piece.inputs)), tuple(number[n] for n in piece.outputs)


def _frozen(arg: Any, number: dict[Node, int]) -> Any:
    if isinstance(arg, Node):
        return "node", number[arg]
    if isinstance(arg, tuple | list):
        return type(arg).__name__, tuple(_frozen(a, number) for a in arg)
    if isinstance(arg, dict):
        return "dict", tuple((k, _frozen(v, number)) for k, v in arg.items())
    if isinstance(arg, slice):
        return "slice", _frozen((arg.start, arg.stop, arg.step), number)
    return type(arg).__name__, arg if isinstance(arg, int | float | str | None) else id(arg), str(arg)


def _marks(n: Node) -> Any:
    return n.meta.get("recompute"), n.meta.get("region") is not None


def _kind(n: Node) -> Any:
    val = n.meta["val"]
    data = val._data
    history = n.op != "placeholder" or val._node is not None
    return tuple(data.shape), tuple(data.strides), str(data.dtype), str(val.device), val.requires_grad, history


def module_of(piece: Piece, name: str) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for n in piece.inputs:
        copies[n] = graph.placeholder(n.name)
        copies[n].meta.update(n.meta)
    for n in piece.nodes:
        copies[n] = graph.node_copy(n, copies.__getitem__)
    graph.output(tuple(copies[n] for n in piece.outputs))
    for n in piece.inputs:
        copies[n].meta["val"] = n.meta["val"] if n.op == "placeholder" else example(n)
    return GraphModule({}, graph, name)


def stitched(gm: GraphModule, pieces: list[Piece], compiled: list[Callable[..., Any]]) -> Callable[..., Any]:
    """A function that runs the pieces one after another."""
    lines = []
    for i, piece in enumerate(pieces):
        targets = "".join(f"{n.name}, " for n in piece.outputs)
        call = f"piece_{i}({', '.join(n.name for n in piece.inputs)})"
        lines.append(f"{targets.strip()} = {call}" if targets else call)
        dead = [n for n in {*piece.inputs, *piece.outputs} if _last_use(n, pieces, i) and not _is_output(n)]
        lines += [f"del {', '.join(n.name for n in sorted(dead, key=str))}"] if dead else []
    parts: list[str] = []
    map_nodes(gm.graph.output_node.args[0], lambda n: parts.append(n.name))
    lines.append(f"return ({''.join(p + ', ' for p in parts)})")
    header = f"def run({', '.join(p.name for p in gm.graph.placeholders)}):\n"
    text = header + "".join(f"    {line}\n" for line in lines)
    return compile_text(text, f"<regions of {gm.class_name}>", {f"piece_{i}": fn for i, fn in enumerate(compiled)}, "run")  # type: ignore[no-any-return]


def _last_use(n: Node, pieces: list[Piece], i: int) -> bool:
    return not any(n in later.inputs for later in pieces[i + 1 :])


def _is_output(n: Node) -> bool:
    return any(user.op == "output" for user in n.users)
