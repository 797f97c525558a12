"""Integer expressions, hash-consed: a sum of products, so that ``2*i + i`` and ``3*i`` are one object.

Stage: sym.  In: Python ints and ``Symbol``s.  Out: ``Expr``, used as loop index by ``compiler.loop`` and, wrapped in
``SymInt``, as a tensor size.  The rest of the house imports from here.  Read next: ``base``, ``nodes``, ``arithmetic``, which
this is made of; ``ranges`` (what is known about a symbol), ``simplify``, ``env``.

Semantics are Python's: ``//`` floors, ``%`` has the divisor's sign, integers are unbounded, and a zero divisor is
undefined (``evaluate`` raises; rewriting may assume it does not happen).

Canonical form: an ``Add`` is ``const + terms`` with distinct monomials; a monomial is an atom or a ``Mul`` of atoms;
atoms are ``Symbol``, ``FloorDiv``, ``Mod``, ``Min`` and ``Max``.  Products of sums are multiplied out.  Every node is
built once (``base.intern``), so equality is identity, memo tables are keyed by the objects, and a comparison costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from compiler.sym.arithmetic import (
    add,
    ceildiv,
    floordiv,
    from_terms,
    maximum,
    minimum,
    mod,
    mul,
    quotient,
    total,
    without,
)
from compiler.sym.base import MINUS_ONE, ONE, ZERO, Const, Expr, Int, Symbol, Terms, as_int, lift
from compiler.sym.nodes import Add, FloorDiv, Max, Min, Mod, Mul

__all__ = [
    "MINUS_ONE", "ONE", "ZERO", "Add", "Const", "Expr", "FloorDiv", "Int", "Max", "Min", "Mod", "Mul", "Symbol", "add",
    "as_int", "ceildiv", "coefficient", "expr_of", "floordiv", "lift", "linear", "maximum", "minimum", "mod", "mul", "parse",
    "quotient", "symbols", "walk",
]  # fmt: skip


# --- walking ---------------------------------------------------------------------------------------------------------
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
        others = without(m, x)
        if others is None or x in others.free_symbols:
            return None
        coefs.setdefault(x, []).append((others, c))
    return {x: as_int(total(0, parts)) for x, parts in coefs.items()}, from_terms(const, rest)


def coefficient(e: Int, symbol: Symbol) -> Int | None:
    """The stride of ``e`` along ``symbol``: 0 if absent, None if ``e`` is not linear in it."""
    found = linear(e, (symbol,))
    return None if found is None else found[0].get(symbol, 0)


def expr_of(x: object) -> Expr | None:
    """The expression in a ``SymInt`` or ``Expr``; None for anything else, ints included."""
    if isinstance(x, Expr):
        return x
    return getattr(x, "__sym_expr__", None)
