"""Symbolic sizes: what a comparison assumes is exactly what the guards say."""

import copy
import math
import numbers
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import GuardError, Unsupported
from compiler.sym.env import ShapeEnv, SymInt, statically_equal


@pytest.fixture
def env():
    return ShapeEnv()


def guards(env):
    return [str(g) for g in env.guards]


def test_zero_and_one_are_never_symbolic(env):
    assert env.create_symbol(0) == 0 and type(env.create_symbol(1)) is int
    assert isinstance(env.create_symbol(2), SymInt)


def test_arithmetic_stays_symbolic_and_costs_no_guard(env):
    s = env.create_symbol(6)
    results = [s + 1, 1 - s, 2 * s, (s * 4) // 4, (s * 4 + 3) % 4, -s, s**2, divmod(s, 1)[0], np.int64(3) * s]
    assert [str(r) for r in results] == ["s0 + 1", "1 - s0", "2*s0", "s0", "3", "-s0", "s0*s0", "s0", "3*s0"]
    assert type(s - s) is int and type((4 * s + 3) % 4) is int
    assert guards(env) == []
    assert isinstance(s, numbers.Integral) and not isinstance(s, int)


def test_what_the_range_decides_costs_no_guard(env):
    s = env.create_symbol(6)
    assert s > 0 and s != 1 and s >= 2 and not s < 2 and s + 1 > s and bool(s) and max(s, 1) is s and 0 != s
    assert abs(s) is s
    assert guards(env) == []


def test_what_it_does_not_decide_is_guarded_once_by_the_hint(env):
    s = env.create_symbol(6)
    assert s < 10 and s < 10 and not s < 5 and s != 10
    assert guards(env) == ["s0 <= 9", "5 <= s0"]
    assert s >= 5, "follows from the guard before"
    assert len(env.guards) == 2


def test_equality_of_two_sizes_makes_them_one(env):
    a, b = env.create_symbol(6), env.create_symbol(6)
    assert a == b
    assert guards(env) == ["s0 == s1"]
    assert str(b + 1) == "s0 + 1" and b - a == 0 and len(env.guards) == 1


def test_equality_with_a_number_specialises(env):
    s = env.create_symbol(6)
    t = s * 2 + 1
    assert s == 6
    assert int(t) == 13 and str(t) == "13" and guards(env) == ["s0 == 6"]


@pytest.mark.parametrize("use", [int, float, hash, range, operator.index, lambda s: [0] * s, lambda s: s / 2, lambda s: s & 1])
def test_what_needs_the_number_specialises(env, use):
    s = env.create_symbol(6)
    use(s)
    assert guards(env) == ([] if use is hash else ["s0 == 6"])


def test_a_known_remainder_is_used(env):
    s = env.create_symbol(8)
    assert s % 4 == 0
    assert (s % 4) == 0 and (s + 1) % 4 == (s + 1) % 4
    assert guards(env) == ["s0 % 4 == 0"]


def test_division_by_a_possible_zero_is_guarded(env):
    n = env.create_integer(5)
    assert str(100 // n) == "100//s0" and guards(env) == ["s0 != 0"]
    zero = env.create_integer(7) - 7
    with pytest.raises(ZeroDivisionError):
        1 % zero


def test_declared_ranges(env):
    s = env.create_symbol(6, "x", min=4, max=16)
    assert s < 17 and s > 3 and guards(env) == []
    assert [str(g) for g in env.all_guards()] == ["4 <= s0", "s0 <= 16"]
    with pytest.raises(ValueError, match="outside of its declared range"):
        env.create_symbol(40, "y", max=16)


def test_unbacked_values_cannot_be_decided(env):
    u = env.create_unbacked(min=0)
    assert u >= 0 and u + 1 > 0
    with pytest.raises(Unsupported, match="data-dependent-size"):
        bool(u > 3)
    with pytest.raises(Unsupported):
        int(u)


def test_no_guard_after_freezing(env):
    s = env.create_symbol(6)
    env.frozen = True
    assert s > 1
    with pytest.raises(GuardError, match=r"guard (7 <= s0|s0 <= 6)"):
        assert s < 7


def test_guards_know_where_they_come_from(env):
    env.where = lambda: (("m.py", 3, "f", "if x.shape[0] < 10:"),)
    assert env.create_symbol(6) < 10
    assert env.guards[0].stack[0][1] == 3


def test_static_equality_asks_for_no_guard(env):
    a, b = env.create_symbol(6), env.create_symbol(6)
    assert statically_equal(a, a) and statically_equal(4, 4) and not statically_equal(a, b) and not statically_equal(a, 6)
    assert guards(env) == [] and copy.deepcopy(a) is a


ops = st.sampled_from([operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, min, max])
compares = st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(ops, st.integers(0, 5), st.integers(0, 5)), max_size=5),
    st.lists(st.tuples(compares, st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=5),
    st.tuples(st.integers(2, 7), st.integers(2, 7)),
    st.tuples(st.integers(2, 7), st.integers(2, 7)),
)
def test_guards_are_sound(steps, asked, traced_with, called_with):
    """Where the guards of a trace hold for other sizes, the program takes the same decisions there."""

    def program(a, b):
        values = [a, b, 3, 4]
        for fn, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            try:
                values.append(fn(x, y))
            except ZeroDivisionError:
                values.append(7)
        return [bool(fn(values[i % len(values)], values[j % len(values)])) for fn, i, j in asked]

    env = ShapeEnv()
    decided = program(*(env.create_symbol(n) for n in traced_with))
    assert decided == program(*traced_with)
    names = {"s0": called_with[0], "s1": called_with[1]}
    if all(g.relation.holds(names) for g in env.all_guards()):
        assert program(*called_with) == decided


def test_infinite_ranges_do_not_leak_floats(env):
    s = env.create_symbol(6, max=math.inf)
    assert s < 100 and str(env.guards[0]) == "s0 <= 99"
