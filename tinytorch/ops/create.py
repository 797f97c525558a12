"""Rows that make tensors from nothing but numbers.

Stage: eager, read by all.  In: shapes, types, devices.  Out: fresh tensors.  Read next: ``random``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch import dtypes, late
from tinytorch.device import array_module
from tinytorch.ops.opdef import Meta, Op, elementwise_strides

full = Op(
    name="full",
    kind="create",
    infer=lambda shape, value, dtype, device=None: Meta(tuple(shape), dtype),
    kernel=lambda xp, shape, value, dtype, device=None: xp.full(tuple(shape), value, dtype.np),
    recompute="free",
)
iota = Op(
    name="iota",
    kind="create",
    infer=lambda size, dtype=dtypes.int64, device=None: Meta((size,), dtype),
    kernel=lambda xp, size, dtype=dtypes.int64, device=None: xp.arange(size, dtype=dtype.np),
    recompute="free",
    doc="0, 1, ..., size - 1",
)
empty = Op(
    name="empty",
    kind="create",
    infer=lambda shape, dtype, device=None: Meta(tuple(shape), dtype),
    kernel=lambda xp, shape, dtype, device=None: xp.empty(tuple(shape), dtype.np),
    recompute="free",
    doc="undefined contents; compiled code may give zeros",
)


def _to_device_kernel(xp: Any, x: Any, device: Any) -> Any:
    target = array_module(device)
    if target is np:
        copy = x.get(order="A") if hasattr(x, "get") else x.copy(order="K")
        if late.ran and device.type == "cpu":
            late.look()
        return copy
    return target.asarray(x)


to_device = Op(
    name="to_device",
    kind="extern",
    infer=lambda x, device: Meta(x.shape, x.dtype, elementwise_strides(x.shape, [x])),
    kernel=_to_device_kernel,
    vjp=lambda out, x, device: (_back_to(x.device),),
    recompute="save",
    doc="a copy on another device",
)


def _back_to(device: Any) -> Any:
    return lambda g: to_device(g, device=device)
