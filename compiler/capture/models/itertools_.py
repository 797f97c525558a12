"""``itertools`` in plain Python.  Stage: capture.  See ``polyfills``.  Read next: ``heapq_``."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from compiler.capture.models.registry import polyfill

_MISSING = object()


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
