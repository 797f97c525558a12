"""tinytorch: an eager tensor library with a tape, and the door to its compiler.  ``import tinytorch as torch``.

Read next: ``dtypes``, ``ops.scalars``, ``ops.opdef``, ``dispatch``, ``tape``, ``tensor``.
"""

from __future__ import annotations

from tinytorch import dispatch, ops, rng, tape
from tinytorch.device import Device as device
from tinytorch.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
)
from tinytorch.dtypes import bool_ as bool
from tinytorch.tensor import Size, Tensor

__all__ = [
    "Size", "Tensor", "bfloat16", "bool", "complex64", "complex128", "device", "dispatch", "float16", "float32",
    "float64", "get_default_dtype", "int8", "int16", "int32", "int64", "ops", "promote_types", "rng",
    "set_default_dtype", "tape", "uint8",
]  # fmt: skip
