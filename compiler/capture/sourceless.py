"""Values that no guard stands behind: of what cannot change, and of what is new.

Stage: capture.  In: an object from code or library (``known``), or a fresh result of something run while tracing
(``fresh``).  Out: a value.  A function keeps a source, since translated code may have to load it.  Read next:
``protocol``, what operations on values mean.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import wrap
from compiler.capture.kinds import C_FUNCTIONS, CONSTANT_BASES, CONSTANT_TYPES, ITERATORS
from compiler.capture.values.base import FALSE, NONE, NOT_IMPLEMENTED, TRUE, ConstantValue, Value
from compiler.capture.values.function import ClassValue, ModuleValue
from compiler.capture.values.iterator import ItemsIterator
from compiler.capture.values.keys import real_key
from compiler.capture.values.mapping import DictValue, SetValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue
from compiler.sym.env import SymInt
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def known(tx: Tracer, obj: Any) -> Value:
    """The value of an object that cannot change: constants of code, builtins, definitions of the library."""
    if obj is None:
        return NONE
    if obj is True:
        return TRUE
    if obj is False:
        return FALSE
    if obj is NotImplemented:
        return NOT_IMPLEMENTED
    kind = type(obj)
    if kind is FunctionType:
        met = tx.by_id.get(id(obj))
        if met is not None and met.source is not None and met.source.text in tx.namespace.objects:
            return met
        return wrap.build(tx, obj, tx.namespace.source(obj))
    if kind in CONSTANT_TYPES or isinstance(obj, CONSTANT_BASES):
        return ConstantValue(obj)
    if kind is tuple:
        return TupleValue([known(tx, o) for o in obj])
    if kind is frozenset:
        items = {real_key(o): known(tx, o) for o in obj}
        return SetValue(items, frozenset, order=obj if obj == items.keys() else None)
    if isinstance(obj, type):
        return ClassValue(obj)
    if isinstance(obj, ModuleType):
        return ModuleValue(obj)
    if isinstance(obj, C_FUNCTIONS):
        return wrap.c_function(tx, obj, tx.namespace.source(obj))
    return wrap.build(tx, obj, tx.namespace.source(obj))


def fresh(tx: Tracer, obj: Any) -> Value:
    """The value of something new, made while tracing: no source, no guard."""
    kind = type(obj)
    if kind is int or kind is bool or obj is None or kind is str or kind is float:
        return ConstantValue(obj)
    if isinstance(obj, SymInt):
        return SymIntValue(obj)
    if isinstance(obj, Tensor):
        return tx.by_fake.get(id(obj)) or tx.new_tensor(obj, None)
    if isinstance(obj, tuple):
        return TupleValue([fresh(tx, o) for o in obj], kind)
    if kind is list:
        return ListValue([fresh(tx, o) for o in obj])
    if kind is dict:
        return DictValue({real_key(k): (fresh(tx, k), fresh(tx, v)) for k, v in obj.items()})
    if kind in (set, frozenset):
        made = {real_key(o): fresh(tx, o) for o in obj}
        return SetValue(made, kind, order=set(obj) if obj == made.keys() else None)
    if kind is slice:
        return SliceValue(fresh(tx, obj.start), fresh(tx, obj.stop), fresh(tx, obj.step))
    if kind is zip or kind is map or kind is enumerate or kind in ITERATORS:
        return ItemsIterator([fresh(tx, o) for o in obj])
    if isinstance(obj, BaseException):
        return tx.new_exception(kind, [fresh(tx, a) for a in obj.args])
    if isinstance(obj, np.generic):
        return ConstantValue(obj)
    return known(tx, obj)
