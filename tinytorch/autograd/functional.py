"""Derivatives of functions: ``jacobian``, ``hessian``, and their products with vectors.  Mirrors
``torch.autograd.functional``.

Stage: eager.  In: a function of tensors and its arguments.  Out: its derivatives there, with a history of their own under
``create_graph``.  Forward products use the double backward trick: the derivative of vjp(v) by v.  Read next: ``engine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytorch import engine
from tinytorch.functions.creation import ones_like, zeros_like
from tinytorch.functions.shape import stack
from tinytorch.grad_mode import enable_grad
from tinytorch.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


# --- tuples in, tuples out --------------------------------------------------------------------------------------------
def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _like(parts: tuple[Any, ...], x: Any) -> Any:
    """A single value where ``x`` was one."""
    return parts if isinstance(x, tuple | list) else parts[0]


def _fresh(inputs: Any, keep: bool) -> tuple[Tensor, ...]:
    """Inputs to differentiate by: views that keep the history, or leaves without one."""
    return tuple(x.view_as(x) if keep and x.requires_grad else x.detach().requires_grad_() for x in _tuple(inputs))


def _call(func: Callable[..., Any], xs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...]]:
    out = func(*xs)
    for y in _tuple(out):
        if not isinstance(y, Tensor):
            raise TypeError(f"The outputs of the user-provided function must be Tensors, but got {type(y).__name__}")
    return out, _tuple(out)


def _grad(
    ys: tuple[Tensor, ...], xs: tuple[Tensor, ...], vs: Any, create: bool, strict: bool
) -> tuple[Tensor, ...]:
    """vjp with zeros where an input had no influence; RuntimeError for that if ``strict``."""
    used = [(y, v) for y, v in zip(ys, vs, strict=True) if y.requires_grad]
    found: list[Any] = [None] * len(xs)
    if used:
        found = engine.backward(
            [y for y, _ in used],
            [v for _, v in used],
            retain_graph=True,
            create_graph=create,
            inputs=list(xs),
            accumulate=False,
        )
    if strict and any(g is None for g in found):
        raise RuntimeError("The output of the user-provided function is independent of one input (strict mode)")
    return tuple(zeros_like(x) if g is None else g for g, x in zip(found, xs, strict=True))


def _finish(parts: tuple[Tensor, ...], keep: bool) -> tuple[Tensor, ...]:
    return parts if keep else tuple(p.detach() for p in parts)


def _vectors(v: Any, like: tuple[Tensor, ...], what: str) -> tuple[Tensor, ...]:
    """The given vectors, ones for a single number without; RuntimeError for other shapes."""
    if v is None:
        if len(like) > 1 or like[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if the {what} is a single Tensor with one element")
        return (ones_like(like[0]),)
    vs = _tuple(v)
    if [tuple(a.shape) for a in vs] != [tuple(b.shape) for b in like]:
        raise RuntimeError(f"v has invalid size: should be the {what}'s shapes")
    return vs


# --- products ---------------------------------------------------------------------------------------------------------
def vjp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(outputs, v^T J)."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        out, ys = _call(func, xs)
        grads = _grad(ys, xs, _vectors(v, ys, "output"), create_graph, strict)
    return _like(_finish(ys, create_graph), out), _like(_finish(grads, create_graph), inputs)


def jvp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(outputs, J v)."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        out, ys = _call(func, xs)
        vs = _vectors(v, xs, "input")
        us = tuple(zeros_like(y).requires_grad_() for y in ys)
        back = _grad(ys, xs, us, True, strict)
        result = _grad(back, us, vs, create_graph, False)
    return _like(_finish(ys, create_graph), out), _like(_finish(result, create_graph), out)


def vhp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(output, v^T H) of a function with one number as output."""
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        out, ys = _call(func, xs)
        first = _grad(_scalar(ys), xs, (ones_like(ys[0]),), True, strict)
        second = _grad(first, xs, _vectors(v, xs, "input"), create_graph, False)
    return _like(_finish(ys, create_graph), out), _like(_finish(second, create_graph), inputs)


def hvp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(output, H v); H is symmetric, so ``vhp`` is the same number cheaper."""
    return vhp(func, inputs, v, create_graph, strict)


def _scalar(ys: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if len(ys) != 1 or ys[0].numel() != 1:
        raise RuntimeError("The output of the user-provided function should be a single Tensor with one element")
    return ys


# --- whole matrices ---------------------------------------------------------------------------------------------------
def jacobian(
    func: Any, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Every output by every input: shape ``output.shape + input.shape``, a tuple per output of one per input.

    One backward per element of the outputs (``vectorize`` and ``strategy`` promise only speed).
    """
    with enable_grad():
        xs = _fresh(inputs, create_graph)
        out, ys = _call(func, xs)
        rows = [_like(_of_one(y, xs, create_graph, strict), inputs) for y in ys]
    return _like(tuple(rows), out)


def _of_one(y: Tensor, xs: tuple[Tensor, ...], create: bool, strict: bool) -> tuple[Tensor, ...]:
    flat = y.reshape(-1)
    rows = [_grad((e,), xs, (ones_like(e),), create, strict) for e in flat.unbind(0)]
    blocks = [
        stack(column).reshape(*y.shape, *x.shape) if rows else zeros_like(y.reshape(*y.shape, *[1] * x.ndim) * x)
        for column, x in zip(zip(*rows, strict=True) if rows else [()] * len(xs), xs, strict=True)
    ]
    return _finish(tuple(blocks), create)


def hessian(
    func: Any, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The second derivatives of a function with one number as output: the jacobian of its gradient."""

    def gradient(*xs: Tensor) -> Any:
        _, ys = _call(func, xs)
        return _like(_grad(_scalar(ys), xs, (ones_like(ys[0]),), True, strict), inputs)

    return jacobian(gradient, inputs, create_graph, strict)
