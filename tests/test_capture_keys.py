"""Keys that are equal by the program's own rules, the order of sets, and what a native call sees of an exception."""

from __future__ import annotations

import copy
import dataclasses
import sys
import traceback
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler.capture import entry
from compiler.config import config
from compiler.errors import Unsupported

X = torch.ones(2)
LOG: list[Any] = []


class Key:
    def __init__(self, v: int) -> None:
        self.v = v

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.v == other.v

    def __hash__(self) -> int:
        return hash(self.v)


TABLE = {Key(1): "one", Key(2): "two"}


def test_a_table_from_outside_is_asked_by_the_keys_own_rules() -> None:
    def f(x, k):
        return x, TABLE.get(k), k in TABLE

    compiled = Counted(f, fullgraph=True)
    one, two, three = Key(1), Key(2), Key(3)
    for k in (one, two, three, Key(1)):
        assert same(compiled(X, k), f(X, k))
    one.v = 2
    assert compiled(X, one)[1] == "two"


def test_a_table_made_inside_follows_changes_of_its_keys() -> None:
    def f(x, a, b):
        table = {a: x, b: x + 1}
        return len(table), table[a], len({a, b})

    compiled = Counted(f, fullgraph=True)
    a, b = Key(1), Key(2)
    assert same(compiled(X, a, b), f(X, a, b))
    b.v = 1
    assert same(compiled(X, a, b), f(X, a, b))


def test_writing_under_such_a_key() -> None:
    def f(x, table, k):
        table[k] = x * 2
        table.pop(Key(7), None)
        return len(table)

    left: dict[Key, Any] = {Key(1): 0, Key(7): 7}
    right: dict[Key, Any] = {Key(1): 0, Key(7): 7}
    compiled = Counted(f)
    assert compiled(X, left, Key(1)) == f(X, right, Key(1))
    assert same([(k.v, v) for k, v in left.items()], [(k.v, v) for k, v in right.items()])


def test_the_order_of_a_set_from_outside_is_guarded() -> None:
    def f(x, s):
        return x, list(s), sorted(s)

    compiled = Counted(f, fullgraph=True)
    for made in ([8, 0], [0, 8], [8, 0]):
        s = set()
        for v in made:
            s.add(v)
        assert same(compiled(X, s), f(X, s))
    assert len(compiled.entries) == 1 + (list({8, 0}) != list({0, 8}))


def test_a_changed_set_is_changed_in_place_by_what_changed() -> None:
    def f(x, s):
        s.add("new")
        s.discard("absent")
        s -= {"gone"}
        return x + len(s)

    compiled = Counted(f, fullgraph=True)
    left, right = {"gone", "kept"}, {"gone", "kept"}
    for _ in range(2):
        assert same(compiled(X, left), f(X, right))
        assert left == right == {"kept", "new"}


def one_by_one(*values):
    s = set()
    for v in values:
        s.add(v)
    return s


def sparse():
    """Few elements in a large table."""
    s = set(range(100))
    s -= {0, *range(4, 100)}
    return s


