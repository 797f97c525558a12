"""Inputs that share memory: seen through one base, so that a write to one is read by the other.

Stage: aot.  In: example inputs.  Out: ``Base``s, each a stretch of memory with the inputs that lie in it.
Only needed where such an input is written; the joint trace finds that out and asks.  PyTorch calls these synthetic
bases.  Read next: ``joint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import InvalidGradError
from tinytorch import tape
from tinytorch.device import array_module
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.ops.views import contiguous_strides, numel
from tinytorch.tensor import Tensor


@dataclass(frozen=True)
class Member:
    """Input ``index`` is the base, which is flat, seen through ``chain``."""

    index: int
    offset: int
    chain: tuple[tuple[Op, dict[str, Any]], ...]


@dataclass(frozen=True)
class Base:
    """``numel`` elements from ``before`` elements in front of the first one of input ``lead``."""

    lead: int
    before: int
    numel: int
    members: tuple[Member, ...]


def groups(inputs: Sequence[Any]) -> list[list[int]]:
    """Indices of inputs whose stretches of memory overlap, in groups of two or more."""
    stretches = []
    for i, t in enumerate(inputs):
        if isinstance(t, Tensor) and all(_number(n) for n in t._data.shape):
            low, high = stretch(t._data)
            stretches.append((id(t._data.storage), low, high, i))
    found: list[list[int]] = []
    end: Any = None
    for storage, low, high, i in sorted(stretches):
        if end is not None and end[0] == storage and low < end[1]:
            found[-1].append(i)
            end = (storage, max(end[1], high))
        else:
            found.append([i])
            end = (storage, high)
    return [sorted(g) for g in found if len(g) > 1]


def stretch(data: Any) -> tuple[int, int]:
    """First byte and the byte after the last, counted from the storage's origin; symbolic sizes by their hints."""
    low = high = _number(data.offset)
    for n, s in zip(data.shape, data.strides, strict=True):
        far = (_number(n) - 1) * _number(s)
        low, high = low + min(0, far), high + max(0, far)
    return low, high + data.itemsize


def base_of(group: Sequence[int], inputs: Sequence[Any]) -> Base:
    """The stretch that covers a group.  InvalidGradError if gradients are wanted, which have no one place to go."""
    tensors = [inputs[i] for i in group]
    if tape.mode.grad and any(t.requires_grad for t in tensors):
        raise InvalidGradError("inputs that overlap in memory are written in place, and one of them requires grad")
    item = tensors[0]._data.itemsize
    if any(t.dtype is not tensors[0].dtype for t in tensors):
        raise InvalidGradError("inputs of different types overlap in memory and are written in place")
    low = min(stretch(t._data)[0] for t in tensors)
    high = max(stretch(t._data)[1] for t in tensors)
    members = tuple(_member(i, t, (_number(t._data.offset) - low) // item) for i, t in zip(group, tensors, strict=True))
    return Base(group[0], members[0].offset, (high - low) // item, members)


def _member(index: int, t: Tensor, offset: int) -> Member:
    """A slice where the input is contiguous, else what strides say."""
    shape, stride = tuple(t._data.shape), t.stride()
    if stride == contiguous_strides(shape):
        part = {"dim": 0, "start": offset, "stop": offset + numel(shape), "step": 1}
        return Member(index, offset, ((TABLE["slice"], part), (TABLE["view"], {"shape": shape})))
    return Member(index, offset, ((TABLE["as_strided"], {"shape": shape, "stride": stride, "offset": offset}),))


def base_array(lead: Any, before: int, numel: int, device: Any) -> Any:
    """The array of a base at run time, over the memory that ``lead``'s array lies in."""
    xp = array_module(device)
    if xp is not np:
        memory = lead.base if lead.base is not None else lead
        start = (lead.data.ptr - memory.data.ptr) // lead.itemsize - before
        return xp.ndarray((numel,), lead.dtype, memory.data + start * lead.itemsize)
    owner = lead
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start = lead.__array_interface__["data"][0] - owner.__array_interface__["data"][0] - before * lead.itemsize
    return np.ndarray((numel,), lead.dtype, owner, start)


def _number(n: Any) -> int:
    return n if isinstance(n, int) else int(getattr(n, "hint", 1) or 0)
