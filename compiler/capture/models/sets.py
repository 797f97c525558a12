"""Methods of set and frozenset.

Stage: capture.  See ``registry``.  Read next: ``iterators``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.registry import model, new
from compiler.capture.protocol import operators
from compiler.capture.values.base import FALSE, NONE, NOT_IMPLEMENTED, TRUE, ConstantValue, Value
from compiler.capture.values.function import ClassValue
from compiler.capture.values.keys import key_of
from compiler.capture.values.mapping import SetValue
from compiler.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

Items = dict[Any, Value]


def _items(tx: Tracer, v: Value) -> Items:
    if isinstance(v, SetValue):
        return v.items
    found: Items = {}
    for e in tx.protocol.unpack(tx, v):
        found.setdefault(key_of(tx, e), e)
    return found


def _order(tx: Tracer, v: Value, items: Items) -> Any:
    """What a real set would be joined with."""
    return v.like(tx) if isinstance(v, SetValue) else list(items)


def _change(tx: Tracer, me: SetValue, name: str, items: Items, other: Value, given: Items) -> None:
    """``me`` has ``items`` after its method ``name`` got ``other``."""
    if me.source is None:
        getattr(me.order, name)(_order(tx, other, given))
        me.items = items
    else:
        me.become(items, name, [_as_is(tx, other, given)])


def _as_is(tx: Tracer, v: Value, items: Items) -> Value:
    """What a set from outside will be joined with: ``v``, which may change, as it is now."""
    if isinstance(v, SetValue):
        return SetValue(dict(items), set, order=v.like(tx).copy())
    return TupleValue(list(items.values()))


def _of(tx: Tracer, iterable: tuple[Value, ...], kind: type) -> SetValue:
    if not iterable:
        return SetValue({}, kind)
    items = _items(tx, iterable[0])
    return SetValue(dict(items), kind, order=set(_order(tx, iterable[0], items)))


def join(tx: Tracer, me: SetValue, other: Value) -> None:
    """``{*me, *other}``."""
    items = _items(tx, other)
    _change(tx, me, "update", union(me.items, items), other, items)


@model(set)
def make_set(tx: Tracer, *iterable: Value) -> Value:
    return _of(tx, iterable, set)


@model(frozenset)
def make_frozenset(tx: Tracer, *iterable: Value) -> Value:
    return _of(tx, iterable, frozenset)


@new(set.__new__, frozenset.__new__)
def new_set(tx: Tracer, cls: ClassValue, *iterable: Value) -> Value:
    return _of(tx, iterable if issubclass(cls.cls, frozenset) else (), cls.cls)


@model(set.__init__)
def set_init(tx: Tracer, me: SetValue, *iterable: Value) -> Value:
    tx.effects.touch(me)
    made = _of(tx, iterable, set)
    me.become(made.items, "__init__", [_as_is(tx, v, made.items) for v in iterable])
    me.order, me.grown = made.order, True
    return NONE


@model(set.__contains__, frozenset.__contains__)
def contains(tx: Tracer, me: SetValue, element: Value) -> Value:
    return TRUE if key_of(tx, element) in me.items else FALSE


@model(set.__len__, frozenset.__len__)
def length(tx: Tracer, me: SetValue) -> Value:
    return ConstantValue(len(me.items))


@model(set.__iter__, frozenset.__iter__)
def iterate(tx: Tracer, me: SetValue) -> Value:
    return tx.protocol.iter_(tx, me)


@model(set.copy, frozenset.copy)
def copy(tx: Tracer, me: SetValue) -> Value:
    return SetValue(dict(me.items), me.kind, order=me.like(tx).copy())


# --- algebra ----------------------------------------------------------------------------------------------------------
def union(a: Items, b: Items) -> Items:
    return {**a, **{k: v for k, v in b.items() if k not in a}}


def intersection(a: Items, b: Items) -> Items:
    return {k: v for k, v in a.items() if k in b}


def difference(a: Items, b: Items) -> Items:
    return {k: v for k, v in a.items() if k not in b}


def symmetric(a: Items, b: Items) -> Items:
    return {**difference(a, b), **difference(b, a)}


def _operator(fn: Any, name: str) -> Any:
    def run(tx: Tracer, me: SetValue, other: Value) -> Value:
        if not isinstance(other, SetValue):
            return NOT_IMPLEMENTED
        order = getattr(me.like(tx), name)(other.like(tx))
        return SetValue(fn(me.items, other.items), me.kind, order=order)

    return run


def _reflected(fn: Any, name: str) -> Any:
    return lambda tx, me, other: _operator(fn, name)(tx, other, me) if isinstance(other, SetValue) else NOT_IMPLEMENTED


def _inplace(fn: Any, name: str) -> Any:
    def run(tx: Tracer, me: SetValue, other: Value) -> Value:
        if not isinstance(other, SetValue):
            return NOT_IMPLEMENTED
        tx.effects.touch(me)
        _change(tx, me, name, fn(me.items, other.items), other, other.items)
        return me

    return run


def _check_count(tx: Tracer, me: SetValue, name: str, others: tuple[Value, ...]) -> None:
    if name.startswith("symmetric") and len(others) != 1:
        tx.raise_(TypeError, f"{me.base().__name__}.{name}() takes exactly one argument ({len(others)} given)")


def _method(fn: Any, name: str) -> Any:
    def run(tx: Tracer, me: SetValue, *others: Value) -> Value:
        _check_count(tx, me, name, others)
        found, orders = dict(me.items), []
        for other in others:
            items = _items(tx, other)
            found = fn(found, items)
            orders.append(_order(tx, other, items))
        return SetValue(found, me.kind, order=getattr(me.like(tx), name)(*orders))

    return run


def _update(fn: Any, name: str) -> Any:
    def run(tx: Tracer, me: SetValue, *others: Value) -> Value:
        _check_count(tx, me, name, others)
        tx.effects.touch(me)
        for other in others:
            items = _items(tx, other)
            _change(tx, me, name, fn(me.items, items), other, items)
        return NONE

    return run


for _fn, _slot, _name, _update_name in (
    (union, "or", "union", "update"),
    (intersection, "and", "intersection", "intersection_update"),
    (difference, "sub", "difference", "difference_update"),
    (symmetric, "xor", "symmetric_difference", "symmetric_difference_update"),
):
    for _kind in (set, frozenset):
        model(getattr(_kind, f"__{_slot}__"))(_operator(_fn, f"__{_slot}__"))
        model(getattr(_kind, f"__r{_slot}__"))(_reflected(_fn, f"__{_slot}__"))
        model(getattr(_kind, _name))(_method(_fn, _name))
    model(getattr(set, f"__i{_slot}__"))(_inplace(_fn, f"__i{_slot}__"))
    model(getattr(set, _update_name))(_update(_fn, _update_name))


def _relation(op: str) -> Any:
    fn = operators.COMPARE[op][0]

    def run(tx: Tracer, me: SetValue, other: Value) -> Value:
        if not isinstance(other, SetValue):
            return NOT_IMPLEMENTED
        return TRUE if fn(me.items.keys(), other.items.keys()) else FALSE

    return run


for _op, (_, _slot, _) in operators.COMPARE.items():
    model(getattr(set, _slot), getattr(frozenset, _slot))(_relation(_op))


@model(set.issubset, frozenset.issubset)
def issubset(tx: Tracer, me: SetValue, other: Value) -> Value:
    return TRUE if me.items.keys() <= _items(tx, other).keys() else FALSE


@model(set.issuperset, frozenset.issuperset)
def issuperset(tx: Tracer, me: SetValue, other: Value) -> Value:
    return TRUE if me.items.keys() >= _items(tx, other).keys() else FALSE


@model(set.isdisjoint, frozenset.isdisjoint)
def isdisjoint(tx: Tracer, me: SetValue, other: Value) -> Value:
    return TRUE if me.items.keys().isdisjoint(_items(tx, other).keys()) else FALSE


# --- changing ---------------------------------------------------------------------------------------------------------
@model(set.add)
def add(tx: Tracer, me: SetValue, element: Value) -> Value:
    key = key_of(tx, element)
    if key not in me.items:
        tx.effects.touch(me)
        me.add(key, element)
    return NONE


@model(set.discard)
def discard(tx: Tracer, me: SetValue, element: Value) -> Value:
    key = key_of(tx, element)
    if key in me.items:
        tx.effects.touch(me)
        me.drop(key)
    return NONE


@model(set.remove)
def remove(tx: Tracer, me: SetValue, element: Value) -> Value:
    key = key_of(tx, element)
    if key not in me.items:
        tx.raise_value(tx.new_exception(KeyError, [element]))
    tx.effects.touch(me)
    me.drop(key)
    return NONE


@model(set.pop)
def pop(tx: Tracer, me: SetValue) -> Value:
    if not me.items:
        tx.raise_(KeyError, "pop from an empty set")
    if me.source is not None:
        breaks.unsupported(breaks.OPERATION, "pop of a set from outside, which goes on where the last one ended")
    return me.items.pop(me.order.pop())


@model(set.clear)
def clear(tx: Tracer, me: SetValue) -> Value:
    tx.effects.touch(me)
    me.become({}, "clear", [])
    me.order.clear()
    return NONE