PATIENT = dataclasses.replace(config, recompile_limit=50)
TABLES = [
    lambda: one_by_one(8, 0), lambda: one_by_one(0, 8), lambda: {1, 2, 3}, sparse, lambda: set(one_by_one(1, 2, 3, 4, 16)),
    lambda: one_by_one(16, 4, 3, 2, 1), set, lambda: frozenset(one_by_one(7, 15)), lambda: frozenset(one_by_one(15, 7)),
]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.copy(), set, frozenset, lambda s: s | {9}, lambda s: {9} | s, lambda s: s - {8, 3}, lambda s: s ^ {1, 16},
        lambda s: s.union([16], s), lambda s: {*s, 16}, copy.copy, copy.deepcopy, lambda s: set().union(s),
    ],
)  # fmt: skip
def test_a_set_made_of_one_from_outside_has_eagers_order(make: Any) -> None:
    def f(x, s):
        made = make(s)
        return x, list(made), made

    compiled = Counted(f, fullgraph=True, config=PATIENT)
    for table in TABLES:
        (_, walked, made), (_, expected, real) = compiled(X, table()), f(X, table())
        assert walked == expected == list(made) and list(made) == list(real) and type(made) is type(real)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.add(16), lambda s: s.update([16, 24, 3]), lambda s: s.update({16, 24}, {32}), lambda s: s.__ior__({16, 24}),
        lambda s: (s.discard(8), s.add(8)), lambda s: (s.discard(3), s.add(16)), lambda s: (s.clear(), s.add(16), s.add(0)),
        lambda s: s.symmetric_difference_update({16, 1}), lambda s: s.__init__([24, 0, 8]), lambda s: s.difference_update([8, 3]),
    ],
)  # fmt: skip
def test_a_set_from_outside_that_has_grown_is_walked_after_a_break(change: Any) -> None:
    def f(x, s):
        change(s)
        return x + len(s), list(s)

    compiled = Counted(f, config=PATIENT)
    for table in TABLES[:7]:
        left, right = table(), table()
        assert same(compiled(X, left), f(X, right)) and list(left) == list(right)
    assert not compiled.native()


def test_symmetric_differences_take_one_argument() -> None:
    def f(x, s):
        errors = []
        for name in ("symmetric_difference", "symmetric_difference_update"):
            try:
                getattr(s, name)([1], [2])
            except TypeError as e:
                errors.append(str(e))
        return x, errors

    assert same(Counted(f, fullgraph=True)(X, {1}), f(X, {1}))


def test_popping_from_a_set_from_outside_breaks() -> None:
    def f(x, s):
        return x + s.pop()

    compiled = Counted(f)
    left, right = {1, 2, 3}, {1, 2, 3}
    for _ in range(3):
        assert same(compiled(X, left), f(X, right))
    assert compiled.breaks() and not left


SEEN: dict[object, int] = {}


def test_keys_made_of_types_and_shapes() -> None:
    """A key that is a known constant, though it prints as no literal."""

    def f(x, y):
        key = (x.dtype, y.shape)
        SEEN[key] = SEEN.get(key, 0) + 1
        SEEN.setdefault(y.dtype, len(SEEN))
        return SEEN[key], SEEN[y.dtype], x.dtype in SEEN

    def told(fn):
        SEEN.clear()
        a, b, c = torch.ones(1), torch.ones(2), torch.ones(2, dtype=torch.int64)
        return [fn(*pair) for pair in ((a, a), (a, a), (a, b), (c, a), (a, c), (a, a))], list(SEEN.items())

    assert told(Counted(f, fullgraph=True)) == told(f)


# --- exceptions that native calls look at -----------------------------------------------------------------------------
@entry.disable
def look(*what: Any) -> None:
    kind, value, place = sys.exc_info()
    LOG.append((kind, str(value), place is not None, *what))


def test_a_native_call_in_a_handler_sees_the_exception() -> None:
    def f(x):
        try:
            raise ValueError("here")
        except ValueError:
            look("handler")
            text = traceback.format_exc()
        look("after")
        try:
            {}["k"]
        except KeyError as e:
            try:
                look(int("no"))
            except ValueError as inner:
                look("inner", inner.__context__ is e)
            look("outer again")
        return x + 1, "ValueError: here" in text

    compiled = Counted(f)
    LOG.clear()
    expected, log = f(X), LOG[:]
    LOG.clear()
    assert same(compiled(X), expected)
    assert LOG == log
    assert log[0][:3] == (ValueError, "here", True) and log[1][0] is None


def test_a_traceback_does_not_leave_the_trace() -> None:
    def f(x, kept):
        try:
            raise ValueError
        except ValueError as e:
            kept.append(e.__traceback__)
        return x + 1

    with pytest.raises(Unsupported, match="TT0401"):
        Counted(f, fullgraph=True)(X, [])


def test_an_exit_method_gets_a_traceback() -> None:
    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, place):
            self.seen = kind, str(value), place is None
            return True

    def f(x):
        manager = Manager()
        with manager:
            raise KeyError("k")
        return x, manager.seen

    assert same(Counted(f, fullgraph=True)(X), f(X))
