"""Rewriting under known ranges: ``(4*i + j)//4`` is ``i`` where ``0 <= j < 4``.

Stage: sym.  In: an ``Expr`` and ``Ranges``.  Out: an equal ``Expr`` for all values in range.
Read next: ``env``, or ``compiler.loop.value`` where views become such expressions.
"""

from __future__ import annotations

from math import gcd

from compiler.sym.expr import (
    ZERO,
    Const,
    Expr,
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    floordiv,
    lift,
    maximum,
    minimum,
    mod,
    quotient,
)
from compiler.sym.ranges import Ranges, bounds, less, nonnegative, positive


def simplify(e: Int, ranges: Ranges) -> Expr:
    """Bottom-up, one pass: divisions, remainders, minima and maxima that the ranges decide disappear."""
    return _simplify(lift(e), ranges, {})


def _simplify(e: Expr, ranges: Ranges, done: dict[Expr, Expr]) -> Expr:
    children = e.children()
    if not children:
        return e
    found = done.get(e)
    if found is not None:
        return found
    new = tuple(_simplify(c, ranges, done) for c in children)
    out = e if all(a is b for a, b in zip(new, children, strict=True)) else e._rebuild(new)
    if isinstance(out, (FloorDiv, Mod)):
        better = _divide(out, ranges)
        out = out if better is None else _simplify(better, ranges, done)
    elif isinstance(out, (Min, Max)):
        out = _extreme(out, ranges)
    done[e] = out
    return out


def _divide(e: FloorDiv | Mod, ranges: Ranges) -> Expr | None:
    """A simpler equal of a division or remainder, or None."""
    small = _known_quotient(e, ranges)
    if small is None:
        if type(e.den) is Const:
            return _split(e, ranges)
        if isinstance(e, FloorDiv) and isinstance(e.num, FloorDiv) and positive(e.den, ranges):
            return floordiv(e.num.num, e.num.den * e.den)
        return None
    return small if isinstance(e, FloorDiv) else e.num - small * e.den


def _known_quotient(e: FloorDiv | Mod, ranges: Ranges) -> Expr | None:
    """``num // den`` where all of the range gives one and the same quotient."""
    if type(e.den) is Const:
        lo, hi = bounds(e.num, ranges)
        if isinstance(lo, int) and isinstance(hi, int) and lo // e.den.value == hi // e.den.value:
            return Const(lo // e.den.value)
    if not positive(e.den, ranges):
        return None
    num: Expr = e.num
    den: Expr = e.den
    while isinstance(num, FloorDiv) and positive(num.den, ranges):  # x//y < z is x < y*z
        den = num.den * den
        num = num.num
    return ZERO if nonnegative(num, ranges) and less(num, den, ranges) else None


def _split(e: FloorDiv | Mod, ranges: Ranges) -> Expr | None:
    """``(g*a + r) // (g*b)`` is ``a//b`` and ``(g*a + r) % (g*b)`` is ``g*(a % b) + r``, for ``0 <= r < g``."""
    d = int(e.den)  # type: ignore[call-overload]
    for g in sorted({gcd(c, d) for _, c in e.num.split()[1]} - {1, d}, reverse=True):
        a, r = quotient(e.num, Const(g))
        lo, hi = bounds(r, ranges)
        if a is not ZERO and lo >= 0 and hi < g:
            b = Const(d // g)
            return floordiv(a, b) if isinstance(e, FloorDiv) else g * mod(a, b) + r
    return None


def _extreme(e: Min | Max, ranges: Ranges) -> Expr:
    """Drop arguments that another one always beats."""
    keep = list(e.args)
    for a in e.args:
        for b in keep:
            gap = a - b if isinstance(e, Min) else b - a
            if a is not b and a in keep and nonnegative(gap, ranges):
                keep.remove(a)
                break
    return minimum(*keep) if isinstance(e, Min) else maximum(*keep)
