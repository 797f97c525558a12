"""Checkpointing: keep the inputs of a block instead of what is inside it, and run the block again in backward.

Stage: eager.  In: a function and its inputs.  Out: its outputs, as one node on the tape that holds only the inputs and the
place in the random stream.  Mirrors ``torch.utils.checkpoint`` (Chen et al., 2016).  Read next: ``tape``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytorch import engine, rng, tape
from tinytorch.nn.containers import Sequential
from tinytorch.nn.module import Module
from tinytorch.ops.opdef import Op
from tinytorch.tape import Node
from tinytorch.tensor import Tensor
from tinytorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["checkpoint", "checkpoint_sequential"]

checkpoint_node = Op(
    name="checkpoint",
    kind="extern",
    infer=lambda *xs: xs,
    doc="the tape's name for a block that is run again in backward; never run itself",
)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """``function(*args, **kwargs)``, whose inner results are not kept but computed again in backward.

    With ``preserve_rng_state`` the second run draws the same random numbers.  What the function uses of the program
    besides its arguments gets its gradient too: the first run is recorded, and its record shows where the block begins.
    """
    if not tape.mode.grad:
        return function(*args, **kwargs)
    state = rng.default_generator.get_state() if preserve_rng_state else None
    begin = Node(checkpoint_node, (), (), ()).number
    result = function(*args, **kwargs)
    leaves, spec = tree_flatten(result)
    live = [i for i, o in enumerate(leaves) if isinstance(o, Tensor) and o.requires_grad]
    edges = _ends([leaves[i]._edge() for i in live], begin)
    if not edges:
        return result
    node = Node(checkpoint_node, (), edges, ())
    node.outputs = len(live)
    node.whole = _again(function, args, kwargs, live, [_End(e) for e in edges], state, tape.mode.autocast)
    for number, i in enumerate(live):
        leaves[i] = leaves[i].detach()
        leaves[i]._set_history(node, number)
    return tree_unflatten(leaves, spec)


class _End:
    """A place where the tape of a block begins, as the engine wants it."""

    def __init__(self, edge: Any) -> None:
        self.edge = edge

    def _edge(self) -> Any:
        return self.edge


def _ends(edges: list[Any], begin: int) -> list[Any]:
    """The edges out of what was recorded since ``begin``, each once."""
    found: dict[Any, Any] = {}
    seen: set[Node] = set()
    while edges:
        edge = edges.pop()
        if edge is None:
            continue
        if isinstance(edge, tuple) and edge[0].number > begin:
            if edge[0] not in seen:
                seen.add(edge[0])
                edges += edge[0].edges
        else:
            found.setdefault((id(edge[0]), edge[1]) if isinstance(edge, tuple) else id(edge), edge)
    return list(found.values())


def _again(
    function: Any, args: Any, kwargs: Any, live: list[int], ends: list[Any], state: Tensor | None, autocast: Any
) -> Callable[..., Any]:
    """Runs the block a second time and its backward: from the cotangents of its results to those of all it began with."""

    def run(cotangents: list[Any], create_graph: bool, retain_graph: bool) -> list[Any]:
        now, mode = rng.default_generator.get_state(), tape.mode.autocast
        if state is not None:
            rng.default_generator.set_state(state)
        tape.mode.autocast = autocast
        try:
            with tape.grad_mode(True):
                leaves, _ = tree_flatten(function(*args, **kwargs))
        finally:
            tape.mode.autocast = mode
            if state is not None:
                rng.default_generator.set_state(now)
        pairs = [(leaves[i], g) for i, g in zip(live, cotangents, strict=True) if g is not None]
        roots, given = [o for o, _ in pairs], [g for _, g in pairs]
        return engine.backward(
            roots, given, inputs=ends, accumulate=False, create_graph=create_graph, retain_graph=create_graph, part=True
        )

    return run


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """A Sequential in ``segments`` pieces, each but the last checkpointed."""
    members = list(functions.children()) if isinstance(functions, Module) else list(functions)
    size = len(members) // segments

    def piece(start: int, stop: int) -> Callable[[Any], Any]:
        return Sequential(*members[start:stop])

    for i in range(segments - 1):
        input = checkpoint(piece(i * size, (i + 1) * size), input, **kwargs)
    return piece((segments - 1) * size, len(members))(input)
