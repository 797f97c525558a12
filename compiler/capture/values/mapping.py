"""Dicts and sets: keys known while tracing, elements that are values.

Stage: capture.  In and out: see ``base``.  A dict from outside guards what was asked of it: one key's absence, its
length, or (when it is walked) all keys in order.  Instance dicts are such dicts too, so attribute writes and dict
writes are one mechanism.  Read next: ``objects``.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from compiler.capture import breaks
from compiler.capture.source import escape, literal
from compiler.capture.values.base import ConstantValue, ContainerValue, Lazy, NotConstantError, Value, realize
from compiler.capture.values.keys import IdKey, UserKey, is_new, known_key, real_key

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.capture.tracer import Tracer


class DictValue(ContainerValue):
    """``entries`` maps a key to (key value, element)."""

    def __init__(
        self,
        entries: dict[Hashable, tuple[Value, Value]] | None = None,
        kind: type = dict,
        source: Source | None = None,
        obj: Any = None,
    ) -> None:
        self.entries: dict[Hashable, tuple[Value, Value]] = {} if entries is None else entries
        self.kind = kind
        self.source = source
        self.obj = obj
        self.keys_known = source is None
        self.default_factory: Value | None = None  # of a defaultdict
        self.before: dict[Hashable, tuple[Value, Value]] = dict(self.entries) if source is not None else {}
        self.owner: Value | None = None  # the object whose instance dict this is

    @staticmethod
    def wrap(obj: Any, source: Source) -> DictValue:
        """A dict from outside; elements untouched."""
        entries: dict[Hashable, tuple[Value, Value]] = {}
        for i, (k, v) in enumerate(dict.items(obj)):
            if literal(k) is not None:
                entries[k] = (ConstantValue(k), Lazy(v, source.item(k)))
            else:
                where = source.nth(i)
                entries[real_key(k)] = (Lazy(k, where), Lazy(v, source.item_at(where)))
        return DictValue(entries, type(obj), source, obj)

    def refresh(self) -> None:
        """Take in keys that the real dict got while tracing."""
        assert self.source is not None
        for key, entry in DictValue.wrap(self.obj, self.source).entries.items():
            if key not in self.before:
                self.before[key] = self.entries[key] = entry

    def pytype(self) -> type:
        return self.kind

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [*super().children(), *(v for entry in self.entries.values() for v in entry)]

    def get(self, tx: Tracer, key: Hashable, key_value: Value | None = None) -> Value | None:
        """The element, or None if absent; both are guarded."""
        entry = self.entries.get(key)
        if entry is not None:
            if isinstance(entry[1], Lazy) and self.source is not None:
                self._read_by_key(tx, entry[1], key, key_value)
            found = realize(tx, entry[1])
            if found is not entry[1] and not isinstance(found, ConstantValue):
                self.entries[key] = (entry[0], found)
            return found
        self.guard_absent(tx, key, key_value)
        return None

    def _read_by_key(self, tx: Tracer, element: Lazy, key: Hashable, key_value: Value | None) -> None:
        """An element is read as ``d[key]``, which does not depend on the order of keys."""
        assert self.source is not None
        found = None if key_value is None else key_value.source
        if isinstance(key, IdKey | UserKey) and found is not None:
            where = self.source.item_at(found)
            if element.value is None:
                element.source = where
            elif where != element.source and isinstance(key, UserKey):
                self._same(element, where)
        elif element.value is None and literal(key) is None and not isinstance(key, UserKey):
            known = known_key(key, key_value)
            if known is not None:
                element.source = self.source.item_at(tx.namespace.source(known, "key"))

    def _same(self, element: Lazy, where: Source) -> None:
        breaks.unsupported(breaks.UNHASHABLE_KEY, f"one element reached as {element.source} and as {where}")

    def has(self, tx: Tracer, key: Hashable, key_value: Value | None = None) -> bool:
        """Membership, guarded."""
        if key in self.entries:
            if self.source is not None and not self.keys_known and key in self.before:
                self._guard_key(tx, "{0} in {1}", key, key_value)
            return True
        self.guard_absent(tx, key, key_value)
        return False

    def guard_absent(self, tx: Tracer, key: Hashable, key_value: Value | None = None) -> None:
        if self.source is not None and not self.keys_known and key not in self.before:
            self._guard_key(tx, "{0} not in {1}", key, key_value)

    def _guard_key(self, tx: Tracer, form: str, key: Hashable, key_value: Value | None) -> None:
        assert self.source is not None
        text = literal(key)
        if text is not None:
            asked = form.replace("{0}", escape(text)).replace("{1}", "{0}")
            implied_by = self.source.item(key).text if " not in " not in form else ""
            tx.guard("KEY", asked, self.source, implied_by=implied_by)
        elif key_value is not None and key_value.source is not None:
            tx.guard("KEY", form, key_value.source, self.source)
        elif isinstance(key, UserKey):
            breaks.unsupported(breaks.UNHASHABLE_KEY, f"a new {key.value.pytype().__name__} in a dict from outside")
        elif not is_new(tx, key):
            known = known_key(key, key_value)
            if known is None:
                self.know_keys(tx)
            else:
                tx.guard("KEY", form, tx.namespace.source(known, "key"), self.source)

    def know_keys(self, tx: Tracer) -> None:
        """Guard all keys and their order."""
        if self.keys_known or self.source is None:
            return
        self.keys_known = True
        source = self.source
        texts = [literal(k) for k in self.before]
        if all(t is not None for t in texts):
            keys = "(" + ", ".join(str(t) for t in texts) + ("," if len(texts) == 1 else "") + ")"
            if texts:
                tx.guard("KEYS", f"tuple({{0}}) == {keys.replace('{', '{{').replace('}', '}}')}", source)
            else:
                tx.guard("KEYS", "not {0}", source)
            return
        tx.guard("LENGTH", f"len({{0}}) == {len(self.before)}", source)
        for key_value, _ in self.before.values():
            realize(tx, key_value)

    def know_length(self, tx: Tracer) -> None:
        if self.source is not None and not self.keys_known:
            if not self.before:
                tx.guard("LENGTH", "not {0}", self.source)
            else:
                tx.guard("LENGTH", f"len({{0}}) == {len(self.before)}", self.source)

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        name = emit.begin(self, "{}") if self.kind is dict else self.rebuild(emit)
        if self.default_factory is not None:
            emit.finish(f"{name}.default_factory = {emit.load(self.default_factory)}")
        for key_value, element in self.entries.values():
            emit.finish(self.store(emit, name, key_value, element))
        return name

    def store(self, emit: Emitter, where: str, key: Value, element: Value) -> str:
        """The statement that puts an element into the dict at ``where``."""
        if self.kind is self.base():
            return f"{where}[{emit.load(key)}] = {emit.load(element)}"
        return f"{self.method(emit, '__setitem__', where)}{emit.load(key)}, {emit.load(element)})"


class SetValue(ContainerValue):
    """``items`` maps a key to its element; ``order`` is a real set of the keys, with the history of the one it stands
    for, so that it is walked in the same order.  The history of a set from outside is not known, only what it is like
    now: what is made of it has an order, but once it has grown its own is known to nobody."""

    def __init__(
        self, items: dict[Hashable, Value] | None = None, kind: type = set, source: Source | None = None, obj: Any = None,
        order: set[Hashable] | None = None,
    ) -> None:  # fmt: skip
        self.items: dict[Hashable, Value] = {} if items is None else items
        self.before = dict(self.items) if source is not None else {}
        self.order: set[Hashable] = set(iter(self.items)) if order is None else order
        self.kind = kind
        self.source = source
        self.obj = obj
        self.grown = False
        self.changes: list[tuple[str, list[Value]]] = []  # of a set from outside: methods and arguments, to be called again

    def in_order(self, tx: Tracer) -> list[Value]:
        """The elements as iteration gives them; which set from outside it was is guarded."""
        if self.source is None:
            return [self.items[k] for k in self.order]
        if self.grown:
            self._unknown_order()
        self._guard_order(tx)
        return list(self.items.values())

    def like(self, tx: Tracer) -> set[Hashable]:
        """A real set to make others of; of one from outside its order and the size of its table are guarded."""
        if self.source is None or type(self.obj) not in (set, frozenset):
            return self.order
        if any(literal(k) is None for k in self.before):
            return self.order
        if tx.effects.is_touched(self):
            self._unknown_order()
        self._guard_order(tx)
        tx.guard("KEYS", f"{{0}}.__sizeof__() == {self.obj.__sizeof__()}", self.source)
        return self.obj  # type: ignore[no-any-return]

    def _guard_order(self, tx: Tracer) -> None:
        assert self.source is not None
        if self.before and all(literal(k) is not None for k in self.before):
            tx.guard("KEYS", f"tuple({{0}}) == {escape(repr(tuple(self.before)))}", self.source)

    def _unknown_order(self) -> NoReturn:
        breaks.unsupported(breaks.OPERATION, "the order of a set from outside that was changed")

    def add(self, key: Hashable, value: Value) -> None:
        if key not in self.items:
            self.items[key] = value
            self.order.add(key)
            self.grown = True
            self.changed("add", [value])

    def drop(self, key: Hashable) -> None:
        self.changed("discard", [self.items.pop(key)])
        self.order.discard(key)

    def become(self, items: dict[Hashable, Value], name: str, args: list[Value]) -> None:
        """Have these elements from now on, which is what method ``name`` does."""
        self.grown = self.grown or any(k not in self.items for k in items)
        self.items = items
        self.changed(name, args)

    def changed(self, name: str, args: list[Value]) -> None:
        if self.source is not None:
            self.changes.append((name, args))

    def pytype(self) -> type:
        return self.kind

    def const(self) -> Any:
        if self.kind is not frozenset:
            raise NotConstantError(self)
        return frozenset(v.const() for v in self.items.values())

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [*super().children(), *self.items.values()]

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        keys, whole = self._recipe()
        values = [self.items[k] for k in keys]
        if self.kind is frozenset:
            items = [emit.load(v) + ": None" * whole for v in values]
            return f"frozenset({'{' if whole else '['}{', '.join(items)}{'}' if whole else ']'})"
        name = emit.begin(self, "set()") if self.kind is set else self.rebuild(emit)
        if whole:
            emit.finish(f"{self.method(emit, 'update', name)}{{{', '.join(f'{emit.load(v)}: None' for v in values)}}})")
            return name
        for v in values:
            emit.finish(f"{self.method(emit, 'add', name)}{emit.load(v)})")
        return name

    def _recipe(self) -> tuple[list[Hashable], bool]:
        """In which order to insert the keys so that they come out in order, and whether as a whole: a dict's keys get a
        table of their size, elements one by one get one that grows."""
        order, found = list(self.order), None
        for keys in self._insertions(order):
            for whole in (False, True):
                made = set(dict.fromkeys(keys)) if whole else set(iter(keys))
                if list(made) == order:
                    if made.__sizeof__() == self.order.__sizeof__():
                        return keys, whole
                    found = found or (keys, whole)
        return found or (order, False)

    def _insertions(self, order: list[Hashable]) -> Iterator[list[Hashable]]:
        """What to try; of two that collide the second may come first."""
        yield from (list(self.items), order, order[::-1])
        if len(order) <= 5:
            yield from map(list, itertools.permutations(order))
