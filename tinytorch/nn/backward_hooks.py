"""Full backward hooks of a Module: what flows back into its outputs and out of its inputs.

Stage: eager.  In: a module's inputs and outputs.  Out: the same values behind two identity nodes on the tape, one in
front of the module and one behind it, that tell the hooks of the gradients.  Mirrors
``torch.utils.hooks.BackwardHook``.  Read next: ``module``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytorch import tape
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

module_boundary = Op(
    name="module_boundary",
    kind="extern",
    infer=lambda *xs: xs,
    doc="the tape's name for the identity around a module with backward hooks; never run",
)


class BackwardHooks:
    """The hooks of one call of one module."""

    def __init__(self, module: Any, hooks: list[Callable[..., Any]], pre_hooks: list[Callable[..., Any]]) -> None:
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_output: tuple[Any, ...] = ()
        self.has_inputs = False

    def watch_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``args`` whose gradients the hooks will be given."""
        out, node, places = _boundary(args)
        self.has_inputs = node is not None
        if node is not None:
            node.register_prehook(lambda grads: self._on_inputs(grads, places, len(args)))
        return tuple(out)

    def watch_outputs(self, result: Any) -> Any:
        """``result`` whose gradients the hooks will be given."""
        many = isinstance(result, tuple | list)
        out, node, places = _boundary(result if many else (result,))
        if node is not None:
            size = len(out)
            node.register_prehook(lambda grads: self._on_outputs(grads, places, size))
        return type(result)(out) if many else out[0]

    def _on_outputs(self, grads: tuple[Any, ...], places: list[int], size: int) -> tuple[Any, ...]:
        full = _spread(grads, places, size)
        for hook in self.pre_hooks:
            changed = hook(self.module, full)
            if changed is not None:
                full = changed if isinstance(changed, tuple) else (changed,)
        self.grad_output = full
        if not self.has_inputs:  # nobody below will call: no input requires a gradient
            for hook in self.hooks:
                hook(self.module, (), full)
        return tuple(full[i] for i in places)

    def _on_inputs(self, grads: tuple[Any, ...], places: list[int], size: int) -> tuple[Any, ...]:
        full = _spread(grads, places, size)
        for hook in self.hooks:
            changed = hook(self.module, full, self.grad_output)
            if changed is not None:
                full = changed if isinstance(changed, tuple) else (changed,)
        return tuple(full[i] for i in places)


def _boundary(values: Sequence[Any]) -> tuple[list[Any], tape.Node | None, list[int]]:
    """The values with those tensors that require grad behind one identity node, the node, and their places."""
    out = list(values)
    places = [i for i, v in enumerate(out) if isinstance(v, Tensor) and v.requires_grad]
    if not places or not tape.mode.grad:
        return out, None, places
    inside = [out[i] for i in places]
    fresh = [t.detach() for t in inside]
    single = len(places) == 1
    fns: list[Any] = [(lambda g: g) if single else (lambda g, k=k: g[k]) for k in range(len(places))]
    node = tape.attach(module_boundary, fns, inside, fresh, ())
    for place, t in zip(places, fresh, strict=True):
        out[place] = t
    return out, node, places


def _spread(grads: tuple[Any, ...], places: list[int], size: int) -> tuple[Any, ...]:
    full: list[Any] = [None] * size
    for place, g in zip(places, grads, strict=True):
        full[place] = g
    return tuple(full)
