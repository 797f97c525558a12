"""``tinytorch.autograd``: gradients by request.  Mirrors ``torch.autograd``.

Stage: eager.  In: tensors with a history.  Out: gradients.  Read next: ``tape``, ``autograd.function``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tinytorch import engine
from tinytorch.autograd import anomaly as anomaly_mode
from tinytorch.autograd import function
from tinytorch.autograd.anomaly import detect_anomaly, set_detect_anomaly
from tinytorch.autograd.function import Function
from tinytorch.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from tinytorch.tensor import Tensor

Variable = Tensor

__all__ = [
    "Function", "Variable", "anomaly_mode", "backward", "detect_anomaly", "enable_grad", "function", "grad",
    "gradcheck", "gradgradcheck", "inference_mode", "no_grad", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip


def _list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, Sequence) else [x]


def backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Accumulate the gradients of ``tensors`` into leaves.  Mirrors ``torch.autograd.backward``."""
    roots = _list(tensors)
    given = [None] * len(roots) if grad_tensors is None else _list(grad_tensors)
    keep = create_graph if retain_graph is None else retain_graph
    engine.backward(
        roots,
        given,
        retain_graph=keep,
        create_graph=create_graph,
        inputs=None if inputs is None else _list(inputs),
    )


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    only_inputs: bool = True, allow_unused: bool | None = None, is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of ``outputs`` by ``inputs``, returned and not accumulated.  Mirrors ``torch.autograd.grad``."""
    roots, wanted = _list(outputs), _list(inputs)
    given = [None] * len(roots) if grad_outputs is None else _list(grad_outputs)
    if is_grads_batched:
        raise NotImplementedError("autograd.grad: is_grads_batched")
    if not all(t.requires_grad for t in wanted):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    keep = create_graph if retain_graph is None else retain_graph
    found = engine.backward(
        roots, given, retain_graph=keep, create_graph=create_graph, inputs=wanted, accumulate=False
    )
    if materialize_grads:
        return tuple(t.new_zeros(t.shape) if g is None else g for t, g in zip(wanted, found, strict=True))
    if not allow_unused and None in [g if g is None else 0 for g in found]:
        at = [g is None for g in found].index(True)
        raise RuntimeError(
            f"The differentiated Tensor at index {at} appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return tuple(found)


def gradcheck(func: Any, inputs: Any, **options: Any) -> bool:
    """See ``autograd.checks``, which is loaded when first needed."""
    return _checker("gradcheck")(func, inputs, **options)  # type: ignore[no-any-return]


def gradgradcheck(func: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> bool:
    """See ``autograd.checks``."""
    return _checker("gradgradcheck")(func, inputs, grad_outputs, **options)  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    if name == "functional":  # derivatives of functions, loaded when first needed
        return importlib.import_module("tinytorch.autograd.functional")
    raise AttributeError(f"module 'tinytorch.autograd' has no attribute {name!r}")


def _checker(name: str) -> Any:
    return getattr(importlib.import_module("tinytorch.autograd.checks"), name)
