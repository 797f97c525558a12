"""The rows of all operators, as one namespace: ``ops.add(x, y)``, ``ops.sum(x, dim=(0,), keepdim=False)``.

Stage: eager, read by all.  Read next: ``opdef`` (what a row says), ``pointwise`` (the first rows).
"""

from __future__ import annotations

from typing import Any

from tinytorch.ops import contract, create, index, pointwise, random, reduce, views
from tinytorch.ops.opdef import TABLE

__all__ = ["TABLE", "contract", "create", "index", "pointwise", "random", "reduce", "views"]


def __getattr__(name: str) -> Any:
    try:
        return TABLE[name]
    except KeyError:
        raise AttributeError(f"no operator row is named {name!r}") from None
