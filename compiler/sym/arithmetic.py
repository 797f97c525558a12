"""Sums, products and divisions of expressions, each brought to canonical form as it is built.

Stage: sym.  In: nodes.  Out: nodes, by rules that hold for all integers: like terms meet, products of sums are multiplied out,
multiples and common factors leave a division.  Rules that need ranges are in ``simplify``.  Read next: ``expr``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from compiler.sym.base import ONE, OPS, ZERO, Const, Expr, Int, Terms, intern, lift
from compiler.sym.nodes import Add, Extreme, FloorDiv, Max, Min, Mod, Mul, monomial

_memo: dict[tuple[str, Expr, Expr], Expr] = {}
_MEMO_LIMIT = 200_000


def _scaled(m: Expr, c: int) -> Expr:
    return m if c == 1 else intern(Mul, ("coef", "atoms"), c, m.factors())


def total(const: int, parts: Iterable[tuple[Expr, int]]) -> Expr:
    """``const + sum(c * e)`` for arbitrary ``e``."""
    terms: Terms = {}
    for e, c in parts:
        k, inner = e.split()
        const += c * k
        for m, c2 in inner:
            terms[m] = terms.get(m, 0) + c * c2
    return from_terms(const, terms)


def from_terms(const: int, terms: Terms) -> Expr:
    """The canonical sum of distinct monomials."""
    items = [(m, c) for m, c in terms.items() if c]
    if not items:
        return Const(const)
    if len(items) > 1 and any(type(f) is Mod for m, _ in items for f in m.factors()):
        joined = _join_quotient(const, dict(items))
        if joined is not None:
            return joined
    if not const and len(items) == 1:
        return _scaled(*items[0])
    items.sort(key=lambda item: str(item[0]))
    return intern(Add, ("const", "terms"), const, tuple(items))


def _join_quotient(const: int, terms: Terms) -> Expr | None:
    """``d*(n//d) + n % d`` is ``n``, also under a common factor: undoes the split of a flattened axis."""
    for m, c in terms.items():
        for f in m.factors():
            if type(f) is not Mod:
                continue
            others = _part(m, f)
            k, wanted = mul(mul(floordiv(f.num, f.den), f.den), others).split()
            if wanted and all(terms.get(w, 0) == c * t for w, t in wanted):
                rest = {w: v for w, v in terms.items() if w is not m}
                for w, t in wanted:
                    rest[w] -= c * t
                return total(const - c * k, [*rest.items(), (mul(f.num, others), c)])
    return None


def add(a: Expr, b: Expr) -> Expr:
    if type(a) is Const and type(b) is Const:
        return Const(a.value + b.value)
    found = _memo.get(("+", a, b))
    return found if found is not None else _remember("+", a, b, total(0, ((a, 1), (b, 1))))


def mul(a: Expr, b: Expr) -> Expr:
    if type(a) is Const and type(b) is Const:
        return Const(a.value * b.value)
    found = _memo.get(("*", a, b))
    return found if found is not None else _remember("*", a, b, _product(a, b))


def floordiv(a: Expr, b: Expr) -> Expr:
    """``a // b`` after taking out every multiple of ``b``, common factors and nested divisions."""
    found = _memo.get(("//", a, b))
    return found if found is not None else _remember("//", a, b, _floordiv(a, b))


def mod(a: Expr, b: Expr) -> Expr:
    """``a % b`` after dropping every multiple of ``b``."""
    found = _memo.get(("%", a, b))
    return found if found is not None else _remember("%", a, b, _mod(a, b))


def ceildiv(a: Int, b: Int) -> Expr:
    """``a / b`` rounded up, for a positive ``b``."""
    return (lift(a) + lift(b) - 1) // lift(b)


def minimum(*args: Int) -> Expr:
    return _extreme(Min, [lift(a) for a in args])


def maximum(*args: Int) -> Expr:
    return _extreme(Max, [lift(a) for a in args])


def _remember(name: str, a: Expr, b: Expr, out: Expr) -> Expr:
    if len(_memo) > _MEMO_LIMIT:
        _memo.clear()
    _memo[name, a, b] = out
    return out


def _product(a: Expr, b: Expr) -> Expr:
    ka, ta = a.split()
    kb, tb = b.split()
    terms: Terms = {}
    for m, c in ta:
        if kb:
            terms[m] = terms.get(m, 0) + c * kb
        for m2, c2 in tb:
            both = monomial((*m.factors(), *m2.factors()))
            terms[both] = terms.get(both, 0) + c * c2
    if ka:
        for m2, c2 in tb:
            terms[m2] = terms.get(m2, 0) + c2 * ka
    return from_terms(ka * kb, terms)


# --- division --------------------------------------------------------------------------------------------------------
def _floordiv(a: Expr, b: Expr) -> Expr:
    if type(b) is Const:
        if b.value == 0:
            raise ZeroDivisionError(f"division by zero: {a}//0")
        if type(a) is Const:
            return Const(a.value // b.value)
        if b.value < 0:
            return floordiv(-a, -b)
    whole, a = quotient(a, b)
    a, b, _ = _cancel(a, b)
    if b is ONE:
        return whole + a
    if type(a) is Const and (a.value == 0 or type(b) is Const):
        return whole if a.value == 0 else whole + Const(a.value // b.value)  # type: ignore[attr-defined]
    if type(a) is FloorDiv and type(b) is Const and b.value > 0:  # (x // y) // c is x // (y*c)
        return whole + floordiv(a.num, mul(a.den, b))
    return whole + intern(FloorDiv, ("num", "den"), a, b)


def _mod(a: Expr, b: Expr) -> Expr:
    if type(b) is Const:
        if b.value == 0:
            raise ZeroDivisionError(f"modulo by zero: {a} % 0")
        if type(a) is Const:
            return Const(a.value % b.value)
        if b.value < 0:
            return -mod(-a, -b)
        a = _drop_inner_mod(a, b.value)
    _, a = quotient(a, b)
    a, b, common = _cancel(a, b)
    if b is ONE or a is ZERO:
        return ZERO
    if type(a) is Const and type(b) is Const:
        return mul(common, Const(a.value % b.value))
    if common is not ONE:
        return mul(common, mod(a, b))
    return intern(Mod, ("num", "den"), a, b)


def quotient(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """``(q, r)`` with ``a == q*b + r``, taking as much into ``q`` as divides term by term."""
    const, terms = a.split()
    if type(b) is Const:
        d = b.value
        if 0 <= const < d and all(-d < c < d for _, c in terms):
            return ZERO, a
        whole = {m: _trunc(c, d) for m, c in terms}  # not c // d: (7 - i)//8 should keep its small -i
        left = {m: c - d * whole[m] for m, c in terms}
        return from_terms(const // d, whole), from_terms(const % d, left)
    if type(b) is Add:
        return _long_division(a, b)
    _, ((divisor, d),) = b.split()
    out: Terms = {}
    rest: Terms = {}
    for m, c in terms:
        ratio = None if c % d else without(m, divisor)
        if ratio is None:
            rest[m] = c
        else:
            k, inner = ratio.split()
            for r, c2 in inner or ((ONE, k),):
                out[r] = out.get(r, 0) + c // d * c2
    return total(0, out.items()), from_terms(const, rest)


def _trunc(c: int, d: int) -> int:
    return c // d if c >= 0 else -(-c // d)


def _long_division(a: Expr, b: Add) -> tuple[Expr, Expr]:
    """Exact polynomial division; ``(0, a)`` if it leaves a rest."""
    divisor, d = b.terms[-1]
    whole: Expr = ZERO
    left: Expr = a
    for _ in range(16):
        for m, c in left.split()[1]:
            ratio = None if c % d else without(m, divisor)
            if ratio is not None:
                step = ratio * (c // d)
                whole, left = whole + step, left - step * b
                break
        else:
            break
        if left is ZERO:
            return whole, ZERO
    return ZERO, a


def without(m: Expr, divisor: Expr) -> Expr | None:
    """The monomial ``m / divisor`` if it divides exactly."""
    left = list(m.factors())
    for f in divisor.factors():
        if f not in left:
            return None
        left.remove(f)
    return monomial(left) if left else ONE


def _cancel(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr]:
    """Divide numerator and denominator by their common factor, returned last."""
    ka, ta = a.split()
    kb, tb = b.split()
    number = gcd(ka, kb, *(c for _, c in ta), *(c for _, c in tb))
    shared: list[Expr] = []
    if not ka and not kb and ta and tb:
        shared = list(ta[0][0].factors())
        for m, _ in (*ta[1:], *tb):
            kept, pool = [], list(m.factors())
            for f in shared:
                if f in pool:
                    pool.remove(f)
                    kept.append(f)
            shared = kept
    if number <= 1 and not shared:
        return a, b, ONE
    if not shared:
        return _divide_exact(a, number, None), _divide_exact(b, number, None), Const(number)
    common = monomial(shared)
    return _divide_exact(a, number, common), _divide_exact(b, number, common), mul(Const(number), common)


def _divide_exact(e: Expr, number: int, common: Expr | None) -> Expr:
    const, terms = e.split()
    parts = ((m if common is None else _part(m, common), c // number) for m, c in terms)
    return total(const // number, parts)


def _part(m: Expr, common: Expr) -> Expr:
    found = without(m, common)
    assert found is not None
    return found


def _drop_inner_mod(a: Expr, d: int) -> Expr:
    """``(k*(x % c) + r) % d`` is ``(k*x + r) % d`` when ``d`` divides ``k*c``."""
    const, terms = a.split()
    if not any(type(m) is Mod for m, _ in terms):
        return a
    inner = [
        (m.num, c) if type(m) is Mod and type(m.den) is Const and c * m.den.value % d == 0 else (m, c)
        for m, c in terms
    ]
    return total(const, inner)


def _extreme(cls: type[Extreme], args: list[Expr]) -> Expr:
    flat: list[Expr] = []
    for a in args:
        flat += a.args if isinstance(a, cls) else (a,)
    keep: list[Expr] = []
    for a in dict.fromkeys(flat):
        keep = _keep_extreme(cls, keep, a)
    if len(keep) == 1:
        return keep[0]
    return intern(cls, ("args",), tuple(sorted(keep, key=str)))


def _keep_extreme(cls: type[Extreme], keep: list[Expr], new: Expr) -> list[Expr]:
    """Drop whichever of two differs from the other by a known amount in the losing direction."""
    for i, old in enumerate(keep):
        gap = new - old
        if type(gap) is Const:
            wins = gap.value < 0 if cls is Min else gap.value > 0
            return _keep_extreme(cls, keep[:i] + keep[i + 1 :], new) if wins else keep
    return [*keep, new]


OPS.add, OPS.mul, OPS.floordiv, OPS.mod = add, mul, floordiv, mod
OPS.minimum, OPS.maximum, OPS.total = minimum, maximum, total
