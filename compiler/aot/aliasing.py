"""What results share: with inputs, with each other, or with nobody.

Stage: aot.  In: the tensors a traced program returned.  Out: for each one how the runtime makes it (``Given``), and the
list of tensors whose values the graph computes.  Eager hands out an input itself, a view of an input, two views of one
block; compiled code must hand out the same, so views are made again at run time, by the very rows that made them, from
the tensor they are views of.  Read next: ``runtime``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compiler.aot import scatter
from compiler.aot.trace import Chain, Tracer
from compiler.errors import InvalidGradError
from compiler.fake import FakeArray
from compiler.ir.graph import Node
from compiler.passes.roots import root
from tinytorch.ops.opdef import TABLE
from tinytorch.tensor import Tensor


@dataclass(frozen=True)
class Given:
    """How one result is made.

    input       input ``index``, seen through ``chain``; ``detached``: without its history
    output      forward output ``index``, likewise
    same        the very object that is result ``index``
    constant    ``value``, no tensor (or a size)
    """

    kind: Literal["input", "output", "same", "constant"]
    index: int = 0
    chain: Chain = ()
    detached: bool = False
    requires_grad: bool = False
    value: Any = None

    @property
    def whole(self) -> bool:
        """The tensor itself."""
        return not self.chain and not self.detached


def classify(tracer: Tracer, inputs: Sequence[Any], given: Sequence[Any]) -> tuple[list[Given], list[Tensor]]:
    """(how each result is made, the tensors the graph must compute)."""
    blocks: dict[int, list[Tensor]] = {}  # memory -> distinct results in it
    for t in given:
        if isinstance(t, Tensor):
            t = _known(tracer, t)
            inside = blocks.setdefault(id(tracer.place(t).memory), [])
            if not any(t is other for other in inside):
                inside.append(t)
    results: list[Given] = []
    tensors: list[Tensor] = []
    bases: dict[int, int] = {}  # memory -> index of the output that is its base
    first: dict[int, int] = {}
    for position, t in enumerate(given):
        if not isinstance(t, Tensor):
            results.append(Given("constant", value=t))
            continue
        t = _known(tracer, t)
        if id(t) in first:
            results.append(Given("same", first[id(t)]))
            continue
        first[id(t)] = position
        at = tracer.place(t)
        origin, chain = tracer.origin(t)
        if origin is not None:
            results.append(_seen(t, "input", origin, chain, inputs[origin]))
            continue
        block = blocks[id(at.memory)]
        if len(block) == 1:
            results.append(Given("output", len(tensors), requires_grad=t.requires_grad))
            tensors.append(t)
            continue
        base = _base_of(tracer, block)
        if id(at.memory) not in bases:
            bases[id(at.memory)] = len(tensors)
            tensors.append(base)
        results.append(_seen(t, "output", bases[id(at.memory)], at.chain, base))
    return results, tensors


def owner(t: Tensor) -> Tensor:
    """The tensor that history is recorded at: the base of a view."""
    return t if t._base is None else t._base


def _known(tracer: Tracer, t: Tensor) -> Tensor:
    """A real tensor returned is a constant of the graph."""
    return tracer.lift(t)


def _seen(t: Tensor, kind: Any, index: int, chain: Chain, of: Tensor) -> Given:
    detached = owner(t) is not owner(of)
    if detached and (owner(t).requires_grad or t.requires_grad):
        raise InvalidGradError(
            "a detached alias was written in place with values that require grad, and is returned: "
            "it has a history that its memory's owner has not"
        )
    return Given(kind, index, chain, detached, t.requires_grad)


def _base_of(tracer: Tracer, block: Sequence[Tensor]) -> Tensor:
    """The tensor that all of a block's results are views of, with a history if any has one."""
    whole = [t for t in block if not tracer.place(t).chain]
    candidates = [*whole, *(t._base for t in block if t._base is not None and not tracer.place(t._base).chain)]
    for t in candidates:
        if t.requires_grad:
            return t
    owners = [_unturned(tracer, owner(t)) for t in block if owner(t).requires_grad]
    turned = [t for t in owners if t is not None]
    if turned:
        return turned[0]
    return candidates[0] if candidates else Tensor._wrap(tracer.place(block[0]).memory.base, block[0].device)


def _unturned(tracer: Tracer, t: Tensor) -> Tensor | None:
    """The whole block with the history of ``t``, if that is all of it, turned in place (``t_``, ``squeeze_``)."""
    if len(tracer.place(t).chain) != len(t._chain):
        return None
    for op, params in t._back:
        t = op(t, **params)
    return t


def separate(tracer: Tracer, tensors: Sequence[Tensor]) -> list[Node]:
    """The node of each output's value, copied where it would share memory with an input or another output."""
    taken: set[Node] = set()
    nodes = []
    for t in tensors:
        node, at = tracer.node_of(t), tracer.place(t)
        if node.meta["val"]._data.strides != t._data.strides:  # what was written there lies otherwise: look at the block
            node = scatter.laid_out(tracer, tracer.replay(at.memory.node, at.chain), t._data)
        owner_node = root(node)
        if owner_node.op in ("placeholder", "get_attr") or owner_node in taken:
            node = _copied(tracer, node, t)
            owner_node = root(node)
        taken.add(owner_node)
        nodes.append(node)
    return nodes


def _copied(tracer: Tracer, node: Node, t: Tensor) -> Node:
    """A copy of a value that lies as ``t`` does: of the part that is seen, or where gaps show, of the whole block."""
    copy = scatter.laid_out(tracer, tracer.emit(TABLE["clone"], node), t._data)
    if copy.meta["val"]._data.strides == t._data.strides:
        return copy
    at = tracer.place(t)
    block = tracer.emit(TABLE["clone"], at.memory.node)
    return tracer.replay(scatter.laid_out(tracer, block, at.memory.base), at.chain)


def separate_gradients(tracer: Tracer, outputs: Sequence[Node], gradients: list[Node | None]) -> None:
    """Gradients are memory of their own too; only a cotangent handed on as it is stays itself."""
    taken: set[Node] = set()
    for i, node in enumerate(gradients):
        if node is None or node.name.startswith("tangents_") or node in gradients[:i]:
            continue
        at = root(node)
        if at.op in ("placeholder", "get_attr") or at in taken or node in outputs or not _is_dense(node.meta["val"]._data):
            gradients[i] = node = tracer.emit(TABLE["clone"], node)
            at = node
        taken.add(at)


def fresh_like(t: Tensor) -> Any:
    """A fake array of its own memory, laid out as ``t`` if that is dense, else contiguous."""
    data = t._data
    return FakeArray(data.shape, data.dtype, data.strides if _is_dense(data) else None)


def _is_dense(data: Any) -> bool:
    """Whether the elements lie side by side, in whatever order."""
    order = sorted(range(len(data.shape)), key=lambda d: -scatter._number(data.strides[d]))
    step: Any = data.dtype.itemsize
    for d in reversed(order):
        if isinstance(data.shape[d], int) and data.shape[d] == 1:
            continue
        if data.strides[d] != step:
            return False
        step = step * data.shape[d]
    return True
