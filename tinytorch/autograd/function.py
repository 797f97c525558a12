"""``Function``: a forward and a backward of one's own, as one node on the tape.

Stage: eager.  In: a subclass with ``forward`` and ``backward`` (and maybe ``setup_context``).  Out: ``apply``.
Mirrors ``torch.autograd.Function``.  The forward runs unrecorded; the backward is ordinary code on tensors, so double
backward follows where it uses differentiable operations.  Read next: ``engine``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tinytorch import tape
from tinytorch.engine import fit
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.tape import Node, wants_grad
from tinytorch.tensor import Tensor

custom_function = Op(
    name="custom_function",
    kind="extern",
    infer=lambda *xs: xs,
    doc="the tape's name for a user's autograd.Function; never run itself",
)


class FunctionNode(Node):
    """The node of a custom function, named after its class."""

    ctx: Any
    title: str

    def name(self) -> str:
        return f"{self.title}Backward"


class FunctionCtx:
    """What ``forward`` leaves for ``backward``.  Attributes may be set freely."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.materialize_grads = True
        self.to_save: tuple[Any, ...] = ()
        self.dirty: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self._saved: list[Any] | None = None  # (tensor, None) or (alias of an output, its number)
        self._node: Any = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or outputs; a later in-place change of one makes backward raise."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Forward-mode differentiation is not there: nothing is kept."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were changed in place."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These outputs have no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether absent cotangents come as zeros (True, the default) or as None."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What ``save_for_backward`` kept; RuntimeError once it was freed."""
        if self._saved is None:
            if self._node is None:
                return self.to_save
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Specify retain_graph=True if you need to backward through the graph a second time."
            )
        return tuple(self._unpacked(t, number) for t, number in self._saved)

    def _unpacked(self, t: Any, number: int | None) -> Any:
        """An output comes back with its history, which keeping it would have made a cycle."""
        node = None if self._node is None else self._node()
        if number is not None and node is not None and tape.mode.grad:
            t._set_history(node, number)
        return t

    def _pack(self, outs: Sequence[Any], node: Node) -> None:
        places = {id(o): i for i, o in enumerate(outs)}
        packed: list[Any] = []
        for t in self.to_save:
            number = places.get(id(t)) if isinstance(t, Tensor) else None
            packed.append((t if number is None else t._alias(), number))
        self._saved, self._node, self.to_save = packed, weakref.ref(node), ()
        node.saved = [(t, t._version) for t, _ in packed if isinstance(t, Tensor)]


class Function:
    """Subclass it with static methods ``forward(ctx, *args)`` and ``backward(ctx, *grads)``; call ``apply``.

    ``backward`` returns one gradient (or None) per argument of ``forward``.  With a ``setup_context(ctx, inputs,
    output)`` the forward takes no ctx.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward, and put a node behind its outputs if an input requires grad."""
        needs = tuple(wants_grad(a) for a in args)
        ctx = FunctionCtx(needs)
        recording = tape.mode.grad and any(needs)
        with tape.grad_mode(False):
            if cls.setup_context is Function.setup_context:
                result = cls.forward(ctx, *args)
            else:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
        if not recording:
            return result
        for t in ctx.dirty:
            tape.check_write(t)
        outs = list(result) if isinstance(result, tuple) else [result]
        outs = [_own(o, args, ctx) for o in outs]
        _attach(cls, ctx, args, needs, outs)
        return tuple(outs) if isinstance(result, tuple) else outs[0]


def _is(t: Any, tensors: Sequence[Any]) -> bool:
    return any(t is k for k in tensors)


def _own(o: Any, args: Sequence[Any], ctx: FunctionCtx) -> Any:
    """An output that is an input (unless changed in place) or has a history becomes another tensor of that memory."""
    if not isinstance(o, Tensor) or _is(o, ctx.dirty):
        return o
    if _is(o, args) or o._base is not None:
        fresh = o.detach()
        ctx.to_save = tuple(fresh if t is o and not _is(o, args) else t for t in ctx.to_save)
        ctx.non_differentiable = tuple(fresh if t is o else t for t in ctx.non_differentiable)
        return fresh
    return o


def _attach(
    cls: type[Function], ctx: FunctionCtx, args: Sequence[Any], needs: Sequence[bool], outs: list[Any]
) -> None:
    edges = [a._edge() if need else None for a, need in zip(args, needs, strict=True)]
    metas = [(a._data.shape, a._data.dtype) if need else None for a, need in zip(args, needs, strict=True)]
    node = FunctionNode(custom_function, (), edges, metas)
    node.title, node.ctx = cls.__name__, ctx
    node.outputs = len(outs)
    node.out_metas = tuple((o.shape, o.dtype, o.device) if isinstance(o, Tensor) else None for o in outs)
    if tape.mode.anomaly:
        node.stack = tape._forward_stack()
    ctx._pack(outs, node)
    node.whole = functools.partial(_run_backward, cls, ctx, node.out_metas, metas)
    for i, o in enumerate(outs):
        if not isinstance(o, Tensor) or not o._is_differentiable() or _is(o, ctx.non_differentiable):
            continue
        if _is(o, ctx.dirty):
            shown = o._alias()
            shown._set_history(node, i)
            tape.rebase(o, shown)
        else:
            o._set_history(node, i)


def _run_backward(
    cls: type[Function], ctx: FunctionCtx, out_metas: Any, metas: Any, cotangents: list[Any], *modes: bool
) -> list[Any]:
    """The user's backward, its results checked and fitted to the inputs."""
    if ctx.materialize_grads:
        cotangents = [
            TABLE["full"](shape=tuple(m[0]), value=0, dtype=m[1], device=m[2])
            if g is None and m is not None
            else g
            for g, m in zip(cotangents, out_metas, strict=True)
        ]
    grads = cls.backward(ctx, *cotangents)
    grads = list(grads) if isinstance(grads, tuple | list) else [grads]
    name = f"{cls.__name__}Backward"
    while len(grads) > len(metas) and grads[-1] is None:
        grads.pop()
    if len(grads) != len(metas):
        raise RuntimeError(
            f"function {name} returned an incorrect number of gradients (expected {len(metas)}, got {len(grads)})"
        )
    return [_fitted(name, i, g, m) for i, (g, m) in enumerate(zip(grads, metas, strict=True))]


def _fitted(name: str, i: int, g: Any, meta: Any) -> Any:
    if g is None or meta is None:
        return None
    if not isinstance(g, Tensor):
        raise TypeError(f"{name}: expected Variable or None (got {type(g).__name__})")
    shape = meta[0]
    extra = g.ndim - len(shape)
    if extra < 0 or any(a != b and b != 1 for a, b in zip(g.shape[extra:], shape, strict=True)):
        raise RuntimeError(
            f"Function {name} returned an invalid gradient at index {i} - got {list(g.shape)} but expected shape "
            f"compatible with {list(shape)}"
        )
    return fit(g, *meta)


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A backward whose results may not be differentiated again: doing so raises."""

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any) -> Any:
        with tape.grad_mode(False):
            outputs = fn(ctx, *args)
        if not tape.mode.grad or not any(wants_grad(a) for a in args):
            return outputs
        many = isinstance(outputs, tuple)
        fenced = [_fence(o) if isinstance(o, Tensor) else o for o in (outputs if many else (outputs,))]
        return tuple(fenced) if many else fenced[0]

    return wrapper


def _fence(o: Tensor) -> Tensor:
    class DelayedError(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.detach()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            raise RuntimeError(
                "trying to differentiate twice a function that was marked with @once_differentiable"
            )

    return DelayedError.apply(o.detach().requires_grad_())  # type: ignore[no-any-return]
