"""Graph breaks at instructions that need a key's hash, or run code of the program without a call: displays, patterns, ``raise``."""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from capture_helpers import Counted, differences

import tinytorch as torch
from compiler.capture import entry
from compiler.errors import Unsupported

LOG: list[Any] = []


@entry.disable
def act(what: Any) -> Any:
    LOG.append(what)
    return what


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self._y = y

    @property
    def y(self) -> Any:
        act("y")
        if self._y is None:
            raise AttributeError("y")
        return self._y

    def __pos__(self) -> Any:
        return act("pos")


class Table(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return {"a": 1, "b": 2}[act(key)]

    def __iter__(self) -> Any:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class OwnError(Exception):
    def __init__(self) -> None:
        super().__init__(act("made"))


def drawn() -> int:
    """More outcomes than a function may have entries."""
    return int(random.random() * 4000)


def set_display(x):
    made = {drawn(), 1, *[5]}
    made.add(7)
    return x + len(made), sorted(made)


def set_of_one(x):
    return x + 1, {drawn()}


def dict_display(x):
    y = x * 2
    return y, {"k": 1, drawn(): y, 3: x}


def set_comprehension(x):
    y = x * 2
    return {drawn() + i for i in range(3)}, y


def dict_comprehension(x):
    y = x * 2
    return {drawn() + i: y + i for i in range(3)}, y


def class_pattern(x):
    found = []
    for p in (Point(x, 1), Point(x, None), Point(x, 3), x, 4):
        match p:
            case Point(z, y=3):
                found.append((z * 3, "third"))
            case Point(z, 1):
                found.append((z * 2, "first"))
            case Point():
                found.append("other")
            case int(n):
                found.append(n)
            case _:
                found.append("none")
    return x + 1, found


def mapping_pattern(x):
    found = []
    for table in (Table(), {"a": x}):
        match table:
            case {"c": c, "a": _}:
                found.append(c)
            case {"a": a, "b": b}:
                found.append((a, b))
            case {"a": a}:
                found.append(a + 1)
    return x + 1, found


def raise_class(x):
    try:
        y = x + 1
        raise OwnError
    except OwnError as e:
        return y * 2, e.args, type(e.__context__)


def raise_from_class(x):
    try:
        raise ValueError("v") from OwnError
    except ValueError as e:
        return x * 2, e.args, type(e.__cause__), e.__cause__.args, e.__suppress_context__


def raise_class_outwards(x):
    act("before")
    y = x + 1
    LOG.append(float(y.sum()))
    raise OwnError


def positive(x):
    y = x + 1
    return y, +Point(x, 1)


CASES = [
    set_display, set_of_one, dict_display, set_comprehension, dict_comprehension, class_pattern, mapping_pattern,
    raise_class, raise_from_class, raise_class_outwards, positive,
]  # fmt: skip


def told(fn: Any) -> list[Any]:
    """Results and effects of some calls."""
    LOG.clear()
    random.seed(3)
    seen: list[Any] = []
    for n in (2, 2, 3):
        try:
            seen.append(fn(torch.ones(n)))
        except OwnError as e:
            seen.append((type(e), e.args))
    return [seen, list(LOG), random.random()]


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_the_instruction_runs_between_two_graphs(fn: Any) -> None:
    compiled = Counted(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = told(compiled)
    assert not differences(got, told(fn), fn.__name__)
    assert compiled.breaks()


def test_a_mapping_without_the_key_does_not_match() -> None:
    class Plain(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {"a": 1}[key]

        def __iter__(self) -> Any:
            return iter("a")

        def __len__(self) -> int:
            return 1

    def f(x, table):
        match table:
            case {"b": b}:
                return x, b
            case {"a": a}:
                return x + a, "a"

    x = torch.ones(2)
    assert not differences(Counted(f, fullgraph=True)(x, Plain()), f(x, Plain()), "f")


def test_what_runs_between_graphs_knows_its_module() -> None:
    """A class made there is of the function's module, as ``type`` and ``namedtuple`` read it from their caller."""

    def f(x):
        made = type("Made", (), {"a": 2})
        pair = collections.namedtuple("Pair", "left right")
        return x * made().a, made.__module__, pair(1, 2).right, pair.__module__

    assert not differences(Counted(f)(torch.ones(3)), f(torch.ones(3)), "f")


def test_recursion_deeper_than_a_trace_can_follow() -> None:
    """Python's own limit comes before ``inline_depth``: a break, no internal error, and the program's own error if it is one."""

    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    def endless(x):
        return endless(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.compile(down)(torch.zeros(()), 190).item() == 190
    with pytest.raises(RecursionError):
        torch.compile(endless)(torch.ones(2))
    with pytest.raises(Unsupported, match="TT0501"):
        torch.compile(endless, fullgraph=True)(torch.ones(2))
