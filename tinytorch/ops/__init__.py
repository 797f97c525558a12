"""The rows of all operators, as one namespace: ``ops.add(x, y)``, ``ops.sum(x, dim=(0,), keepdim=False)``.

Stage: eager, read by all.  Read next: ``opdef`` (what a row says), ``pointwise`` (the first rows).
"""

from __future__ import annotations

from typing import Any

from tinytorch.ops import contract, create, flash, indexing, lapack, layout, pointwise, random, reduce, views
from tinytorch.ops.opdef import TABLE, Meta
from tinytorch.ops.opdef import result_type as _result_type

__all__ = [
    "TABLE", "contract", "create", "flash", "indexing", "lapack", "layout", "pointwise", "random", "reduce",
    "result_type", "views",
]  # fmt: skip


def result_type(operands: Any) -> Any:
    """The promoted type of tensors and numbers."""
    return _result_type([Meta(x._data.shape, x.dtype) if hasattr(x, "_data") else x for x in operands])


globals().update({name: op for name, op in TABLE.items() if name not in globals()})


def __getattr__(name: str) -> Any:
    try:
        return TABLE[name]
    except KeyError:
        raise AttributeError(f"no operator row is named {name!r}") from None
