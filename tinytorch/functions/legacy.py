"""``FloatTensor`` and its kin: types whose calls make tensors.  Mirrors the old constructors of ``torch``."""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.functions import creation
from tinytorch.functions.args import is_int
from tinytorch.tensor import Tensor


class _LegacyMeta(type):
    dtype: DType

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        if not args:
            return creation.empty(0, dtype=cls.dtype, device=device)
        if all(is_int(a) for a in args):
            return creation.empty(*args, dtype=cls.dtype, device=device)
        return creation.tensor(args[0], dtype=cls.dtype, device=device)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == "cpu"


def _legacy(dtype: DType) -> Any:
    name = f"{dtype.title}Tensor"
    return _LegacyMeta(
        name, (), {"dtype": dtype, "__doc__": f"``{name}(2, 3)`` or ``{name}(data)``: a {dtype.name} tensor."}
    )


def new_tensor(cls: type, *args: Any, **named: Any) -> Any:
    """``Tensor(2, 3)`` and ``Tensor([1, 2])``, of the default type; subclasses are made empty-handed."""
    if cls is not Tensor:
        return object.__new__(cls)
    dtype = dtypes.get_default_dtype()
    if len(args) == 1 and isinstance(args[0], Tensor):
        return args[0].detach().to(dtype)
    if not args or all(is_int(a) for a in args):
        return creation.empty(*(args or (0,)), dtype=dtype, **named)
    return creation.tensor(args[0], dtype=dtype, **named)


TYPES: dict[str, Any] = {f"{d.title}Tensor": _legacy(d) for d in dtypes.ALL if not d.is_complex}
