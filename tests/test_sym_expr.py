"""Integer expressions: canonical, printed as Python, equal to what Python computes."""

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.sym.expr import (
    Const,
    Expr,
    Symbol,
    as_int,
    ceildiv,
    coefficient,
    linear,
    maximum,
    minimum,
    parse,
    symbols,
)
from compiler.sym.ranges import Interval, bounds, extent, less, nonnegative
from compiler.sym.simplify import simplify

i, j, k, s, t = symbols("i j k s t")

leaves = st.one_of(st.sampled_from([i, j, k]), st.integers(-6, 6).map(Const))


def grow(inner):
    pairs = st.tuples(inner, inner)
    divisor = st.one_of(st.sampled_from([Const(d) for d in (1, 2, 3, 4, 6, 8, 12, -3)]), st.just(s), st.just(s * t))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.tuples(inner, divisor).map(lambda p: p[0] // p[1]),
        st.tuples(inner, divisor).map(lambda p: p[0] % p[1]),
        pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
    )


exprs = st.recursive(leaves, grow, max_leaves=10)
envs = st.fixed_dictionaries(
    {"i": st.integers(0, 7), "j": st.integers(0, 3), "k": st.integers(-9, 9), "s": st.integers(2, 5), "t": st.integers(2, 5)}
)
RANGES = {i: Interval(0, 7), j: Interval(0, 3), k: Interval(-9, 9), s: Interval(2), t: Interval(2, 5)}


def test_one_object_for_equal_expressions():
    assert 2 * i + i is 3 * i
    assert (i + 1) * (j - 1) is i * j - i + j - 1
    assert i - i is Const(0) and i - i == 0
    assert i + 0 is i and 1 * i is i and (i * 0) == 0
    assert minimum(i, j) is minimum(j, i) and minimum(i, i + 3) is i
    assert 4 * (i // 4) + i % 4 is i
    assert 2 * (i // 2) * s + (i % 2) * s is i * s


@pytest.mark.parametrize(
    "got, want",
    [
        ((4 * i + j) // 4, "i + j//4"),
        ((4 * i + j) % 4, "j % 4"),
        ((6 * i + 9) // 12, "(2*i + 3)//4"),
        ((i // 2) // 3, "i//6"),
        ((i % 8) % 4, "i % 4"),
        (s * t // s, "t"),
        ((s * i + j) % s, "j % s"),
        (((s + 1) * (t + 2)) // (s + 1), "t + 2"),
        (7 - i, "7 - i"),
        (-(i // 4), "-(i//4)"),
        (i // -4, "(-i)//4"),
        (ceildiv(s, 4), "(s + 3)//4"),
        (j - i % 4, "j - (i % 4)"),
    ],
)
def test_canonical_form(got, want):
    assert str(got) == want


def test_const_is_its_int():
    assert Const(4) == 4 and hash(Const(4)) == hash(4) and {4: "x"}[Const(4)] == "x"
    assert as_int(Const(3)) == 3 and type(as_int(Const(3))) is int and as_int(i) is i
    assert i != 4


def test_truth_of_an_unknown_is_refused():
    with pytest.raises(TypeError, match="truth of the symbolic"):
        bool(i)
    with pytest.raises(ZeroDivisionError):
        i // 0


def test_survives_pickle_and_copy():
    e = (i // 3) * (j % 3) * -2 + minimum(i, s) + 5
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e and copy.copy(e) is e


@settings(deadline=None, max_examples=300)
@given(exprs, envs)
def test_prints_python_that_means_the_same(e, env):
    value = e.evaluate(env)
    assert eval(str(e), {}, dict(env)) == value
    assert parse(str(e)).evaluate(env) == value


@settings(deadline=None, max_examples=300)
@given(st.data(), envs)
def test_operators_compute_what_python_computes(data, env):
    a, b = data.draw(exprs), data.draw(exprs)
    x, y = a.evaluate(env), b.evaluate(env)
    assert (a + b).evaluate(env) == x + y
    assert (a - b).evaluate(env) == x - y
    assert (a * b).evaluate(env) == x * y
    if y:
        assert (a // b).evaluate(env) == x // y
        assert (a % b).evaluate(env) == x % y
    assert minimum(a, b).evaluate(env) == min(x, y)
    assert maximum(a, b).evaluate(env) == max(x, y)


@settings(deadline=None, max_examples=500)
@given(exprs, envs)
def test_simplify_and_bounds_hold_for_every_value_in_range(e, env):
    value = e.evaluate(env)
    lo, hi = bounds(e, RANGES)
    assert lo <= value <= hi
    assert simplify(e, RANGES).evaluate(env) == value


@settings(deadline=None)
@given(exprs, envs)
def test_substitution_is_evaluation_in_steps(e, env):
    half = e.subs({i: env["i"], s: env["s"]})
    assert not {i, s} & half.free_symbols
    assert half.evaluate(env) == e.evaluate(env)


@settings(deadline=None)
@given(exprs, envs)
def test_linear_parts_add_up(e, env):
    found = linear(e, (i, j))
    if found is None:
        return
    coefs, rest = found
    total = rest.evaluate(env)
    for axis, c in coefs.items():
        total += env[axis.name] * (c.evaluate(env) if isinstance(c, Expr) else c)
    assert total == e.evaluate(env)


def test_coefficient_is_a_stride():
    index = 4 * i * s + j + 3
    assert coefficient(index, i) is 4 * s
    assert coefficient(index, j) == 1 and coefficient(index, k) == 0
    assert coefficient(i * i, i) is None and coefficient(i // 2, i) is None


def test_axes_with_symbolic_extents():
    ranges = {i: extent(s), j: extent(t), k: extent(s * t), s: Interval(2), t: Interval(2)}
    assert simplify((t * i + j) // t, ranges) is i
    assert simplify((t * i + j) % t, ranges) is j
    assert simplify((t * i + j) // (s * t), ranges) == 0
    assert simplify((k // t) % s, ranges) is k // t
    assert simplify(minimum(i, s), ranges) is i
    assert less(t * i + j, s * t, ranges) and not less(t * i + j, s, ranges)
    assert nonnegative(s - 1 - i, ranges) and not nonnegative(i - 1, ranges)


@settings(deadline=None, max_examples=200)
@given(st.integers(2, 5), st.integers(2, 5), st.data())
def test_symbolic_extents_agree_with_every_point(ns, nt, data):
    ranges = {i: extent(s), j: extent(t), s: Interval(2), t: Interval(2)}
    a = data.draw(st.sampled_from([t * i + j, s * j + i, i + j, s * t - 1 - i, i - j, t * i + j + 1]))
    d = data.draw(st.sampled_from([s, t, s * t, s * t * 2]))
    for e in (a // d, a % d, minimum(a, d), maximum(a, d)):
        simple = simplify(e, ranges)
        for x in range(ns):
            for y in range(nt):
                env = {"i": x, "j": y, "s": ns, "t": nt}
                assert simple.evaluate(env) == e.evaluate(env)


@pytest.mark.parametrize("name", ["1a", "a b", ""])
def test_a_symbol_is_an_identifier(name):
    with pytest.raises(ValueError, match="identifier"):
        Symbol(name)
