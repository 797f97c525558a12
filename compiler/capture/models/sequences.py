"""Methods of list, tuple, deque and range.

Stage: capture.  See ``registry``.  Every change goes through ``tx.effects.touch`` first.  Read next: ``mappings``.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from compiler.capture.models.polyfills import merge_sort
from compiler.capture.models.registry import model, new
from compiler.capture.protocol import calls, operators
from compiler.capture.values.base import (
    FALSE,
    NONE,
    NOT_IMPLEMENTED,
    TRUE,
    ConstantValue,
    NotConstantError,
    Value,
    realize,
)
from compiler.capture.values.function import ClassValue
from compiler.capture.values.iterator import ReversedIterator, SequenceIterator
from compiler.capture.values.sequence import ListValue, RangeValue, SequenceValue, SliceValue, TupleValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

deque = collections.deque
_ONE = ConstantValue(1)


def _bool(flag: bool) -> Value:
    return TRUE if flag else FALSE


# --- making -----------------------------------------------------------------------------------------------------------
@new(list.__new__, deque.__new__)
def new_list(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    return ListValue([], cls.cls)


@model(list.__init__)
def list_init(tx: Tracer, me: ListValue, *iterable: Value) -> Value:
    tx.effects.touch(me)
    me.items[:] = tx.protocol.unpack(tx, iterable[0]) if iterable else []
    return NONE


@model(deque)
def make_deque(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = ListValue([], deque)
    deque_init(tx, made, *args, **kwargs)
    return made


@model(deque.__init__)
def deque_init(tx: Tracer, me: ListValue, iterable: Value = NONE, maxlen: Value = NONE) -> Value:
    me.maxlen = None if realize(tx, maxlen) is NONE or maxlen.const() is None else maxlen
    for v in [] if iterable is NONE else tx.protocol.unpack(tx, iterable):
        append(tx, me, v)
    return NONE


@model(deque.__dict__["maxlen"])
def deque_maxlen(tx: Tracer, me: ListValue) -> Value:
    return NONE if me.maxlen is None else realize(tx, me.maxlen)


@new(tuple.__new__)
def new_tuple(tx: Tracer, cls: ClassValue, *iterable: Value) -> Value:
    return TupleValue(tx.protocol.unpack(tx, iterable[0]) if iterable else [], cls.cls)


# --- reading ----------------------------------------------------------------------------------------------------------
@model(list.__getitem__, tuple.__getitem__, deque.__getitem__)
def getitem(tx: Tracer, me: SequenceValue, key: Value) -> Value:
    if isinstance(key, SliceValue):
        found = me.items[operators.slice_of(tx, key)]
        if isinstance(me, ListValue):
            return ListValue(found)
        return TupleValue(found, me.kind if me.kind.__name__ == "Size" else tuple)
    i = _index(tx, me, key)
    return me.items[i]


def _index(tx: Tracer, me: SequenceValue, key: Value, what: str = "") -> int:
    if not (key.is_const() and isinstance(key.const(), int)) and not hasattr(key, "sym"):
        if not tx.protocol.has_special(tx, key, "__index__"):
            kind = me.kind.__name__
            tx.raise_(TypeError, f"{kind} indices must be integers or slices, not {key.pytype().__name__}")
    i = operators.index_of(tx, key)
    n = len(me.items)
    if not -n <= i < n:
        tx.raise_(IndexError, f"{'list' if isinstance(me, ListValue) else 'tuple'} {what}index out of range")
    return i + n if i < 0 else i


@model(list.__len__, tuple.__len__, deque.__len__)
def length(tx: Tracer, me: SequenceValue) -> Value:
    return ConstantValue(len(me.items))


@model(list.__contains__, tuple.__contains__, deque.__contains__)
def contains(tx: Tracer, me: SequenceValue, element: Value) -> Value:
    return _bool(any(operators.equal(tx, v, element) for v in list(me.items)))


@model(list.__iter__, tuple.__iter__, deque.__iter__)
def iterate(tx: Tracer, me: SequenceValue) -> Value:
    return SequenceIterator(me)


@model(list.__reversed__, deque.__reversed__)
def iterate_back(tx: Tracer, me: SequenceValue) -> Value:
    return ReversedIterator(me)


@model(list.index, tuple.index, deque.index)
def index(tx: Tracer, me: SequenceValue, element: Value, *bounds: Value) -> Value:
    where = slice(*[operators.index_of(tx, b) for b in bounds]) if len(bounds) == 2 else (
        slice(operators.index_of(tx, bounds[0]), None) if bounds else slice(None)
    )
    for i in range(len(me.items))[where]:
        if operators.equal(tx, me.items[i], element):
            return ConstantValue(i)
    shown = repr(element.const()) if element.is_const() else element.describe()
    tx.raise_(ValueError, f"{shown} is not in list" if isinstance(me, ListValue) else "tuple.index(x): x not in tuple")


@model(list.count, tuple.count, deque.count)
def count(tx: Tracer, me: SequenceValue, element: Value) -> Value:
    return ConstantValue(sum(operators.equal(tx, v, element) for v in list(me.items)))


@model(list.copy, deque.copy)
def copy(tx: Tracer, me: ListValue) -> Value:
    made = ListValue(list(me.items), me.kind)
    made.maxlen = me.maxlen
    return made


@model(deque.__copy__)
def deque_copy(tx: Tracer, me: ListValue) -> Value:
    return copy(tx, me)


# --- operators --------------------------------------------------------------------------------------------------------
@model(list.__add__, tuple.__add__, deque.__add__)
def add(tx: Tracer, me: SequenceValue, other: Value) -> Value:
    if not isinstance(other, type(me)):
        mine, theirs = me.kind.__name__, other.pytype().__name__
        tx.raise_(TypeError, f'can only concatenate {mine} (not "{theirs}") to {mine}')
    if isinstance(me, ListValue):
        return ListValue([*me.items, *other.items], list if issubclass(me.kind, list) else deque)  # type: ignore[attr-defined]
    kind = me.kind if me.kind.__name__ == "Size" else tuple
    return TupleValue([*me.items, *other.items], kind)  # type: ignore[attr-defined]


@model(list.__mul__, list.__rmul__, tuple.__mul__, tuple.__rmul__, deque.__mul__, deque.__rmul__)
def mul(tx: Tracer, me: SequenceValue, times: Value) -> Value:
    if not (hasattr(times, "sym") or (times.is_const() and isinstance(times.const(), int))):
        return NOT_IMPLEMENTED
    items = me.items * operators.index_of(tx, times)
    return ListValue(items) if isinstance(me, ListValue) else TupleValue(items)


@model(list.__imul__)
def imul(tx: Tracer, me: ListValue, times: Value) -> Value:
    tx.effects.touch(me)
    me.items *= operators.index_of(tx, times)
    return me


def _compare(op: str, decide: Any) -> Any:
    def run(tx: Tracer, me: SequenceValue, other: Value) -> Value:
        if not isinstance(other, type(me)):
            return NOT_IMPLEMENTED
        mine, theirs = list(me.items), list(other.items)  # type: ignore[attr-defined]
        for a, b in zip(mine, theirs, strict=False):
            if not operators.equal(tx, a, b):
                if op in ("==", "!="):
                    return _bool(op == "!=")
                return operators.compare(tx, op, a, b)
        return _bool(decide(len(mine), len(theirs)))

    return run


for _op, (_fn, _slot, _) in operators.COMPARE.items():
    model(getattr(list, _slot), getattr(tuple, _slot), getattr(deque, _slot))(_compare(_op, _fn))


# --- changing ---------------------------------------------------------------------------------------------------------
@model(list.append)
def append(tx: Tracer, me: ListValue, v: Value) -> Value:
    tx.effects.touch(me)
    if not me.looked_at:
        me.added.append(v)
        return NONE
    me.items.append(v)
    if me.maxlen is not None and (limit := _limit(tx, me)) is not None and len(me.items) > limit:
        del me.items[0]
    return NONE


model(deque.append)(append)


def _limit(tx: Tracer, me: ListValue) -> int | None:
    return realize(tx, me.maxlen).const() if me.maxlen is not None else None  # type: ignore[no-any-return]


@model(deque.appendleft)
def appendleft(tx: Tracer, me: ListValue, v: Value) -> Value:
    tx.effects.touch(me)
    me.items.insert(0, v)
    if (limit := _limit(tx, me)) is not None and len(me.items) > limit:
        del me.items[-1]
    return NONE


@model(list.extend, deque.extend)
def extend(tx: Tracer, me: ListValue, iterable: Value) -> Value:
    tx.effects.touch(me)
    for v in tx.protocol.unpack(tx, iterable):
        append(tx, me, v)
    return NONE


@model(deque.extendleft)
def extendleft(tx: Tracer, me: ListValue, iterable: Value) -> Value:
    for v in tx.protocol.unpack(tx, iterable):
        appendleft(tx, me, v)
    return NONE


@model(list.__iadd__, deque.__iadd__)
def iadd(tx: Tracer, me: ListValue, iterable: Value) -> Value:
    extend(tx, me, iterable)
    return me


@model(list.insert, deque.insert)
def insert(tx: Tracer, me: ListValue, at: Value, v: Value) -> Value:
    tx.effects.touch(me)
    me.items.insert(operators.index_of(tx, at), v)
    return NONE


@model(list.pop)
def pop(tx: Tracer, me: ListValue, *at: Value) -> Value:
    if not me.items:
        tx.raise_(IndexError, "pop from empty list")
    i = _index(tx, me, at[0], "pop ") if at else len(me.items) - 1
    if at and not -len(me.items) <= i < len(me.items):
        tx.raise_(IndexError, "pop index out of range")
    tx.effects.touch(me)
    return me.items.pop(i)


@model(deque.pop)
def deque_pop(tx: Tracer, me: ListValue) -> Value:
    if not me.items:
        tx.raise_(IndexError, "pop from an empty deque")
    tx.effects.touch(me)
    return me.items.pop()


@model(deque.popleft)
def popleft(tx: Tracer, me: ListValue) -> Value:
    if not me.items:
        tx.raise_(IndexError, "pop from an empty deque")
    tx.effects.touch(me)
    return me.items.pop(0)


@model(deque.rotate)
def rotate(tx: Tracer, me: ListValue, n: Value = _ONE) -> Value:
    tx.effects.touch(me)
    d = deque(me.items)
    d.rotate(operators.index_of(tx, n))
    me.items[:] = d
    return NONE


@model(list.remove, deque.remove)
def remove(tx: Tracer, me: ListValue, element: Value) -> Value:
    for i, v in enumerate(me.items):
        if operators.equal(tx, v, element):
            tx.effects.touch(me)
            del me.items[i]
            return NONE
    tx.raise_(ValueError, "list.remove(x): x not in list")


@model(list.clear, deque.clear)
def clear(tx: Tracer, me: ListValue) -> Value:
    tx.effects.touch(me)
    me.items.clear()
    return NONE


@model(list.reverse, deque.reverse)
def reverse(tx: Tracer, me: ListValue) -> Value:
    tx.effects.touch(me)
    me.items.reverse()
    return NONE


@model(list.__setitem__, deque.__setitem__)
def setitem(tx: Tracer, me: ListValue, key: Value, v: Value) -> Value:
    if isinstance(key, SliceValue):
        new_items = tx.protocol.unpack(tx, v)
        tx.effects.touch(me)
        try:
            me.items[operators.slice_of(tx, key)] = new_items
        except ValueError as e:
            tx.raise_native(e)
        return NONE
    i = _index(tx, me, key, "assignment ")
    tx.effects.touch(me)
    me.items[i] = v
    return NONE


@model(list.__delitem__, deque.__delitem__)
def delitem(tx: Tracer, me: ListValue, key: Value) -> Value:
    if isinstance(key, SliceValue):
        tx.effects.touch(me)
        del me.items[operators.slice_of(tx, key)]
        return NONE
    i = _index(tx, me, key, "assignment ")
    tx.effects.touch(me)
    del me.items[i]
    return NONE


@model(list.sort)
def sort(tx: Tracer, me: ListValue, *, key: Value = NONE, reverse: Value = FALSE) -> Value:
    """In place, on known keys now, else by a polyfill that compares."""
    tx.effects.touch(me)
    me.items[:] = _sorted(tx, list(me.items), key, reverse)
    return NONE


def _sorted(tx: Tracer, items: list[Value], key: Value, reverse: Value) -> list[Value]:
    """Natively on known keys, else by comparing."""
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


# --- range ------------------------------------------------------------------------------------------------------------
@model(range.__iter__)
def range_iter(tx: Tracer, me: Value) -> Value:
    return tx.protocol.iter_(tx, me)


@model(range.__len__)
def range_len(tx: Tracer, me: Value) -> Value:
    if isinstance(me, RangeValue):
        start, stop, step = me.parts
        if step.is_const() and step.const() == 1:
            gap = operators.binary(tx, "-", stop, start)
            return gap if operators.truth(tx, operators.compare(tx, ">=", gap, ConstantValue(0))) else ConstantValue(0)
        return ConstantValue(len(range(*[operators.index_of(tx, p) for p in me.parts])))
    return ConstantValue(len(me.const()))
