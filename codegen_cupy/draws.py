"""Random words of neighbouring points: four of them are the four words of one counter, which is then enciphered once.

Stage: codegen.  In: straight-line statements, the axis along which points are neighbours.  Out: which draws go by fours.
Element ``i`` of a stream is word ``i % 4`` of counter ``offset + i // 4`` (``ops/random``), so this asks of an index whether
four neighbours start at a multiple of four and share all else.  Read next: ``neighbours``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codegen_cupy.nest import Axis, Facts, divides, rest_along
from codegen_cupy.spell import safe
from compiler.loop.ir import Index, Int, Let, Load, Stmt, Value
from compiler.sym.expr import Expr, FloorDiv, Mod, lift


def in_fours(stmts: tuple[Stmt, ...], axis: Axis, vector: int, same: set[int], facts: Facts) -> dict[int, str]:
    """Draws (by id) that four neighbours at a time share, each with the variable for its words.  ``same``: statements (by
    id) that do not differ among neighbours."""
    if vector % 4:
        return {}
    varying: dict[str, Let | Load | Index] = {x.name: x for x in stmts if isinstance(x, (Let, Load, Index)) and id(x) not in same}
    fours, out = Fours(axis, varying, facts), {}
    for s in stmts:
        if isinstance(s, Let) and s.fn == "philox" and id(s) not in same:
            lane = next((x for x in stmts if isinstance(x, Index) and x.name == s.args[2]), None)
            flat = _numerator(lane.expr, Mod) if lane else None
            if flat is not None and fours.starts(flat) and fours.share(s.args[:2]):
                out[id(s)] = f"{safe(s.name)}_words"
    return out


@dataclass(frozen=True)
class Fours:
    """What is known of four neighbours along ``axis``.  ``varying``: what is computed for each of them, by name."""

    axis: Axis
    varying: dict[str, Let | Load | Index]
    facts: Facts

    def starts(self, flat: Expr) -> bool:
        """Does ``flat`` count them from a multiple of four?"""
        found = rest_along(flat, self.axis.symbol)
        return found is not None and found[0] == 1 and divides(4, found[1], self.facts)

    def share(self, values: Sequence[Value]) -> bool:
        """Are the values the same for all four?"""
        for value in values:
            x = self.varying.get(value) if isinstance(value, str) else None
            if isinstance(x, Index) and not self._steps(x.expr):
                return False
            if isinstance(x, Load) or (isinstance(x, Let) and not self.share(x.args)):
                return False
        return self.axis.name not in values

    def _steps(self, e: Int) -> bool:
        """Does the axis appear only inside of quotients by four, whose numerators start at a multiple of four?"""
        _, terms = lift(e).split()
        for monomial, _ in terms:
            for atom in monomial.factors():
                if self.axis.symbol in atom.free_symbols:
                    inner = _numerator(atom, FloorDiv)
                    if inner is None or not self.starts(inner):
                        return False
        return True


def _numerator(e: Int, kind: type[FloorDiv] | type[Mod]) -> Expr | None:
    """``x`` of ``x // 4`` or ``x % 4``."""
    return e.num if isinstance(e, kind) and e.den == 4 else None
