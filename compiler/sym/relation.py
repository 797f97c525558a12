"""Relations between sizes, and the guards made of them.

Stage: sym.  In: two expressions.  Out: ``lhs == rhs`` and its kind, to print, negate and evaluate; with a reason and a place
in the user's program, a ``SizeGuard``.  Read next: ``env``, which decides relations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from compiler.sym.expr import Expr, Symbol, lift

Sense: TypeAlias = Literal["==", "!=", "<="]
COMPARE: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "!=": operator.ne, "<=": operator.le}
_OPPOSITE: dict[str, Sense] = {"==": "!=", "!=": "=="}


@dataclass(frozen=True)
class Relation:
    """``lhs == rhs``, ``lhs != rhs`` or ``lhs <= rhs`` over integer expressions."""

    sense: Sense
    lhs: Expr
    rhs: Expr

    def __str__(self) -> str:
        gap = self.lhs - self.rhs  # shown with every term on the side where it is positive
        const, terms = gap.split()
        left, right = lift(max(const, 0)), lift(max(-const, 0))
        for m, c in terms:
            left, right = (left + c * m, right) if c > 0 else (left, right - c * m)
        return f"{left} {self.sense} {right}"

    def negated(self) -> Relation:
        if self.sense == "<=":
            return Relation("<=", self.rhs + 1, self.lhs)
        return Relation(_OPPOSITE[self.sense], self.lhs, self.rhs)

    def holds(self, env: Mapping[str, int]) -> bool:
        return COMPARE[self.sense](self.lhs.evaluate(env), self.rhs.evaluate(env))

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return self.lhs.free_symbols | self.rhs.free_symbols


@dataclass(frozen=True)
class SizeGuard:
    """A relation the compiled code relies on, and the user's frames (innermost last) that made it necessary."""

    relation: Relation
    why: str = ""
    stack: tuple[tuple[str, int, str, str], ...] = ()

    def __str__(self) -> str:
        return str(self.relation)
