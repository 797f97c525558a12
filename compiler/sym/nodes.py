"""The nodes that hold others: sums, products, divisions, remainders, extremes.

Stage: sym.  In: parts that ``arithmetic`` has brought to canonical form.  Out: immutable nodes that print, evaluate and
are built anew from other children.  Read next: ``arithmetic``; import from ``expr``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compiler.sym.base import OPS, Const, Expr, Symbol, intern


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
        return OPS.total(self.const, zip(children, (c for _, c in self.terms), strict=True))

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
        return 0, ((monomial(self.atoms), self.coef),)

    def factors(self) -> tuple[Expr, ...]:
        return self.atoms

    def _print(self) -> str:
        body = "*".join(str(a) if type(a) in (Symbol, Min, Max) else f"({a})" for a in self.atoms)
        return body if self.coef == 1 else f"-{body}" if self.coef == -1 else f"{self.coef}*{body}"

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        out: Expr = Const(self.coef)
        for c in children:
            out = OPS.mul(out, c)
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
        return OPS.floordiv(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return children[0] // children[1]


class Mod(_Binary):
    """``num % den``, with the sign of ``den``; build with ``%``."""

    __slots__ = ()
    sign = " % "

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return OPS.mod(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return children[0] % children[1]


class Extreme(Expr):
    __slots__ = ("args",)
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def _print(self) -> str:
        return f"{type(self).__name__.lower()}({', '.join(map(str, self.args))})"


class Min(Extreme):
    """``min(args)``; build with ``minimum``."""

    __slots__ = ()

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return OPS.minimum(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return min(children)


class Max(Extreme):
    """``max(args)``; build with ``maximum``."""

    __slots__ = ()

    def _rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return OPS.maximum(*children)

    def _value(self, children: list[int], env: Mapping[str, int]) -> int:
        return max(children)


def monomial(atoms: Iterable[Expr]) -> Expr:
    """The product of atoms."""
    ordered = tuple(sorted(atoms, key=str))
    return ordered[0] if len(ordered) == 1 else intern(Mul, ("coef", "atoms"), 1, ordered)


def _closed(e: Expr) -> str:
    closed = isinstance(e, (Symbol, Extreme)) or (isinstance(e, Const) and e.value >= 0)
    return str(e) if closed else f"({e})"
