"""Gradients checked against finite differences, to first and second order: the universal oracle of rules.

Stage: eager.  In: a function of float64 (or complex128) tensors.  Out: True, or ``GradcheckError`` that shows both
Jacobians.  Mirrors ``torch.autograd.gradcheck``.  Central differences; complex numbers are varied in both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinytorch import autograd, ops
from tinytorch.functions import creation
from tinytorch.tape import grad_mode
from tinytorch.tensor import Tensor


class GradcheckError(RuntimeError):
    """The two Jacobians differ."""


def _outputs(result: Any) -> list[Tensor]:
    found = [result] if isinstance(result, Tensor) else list(result)
    return [o for o in found if isinstance(o, Tensor) and o._is_differentiable() and o.requires_grad]


def _reals(x: Tensor) -> Any:
    """The elements as one real vector: real parts, then imaginary ones."""
    flat = x.detach().contiguous().cpu().numpy().reshape(-1)
    return np.concatenate([flat.real, flat.imag]) if flat.dtype.kind == "c" else flat.astype(np.float64)


def _numerical(fn: Callable[..., Any], inputs: Sequence[Any], x: Tensor, which: int, eps: float) -> Any:
    """d output / d x by central differences: [real elements of x, real elements of the output]."""
    data = x._data
    steps = [eps] if data.dtype.kind == "f" else [eps, 1j * eps]
    rows = []
    for step in steps:
        for place in np.ndindex(data.shape):
            kept = data[place]
            values = []
            for way in (step, -step):
                data[place] = kept + way
                with grad_mode(True):
                    values.append(_reals(_outputs(fn(*inputs))[which]))
            data[place] = kept
            rows.append((values[0] - values[1]) / (2 * eps))
    return np.stack(rows) if rows else np.zeros((0, 0))


def _analytical(output: Tensor, x: Tensor) -> Any:
    """The same matrix by one backward per real element of the output."""
    columns = []
    parts = [1.0] if not output.dtype.is_complex else [1.0, 1j]
    n = output.numel()
    for part in parts:
        for i in range(n):
            seed = np.zeros(n, output._data.dtype)
            seed[i] = part
            g = creation.fresh(seed, output.device).reshape(output.shape)
            (found,) = autograd.grad(output, x, g, retain_graph=True, allow_unused=True)
            size = x.numel() * (2 if x.dtype.is_complex else 1)
            columns.append(np.zeros(size) if found is None else _reals(found))
    return np.stack(columns, 1) if columns else np.zeros((0, 0))


def gradcheck(
    func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    raise_exception: bool = True, **_: Any,
) -> bool:  # fmt: skip
    """Whether the gradients of ``func`` by all inputs that require grad agree with finite differences."""
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    wanted = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    outputs = _outputs(func(*inputs))
    for k, output in enumerate(outputs):
        for i, x in wanted:
            ours, theirs = _analytical(output, x), _numerical(func, inputs, x, k, eps)
            if ours.size == theirs.size == 0:
                continue
            if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol, atol):
                if not raise_exception:
                    return False
                raise GradcheckError(
                    f"Jacobian mismatch for output {k} with respect to input {i},\nnumerical:{theirs}\nanalytical:{ours}\n"
                )
    return True


def gradgradcheck(
    func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, raise_exception: bool = True, **_: Any,
) -> bool:  # fmt: skip
    """Whether the gradients of the gradients agree with finite differences too."""
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = _outputs(func(*inputs))
    if grad_outputs is None:
        grad_outputs = tuple(_cotangent(o, k) for k, o in enumerate(outputs))
    n = len(inputs)

    def gradients(*given: Any) -> Any:
        xs, gs = given[:n], given[n:]
        wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        with grad_mode(True):
            outs = _outputs(func(*xs))
            found = autograd.grad(outs, wanted, gs, create_graph=True, allow_unused=True)
        return tuple(g if g is not None else ops.mul(x, 0.0) for g, x in zip(found, wanted, strict=True))

    return gradcheck(
        gradients, (*inputs, *grad_outputs), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception
    )


def _cotangent(output: Tensor, k: int) -> Tensor:
    values = np.random.default_rng(k).standard_normal(tuple(output.shape))
    return creation.fresh(np.asarray(values).astype(output._data.dtype), output.device).requires_grad_()
