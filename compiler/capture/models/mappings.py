"""Methods of dict, OrderedDict, defaultdict, and dict views.

Stage: capture.  See ``registry``.  Read next: ``sets``.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.registry import get as get_model
from compiler.capture.models.registry import model, new
from compiler.capture.protocol import calls, operators
from compiler.capture.values.base import FALSE, NONE, NOT_IMPLEMENTED, TRUE, ConstantValue, Value, realize
from compiler.capture.values.function import ClassValue
from compiler.capture.values.iterator import ItemsIterator
from compiler.capture.values.keys import key_of
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.tracer import Tracer

OrderedDict, defaultdict = collections.OrderedDict, collections.defaultdict
_EMPTY: dict[Any, Any] = {}


class DictView(Value):
    """``d.keys()``, ``d.values()``, ``d.items()``."""

    def __init__(self, of: DictValue, what: str) -> None:
        self.of = of
        self.what = what

    def pytype(self) -> type:
        return type(getattr(_EMPTY, self.what)())

    def children(self) -> list[Value]:
        return [self.of]

    def elements(self) -> list[Value]:
        pairs = list(self.of.entries.values())
        if self.what == "keys":
            return [k for k, _ in pairs]
        if self.what == "values":
            return [v for _, v in pairs]
        return [TupleValue([k, v]) for k, v in pairs]

    def reconstruct(self, emit: Emitter) -> str:
        return f"{emit.load(self.of)}.{self.what}()"


class DictIterator(ItemsIterator):
    """Over a dict's view; a dict that grows meanwhile is an error, as in CPython."""

    def __init__(self, view: DictView) -> None:
        super().__init__(view.elements(), type(iter(getattr(_EMPTY, view.what)())))
        self.of = view.of
        self.size = len(view.of.entries)

    def next(self, tx: Tracer) -> Value | None:
        if len(self.of.entries) != self.size:
            tx.raise_(RuntimeError, "dictionary changed size during iteration")
        return super().next(tx)


# --- making -----------------------------------------------------------------------------------------------------------
@new(dict.__new__)
def new_dict(tx: Tracer, cls: ClassValue, *args: Value, **kwargs: Value) -> Value:
    return DictValue({}, cls.cls)


for _cls in (OrderedDict, defaultdict):
    if "__new__" in _cls.__dict__:
        new(_cls.__new__)(new_dict)


