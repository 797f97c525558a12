"""What can be read off a loop nest: strides, extents, costs, who defines and who uses a name.

Stage: codegen_numba.  In: loop IR.  Out: plain facts.  Read next: ``schedule`` (which decides by them), ``emit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from compiler.loop.ir import Check, Index, Init, Int, Let, Load, Loop, Stmt, Store, Update, walk
from compiler.sym.expr import Const, Expr, Symbol, lift
from tinytorch.dtypes import DType

Body: TypeAlias = tuple[Stmt, ...]

#: What one statement costs, in units of an addition on a vector lane (about a tenth of a nanosecond).
COSTS = {
    "exp": 8, "exp2": 8, "expm1": 12, "log": 12, "log2": 14, "log10": 14, "log1p": 16, "sin": 10, "cos": 10, "tan": 40,
    "tanh": 16, "erf": 20, "pow": 30, "asin": 30, "acos": 30, "atan": 30, "atan2": 40, "sinh": 30, "cosh": 30,
    "asinh": 40, "acosh": 40, "atanh": 30, "div": 4, "sqrt": 4, "rsqrt": 6, "philox": 60, "fmod": 60, "mod": 60,
    "floordiv": 60,
}  # fmt: skip


@dataclass(frozen=True)
class Keep:
    """``row[axis] = name``: a value of one loop written down for a later one (``memo``)."""

    row: str
    name: str
    axis: str
    dtype: DType
    length: int


@dataclass(frozen=True)
class Recall:
    """``name = row[axis]``."""

    row: str
    name: str
    axis: str
    dtype: DType


def known(n: Int) -> int | None:
    """The value of an extent, if it does not depend on sizes."""
    if isinstance(n, int):
        return n
    return n.value if isinstance(n, Const) else None


def hint(n: Int) -> int:
    """A number for weighing: unknown sizes count as 256."""
    return n if isinstance(n, int) else max(0, int(n.evaluate({s.name: 256 for s in n.free_symbols})))


def stride(index: Int, axis: str) -> int | None:
    """By how many elements ``index`` moves when ``axis`` does by one; None if that is not one known number."""
    if isinstance(index, int):
        return 0
    symbol, total = Symbol(axis), 0
    if symbol not in index.free_symbols:
        return 0
    for monomial, coefficient in index.split()[1]:
        if monomial is symbol:
            total += coefficient
        elif symbol in monomial.free_symbols:
            return None
    return total


def symbolic_stride(index: Int, axis: str) -> Int | None:
    """``index`` minus ``index`` at the axis's zero, over the axis: its stride, if the index is linear in the axis."""
    if isinstance(index, int):
        return 0
    symbol = Symbol(axis)
    out: Expr = Const(0)
    for monomial, coefficient in index.split()[1]:
        if symbol not in monomial.free_symbols:
            continue
        rest = [f for f in monomial.factors() if f is not symbol]
        if len(rest) != len(monomial.factors()) - 1 or any(symbol in f.free_symbols for f in rest):
            return None
        term: Expr = Const(coefficient)
        for f in rest:
            term = term * f
        out = out + term
    return out.value if isinstance(out, Const) else out


def at_zero(index: Int, *axes: str) -> Int:
    """``index`` where these axes are 0."""
    if isinstance(index, int):
        return index
    out = index.subs({Symbol(a): 0 for a in axes})
    return out.value if isinstance(out, Const) else out


def names_in(e: Int) -> frozenset[str]:
    return frozenset() if isinstance(e, int) else frozenset(s.name for s in e.free_symbols)


def defines(s: Stmt) -> tuple[str, ...]:
    if isinstance(s, Let | Index | Load | Recall):
        return (s.name,)
    return s.names if isinstance(s, Init) else ()


def uses(s: Stmt) -> frozenset[str]:
    """Names a statement reads, of values, axes and sizes; for a loop those of its body that it does not define."""
    match s:
        case Let():
            return frozenset(a for a in s.args if isinstance(a, str))
        case Index():
            return names_in(s.expr)
        case Load():
            return names_in(s.index) | ({s.mask} if s.mask else set())
        case Store():
            value = {s.value} if isinstance(s.value, str) else set()
            return names_in(s.index) | value | ({s.mask} if s.mask else set())
        case Update():
            return frozenset((*s.names, *(v for v in s.values if isinstance(v, str))))
        case Check():
            return frozenset((s.cond,))
        case Loop():
            inner = walk(s.body)
            free = frozenset().union(*(uses(x) for x in s.body)) if s.body else frozenset()
            own = {s.axis, *(n for x in inner for n in defines(x))}
            return (free - own) | names_in(s.extent)
        case Keep():
            return frozenset((s.name,))
        case Init() | Recall():
            return frozenset()
    raise TypeError(s)


def cost(body: Iterable[Stmt]) -> int:
    """Work of one pass, in the units of ``COSTS``."""
    total = 0
    for s in body:
        if isinstance(s, Loop):
            total += hint(s.extent) * cost(s.body)
        elif isinstance(s, Let):
            total += COSTS.get(s.fn, 1)
        else:
            total += 2
    return total


def has_loop(body: Iterable[Stmt]) -> bool:
    return any(isinstance(s, Loop) for s in body)


def innermost(body: Iterable[Stmt], path: tuple[Loop, ...] = ()) -> Iterator[tuple[tuple[Loop, ...], Body]]:
    """Each straight run of statements with the loops around it."""
    straight = tuple(s for s in body if not isinstance(s, Loop))
    if straight:
        yield path, straight
    for s in body:
        if isinstance(s, Loop):
            yield from innermost(s.body, (*path, s))


def accesses(body: Iterable[Stmt]) -> list[Load | Store]:
    return [s for s in body if isinstance(s, Load | Store)]


def grain(body: Iterable[Stmt], axis: str) -> int:
    """How well straight statements run along ``axis``: unit strides count for, jumps against."""
    score = 0
    for s in accesses(body):
        step = stride(s.index, axis)
        score += 0 if step == 0 else 1 if step in (1, -1) else -1
    return score


def trip(loops: Iterable[Loop]) -> int:
    return prod(hint(x.extent) for x in loops)


def product(values: Iterable[Int]) -> Int:
    out: Expr = Const(1)
    for v in values:
        out = out * v
    return out.value if isinstance(out, Const) else out


def ceil_div(a: Int, b: int) -> Int:
    out = (lift(a) + (b - 1)) // b
    return out.value if isinstance(out, Const) else out
