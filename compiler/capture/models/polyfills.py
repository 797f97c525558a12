"""Models in plain Python: library functions written in C, as the Python they could have been.

Stage: capture.  Inlined like any other function, in place of the C one.  See ``registry``.
Read next: ``itertools_``, ``heapq_`` (more of them), ``copy_``; then ``capture.entry``.
"""

from __future__ import annotations

import collections
import functools
import operator
import sys
from typing import Any

from compiler.capture.models.registry import polyfill

_MISSING = object()


# --- iteration --------------------------------------------------------------------------------------------------------
def iterate_by_index(sequence: Any) -> Any:
    """``iter`` of a class that only has ``__getitem__``."""
    i = 0
    while True:
        try:
            element = sequence[i]
        except IndexError:
            return
        yield element
        i += 1


def reversed_by_index(sequence: Any) -> Any:
    for i in range(len(sequence) - 1, -1, -1):
        yield sequence[i]


@polyfill(any)
def any_(iterable: Any) -> bool:
    for element in iterable:
        if element:
            return True
    return False


@polyfill(all)
def all_(iterable: Any) -> bool:
    for element in iterable:
        if not element:
            return False
    return True


@polyfill(sum)
def sum_(iterable: Any, /, start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    for element in iterable:
        start = start + element
    return start


_NOTHING_GIVEN = "iterable argument is empty" if sys.version_info >= (3, 12) else "arg is an empty sequence"


def _pick(args: Any, key: Any, default: Any, name: str, better: Any) -> Any:
    if len(args) == 1:
        items = iter(args[0])
    else:
        if not args:
            raise TypeError(f"{name} expected at least 1 argument, got 0")
        items = iter(args)
    best = next(items, _MISSING)
    if best is _MISSING:
        if default is _MISSING:
            raise ValueError(f"{name}() {_NOTHING_GIVEN}")
        return default
    best_key = best if key is None else key(best)
    for element in items:
        element_key = element if key is None else key(element)
        if better(element_key, best_key):
            best, best_key = element, element_key
    return best


@polyfill(max)
def max_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _pick(args, key, default, "max", operator.gt)


@polyfill(min)
def min_(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _pick(args, key, default, "min", operator.lt)


@polyfill(sorted)
def sorted_(iterable: Any, /, *, key: Any = None, reverse: Any = False) -> Any:
    result = list(iterable)
    result.sort(key=key, reverse=reverse)
    return result


def merge_sort(keys: Any, order: Any) -> Any:
    """Stable order of positions by ``<`` of their keys."""
    if len(order) < 2:
        return order
    middle = len(order) // 2
    left, right = merge_sort(keys, order[:middle]), merge_sort(keys, order[middle:])
    out = []
    i = j = 0
    while i < len(left) and j < len(right):
        if keys[right[j]] < keys[left[i]]:
            out.append(right[j])
            j += 1
        else:
            out.append(left[i])
            i += 1
    return out + left[i:] + right[j:]


# --- functools, operator, collections ---------------------------------------------------------------------------------
@polyfill(functools.reduce)
def reduce(function: Any, iterable: Any, initial: Any = _MISSING, /) -> Any:
    it = iter(iterable)
    if initial is _MISSING:
        value = next(it, _MISSING)
        if value is _MISSING:
            raise TypeError("reduce() of empty iterable with no initial value")
    else:
        value = initial
    for element in it:
        value = function(value, element)
    return value


class _ByComparison:
    """What ``functools.cmp_to_key`` makes of an element."""

    def __init__(self, compare: Any, obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: object) -> Any:
        return self.compare(self.obj, other.obj) == 0  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


@polyfill(functools.cmp_to_key)
def cmp_to_key(mycmp: Any) -> Any:
    def key(obj: Any) -> Any:
        return _ByComparison(mycmp, obj)

    return key


@polyfill(operator.itemgetter)
def itemgetter(item: Any, *items: Any) -> Any:
    def get(obj: Any) -> Any:
        return obj[item] if not items else tuple([obj[i] for i in (item, *items)])

    return get


@polyfill(operator.attrgetter)
def attrgetter(attr: Any, *attrs: Any) -> Any:
    def resolve(obj: Any, path: Any) -> Any:
        for name in path.split("."):
            obj = getattr(obj, name)
        return obj

    def get(obj: Any) -> Any:
        return resolve(obj, attr) if not attrs else tuple([resolve(obj, a) for a in (attr, *attrs)])

    return get


@polyfill(operator.methodcaller)
def methodcaller(name: Any, /, *args: Any, **kwargs: Any) -> Any:
    def call(obj: Any) -> Any:
        return getattr(obj, name)(*args, **kwargs)

    return call


@polyfill(getattr(collections, "_count_elements"))  # noqa: B009
def count_elements(mapping: Any, iterable: Any) -> None:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1
