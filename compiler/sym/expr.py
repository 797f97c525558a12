"""Integer expressions, hash-consed: a sum of products, so that ``2*i + i`` and ``3*i`` are one object.

Stage: sym.  In: Python ints and ``Symbol``s.  Out: ``Expr``, used as loop index by ``compiler.loop`` and, wrapped in
``SymInt``, as a tensor size.  Read next: ``ranges`` (what is known about a symbol), ``simplify``, ``env``.

Semantics are Python's: ``//`` floors, ``%`` has the divisor's sign, integers are unbounded, and a zero divisor is
undefined (``evaluate`` raises; rewriting may assume it does not happen).

Canonical form: an ``Add`` is ``const + terms`` with distinct monomials; a monomial is an atom or a ``Mul`` of atoms;
atoms are ``Symbol``, ``FloorDiv``, ``Mod``, ``Min`` and ``Max``.  Products of sums are multiplied out.  Every node is
built once (``_intern``), so equality is identity, memo tables are keyed by the objects, and a comparison costs nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any, SupportsIndex, TypeAlias

Int: TypeAlias = "int | Expr"
Terms: TypeAlias = "dict[Expr, int]"  # monomial -> coefficient

_interned: dict[tuple[Any, ...], Expr] = {}
_memo: dict[tuple[str, Expr, Expr], Expr] = {}
_MEMO_LIMIT = 200_000


class Expr:
    """An integer expression.  Immutable, compared by identity; operators accept ints on either side."""

    __slots__ = ("__weakref__", "_free", "_text")
    _text: str
    _free: frozenset[Symbol]

    # --- what subclasses say ---
    def children(self) -> tuple[Expr, ...]:
        return ()

    def split(self) -> tuple[int, tuple[tuple[Expr, int], ...]]:
        """``(const, ((monomial, coefficient), ...))``: the sum this expression is."""
        return 0, ((self, 1),)

    def factors(self) -> tuple[Expr, ...]:
        """The atoms whose product this monomial is."""
        return (self,)

    def _print(self) -> str:
        raise NotImplementedError

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return self

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        raise NotImplementedError

    # --- what everybody uses ---
    @property
    def free_symbols(self) -> frozenset[Symbol]:
        try:
            return self._free
        except AttributeError:
            self._free = frozenset().union(*(c.free_symbols for c in self.children()))
            return self._free

    def subs(self, mapping: Mapping[Expr, Int]) -> Expr:
        """Replace sub-expressions (usually symbols) and bring the result back to canonical form."""
        return _subs(self, mapping, {})

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value under ``{symbol name: int}``; KeyError for an unknown name, ZeroDivisionError as in Python."""
        return self._value([c.evaluate(env) for c in self.children()], env)

    def __str__(self) -> str:
        try:
            return self._text
        except AttributeError:
            self._text = self._print()
            return self._text

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self).__name__, self._args())

    def _args(self) -> tuple[Any, ...]:
        return self.children()

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic expression {self} is unknown: compare with None or use ranges")

    # --- operators ---
    def __add__(self, other: Int | SupportsIndex) -> Expr:
        rhs = _lift(other)
        return NotImplemented if rhs is None else add(self, rhs)

    __radd__ = __add__

    def __sub__(self, other: Int | SupportsIndex) -> Expr:
        rhs = _lift(other)
        return NotImplemented if rhs is None else add(self, mul(MINUS_ONE, rhs))

    def __rsub__(self, other: Int | SupportsIndex) -> Expr:
        lhs = _lift(other)
        return NotImplemented if lhs is None else add(lhs, mul(MINUS_ONE, self))

    def __mul__(self, other: Int | SupportsIndex) -> Expr:
        rhs = _lift(other)
        return NotImplemented if rhs is None else mul(self, rhs)

    __rmul__ = __mul__

    def __floordiv__(self, other: Int | SupportsIndex) -> Expr:
        rhs = _lift(other)
        return NotImplemented if rhs is None else floordiv(self, rhs)

    def __rfloordiv__(self, other: Int | SupportsIndex) -> Expr:
        lhs = _lift(other)
        return NotImplemented if lhs is None else floordiv(lhs, self)

    def __mod__(self, other: Int | SupportsIndex) -> Expr:
        rhs = _lift(other)
        return NotImplemented if rhs is None else mod(self, rhs)

    def __rmod__(self, other: Int | SupportsIndex) -> Expr:
        lhs = _lift(other)
        return NotImplemented if lhs is None else mod(lhs, self)

    def __neg__(self) -> Expr:
        return mul(MINUS_ONE, self)

    def __pos__(self) -> Expr:
        return self

    def __pow__(self, exponent: int) -> Expr:
        if exponent < 0:
            raise ValueError(f"negative power of an integer expression: {self}**{exponent}")
        out: Expr = ONE
        for _ in range(exponent):
            out = mul(out, self)
        return out


