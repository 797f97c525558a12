"""Checkpointing: keep the inputs of a block instead of what is inside it, and run the block again in backward.

Stage: eager.  In: a function and its inputs.  Out: its outputs, as one node on the tape that holds only the inputs and the
place in the random stream.  Mirrors ``torch.utils.checkpoint`` (Chen et al., 2016).  Read next: ``tape``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytorch import engine, rng, tape
from tinytorch.nn.containers import Sequential
from tinytorch.nn.module import Module
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

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

    With ``preserve_rng_state`` the second run draws the same random numbers.
    """
    inputs: list[Tensor] = []
    _map(inputs.append, [args, kwargs])
    every = {id(t): t for t in (*inputs, *_closed_over(function))}
    wanted = [t for t in every.values() if t.requires_grad]
    state = rng.default_generator.get_state() if preserve_rng_state else None
    with tape.grad_mode(False):
        result = function(*args, **kwargs)
    if not wanted or not tape.mode.grad:
        return result
    single = isinstance(result, Tensor)
    outs = [result] if single else list(result)
    fresh = [o.detach() if isinstance(o, Tensor) else o for o in outs]
    live = [o for o in fresh if isinstance(o, Tensor)]
    again = _Again(function, args, kwargs, wanted, state, len(live))
    fns: list[Any] = [lambda g, i=i: again.grad(g, i) for i in range(len(wanted))]
    tape.attach(checkpoint_node, fns, wanted, live, ())
    return fresh[0] if single else type(result)(fresh)


class _Again:
    """The second run: on the first question it runs the block and its backward, then answers for every input."""

    def __init__(
        self, function: Any, args: Any, kwargs: Any, wanted: list[Tensor], state: Tensor | None, outputs: int
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.wanted, self.state, self.outputs = wanted, state, outputs
        self.grads: list[Any] | None = None
        self.asked = 0

    def grad(self, g: Any, i: int) -> Any:
        if self.grads is None:
            self.grads = self._run(g if isinstance(g, tuple) else (g,))
        found = self.grads[i]
        self.asked += 1
        if self.asked == len(self.wanted):
            self.grads, self.asked = None, 0
        return found

    def _run(self, cotangents: Sequence[Any]) -> list[Any]:
        now = rng.default_generator.get_state()
        if self.state is not None:
            rng.default_generator.set_state(self.state)
        try:
            stand_in = {id(t): t.detach().requires_grad_() for t in self.wanted if not _is_parameter(t)}
            swap = lambda t: stand_in.get(id(t), t)  # noqa: E731
            args, kwargs = _map(swap, [self.args, self.kwargs])
            with tape.grad_mode(True):
                result = self.function(*args, **kwargs)
        finally:
            if self.state is not None:
                rng.default_generator.set_state(now)
        outs = [o for o in ([result] if isinstance(result, Tensor) else result) if isinstance(o, Tensor)]
        pairs = [(o, g) for o, g in zip(outs, cotangents, strict=True) if g is not None and o.requires_grad]
        leaves: list[Any] = [swap(t) for t in self.wanted]
        if not pairs:
            return [None] * len(leaves)
        return engine.backward(
            [o for o, _ in pairs],
            [g for _, g in pairs],
            inputs=leaves,
            accumulate=False,
            create_graph=tape.mode.grad,
        )


def _map(fn: Callable[[Tensor], Any], value: Any) -> Any:
    """``value`` with ``fn`` applied to the tensors in it, through lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {k: _map(fn, v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(fn, v) for v in value)
    return value


def _is_parameter(t: Tensor) -> bool:
    """Tensors that the block reaches by itself, which cannot be swapped for a stand-in."""
    return t.is_leaf and t.requires_grad


def _closed_over(function: Any) -> list[Tensor]:
    """The trainable tensors that a module, a bound method of one, or a closure brings along."""
    owner = getattr(function, "__self__", function)
    if isinstance(owner, Module):
        return list(owner.parameters())
    found: list[Tensor] = []
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if isinstance(content, Module):
            found += list(content.parameters())
        elif isinstance(content, Tensor) and content.requires_grad:
            found.append(content)
    return found


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
