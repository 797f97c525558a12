"""What a value is as the key of a dict or set: by what it equals, or by which object it is.

Stage: capture.  In: values, and keys of real containers.  Out: what ``mapping`` looks up.  Read next: ``mapping``.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.source import literal
from compiler.capture.values.base import ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.identity import IdValue
from compiler.capture.values.sequence import TupleValue
from tinytorch.dtypes import DType

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


@dataclass(frozen=True, slots=True)
class IdKey:
    """The key of an object that hashes by identity; ``id`` of the real object, or of the value if it is new."""

    id: int


@dataclass(frozen=True, slots=True)
class TupleKey:
    """The key of a tuple that holds such objects."""

    items: tuple[Hashable, ...]


class ForeignKey:
    """The key, in a container from outside, of an object whose class says what it equals: asked natively."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return hash(self.obj)

    def __eq__(self, other: object) -> bool:
        return bool(self.obj == other.obj) if isinstance(other, ForeignKey) else NotImplemented


class UserKey:
    """The key of a traced object of such a class: its ``__hash__`` and ``__eq__`` are traced when they are needed.

    In a container from outside it is looked up natively; the guard asks the container itself (``DictValue.get``).
    """

    __slots__ = ("tx", "value", "hash")

    def __init__(self, tx: Tracer, value: Value) -> None:
        self.tx, self.value = tx, value
        self.hash: int = realize(tx, tx.protocol.call_special(tx, value, "__hash__", [])).const()

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ForeignKey):
            if self.value.real() is None or self.tx.effects.is_touched(self.value):
                breaks.unsupported(breaks.UNHASHABLE_KEY, self.value.pytype().__name__)
            return bool(self.value.real() == other.obj)
        if isinstance(other, UserKey):
            return self.tx.protocol.equal(self.tx, self.value, other.value)
        return is_plain_key(other) and self.tx.protocol.equal(self.tx, self.value, ConstantValue(other))


def real_key(obj: Any) -> Hashable:
    """The key that ``obj``, found in a real dict, has here."""
    if isinstance(obj, tuple) and type(obj).__hash__ is tuple.__hash__:
        keys = tuple(real_key(o) for o in obj)
        return TupleKey(keys) if any(isinstance(k, IdKey | TupleKey) for k in keys) else obj
    if _hashes_by_identity(type(obj)):
        return IdKey(id(obj))
    return ForeignKey(obj) if _hashes_in_python(type(obj)) else obj


def _hashes_in_python(kind: type) -> bool:
    return isinstance(kind.__hash__, FunctionType) and not issubclass(kind, enum.Enum | DType)


def _hashes_by_identity(kind: type) -> bool:
    return kind.__hash__ is object.__hash__ or kind.__name__ in ("Tensor", "Parameter") and not issubclass(kind, str | int)


def key_of(tx: Tracer, value: Value) -> Hashable:
    """The key of a traced value; raises the user's TypeError if unhashable, breaks if its hash is not known."""
    value = realize(tx, value)
    if isinstance(value, TupleValue):
        keys = tuple(key_of(tx, v) for v in value.items)
        if any(isinstance(k, IdKey | TupleKey) for k in keys):
            return TupleKey(keys)
        return keys if value.kind is tuple else tuple.__new__(value.kind, keys)
    if isinstance(value, IdValue):
        return _identity_key(tx, value.of)
    try:
        constant = value.const()
        hash(constant)
        key = real_key(constant)
        if isinstance(key, IdKey):
            tx.known_ids[key.id] = constant
        return key
    except NotConstantError:
        pass
    except TypeError as e:
        tx.raise_native(e)
    kind = value.pytype()
    if kind.__hash__ is None:
        tx.raise_(TypeError, f"unhashable type: '{kind.__name__}'")
    obj = value.real()
    if _hashes_by_identity(kind) or kind in (FunctionType, BuiltinFunctionType, ModuleType, type):
        return _identity_key(tx, value)
    if _hashes_in_python(kind):
        return UserKey(tx, value)
    if obj is not None and not tx.effects.is_touched(value):
        return obj  # type: ignore[no-any-return]
    specialized = tx.specialize(value)
    if specialized is not None:
        return specialized  # type: ignore[no-any-return]
    breaks.unsupported(breaks.UNHASHABLE_KEY, kind.__name__)


def _identity_key(tx: Tracer, value: Value) -> IdKey:
    """Two objects that are apart now must be apart in every call that uses this trace."""
    obj = value.real()
    if obj is None:
        return IdKey(id(value))
    tx.distinct.setdefault(id(obj), value)
    return IdKey(id(obj))


def is_new(tx: Tracer, key: Hashable) -> bool:
    """Whether the key is, or holds, an object that the trace has made: no container from outside has it."""
    if isinstance(key, TupleKey):
        return any(is_new(tx, k) for k in key.items)
    return isinstance(key, IdKey) and key.id not in tx.distinct and key.id not in tx.known_ids


def known_key(key: Hashable, value: Value | None) -> Any:
    """The object behind a key, if it is a constant."""
    if not isinstance(key, IdKey | TupleKey | UserKey | ForeignKey):
        return key
    return value.const() if value is not None and value.is_const() else None


def is_plain_key(key: Any) -> bool:
    """Keys that print as text, and members of enumerations."""
    return literal(key) is not None or isinstance(key, enum.Enum)