class Const(Expr):
    """A known integer.  The one node that equals something else: ``Const(4) == 4``, with the int's hash."""

    __slots__ = ("value",)
    value: int

    def __new__(cls, value: int) -> Const:
        found = _interned.get(("Const", value))
        if found is None:
            self = object.__new__(cls)
            self.value, self._free = int(value), frozenset()
            found = _interned.setdefault(("Const", int(value)), self)
        return found  # type: ignore[return-value]

    def split(self) -> tuple[int, tuple[tuple[Expr, int], ...]]:
        return self.value, ()

    def _print(self) -> str:
        return str(self.value)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return self.value

    def _args(self) -> tuple[Any, ...]:
        return (self.value,)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return self.value != 0

    def __index__(self) -> int:
        return self.value

    __int__ = __index__


class Symbol(Expr):
    """A named unknown integer: a size, a loop axis, an integer value loaded from memory."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Symbol:
        found = _interned.get(("Symbol", name))
        if found is None:
            if not name.isidentifier():
                raise ValueError(f"a symbol is named by a Python identifier, got {name!r}")
            self = object.__new__(cls)
            self.name, self._text = name, name
            self._free = frozenset((self,))
            found = _interned.setdefault(("Symbol", name), self)
        return found  # type: ignore[return-value]

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return env[self.name]

    def _args(self) -> tuple[Any, ...]:
        return (self.name,)


class Add(Expr):
    """``const + sum(coefficient * monomial)``, two parts at least; build with ``+``."""

    __slots__ = ("const", "terms")
    const: int
    terms: tuple[tuple[Expr, int], ...]

    def children(self) -> tuple[Expr, ...]:
        return tuple(m for m, _ in self.terms)

    def split(self) -> tuple[int, tuple[tuple[Expr, int], ...]]:
        return self.const, self.terms

    def _print(self) -> str:
        parts: list[str] = []
        for m, c in self.terms:
            bare = type(m) in (Symbol, Mul, Min, Max) or c == 1
            body = ("" if abs(c) == 1 else f"{abs(c)}*") + (str(m) if bare else f"({m})")
            parts.append(f"{'-' if c < 0 else '+'} {body}")
        if self.const:
            parts.append(f"{'-' if self.const < 0 else '+'} {abs(self.const)}")
        parts.sort(key=lambda p: p[0] == "-")  # stable: 7 - i reads better than -i + 7
        first = parts[0][2:] if parts[0][0] == "+" else "-" + parts[0][2:]
        return " ".join([first, *parts[1:]])

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return _sum(self.const, zip(children, (c for _, c in self.terms), strict=True))

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return self.const + sum(c * v for (_, c), v in zip(self.terms, children, strict=True))

    def _args(self) -> tuple[Any, ...]:
        return self.const, self.terms


class Mul(Expr):
    """``coefficient * atom * atom ...`` (an atom repeats for its powers); build with ``*``."""

    __slots__ = ("atoms", "coef")
    coef: int
    atoms: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.atoms

    def split(self) -> tuple[int, tuple[tuple[Expr, int], ...]]:
        return 0, ((_monomial(self.atoms), self.coef),)

    def factors(self) -> tuple[Expr, ...]:
        return self.atoms

    def _print(self) -> str:
        body = "*".join(str(a) if type(a) in (Symbol, Min, Max) else f"({a})" for a in self.atoms)
        return body if self.coef == 1 else f"-{body}" if self.coef == -1 else f"{self.coef}*{body}"

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        out: Expr = Const(self.coef)
        for c in children:
            out = mul(out, c)
        return out

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        out = self.coef
        for v in children:
            out *= v
        return out

    def _args(self) -> tuple[Any, ...]:
        return self.coef, self.atoms


class _Binary(Expr):
    __slots__ = ("den", "num")
    num: Expr
    den: Expr
    sign: str

    def children(self) -> tuple[Expr, ...]:
        return self.num, self.den

    def _print(self) -> str:
        return f"{_closed(self.num)}{self.sign}{_closed(self.den)}"


class FloorDiv(_Binary):
    """``num // den``; build with ``//``."""

    __slots__ = ()
    sign = "//"

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return floordiv(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return children[0] // children[1]


class Mod(_Binary):
    """``num % den``, with the sign of ``den``; build with ``%``."""

    __slots__ = ()
    sign = " % "

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return mod(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return children[0] % children[1]


class _Extreme(Expr):
    __slots__ = ("args",)
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def _print(self) -> str:
        return f"{type(self).__name__.lower()}({', '.join(map(str, self.args))})"


class Min(_Extreme):
    """``min(args)``; build with ``minimum``."""

    __slots__ = ()

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return minimum(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return min(children)


class Max(_Extreme):
    """``max(args)``; build with ``maximum``."""

    __slots__ = ()

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return maximum(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return max(children)


# --- building nodes --------------------------------------------------------------------------------------------------
def _intern(cls: type[Expr], names: tuple[str, ...], *args: Any) -> Expr:
    key = (cls.__name__, *args)
    found = _interned.get(key)
    if found is None:
        node = object.__new__(cls)
        for name, arg in zip(names, args, strict=True):
            setattr(node, name, arg)
        found = _interned.setdefault(key, node)  # atomic: two threads get one node
    return found


def _unpickle(cls: str, args: tuple[Any, ...]) -> Expr:
    if cls == "Add":
        return _sum(args[0], args[1])
    if cls == "Mul":
        return Mul._rebuild(_intern(Mul, ("coef", "atoms"), *args), args[1])  # type: ignore[arg-type]
    build = {"FloorDiv": floordiv, "Mod": mod, "Min": minimum, "Max": maximum, "Const": Const, "Symbol": Symbol}
    return lift(build[cls](*args))  # type: ignore[operator]


def _lift(x: object) -> Expr | None:
    if isinstance(x, Expr):
        return x
    if type(x) is int:
        return Const(x)
    if hasattr(x, "__sym_expr__"):  # a SymInt: its own operators record guards, so let those run
        return None
    try:
        return Const(operator.index(x))  # type: ignore[arg-type]
    except TypeError:
        return None


def lift(x: Int | SupportsIndex) -> Expr:
    """``x`` as an ``Expr``; TypeError if it is no integer."""
    e = _lift(x)
    if e is None:
        raise TypeError(f"expected an integer or an Expr, got {x!r}")
    return e


def as_int(x: Int) -> Int:
    """A plain int when the value is known, else the expression."""
    return x.value if isinstance(x, Const) else x


ZERO = Const(0)
ONE = Const(1)
MINUS_ONE = Const(-1)


def _closed(e: Expr) -> str:
    closed = isinstance(e, (Symbol, _Extreme)) or (isinstance(e, Const) and e.value >= 0)
    return str(e) if closed else f"({e})"


def _monomial(atoms: Iterable[Expr]) -> Expr:
    ordered = tuple(sorted(atoms, key=str))
    return ordered[0] if len(ordered) == 1 else _intern(Mul, ("coef", "atoms"), 1, ordered)


def _scaled(m: Expr, c: int) -> Expr:
    return m if c == 1 else _intern(Mul, ("coef", "atoms"), c, m.factors())


def _sum(const: int, parts: Iterable[tuple[Expr, int]]) -> Expr:
    """``const + sum(c * e)`` for arbitrary ``e``."""
    terms: Terms = {}
    for e, c in parts:
        k, inner = e.split()
        const += c * k
        for m, c2 in inner:
            terms[m] = terms.get(m, 0) + c * c2
    return _from_terms(const, terms)


def _from_terms(const: int, terms: Terms) -> Expr:
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
    return _intern(Add, ("const", "terms"), const, tuple(items))


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
                return _sum(const - c * k, [*rest.items(), (mul(f.num, others), c)])
    return None


def add(a: Expr, b: Expr) -> Expr:
    if type(a) is Const and type(b) is Const:
        return Const(a.value + b.value)
    found = _memo.get(("+", a, b))
    return found if found is not None else _remember("+", a, b, _sum(0, ((a, 1), (b, 1))))


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
            both = _monomial((*m.factors(), *m2.factors()))
            terms[both] = terms.get(both, 0) + c * c2
    if ka:
        for m2, c2 in tb:
            terms[m2] = terms.get(m2, 0) + c2 * ka
    return _from_terms(ka * kb, terms)


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
    return whole + _intern(FloorDiv, ("num", "den"), a, b)


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
    return _intern(Mod, ("num", "den"), a, b)


def quotient(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """``(q, r)`` with ``a == q*b + r``, taking as much into ``q`` as divides term by term."""
    const, terms = a.split()
    if type(b) is Const:
        d = b.value
        if 0 <= const < d and all(-d < c < d for _, c in terms):
            return ZERO, a
        whole = {m: _trunc(c, d) for m, c in terms}  # not c // d: (7 - i)//8 should keep its small -i
        left = {m: c - d * whole[m] for m, c in terms}
        return _from_terms(const // d, whole), _from_terms(const % d, left)
    if type(b) is Add:
        return _long_division(a, b)
    _, ((divisor, d),) = b.split()
    out: Terms = {}
    rest: Terms = {}
    for m, c in terms:
        ratio = None if c % d else _without(m, divisor)
        if ratio is None:
            rest[m] = c
        else:
            k, inner = ratio.split()
            for r, c2 in inner or ((ONE, k),):
                out[r] = out.get(r, 0) + c // d * c2
    return _sum(0, out.items()), _from_terms(const, rest)


def _trunc(c: int, d: int) -> int:
    return c // d if c >= 0 else -(-c // d)


def _long_division(a: Expr, b: Add) -> tuple[Expr, Expr]:
    """Exact polynomial division; ``(0, a)`` if it leaves a rest."""
    divisor, d = b.terms[-1]
    whole: Expr = ZERO
    left: Expr = a
    for _ in range(16):
        for m, c in left.split()[1]:
            ratio = None if c % d else _without(m, divisor)
            if ratio is not None:
                step = ratio * (c // d)
                whole, left = whole + step, left - step * b
                break
        else:
            break
        if left is ZERO:
            return whole, ZERO
    return ZERO, a


def _without(m: Expr, divisor: Expr) -> Expr | None:
    """The monomial ``m / divisor`` if it divides exactly."""
    left = list(m.factors())
    for f in divisor.factors():
        if f not in left:
            return None
        left.remove(f)
    return _monomial(left) if left else ONE


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
    common = _monomial(shared)
    return _divide_exact(a, number, common), _divide_exact(b, number, common), mul(Const(number), common)


def _divide_exact(e: Expr, number: int, common: Expr | None) -> Expr:
    const, terms = e.split()
    parts = ((m if common is None else _part(m, common), c // number) for m, c in terms)
    return _sum(const // number, parts)


def _part(m: Expr, common: Expr) -> Expr:
    found = _without(m, common)
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
    return _sum(const, inner)


def _extreme(cls: type[_Extreme], args: list[Expr]) -> Expr:
    flat: list[Expr] = []
    for a in args:
        flat += a.args if isinstance(a, cls) else (a,)
    keep: list[Expr] = []
    for a in dict.fromkeys(flat):
        keep = _keep_extreme(cls, keep, a)
    if len(keep) == 1:
        return keep[0]
    return _intern(cls, ("args",), tuple(sorted(keep, key=str)))


def _keep_extreme(cls: type[_Extreme], keep: list[Expr], new: Expr) -> list[Expr]:
    """Drop whichever of two differs from the other by a known amount in the losing direction."""
    for i, old in enumerate(keep):
        gap = new - old
        if type(gap) is Const:
            wins = gap.value < 0 if cls is Min else gap.value > 0
            return _keep_extreme(cls, keep[:i] + keep[i + 1 :], new) if wins else keep
    return [*keep, new]


# --- walking ---------------------------------------------------------------------------------------------------------
def _subs(e: Expr, mapping: Mapping[Expr, Int], done: dict[Expr, Expr]) -> Expr:
    if e in mapping:
        return lift(mapping[e])
    children = e.children()
    if not children:
        return e
    found = done.get(e)
    if found is None:
        new = tuple(_subs(c, mapping, done) for c in children)
        found = done[e] = e if all(a is b for a, b in zip(new, children, strict=True)) else e._rebuild(new)
    return found


def walk(e: Expr) -> Iterator[Expr]:
    """``e`` and everything in it, parents first."""
    yield e
    for c in e.children():
        yield from walk(c)


def symbols(names: str) -> tuple[Symbol, ...]:
    """``i, j = symbols("i j")``."""
    return tuple(Symbol(n) for n in names.split())


def parse(text: str) -> Expr:
    """The expression that ``str`` printed; names become symbols, ``min`` and ``max`` ours."""

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Symbol:
            return Symbol(name)

    return lift(eval(text, {"__builtins__": {}}, Names(min=minimum, max=maximum)))


# --- linear parts ----------------------------------------------------------------------------------------------------
def linear(e: Int, axes: Iterable[Symbol]) -> tuple[dict[Symbol, Int], Expr] | None:
    """``e`` as ``sum(coefficient[x] * x) + rest`` with neither coefficients nor rest using ``axes``; None if it isn't.

    A missing axis has no entry, so ``coefficient.get(x, 0)`` is the stride of the index ``e`` along ``x``.
    """
    wanted = set(axes)
    const, terms = lift(e).split()
    coefs: dict[Symbol, list[tuple[Expr, int]]] = {}
    rest: Terms = {}
    for m, c in terms:
        used = m.free_symbols & wanted
        if not used:
            rest[m] = c
            continue
        if len(used) > 1:
            return None
        (x,) = used
        others = _without(m, x)
        if others is None or x in others.free_symbols:
            return None
        coefs.setdefault(x, []).append((others, c))
    return {x: as_int(_sum(0, parts)) for x, parts in coefs.items()}, _from_terms(const, rest)


def coefficient(e: Int, symbol: Symbol) -> Int | None:
    """The stride of ``e`` along ``symbol``: 0 if absent, None if ``e`` is not linear in it."""
    found = linear(e, (symbol,))
    return None if found is None else found[0].get(symbol, 0)


def expr_of(x: object) -> Expr | None:
    """The expression in a ``SymInt`` or ``Expr``; None for anything else, ints included."""
    if isinstance(x, Expr):
        return x
    return getattr(x, "__sym_expr__", None)
