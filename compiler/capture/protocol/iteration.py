"""Iteration: ``iter``, ``next``, unpacking.

Stage: capture.  See ``protocol``.  Read next: ``capture.models``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from compiler.capture import graphs
from compiler.capture.protocol import calls, classes
from compiler.capture.values.base import ConstantValue, Value, realize
from compiler.capture.values.function import ClassValue
from compiler.capture.values.iterator import (
    ItemsIterator,
    IteratorValue,
    RangeIterator,
    SequenceIterator,
    SetIterator,
)
from compiler.capture.values.keys import key_of
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import Observed
from compiler.capture.values.sequence import RangeValue, SequenceValue
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def iter_(tx: Tracer, v: Value) -> Value:
    """``iter(v)``."""
    v = realize(tx, v)
    if isinstance(v, IteratorValue):
        return v
    if isinstance(v, SequenceValue | DictValue | SetValue) and not _overrides_iter(v.pytype()):
        return builtin_iter(tx, v)
    if isinstance(v, ConstantValue | RangeValue | TensorValue):
        return builtin_iter(tx, v)
    if classes.lookup(tx, v.pytype(), "__iter__") is not None:
        return realize(tx, calls.call_special(tx, v, "__iter__", []))
    if classes.lookup(tx, v.pytype(), "__getitem__") is not None and not isinstance(v, ClassValue):
        return calls.call(tx, tx.polyfill("iterate_by_index"), [v], {})
    tx.raise_(TypeError, f"'{v.pytype().__name__}' object is not iterable")


def _overrides_iter(kind: type) -> bool:
    return any("__iter__" in c.__dict__ and c.__module__ not in ("builtins", "collections") for c in kind.__mro__[:-1])


def builtin_iter(tx: Tracer, v: Value) -> Value:
    """The iteration of builtin types themselves."""
    if isinstance(v, SequenceValue):
        return SequenceIterator(v)
    if isinstance(v, DictValue):
        iterator: Value = tx.models.mappings.iterate(tx, v)
        return iterator
    if isinstance(v, SetValue):
        return SetIterator(v, v.in_order(tx))
    if isinstance(v, RangeValue):
        bounds = [tx.protocol.unary(tx, "+", p) for p in v.parts]
        return RangeIterator(range(*[int(b.sym) if hasattr(b, "sym") else b.const() for b in bounds]))
    if isinstance(v, TensorValue):
        return _rows(tx, v)
    constant = v.const()
    if isinstance(constant, range):
        return RangeIterator(constant)
    try:
        items = list(constant)
    except TypeError as e:
        tx.raise_native(e)
    return ItemsIterator([tx.from_python(o) for o in items], type(iter(constant)))


def _rows(tx: Tracer, v: TensorValue) -> Value:
    """Iterating over a tensor: its slices along dimension 0."""
    shape = v.fake._data.shape
    if not shape:
        tx.raise_(TypeError, "iteration over a 0-d tensor")
    found = graphs.call_method(tx, "unbind", [v, ConstantValue(0)], {})
    assert isinstance(found, SequenceValue)
    return SequenceIterator(found)


def next_(tx: Tracer, it: Value) -> Value | None:
    """The next element, None at the end."""
    it = realize(tx, it)
    if isinstance(it, IteratorValue):
        return it.next(tx)
    found = classes.lookup(tx, it.pytype(), "__next__")
    if found is None:
        tx.raise_(TypeError, f"'{it.pytype().__name__}' object is not an iterator")
    try:
        return calls.call_special(tx, it, "__next__", [])
    except Observed as e:
        if issubclass(e.value.cls, StopIteration):
            return None
        raise


def unpack(tx: Tracer, v: Value, limit: int | None = None) -> list[Value]:
    """All elements (at most ``limit``), not looked at."""
    v = realize(tx, v)
    if isinstance(v, SequenceValue) and not _overrides_iter(v.pytype()):
        return list(v.items)
    it = iter_(tx, v)
    found: list[Value] = []
    while limit is None or len(found) < limit:
        element = next_(tx, it)
        if element is None:
            break
        found.append(element)
    return found


def mapping_entries(tx: Tracer, v: Value) -> list[tuple[Hashable, tuple[Value, Value]]]:
    """Keys and elements of a mapping, for ``**v`` and ``dict.update``."""
    v = realize(tx, v)
    if isinstance(v, DictValue):
        v.know_keys(tx)
        return list(v.entries.items())
    if classes.lookup(tx, v.pytype(), "keys") is None:
        tx.raise_(TypeError, f"'{v.pytype().__name__}' object is not a mapping")
    keys: list[Any] = unpack(tx, calls.call_method(tx, v, "keys", []))
    return [(key_of(tx, k), (k, tx.protocol.getitem(tx, v, k))) for k in keys]


