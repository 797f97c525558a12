"""``copy.copy`` and ``copy.deepcopy`` of containers and objects.

Stage: capture.  See ``registry``.  Read next: ``capture.entry``.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, classes
from compiler.capture.values.base import NONE, Value, realize
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.objects import ObjectValue
from compiler.capture.values.sequence import ListValue, TupleValue
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


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
        if classes.lookup(tx, obj.cls, "__copy__") is not None:
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
        if classes.lookup(tx, obj.cls, "__deepcopy__") is not None:
            return calls.call_special(tx, obj, "__deepcopy__", [DictValue()])
        made = _copy_object(tx, obj, lambda v: _deep(tx, v, memo))
    memo[id(obj)] = made
    return made


def _copy_object(tx: Tracer, obj: ObjectValue, inner: Any) -> Value:
    if obj.is_exception() or classes.lookup(tx, obj.cls, "__reduce_ex__")[1] is not object.__reduce_ex__:  # type: ignore[index]
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
