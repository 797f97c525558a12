"""Intervals: what is known about the value of a symbol, and what follows for an expression.

Stage: sym.  In: an ``Expr`` and ``{Symbol: Interval}``.  Out: bounds, proofs that something is never negative.
Read next: ``simplify`` (which uses the proofs), ``env`` (which learns intervals from guards).

A bound is an int, an infinity, or an expression: a loop axis runs in ``[0, s0 - 1]`` for a symbolic size ``s0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from compiler.sym.expr import Add, Const, Expr, FloorDiv, Int, Max, Min, Mod, Mul, Symbol, as_int, lift

Number: TypeAlias = "int | float"  # an int, or +-inf
Bound: TypeAlias = "int | float | Expr"


@dataclass(frozen=True)
class Interval:
    """All integers from ``lo`` to ``hi``, both included; empty if ``lo > hi``."""

    lo: Bound = -inf
    hi: Bound = inf

    @property
    def numeric(self) -> bool:
        return not isinstance(self.lo, Expr) and not isinstance(self.hi, Expr)

    def __contains__(self, value: int) -> bool:
        lo, hi = numbers(self)
        return lo <= value <= hi

    def meet(self, other: Interval) -> Interval:
        (a, b), (c, d) = numbers(self), numbers(other)
        return Interval(max(a, c), min(b, d))


Ranges: TypeAlias = Mapping[Symbol, Interval]
ANY = Interval()
NO_RANGES: dict[Symbol, Interval] = {}


def extent(n: Int) -> Interval:
    """The values of an axis of ``n`` iterations: ``0 .. n-1``."""
    return Interval(0, as_int(lift(n) - 1))


def numbers(interval: Interval, ranges: Ranges = NO_RANGES) -> tuple[Number, Number]:
    """The widest numeric bounds of an interval whose own bounds may be expressions."""
    lo, hi = interval.lo, interval.hi
    if isinstance(lo, Expr):
        lo = bounds(lo, ranges)[0]
    if isinstance(hi, Expr):
        hi = bounds(hi, ranges)[1]
    return lo, hi


def bounds(e: Int, ranges: Ranges) -> tuple[Number, Number]:
    """Numeric ``(lo, hi)`` that every value of ``e`` respects, by interval arithmetic; never too narrow."""
    if isinstance(e, int):
        return e, e
    if isinstance(e, Const):
        return e.value, e.value
    if isinstance(e, Symbol):
        return numbers(ranges.get(e, ANY), ranges)
    if isinstance(e, Add):
        return _sum_bounds(e, ranges)
    if isinstance(e, Mul):
        out: tuple[Number, Number] = (1, 1)
        for a in e.atoms:
            out = _times(out, bounds(a, ranges))
        return _times(out, (e.coef, e.coef))
    if isinstance(e, FloorDiv):
        return _floordiv_bounds(bounds(e.num, ranges), bounds(e.den, ranges))
    if isinstance(e, Mod):
        return _mod_bounds(bounds(e.num, ranges), bounds(e.den, ranges))
    if isinstance(e, (Min, Max)):
        los, his = zip(*(bounds(a, ranges) for a in e.args), strict=True)
        return (min(los), min(his)) if isinstance(e, Min) else (max(los), max(his))
    raise TypeError(f"no bounds for {type(e).__name__}")


def nonnegative(e: Int, ranges: Ranges) -> bool:
    """Is ``e >= 0`` proven?  Numeric bounds first, then axes replaced by the symbolic end that makes ``e`` least."""
    if isinstance(e, int):
        return e >= 0
    for _ in range(4):  # every round removes the axes of one nesting level
        if bounds(e, ranges)[0] >= 0:
            return True
        worst = _at_worst_ends(e, ranges)
        if worst is None:
            return False
        e = worst
    return bounds(e, ranges)[0] >= 0


def positive(e: Int, ranges: Ranges) -> bool:
    return nonnegative(lift(e) - 1, ranges)


def nonzero(e: Int, ranges: Ranges) -> bool:
    return positive(e, ranges) or positive(-lift(e), ranges)


def less(a: Int, b: Int, ranges: Ranges) -> bool:
    """Is ``a < b`` proven?"""
    return positive(lift(b) - a, ranges)


def _at_worst_ends(e: Expr, ranges: Ranges) -> Expr | None:
    """``e`` with a symbolically bounded symbol set to whichever end makes it least; None if there is none to set.

    One symbol at a time: it must stand linearly, under co-factors that are never negative, all of one sign.
    """
    _, terms = e.split()
    for x in sorted(e.free_symbols, key=str):
        known = ranges.get(x, ANY)
        if known.numeric:
            continue
        signs = {_sign(m, c, x, ranges) for m, c in terms if x in m.free_symbols}
        if len(signs) != 1 or None in signs:
            continue
        end = known.lo if signs == {1} else known.hi
        if isinstance(end, Expr | int):
            return e.subs({x: end})
    return None


def _sign(m: Expr, c: int, x: Symbol, ranges: Ranges) -> int | None:
    """The direction in which ``c*m`` grows with ``x``; None if unknown."""
    factors = list(m.factors())
    if x not in factors:
        return None
    factors.remove(x)
    if any(bounds(f, ranges)[0] < 0 or x in f.free_symbols for f in factors):
        return None
    return 1 if c > 0 else -1


# --- interval arithmetic ---------------------------------------------------------------------------------------------
def _sum_bounds(e: Add, ranges: Ranges) -> tuple[Number, Number]:
    lo: Number = e.const
    hi: Number = e.const
    for m, c in e.terms:
        a, b = bounds(m, ranges)
        if c < 0:
            a, b = b, a
        lo, hi = lo + c * a, hi + c * b
    return lo, hi


def _mul1(a: Number, b: Number) -> Number:
    return 0 if a == 0 or b == 0 else a * b  # inf * 0 would be nan; a factor of zero wins


def _times(x: tuple[Number, Number], y: tuple[Number, Number]) -> tuple[Number, Number]:
    ends = [_mul1(a, b) for a in x for b in y]
    return min(ends), max(ends)


def _div1(a: Number, b: Number) -> Number:
    if abs(a) == inf:
        return a if b > 0 else -a
    if abs(b) == inf:
        return 0 if a == 0 or (a > 0) == (b > 0) else -1
    return a // b


def _floordiv_bounds(n: tuple[Number, Number], d: tuple[Number, Number]) -> tuple[Number, Number]:
    if d[0] <= 0 <= d[1]:  # zero itself is undefined, so the divisor is at least one in size
        size = max(abs(n[0]), abs(n[1]))
        return -size, size
    ends = [_div1(a, b) for a in n for b in d]
    return min(ends), max(ends)


def _mod_bounds(n: tuple[Number, Number], d: tuple[Number, Number]) -> tuple[Number, Number]:
    if d[0] <= 0:
        return min(d[0] + 1, 0), max(d[1] - 1, 0)
    if n[0] >= 0:
        return (n if n[1] < d[0] else (0, min(d[1] - 1, n[1])))
    return 0, d[1] - 1
