"""Arrays that somebody keeps without a right to them: whoever writes to that memory copies them first.

Stage: eager.  A compiled backward may keep an input or a result that eager would not have kept, because it is there anyway
and what eager keeps can be computed from it.  A program may write to what eager does not keep (a buffer that it has
cloned, a result that it goes on with), and must not notice.  Read next: ``dispatch.write``.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tinytorch.device import Device, array_module
from tinytorch.tensor import Storage, Tensor


class Kept(list):  # type: ignore[type-arg]
    """The arrays that a backward keeps; a list that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def lend(t: Tensor, to: Kept, place: int) -> None:
    """``to[place]`` is the array of ``t``, until that memory is written."""
    storage = t._storage
    if storage is None:
        storage = t._storage = Storage()
    loan = weakref.ref(to), place
    if storage.loans is None:
        storage.loans = [loan]
        return
    if len(storage.loans) > 8:  # most are over
        storage.loans = [known for known in storage.loans if known[0]() is not None]
    storage.loans.append(loan)


def over(array: Any, device: Device) -> Tensor:
    """A tensor over the memory of an array from outside.  Kernels do not ask whether they may write there: ``settle`` does."""
    t = Tensor._wrap(array, device)
    if not array.flags.writeable:
        t._storage = Storage()
        t._storage.read_only, t._storage.loans = True, []
    return t


def settle(storage: Storage) -> None:
    """Before the memory is written: give every keeper a copy of its own; ValueError for read-only memory."""
    if storage.read_only:
        raise ValueError("assignment destination is read-only")
    loans, storage.loans = storage.loans, None
    for ref, place in loans or ():
        kept = ref()
        if kept is not None:
            kept[place] = copied(kept[place])


def copied(array: Any) -> Any:
    """A copy that lies as ``array`` does: compiled code relies on strides."""
    if array.flags.c_contiguous:
        return array.copy()
    xp = np if isinstance(array, np.ndarray) else array_module(Device("cuda"))
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    room = xp.empty(max(0, last) // array.itemsize + 1, array.dtype)
    out = xp.lib.stride_tricks.as_strided(room, array.shape, array.strides)
    out[...] = array
    return out