@model(dict)
def make_dict(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = DictValue()
    update(tx, made, *args, **kwargs)
    return made


@model(OrderedDict)
def make_ordered(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = DictValue({}, OrderedDict)
    update(tx, made, *args, **kwargs)
    return made


@model(defaultdict)
def make_default(tx: Tracer, factory: Value = NONE, *args: Value, **kwargs: Value) -> Value:
    made = DictValue({}, defaultdict)
    made.default_factory = factory
    update(tx, made, *args, **kwargs)
    return made


@model(defaultdict.__init__)
def default_init(tx: Tracer, me: DictValue, factory: Value = NONE, *args: Value, **kwargs: Value) -> Value:
    me.default_factory = factory
    return update(tx, me, *args, **kwargs)


@model(defaultdict.__dict__["default_factory"])
def default_factory(tx: Tracer, me: DictValue) -> Value:
    return realize(tx, me.default_factory or NONE)


@model(dict.fromkeys, OrderedDict.fromkeys)
def fromkeys(tx: Tracer, keys: Value, value: Value = NONE) -> Value:
    return DictValue({key_of(tx, k): (k, value) for k in tx.protocol.unpack(tx, keys)})


# --- reading ----------------------------------------------------------------------------------------------------------
@model(dict.__getitem__)
def getitem(tx: Tracer, me: DictValue, key: Value) -> Value:
    found = me.get(tx, key_of(tx, key), key)
    if found is not None:
        return found
    if me.kind is not dict and tx.protocol.has_special(tx, me, "__missing__"):
        return calls.call_special(tx, me, "__missing__", [key])
    tx.raise_value(tx.new_exception(KeyError, [key]))


if "__getitem__" in defaultdict.__dict__:
    model(defaultdict.__getitem__)(getitem)


@model(defaultdict.__missing__)
def missing(tx: Tracer, me: DictValue, key: Value) -> Value:
    factory = realize(tx, me.default_factory or NONE)
    if factory.is_const() and factory.const() is None:
        tx.raise_value(tx.new_exception(KeyError, [key]))
    made = calls.call(tx, factory, [], {})
    setitem(tx, me, key, made)
    return made


@model(dict.get)
def get(tx: Tracer, me: DictValue, key: Value, default: Value = NONE) -> Value:
    found = me.get(tx, key_of(tx, key), key)
    return default if found is None else found


@model(dict.__contains__)
def contains(tx: Tracer, me: DictValue, key: Value) -> Value:
    return TRUE if me.has(tx, key_of(tx, key), key) else FALSE


@model(dict.__len__)
def length(tx: Tracer, me: DictValue) -> Value:
    me.know_length(tx)
    return ConstantValue(len(me.entries))


@model(dict.__iter__, OrderedDict.__iter__)
def iterate(tx: Tracer, me: DictValue) -> Value:
    me.know_keys(tx)
    return DictIterator(DictView(me, "keys"))


@model(dict.__reversed__, OrderedDict.__reversed__)
def iterate_back(tx: Tracer, me: DictValue) -> Value:
    me.know_keys(tx)
    return ItemsIterator([k for k, _ in reversed(me.entries.values())])


def _view(what: str) -> Any:
    def run(tx: Tracer, me: DictValue) -> Value:
        me.know_keys(tx)
        return DictView(me, what)

    return run


for _name in ("keys", "values", "items"):
    model(getattr(dict, _name), getattr(OrderedDict, _name))(_view(_name))


@model(dict.copy, OrderedDict.copy, defaultdict.copy, defaultdict.__copy__)
def copy(tx: Tracer, me: DictValue) -> Value:
    me.know_keys(tx)
    made = DictValue(dict(me.entries), me.kind if me.kind is not dict and me.kind in (OrderedDict, defaultdict) else dict)
    made.default_factory = me.default_factory
    return made


@model(dict.__eq__, OrderedDict.__eq__)
def equal(tx: Tracer, me: DictValue, other: Value) -> Value:
    if not isinstance(other, DictValue):
        return NOT_IMPLEMENTED
    me.know_keys(tx)
    other.know_keys(tx)
    if me.entries.keys() != other.entries.keys():
        return FALSE
    if issubclass(me.kind, OrderedDict) and issubclass(other.kind, OrderedDict) and list(me.entries) != list(other.entries):
        return FALSE
    return TRUE if all(operators.equal(tx, v, other.entries[k][1]) for k, (_, v) in me.entries.items()) else FALSE


@model(dict.__ne__, OrderedDict.__ne__)
def unequal(tx: Tracer, me: DictValue, other: Value) -> Value:
    found = equal(tx, me, other)
    return found if found is NOT_IMPLEMENTED else (FALSE if found is TRUE else TRUE)


# --- changing ---------------------------------------------------------------------------------------------------------
@model(dict.__setitem__, OrderedDict.__setitem__)
def setitem(tx: Tracer, me: DictValue, key: Value, v: Value) -> Value:
    hashed = key_of(tx, key)
    old = me.entries.get(hashed)
    if old is None and not me.keys_known and hashed not in me.before:
        me.guard_absent(tx, hashed, key)
    tx.effects.touch(me)
    me.entries[hashed] = (key if old is None else old[0], v)
    return NONE


@model(dict.__delitem__, OrderedDict.__delitem__)
def delitem(tx: Tracer, me: DictValue, key: Value) -> Value:
    hashed = key_of(tx, key)
    if not me.has(tx, hashed, key):
        tx.raise_value(tx.new_exception(KeyError, [key]))
    tx.effects.touch(me)
    del me.entries[hashed]
    return NONE


@model(dict.pop, OrderedDict.pop)
def pop(tx: Tracer, me: DictValue, key: Value, *default: Value, **kwargs: Value) -> Value:
    hashed = key_of(tx, key)
    found = me.get(tx, hashed, key)
    if found is None:
        if default or kwargs:
            return (default or tuple(kwargs.values()))[0]
        tx.raise_value(tx.new_exception(KeyError, [key]))
    tx.effects.touch(me)
    del me.entries[hashed]
    return found


@model(dict.popitem)
def popitem(tx: Tracer, me: DictValue) -> Value:
    return _popitem(tx, me, last=True)


@model(OrderedDict.popitem)
def ordered_popitem(tx: Tracer, me: DictValue, last: Value = TRUE) -> Value:
    return _popitem(tx, me, last=operators.truth(tx, last))


def _popitem(tx: Tracer, me: DictValue, last: bool) -> Value:
    me.know_keys(tx)
    if not me.entries:
        tx.raise_(KeyError, "popitem(): dictionary is empty" if me.kind is dict else "dictionary is empty")
    tx.effects.touch(me)
    hashed: Hashable = list(me.entries)[-1 if last else 0]
    return TupleValue(list(me.entries.pop(hashed)))


@model(OrderedDict.move_to_end)
def move_to_end(tx: Tracer, me: DictValue, key: Value, last: Value = TRUE) -> Value:
    me.know_keys(tx)
    hashed = key_of(tx, key)
    if hashed not in me.entries:
        tx.raise_value(tx.new_exception(KeyError, [key]))
    tx.effects.touch(me)
    entry = me.entries.pop(hashed)
    if operators.truth(tx, last):
        me.entries[hashed] = entry
    else:
        rest = dict(me.entries)
        me.entries.clear()
        me.entries.update({hashed: entry, **rest})
    return NONE


@model(dict.setdefault, OrderedDict.setdefault)
def setdefault(tx: Tracer, me: DictValue, key: Value, default: Value = NONE) -> Value:
    found = me.get(tx, key_of(tx, key), key)
    if found is not None:
        return found
    setitem(tx, me, key, default)
    return default


@model(dict.update, dict.__init__, OrderedDict.update, OrderedDict.__init__)
def update(tx: Tracer, me: DictValue, *args: Value, **kwargs: Value) -> Value:
    tx.effects.touch(me)
    if args:
        other = realize(tx, args[0])
        if isinstance(other, DictValue) or tx.protocol.has_special(tx, other, "keys"):
            for key, (k, v) in tx.protocol.mapping_entries(tx, other):
                me.entries[key] = (me.entries.get(key, (k, v))[0], v)
        else:
            for i, pair in enumerate(tx.protocol.unpack(tx, other)):
                k, v = _pair(tx, i, realize(tx, pair))
                key = key_of(tx, k)
                me.entries[key] = (me.entries.get(key, (k, v))[0], v)
    for name, v in kwargs.items():
        me.entries[name] = (ConstantValue(name), v)
    return NONE


def _pair(tx: Tracer, i: int, pair: Value) -> list[Value]:
    if not any(tx.protocol.has_special(tx, pair, name) for name in ("__iter__", "__getitem__")) or isinstance(pair, ClassValue):
        tx.raise_(TypeError, f"cannot convert dictionary update sequence element #{i} to a sequence")
    parts = tx.protocol.unpack(tx, pair)
    if len(parts) != 2:
        tx.raise_(ValueError, f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required")
    return parts


@model(dict.clear, OrderedDict.clear)
def clear(tx: Tracer, me: DictValue) -> Value:
    tx.effects.touch(me)
    me.entries.clear()
    return NONE


@model(dict.__or__, OrderedDict.__or__, defaultdict.__or__)
def or_(tx: Tracer, me: DictValue, other: Value) -> Value:
    if not isinstance(other, DictValue):
        return NOT_IMPLEMENTED
    made = copy(tx, me)
    assert isinstance(made, DictValue)
    update(tx, made, other)
    return made


@model(dict.__ior__, OrderedDict.__ior__)
def ior(tx: Tracer, me: DictValue, other: Value) -> Value:
    update(tx, me, other)
    return me


# --- views ------------------------------------------------------------------------------------------------------------
_VIEWS = tuple(type(getattr(d, w)()) for d in (_EMPTY, OrderedDict()) for w in ("keys", "values", "items"))
for _kind in _VIEWS:
    model(_kind.__iter__)(lambda tx, me: DictIterator(me))
    model(_kind.__reversed__)(lambda tx, me: ItemsIterator(me.elements()[::-1]))
    if hasattr(_kind, "__len__"):
        model(_kind.__len__)(lambda tx, me: ConstantValue(len(me.of.entries)))
for _kind in (_VIEWS[0], _VIEWS[2]):

    @model(_kind.__contains__)
    def view_contains(tx: Tracer, me: DictView, element: Value) -> Value:
        if me.what == "keys":
            return contains(tx, me.of, element)
        return TRUE if any(operators.equal(tx, v, element) for v in me.elements()) else FALSE

    def _as_set(tx: Tracer, v: Value) -> SetValue:
        items = v.elements() if isinstance(v, DictView) else tx.protocol.unpack(tx, v)
        made = SetValue()
        for e in items:
            made.add(key_of(tx, e), e)
        return made

    for _op, _slot in (("&", "and"), ("|", "or"), ("-", "sub"), ("^", "xor")):
        model(getattr(_kind, f"__{_slot}__"))(
            lambda tx, me, other, op=_op: operators.binary(tx, op, _as_set(tx, me), _as_set(tx, other))
        )
    for _op, (_, _slot, _) in operators.COMPARE.items():
        model(getattr(_kind, _slot))(
            lambda tx, me, other, op=_op: operators.compare(tx, op, _as_set(tx, me), _as_set(tx, other))
            if isinstance(other, DictView | SetValue) else NOT_IMPLEMENTED
        )


class ProxyValue(DictValue):
    """A read-only look at a dict that the trace made."""

    def __init__(self, of: DictValue) -> None:
        super().__init__(of.entries, types.MappingProxyType)
        self.of = of

    def reconstruct(self, emit: Emitter) -> str:
        return f"{emit.obj(types.MappingProxyType)}({emit.load(self.of)})"


@model(types.MappingProxyType)
def proxy(tx: Tracer, of: Value) -> Value:
    if not isinstance(of, DictValue) or of.source is not None:
        breaks.unsupported(breaks.BUILTIN_CALL, "mappingproxy of what the trace has not made")
    return ProxyValue(of)


for _name in ("__getitem__", "get", "__contains__", "__len__", "__iter__", "__reversed__", "keys", "values", "items", "__eq__"):
    _of_dict: Any = get_model(getattr(dict, _name))
    model(getattr(types.MappingProxyType, _name))(_of_dict)
