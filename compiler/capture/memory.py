"""Memory: which inputs of a graph that writes to some of them lie where in the same memory.

Stage: capture (run time).  In: the inputs' arrays.  Out: whether they lie as they did when the graph was made.  Looking for
overlaps is slow, so the arrays last found right are remembered: the very same ones lie where they lay.
Read next: ``aliases.guard_memory``, which installs the guard.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Spans = list[tuple[int, int, int, int]]  # lowest byte, after the highest, index, first element


class Layout:
    """``layout(*arrays)`` is true if the overlaps with written arrays are those of ``arrays``, at the same distances."""

    def __init__(self, arrays: Sequence[Any], written: Iterable[int]) -> None:
        self.written = frozenset(written)
        self.overlaps = self._overlaps(arrays)
        self.last: list[Any] = [_ref(a) for a in arrays]

    def __call__(self, *arrays: Any) -> bool:
        for ref, a in zip(self.last, arrays):  # noqa: B905 - one call makes both
            if not ref(a):
                break
        else:
            return True
        if self._overlaps(arrays) != self.overlaps:
            return False
        self.last = [_ref(a) for a in arrays]
        return True

    def _overlaps(self, arrays: Sequence[Any]) -> dict[tuple[int, int], int]:
        """(i, j): bytes from the first element of i to that of j, for overlapping pairs of which one is written."""
        spans = sorted(_span(a, i) for i, a in enumerate(arrays) if a.size)
        found: dict[tuple[int, int], int] = {}
        open_spans: Spans = []
        for span in spans:
            open_spans = [o for o in open_spans if o[1] > span[0]]
            for other in open_spans:
                i, j = sorted((span[2], other[2]))
                if i in self.written or j in self.written:
                    found[i, j] = (span[3] - other[3]) if i == other[2] else (other[3] - span[3])
            open_spans.append(span)
        return found


def _span(a: Any, index: int) -> tuple[int, int, int, int]:
    first = a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else int(a.data.ptr)
    reach = [(n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)]
    low = first + sum(r for r in reach if r < 0)
    return low, first + sum(r for r in reach if r > 0) + a.itemsize, index, first


def _ref(a: Any) -> Any:
    """Whether an array is ``a``, or lies just like it, without keeping ``a`` alive."""
    try:
        ref = weakref.ref(a)
        return lambda b: ref() is b
    except TypeError:  # CuPy's arrays allow no weak references
        at, shape, strides = a.data.ptr, a.shape, a.strides
        return lambda b: b.data.ptr == at and b.shape == shape and b.strides == strides
