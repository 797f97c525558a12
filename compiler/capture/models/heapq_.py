"""``heapq`` and ``bisect`` in plain Python.  Stage: capture.  See ``polyfills``.  Read next: ``copy_``."""

from __future__ import annotations

import bisect
import heapq
from typing import Any

from compiler.capture.models.registry import polyfill


def _sift_up(heap: Any, i: Any) -> None:
    """Move ``heap[i]`` towards the root until its parent is not larger."""
    while i > 0:
        parent = (i - 1) >> 1
        if not heap[i] < heap[parent]:
            return
        heap[i], heap[parent] = heap[parent], heap[i]
        i = parent


def _sift_down(heap: Any, i: Any) -> None:
    """Bubble the smaller child up to a leaf, then let the element rise from there, as CPython does."""
    start, element, n = i, heap[i], len(heap)
    child = 2 * i + 1
    while child < n:
        if child + 1 < n and not heap[child] < heap[child + 1]:
            child += 1
        heap[i] = heap[child]
        i = child
        child = 2 * i + 1
    heap[i] = element
    while i > start:
        parent = (i - 1) >> 1
        if not heap[i] < heap[parent]:
            return
        heap[i], heap[parent] = heap[parent], heap[i]
        i = parent


@polyfill(heapq.heappush)
def heappush(heap: Any, item: Any) -> None:
    heap.append(item)
    _sift_up(heap, len(heap) - 1)


@polyfill(heapq.heappop)
def heappop(heap: Any) -> Any:
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    _sift_down(heap, 0)
    return first


@polyfill(heapq.heapify)
def heapify(heap: Any) -> None:
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sift_down(heap, i)


@polyfill(heapq.heapreplace)
def heapreplace(heap: Any, item: Any) -> Any:
    first, heap[0] = heap[0], item
    _sift_down(heap, 0)
    return first


@polyfill(heapq.heappushpop)
def heappushpop(heap: Any, item: Any) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_down(heap, 0)
    return item


@polyfill(heapq.nsmallest)
def nsmallest(n: Any, iterable: Any, key: Any = None) -> Any:
    return sorted(iterable, key=key)[:n]


@polyfill(heapq.nlargest)
def nlargest(n: Any, iterable: Any, key: Any = None) -> Any:
    return sorted(iterable, key=key, reverse=True)[:n]


@polyfill(bisect.bisect_left)
def bisect_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    hi = len(a) if hi is None else hi
    while lo < hi:
        mid = (lo + hi) // 2
        if (a[mid] if key is None else key(a[mid])) < x:
            lo = mid + 1
        else:
            hi = mid
    return lo


@polyfill(bisect.bisect_right, bisect.bisect)
def bisect_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    hi = len(a) if hi is None else hi
    while lo < hi:
        mid = (lo + hi) // 2
        if x < (a[mid] if key is None else key(a[mid])):
            hi = mid
        else:
            lo = mid + 1
    return lo


@polyfill(bisect.insort_right, bisect.insort)
def insort(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(bisect.insort_left)
def insort_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)
