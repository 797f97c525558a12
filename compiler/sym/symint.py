"""``SymInt``: a size that behaves like the int it stands for.  Mirrors ``torch.SymInt``.

Stage: sym.  In: an expression and whoever knows about its symbols (``Sizes``: a ``ShapeEnv``).  Out: arithmetic as further
``SymInt``s, answers to comparisons as bools, which ``Sizes`` may write down as guards.  Read next: ``env``.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sized
from typing import Any, Protocol, SupportsIndex

from compiler.sym.expr import Const, Expr, Int, Symbol, expr_of
from compiler.sym.ranges import Interval, nonzero
from compiler.sym.relation import Sense


class Sizes(Protocol):
    """What a size asks for."""

    @property
    def ranges(self) -> dict[Symbol, Interval]: ...
    def resolve(self, e: Expr) -> Expr: ...
    def hint(self, e: Expr) -> int | None: ...
    def wrap(self, e: Int) -> SymInt | int: ...
    def proven(self, sense: Sense, lhs: Expr, rhs: Expr) -> bool | None: ...
    def decide(self, sense: Sense, lhs: Expr, rhs: Expr, why: str = "") -> bool: ...
    def specialize(self, e: Expr, why: str = "") -> int: ...


class SymInt:
    """An integer whose value may differ from call to call.  Arithmetic with ints stays symbolic; a comparison gives a
    bool and may record a guard; whatever needs the number itself (``int``, ``range``, ``float``) specialises it."""

    __slots__ = ("_expr", "env")
    __array_ufunc__ = None  # NumPy scalars on the left leave the operation to us
    _expr: Expr
    env: Sizes

    def __init__(self, expr: Expr, env: Sizes) -> None:
        self._expr, self.env = expr, env

    @property
    def expr(self) -> Expr:
        return self.env.resolve(self._expr)

    __sym_expr__ = expr

    @property
    def hint(self) -> int | None:
        return self.env.hint(self.expr)

    def __repr__(self) -> str:
        return str(self.expr)

    def __hash__(self) -> int:
        return hash(self.expr)

    def __copy__(self) -> SymInt:
        return self

    def __deepcopy__(self, memo: Any) -> SymInt:
        return self

    # --- arithmetic: symbolic with ints, specialised with anything else ---
    def _with(self, other: Any, fn: Callable[[Any, Any], Any], flip: bool = False) -> Any:
        e = _operand(other)
        if e is None:
            if isinstance(other, float | complex):
                return fn(other, int(self)) if flip else fn(int(self), other)
            return NotImplemented
        a, b = (e, self.expr) if flip else (self.expr, e)
        if fn is operator.floordiv or fn is operator.mod:
            self._check_divisor(b)
        return self.env.wrap(fn(a, b))

    def _check_divisor(self, b: Expr) -> None:
        b = self.env.resolve(b)
        if not nonzero(b, self.env.ranges) and not self.env.decide("!=", b, Const(0), "division"):
            raise ZeroDivisionError("integer division or modulo by zero")

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, operator.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, operator.mul, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, operator.floordiv, True)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, operator.mod)

    def __rmod__(self, other: Any) -> Any:
        return self._with(other, operator.mod, True)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 0 <= other <= 8:
            return self.env.wrap(self.expr**other)
        return int(self) ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** int(self)

    def __truediv__(self, other: Any) -> Any:
        return int(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / int(self)

    def __neg__(self) -> Any:
        return self.env.wrap(-self.expr)

    def __pos__(self) -> SymInt:
        return self

    def __invert__(self) -> Any:
        return -self - 1

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    # --- comparisons ---
    def _decide(self, sense: Sense, a: Expr, b: Expr) -> bool:
        return self.env.decide(sense, a, b)

    def __eq__(self, other: object) -> Any:
        e = _operand(other)
        if e is None:
            return int(self) == other if isinstance(other, float) else NotImplemented
        return self._decide("==", self.expr, e)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: Any) -> Any:
        e = _operand(other)
        return int(self) < other if e is None else self._decide("<=", self.expr + 1, e)

    def __le__(self, other: Any) -> Any:
        e = _operand(other)
        return int(self) <= other if e is None else self._decide("<=", self.expr, e)

    def __gt__(self, other: Any) -> Any:
        e = _operand(other)
        return int(self) > other if e is None else self._decide("<=", e + 1, self.expr)

    def __ge__(self, other: Any) -> Any:
        e = _operand(other)
        return int(self) >= other if e is None else self._decide("<=", e, self.expr)

    def __bool__(self) -> bool:
        return self._decide("!=", self.expr, Const(0))

    # --- the number itself ---
    def __index__(self) -> int:
        return self.env.specialize(self.expr)

    def __int__(self) -> int:
        return self.env.specialize(self.expr)

    def __float__(self) -> float:
        return float(self.env.specialize(self.expr, "used as a float"))

    def __round__(self, ndigits: int | None = None) -> Any:
        return self if ndigits is None else round(int(self), ndigits)

    def __floor__(self) -> SymInt:
        return self

    def __ceil__(self) -> SymInt:
        return self

    def __trunc__(self) -> SymInt:
        return self


def _install_bitwise() -> None:
    for name in ("and", "or", "xor", "lshift", "rshift"):
        fn: Callable[[Any, Any], Any] = getattr(operator, name + "_" if name in ("and", "or") else name)
        setattr(SymInt, f"__{name}__", lambda self, other, fn=fn: fn(int(self), other))
        setattr(SymInt, f"__r{name}__", lambda self, other, fn=fn: fn(other, int(self)))


_install_bitwise()
numbers.Integral.register(SymInt)


def _operand(x: Any) -> Expr | None:
    e = expr_of(x)
    if e is not None:
        return e
    if isinstance(x, SupportsIndex) and not isinstance(x, Sized):  # a tensor computes with sizes, element by element
        return Const(operator.index(x))
    return None


def is_symbolic(x: Any) -> bool:
    """A ``SymInt``, as opposed to a number."""
    return isinstance(x, SymInt)
