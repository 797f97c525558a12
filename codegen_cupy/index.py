"""Index expressions as C++ text.

Stage: codegen.  In: ``compiler.sym`` expressions over axes, sizes and integer values.  Out: C++.
Read next: ``body``, where indices meet loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.sym.expr import Add, Const, Expr, FloorDiv, Int, Max, Min, Mod, Mul, Symbol, lift
from compiler.sym.ranges import Interval, bounds


def cxx(e: Int, name: Callable[[str], str], ranges: Mapping[Symbol, Interval]) -> str:
    """``name`` gives the C++ text of a symbol; ``ranges`` decide whether ``/`` can stand for Python's ``//``."""
    return _print(lift(e), name, ranges, 0)


def _print(e: Expr, name: Callable[[str], str], ranges: Mapping[Symbol, Interval], level: int) -> str:
    """``level``: 0 sum, 1 factor of a product, 2 operand of ``/`` or ``%``; decides on parentheses."""
    if isinstance(e, Const):
        text = str(e.value) if abs(e.value) < 2**31 else f"{e.value}ll"
        return f"({text})" if level and e.value < 0 else text
    if isinstance(e, Symbol):
        return name(e.name)
    if isinstance(e, Add):
        return _closed(_sum(e, name, ranges), level > 0)
    if isinstance(e, Mul):
        parts = [_print(a, name, ranges, 1) for a in e.atoms]
        if e.coef not in (1, -1):
            parts.insert(0, _print(Const(abs(e.coef)), name, ranges, 1))
        return _closed(("-" if e.coef < 0 else "") + "*".join(parts), level > 1 or (level == 1 and e.coef < 0))
    if isinstance(e, (FloorDiv, Mod)):
        return _divide(e, name, ranges, level)
    assert isinstance(e, (Min, Max))
    out = _print(e.args[0], name, ranges, 0)
    sign = "<" if isinstance(e, Min) else ">"
    for arg in e.args[1:]:
        other = _print(arg, name, ranges, 0)
        out = f"(({out}) {sign} ({other}) ? ({out}) : ({other}))"
    return out


def _sum(e: Add, name: Callable[[str], str], ranges: Mapping[Symbol, Interval]) -> str:
    ordered = sorted(e.terms, key=lambda term: (term[1] < 0, -abs(term[1]), str(term[0])))  # large strides first
    text = ""
    for monomial, c in ordered:
        body = _print(monomial, name, ranges, 1)
        if abs(c) != 1:
            body = f"{_print(Const(abs(c)), name, ranges, 1)}*{body}"
        text += f" {'-' if c < 0 else '+'} {body}" if text else f"{'-' if c < 0 else ''}{body}"
    if e.const:
        text += f" {'-' if e.const < 0 else '+'} {_print(Const(abs(e.const)), name, ranges, 1)}"
    return text


def _divide(
    e: FloorDiv | Mod, name: Callable[[str], str], ranges: Mapping[Symbol, Interval], level: int
) -> str:
    num, den = _print(e.num, name, ranges, 2), _print(e.den, name, ranges, 2)
    sign = "/" if isinstance(e, FloorDiv) else "%"
    if bounds(e.num, ranges)[0] >= 0 and bounds(e.den, ranges)[0] >= 0:
        return _closed(f"{num} {sign} {den}", level > 0)
    helper = "floor_div_int" if isinstance(e, FloorDiv) else "floor_mod_int"
    return f"{helper}<long long>({num}, {den})"


def _closed(text: str, needed: bool) -> str:
    return f"({text})" if needed else text
