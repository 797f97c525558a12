"""Symbolic sizes: ``ShapeEnv`` writes down what was assumed of them.

Stage: sym.  In: sizes that may differ from call to call.  Out: integer expressions in shapes, and guards on them.
A comparison that the known ranges decide is free; any other is answered for the example at hand (the *hint*) and
recorded as a guard, so that the compiled code runs only where the answer is the same.  Mirrors
``torch.fx.experimental.symbolic_shapes.ShapeEnv``.  Read next: ``symint`` (the sizes themselves), ``compiler.fake``.

0 and 1 are never symbolic (they broadcast and vanish), so a fresh symbol ranges over ``[2, inf)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from compiler.errors import GuardError, Unsupported
from compiler.sym.expr import Const, Expr, Int, Mod, Symbol, as_int, coefficient, expr_of, lift
from compiler.sym.ranges import Interval, bounds, nonnegative
from compiler.sym.ranges import numbers as ends
from compiler.sym.relation import COMPARE, Relation, Sense, SizeGuard
from compiler.sym.simplify import simplify
from compiler.sym.symint import Sizes, SymInt, is_symbolic

__all__ = ["Relation", "Sense", "ShapeEnv", "SizeGuard", "SymInt", "SymbolInfo", "is_symbolic", "statically_equal"]


@dataclass
class SymbolInfo:
    """What is known of one symbol.  ``hint`` is None for values that only running code knows (``x.item()``)."""

    hint: int | None
    source: Any
    declared: Interval  # checked on every call
    known: Interval  # declared and tightened by guards


@dataclass
class ShapeEnv:
    """The symbols of one compilation, the guards on them, and what follows from these."""

    symbols: dict[Symbol, SymbolInfo] = field(default_factory=dict)
    guards: list[SizeGuard] = field(default_factory=list)
    #: Called for each new guard: the user's frames at this moment.  Capture sets it.
    where: Callable[[], Sequence[tuple[str, int, str, str]]] = tuple
    frozen: bool = False
    _replaced: dict[Expr, Int] = field(default_factory=dict)
    _facts: list[Expr] = field(default_factory=list)  # expressions proven never negative by a guard
    _seen: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    # --- symbols ---
    def create_symbol(
        self, hint: int, source: Any = None, *, min: int = 2, max: int | float = inf, name: str | None = None
    ) -> SymInt | int:
        """A symbol standing for ``hint``; 0 and 1 come back as they are.  ValueError if the hint is out of range."""
        hint = int(hint)
        if hint in (0, 1):
            return hint
        low = 2 if min < 2 else min
        if not low <= hint <= max:
            raise ValueError(f"{source or 'a size'} is {hint}, outside of its declared range [{min}, {max}]")
        return self._add(SymbolInfo(hint, source, Interval(low, max), Interval(low, max)), name or f"s{len(self.symbols)}")

    def create_integer(self, hint: int, source: Any = None, name: str | None = None) -> SymInt | int:
        """A symbol for a Python int argument, of any sign; 0 and 1 come back as they are."""
        if hint in (0, 1):
            return hint
        return self._add(SymbolInfo(int(hint), source, Interval(), Interval()), name or f"s{len(self.symbols)}")

    def create_unbacked(self, source: Any = None, *, min: int | float = -inf, max: int | float = inf) -> SymInt:
        """A symbol without a hint: deciding about it is an error (a graph break)."""
        return self._add(SymbolInfo(None, source, Interval(min, max), Interval(min, max)), f"u{len(self.symbols)}")

    def _add(self, info: SymbolInfo, name: str) -> SymInt:
        symbol = Symbol(name)
        if symbol in self.symbols:
            raise ValueError(f"symbol {name} exists")
        self.symbols[symbol] = info
        return SymInt(symbol, self)

    # --- values ---
    @property
    def ranges(self) -> dict[Symbol, Interval]:
        return {s: info.known for s, info in self.symbols.items()}

    def resolve(self, e: Expr) -> Expr:
        """``e`` with what guards made equal replaced."""
        return e.subs(self._replaced) if self._replaced else e

    def simplify(self, e: Expr) -> Expr:
        return simplify(self.resolve(e), self.ranges)

    def hint(self, e: Expr) -> int | None:
        """The value of ``e`` for the example; None if it holds an unbacked symbol."""
        env: dict[str, int] = {}
        for s in e.free_symbols:
            known = self.symbols[s].hint
            if known is None:
                return None
            env[s.name] = known
        return e.evaluate(env)

    def wrap(self, e: Int) -> SymInt | int:
        """An expression as a size; plain int if its value is known."""
        value = as_int(self.simplify(lift(e)))
        return value if isinstance(value, int) else SymInt(value, self)

    # --- questions ---
    def decide(self, sense: Sense, lhs: Expr, rhs: Expr, why: str = "") -> bool:
        """The truth of a relation: proven, or true for the hints and from now on guarded."""
        lhs, rhs = self.resolve(lhs), self.resolve(rhs)
        key = (sense, lhs, rhs)
        if key in self._seen:
            return self._seen[key]
        known = self.proven(sense, lhs, rhs)
        if known is None:
            known = self._by_hint(Relation(sense, lhs, rhs), why)
        self._seen[key] = known
        return known

    def proven(self, sense: Sense, lhs: Expr, rhs: Expr) -> bool | None:
        """True or False where ranges and guards so far decide, else None.  Adds no guard."""
        gap = self.simplify(rhs - lhs)
        if sense == "<=":
            if self._nonnegative(gap):
                return True
            return False if self._nonnegative(-gap - 1) else None
        if isinstance(gap, Const):
            return (gap.value == 0) == (sense == "==")
        lo, hi = bounds(gap, self.ranges)
        if lo > 0 or hi < 0 or self._nonnegative(gap - 1) or self._nonnegative(-gap - 1):
            return sense == "!="
        return None

    def _nonnegative(self, e: Expr) -> bool:
        ranges = self.ranges
        return nonnegative(e, ranges) or any(nonnegative(e - f, ranges) for f in self._facts)

    def _by_hint(self, relation: Relation, why: str) -> bool:
        left, right = self.hint(relation.lhs), self.hint(relation.rhs)
        if left is None or right is None:
            raise Unsupported(
                "data-dependent-size",
                f"cannot decide {relation} while compiling: it depends on a value only running code knows",
                "assert the relation to the compiler with a check, or use torch.where",
            )
        truth = COMPARE[relation.sense](left, right)
        self.add_guard(relation if truth else relation.negated(), why)
        return truth

    # --- guards ---
    def add_guard(self, relation: Relation, why: str = "") -> None:
        """From now on ``relation`` holds; the caller has seen that it does for the hints."""
        if self.frozen:
            raise GuardError(f"a guard {relation} came up after guards were installed; {why or 'no reason given'}")
        self.guards.append(SizeGuard(relation, why, tuple(self.where())))
        self._learn(relation)

    def specialize(self, e: Expr, why: str = "") -> int:
        """The value of ``e``, guarded."""
        value = self.hint(self.resolve(e))
        if value is None:
            raise Unsupported(
                "data-dependent-size",
                f"the value of {e} is needed while compiling, and only running code knows it",
                "avoid using it as a plain Python int",
            )
        self.decide("==", e, Const(value), why or "used as a plain int")
        return value

    def _learn(self, relation: Relation) -> None:
        gap = self.resolve(relation.rhs) - self.resolve(relation.lhs)
        if relation.sense == "<=":
            self._facts.append(gap)
            self._tighten(gap)
        elif relation.sense == "==":
            self._replace(gap)
        self._seen.clear()

    def _tighten(self, gap: Expr) -> None:
        """``c*x + d >= 0`` bounds ``x``."""
        const, terms = gap.split()
        if len(terms) == 1 and isinstance(terms[0][0], Symbol):
            x, c = terms[0]
            info = self.symbols[x]  # type: ignore[index]
            limit = Interval(-(const // c), inf) if c > 0 else Interval(-inf, const // -c)
            info.known = info.known.meet(limit)

    def _replace(self, gap: Expr) -> None:
        """``gap == 0``: write its youngest symbol by the others, or note a known remainder."""
        for x in sorted(gap.free_symbols, key=lambda s: list(self.symbols).index(s), reverse=True):
            if coefficient(gap, x) in (1, -1):
                value = gap.subs({x: 0})
                self._put(x, -value if coefficient(gap, x) == 1 else value)
                return
        const, terms = gap.split()
        if len(terms) == 1 and abs(terms[0][1]) == 1 and isinstance(terms[0][0], Mod):
            self._put(terms[0][0], -const * terms[0][1])

    def _put(self, old: Expr, new: Int) -> None:
        new = lift(new)
        if isinstance(old, Symbol) and isinstance(new, Symbol):
            self.symbols[new].known = self.symbols[new].known.meet(self.symbols[old].known)
        elif isinstance(old, Symbol) and isinstance(new, Const):
            self.symbols[old].known = Interval(new.value, new.value)
        self._facts = [f.subs({old: new}) for f in self._facts]
        self._replaced = {k: lift(v).subs({old: new}) for k, v in self._replaced.items()}
        self._replaced[old] = new

    def range_guards(self) -> list[SizeGuard]:
        """The declared ranges as guards: ``2 <= s0``."""
        out: list[SizeGuard] = []
        for s, info in self.symbols.items():
            lo, hi = ends(info.declared)
            if info.hint is not None and isinstance(lo, int):
                out.append(SizeGuard(Relation("<=", Const(lo), s), "0 and 1 are compiled apart" if lo == 2 else "mark_dynamic"))
            if info.hint is not None and isinstance(hi, int):
                out.append(SizeGuard(Relation("<=", s, Const(hi)), "mark_dynamic"))
        return out

    def all_guards(self) -> list[SizeGuard]:
        """Ranges first, then what was recorded, each once, minus what the earlier ones say already."""
        seen: dict[str, SizeGuard] = {}
        for g in (*self.range_guards(), *self.guards):
            seen.setdefault(str(g), g)
        return list(seen.values())


def statically_equal(a: Any, b: Any) -> bool:
    """Are two sizes equal for certain?  Never records a guard."""
    ea, eb = expr_of(a), expr_of(b)
    if ea is None and eb is None:
        return bool(a == b)
    env: Sizes = a.env if isinstance(a, SymInt) else b.env if isinstance(b, SymInt) else ShapeEnv()
    return env.proven("==", lift(a if ea is None else ea), lift(b if eb is None else eb)) is True
