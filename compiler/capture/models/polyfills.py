"""Models in plain Python: library functions written in C, as the Python they could have been.

Stage: capture.  Inlined like any other function, in place of the C one.  See ``registry``.
Read next: ``capture.entry``.
"""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import operator
import sys
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.registry import model, polyfill
from compiler.capture.protocol import attributes, calls, operators
from compiler.capture.values.base import NONE, NotConstantError, Value, realize
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ObjectValue
from compiler.capture.values.sequence import ListValue, TupleValue
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

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


def sort_items(tx: Tracer, items: list[Value], key: Value, reverse: Value) -> list[Value]:
    """``list.sort``: natively on known keys, else by comparing."""
    keys = items if key.is_const() and key.const() is None else [calls.call(tx, key, [v], {}) for v in items]
    down = operators.truth(tx, reverse)
    try:
        known = [calls.constant_of(tx, k) for k in keys]
        order = sorted(range(len(items)), key=known.__getitem__, reverse=down)
    except NotConstantError:
        positions = list(range(len(items)))
        if down:
            positions.reverse()
        args: list[Value] = [ListValue(list(keys)), tx.from_python(positions)]
        found = calls.call(tx, tx.constant(merge_sort), args, {})
        assert isinstance(found, ListValue)
        order = [realize(tx, v).const() for v in found.items]
        if down:
            order.reverse()
    except TypeError as e:
        tx.raise_native(e)
    return [items[i] for i in order]


# --- itertools --------------------------------------------------------------------------------------------------------
@polyfill(itertools.chain)
def chain(*iterables: Any) -> Any:
    for it in iterables:
        yield from it


@polyfill(itertools.chain.from_iterable)
def chain_from_iterable(iterables: Any) -> Any:
    for it in iterables:
        yield from it


@polyfill(itertools.count)
def count(start: Any = 0, step: Any = 1) -> Any:
    while True:
        yield start
        start = start + step


@polyfill(itertools.repeat)
def repeat(obj: Any, times: Any = None) -> Any:
    if times is None:
        while True:
            yield obj
    for _ in range(times):
        yield obj


@polyfill(itertools.cycle)
def cycle(iterable: Any) -> Any:
    saved = []
    for element in iterable:
        yield element
        saved.append(element)
    while saved:
        yield from saved


@polyfill(itertools.accumulate)
def accumulate(iterable: Any, func: Any = operator.add, *, initial: Any = None) -> Any:
    it = iter(iterable)
    if initial is None:
        total = next(it, _MISSING)
        if total is _MISSING:
            return
    else:
        total = initial
    yield total
    for element in it:
        total = element + total if func is None else func(total, element)
        yield total


@polyfill(itertools.islice)
def islice(iterable: Any, *args: Any) -> Any:
    bounds = slice(*args)
    start, stop, step = bounds.start or 0, bounds.stop, 1 if bounds.step is None else bounds.step
    if start < 0 or step < 1 or (stop is not None and stop < 0):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    i, wanted = 0, start
    if stop is not None and wanted >= stop:
        for i, _ in zip(range(start), iterable):  # noqa: B007, B905
            pass
        return
    for element in iterable:
        if i == wanted:
            yield element
            wanted += step
            if stop is not None and wanted >= stop:
                return
        i += 1


@polyfill(itertools.zip_longest)
def zip_longest(*iterables: Any, fillvalue: Any = None) -> Any:
    its = [iter(it) for it in iterables]
    live = len(its)
    if not live:
        return
    ended = [False] * live
    while True:
        row = []
        for i, it in enumerate(its):
            element = _MISSING if ended[i] else next(it, _MISSING)
            if element is _MISSING:
                if not ended[i]:
                    ended[i] = True
                    live -= 1
                    if not live:
                        return
                element = fillvalue
            row.append(element)
        yield tuple(row)


@polyfill(itertools.starmap)
def starmap(fn: Any, iterable: Any) -> Any:
    for args in iterable:
        yield fn(*args)


@polyfill(itertools.takewhile)
def takewhile(predicate: Any, iterable: Any) -> Any:
    for element in iterable:
        if not predicate(element):
            return
        yield element


@polyfill(itertools.dropwhile)
def dropwhile(predicate: Any, iterable: Any) -> Any:
    it = iter(iterable)
    for element in it:
        if not predicate(element):
            yield element
            break
    yield from it


@polyfill(itertools.filterfalse)
def filterfalse(predicate: Any, iterable: Any) -> Any:
    for element in iterable:
        if not (element if predicate is None else predicate(element)):
            yield element


@polyfill(itertools.compress)
def compress(data: Any, selectors: Any) -> Any:
    for element, keep in zip(data, selectors):  # noqa: B905
        if keep:
            yield element


@polyfill(itertools.pairwise)
def pairwise(iterable: Any) -> Any:
    it = iter(iterable)
    a = next(it, _MISSING)
    for b in it:
        yield a, b
        a = b


@polyfill(itertools.groupby)
def groupby(iterable: Any, key: Any = None) -> Any:
    group: Any = []
    last: Any = _MISSING
    for element in iterable:
        k = element if key is None else key(element)
        if last is not _MISSING and k != last:
            yield last, iter(group)
            group = []
        last = k
        group.append(element)
    if last is not _MISSING:
        yield last, iter(group)


