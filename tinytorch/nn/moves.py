"""``to``, ``float``, ``cuda``, ...: a module's tensors to another type or device, in place.

Stage: eager.  In: a tree of modules and where to.  Out: the same modules and Parameters, holding converted memory.
Mirrors the part of ``torch.nn.Module`` of that name.  Read next: ``module``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tinytorch import dtypes, tape
from tinytorch.device import Device, canonical
from tinytorch.dtypes import DType
from tinytorch.nn.parameter import Parameter, is_lazy
from tinytorch.tensor import Tensor

M = TypeVar("M", bound="Moves")


class Moves:
    """The methods that convert a module; all return the module itself."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    children: Callable[[], Any]

    def _apply(self: M, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> M:
        """Replace the memory of every tensor by that of ``fn(tensor)``; Parameters stay the same objects."""
        if recurse:
            for child in self.children():
                child._apply(fn)
        with tape.grad_mode(False):
            for p in self._parameters.values():
                if p is not None and not is_lazy(p):
                    p.data = fn(p.detach())
                    if p.grad is not None:
                        p.grad.data = fn(p.grad.detach())
            for name, b in self._buffers.items():
                if b is not None:
                    self._buffers[name] = fn(b)
        return self

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """``to(device)``, ``to(dtype)``, ``to(tensor)``, ``to(device, dtype)``: dtypes change floating tensors only."""
        device, dtype = _where_and_what(args, kwargs)
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}")

        def convert(t: Tensor) -> Tensor:
            wanted = dtype if t._is_differentiable() else None
            return t.to(device=device or t.device, dtype=wanted or t.dtype)

        return self._apply(convert)

    def type(self: M, dst_type: DType) -> M:
        return self._apply(lambda t: t.to(dtype=dst_type))

    def _floating(self: M, dtype: DType) -> M:
        return self._apply(lambda t: t.to(dtype=dtype) if t.dtype.is_floating_point else t)

    def float(self: M) -> M:
        return self._floating(dtypes.float32)

    def double(self: M) -> M:
        return self._floating(dtypes.float64)

    def half(self: M) -> M:
        return self._floating(dtypes.float16)

    def bfloat16(self: M) -> M:
        return self._floating(dtypes.bfloat16)

    def cpu(self: M) -> M:
        return self._apply(lambda t: t.to(device="cpu"))

    def cuda(self: M, device: int | Device | None = None) -> M:
        return self._apply(lambda t: t.to(device=canonical("cuda" if device is None else device)))

    def to_empty(self: M, *, device: str | Device, recurse: bool = True) -> M:
        """Move without keeping values: every tensor gets fresh memory of undefined contents."""
        return self._apply(lambda t: t.new_empty(t.shape, device=device), recurse)


def _where_and_what(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Device | None, DType | None]:
    """The device and dtype meant by the arguments of ``to``."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    if isinstance(kwargs.get("other"), Tensor):
        args = (*args, kwargs["other"])
    for a in args:
        if isinstance(a, Tensor):
            device, dtype = a.device, a.dtype
        elif isinstance(a, DType | type):
            dtype = a
        elif isinstance(a, str | Device) or (isinstance(a, int) and not isinstance(a, bool)):
            device = a
    return (None if device is None else canonical(device)), None if dtype is None else dtypes.typed(dtype, dtypes.get_default_dtype())