@polyfill(itertools.product)
def product(*iterables: Any, repeat: Any = 1) -> Any:
    pools = [tuple(pool) for pool in iterables] * repeat
    result: Any = [()]
    for pool in pools:
        result = [(*x, y) for x in result for y in pool]
    yield from result


@polyfill(itertools.combinations)
def combinations(iterable: Any, r: Any) -> Any:
    pool = tuple(iterable)
    for indices in _index_combinations(len(pool), r):
        yield tuple([pool[i] for i in indices])


def _index_combinations(n: Any, r: Any) -> Any:
    if r > n:
        return
    indices = list(range(r))
    yield tuple(indices)
    while True:
        i = r - 1
        while i >= 0 and indices[i] == i + n - r:
            i -= 1
        if i < 0:
            return
        indices[i] += 1
        for j in range(i + 1, r):
            indices[j] = indices[j - 1] + 1
        yield tuple(indices)


@polyfill(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable: Any, r: Any) -> Any:
    pool = tuple(iterable)
    for indices in product(range(len(pool)), repeat=r):
        if list(indices) == sorted(indices):
            yield tuple([pool[i] for i in indices])


@polyfill(itertools.permutations)
def permutations(iterable: Any, r: Any = None) -> Any:
    pool = tuple(iterable)
    n = len(pool)
    for indices in product(range(n), repeat=n if r is None else r):
        if len(set(indices)) == len(indices):
            yield tuple([pool[i] for i in indices])


@polyfill(itertools.tee)
def tee(iterable: Any, n: Any = 2) -> Any:
    items = list(iterable)
    return tuple([iter(items) for _ in range(n)])


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


# --- heapq, bisect ----------------------------------------------------------------------------------------------------
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


# --- copy -------------------------------------------------------------------------------------------------------------
@model(copy.copy)
def shallow_copy(tx: Tracer, obj: Value) -> Value:
    if isinstance(obj, ListValue):
        return ListValue(list(obj.items), obj.kind)
    if isinstance(obj, DictValue):
        obj.know_keys(tx)
        made = DictValue(dict(obj.entries), obj.kind)
        made.default_factory = obj.default_factory
        return made
    if isinstance(obj, SetValue):
        return SetValue(dict(obj.items), obj.kind, order=obj.like(tx).copy())
    if isinstance(obj, ObjectValue):
        if attributes.lookup(tx, obj.cls, "__copy__") is not None:
            return calls.call_special(tx, obj, "__copy__", [])
        return _copy_object(tx, obj, lambda v: v)
    if isinstance(obj, TensorValue):
        breaks.unsupported(breaks.OPERATION, "copy of a tensor")
    return obj


@model(copy.deepcopy)
def deep_copy(tx: Tracer, obj: Value, memo: Value = NONE) -> Value:
    return _deep(tx, obj, {})


def _deep(tx: Tracer, obj: Value, memo: dict[int, Value]) -> Value:
    obj = realize(tx, obj)
    if id(obj) in memo:
        return memo[id(obj)]
    made: Value = obj
    if isinstance(obj, TensorValue):
        breaks.unsupported(breaks.OPERATION, "deepcopy of a tensor")
    if isinstance(obj, ListValue):
        made = memo[id(obj)] = ListValue([], obj.kind)
        made.items.extend(_deep(tx, v, memo) for v in obj.items)  # type: ignore[attr-defined]
    elif isinstance(obj, TupleValue):
        made = TupleValue([_deep(tx, v, memo) for v in obj.items], obj.kind)
    elif isinstance(obj, DictValue):
        obj.know_keys(tx)
        made = memo[id(obj)] = DictValue({}, obj.kind)
        made.default_factory = obj.default_factory  # type: ignore[attr-defined]
        for key, (k, v) in obj.entries.items():
            made.entries[key] = (k, _deep(tx, v, memo))  # type: ignore[attr-defined]
    elif isinstance(obj, SetValue):
        made = SetValue(dict(obj.items), obj.kind, order=set(list(obj.like(tx))))
    elif isinstance(obj, ObjectValue):
        if attributes.lookup(tx, obj.cls, "__deepcopy__") is not None:
            return calls.call_special(tx, obj, "__deepcopy__", [DictValue()])
        made = _copy_object(tx, obj, lambda v: _deep(tx, v, memo))
    memo[id(obj)] = made
    return made


def _copy_object(tx: Tracer, obj: ObjectValue, inner: Any) -> Value:
    if obj.is_exception() or attributes.lookup(tx, obj.cls, "__reduce_ex__")[1] is not object.__reduce_ex__:  # type: ignore[index]
        breaks.unsupported(breaks.OPERATION, f"copy of {obj.describe()}")
    made = ObjectValue(obj.cls)
    own = obj.dict
    if own is not None:
        own.know_keys(tx)
        target = made.dict
        assert target is not None
        for key, (k, v) in own.entries.items():
            target.entries[key] = (k, inner(v))
    return made

