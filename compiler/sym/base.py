"""The ground of integer expressions: what every node can do, the two that hold nothing, and how each is built once.

Stage: sym.  In: ints and names.  Out: ``Const``, ``Symbol``, and ``Expr`` for the nodes that hold others (``nodes``).  Operators
come from ``OPS``, which ``arithmetic`` fills: an expression does not know how a sum is simplified.
Read next: ``nodes``, ``arithmetic``; import from ``expr``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, SupportsIndex, TypeAlias

Int: TypeAlias = "int | Expr"
Terms: TypeAlias = "dict[Expr, int]"  # monomial -> coefficient

_interned: dict[tuple[Any, ...], Expr] = {}


class Operations:
    """How nodes are combined; ``arithmetic`` says it."""

    add: Callable[[Expr, Expr], Expr]
    mul: Callable[[Expr, Expr], Expr]
    floordiv: Callable[[Expr, Expr], Expr]
    mod: Callable[[Expr, Expr], Expr]
    minimum: Callable[..., Expr]
    maximum: Callable[..., Expr]
    total: Callable[[int, Iterable[tuple[Expr, int]]], Expr]  # const + sum(c * e)


OPS = Operations()


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
        rhs = maybe(other)
        return NotImplemented if rhs is None else OPS.add(self, rhs)

    __radd__ = __add__

    def __sub__(self, other: Int | SupportsIndex) -> Expr:
        rhs = maybe(other)
        return NotImplemented if rhs is None else OPS.add(self, OPS.mul(MINUS_ONE, rhs))

    def __rsub__(self, other: Int | SupportsIndex) -> Expr:
        lhs = maybe(other)
        return NotImplemented if lhs is None else OPS.add(lhs, OPS.mul(MINUS_ONE, self))

    def __mul__(self, other: Int | SupportsIndex) -> Expr:
        rhs = maybe(other)
        return NotImplemented if rhs is None else OPS.mul(self, rhs)

    __rmul__ = __mul__

    def __floordiv__(self, other: Int | SupportsIndex) -> Expr:
        rhs = maybe(other)
        return NotImplemented if rhs is None else OPS.floordiv(self, rhs)

    def __rfloordiv__(self, other: Int | SupportsIndex) -> Expr:
        lhs = maybe(other)
        return NotImplemented if lhs is None else OPS.floordiv(lhs, self)

    def __mod__(self, other: Int | SupportsIndex) -> Expr:
        rhs = maybe(other)
        return NotImplemented if rhs is None else OPS.mod(self, rhs)

    def __rmod__(self, other: Int | SupportsIndex) -> Expr:
        lhs = maybe(other)
        return NotImplemented if lhs is None else OPS.mod(lhs, self)

    def __neg__(self) -> Expr:
        return OPS.mul(MINUS_ONE, self)

    def __pos__(self) -> Expr:
        return self

    def __pow__(self, exponent: int) -> Expr:
        if exponent < 0:
            raise ValueError(f"negative power of an integer expression: {self}**{exponent}")
        out: Expr = ONE
        for _ in range(exponent):
            out = OPS.mul(out, self)
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


# --- building nodes --------------------------------------------------------------------------------------------------
def intern(cls: type[Expr], names: tuple[str, ...], *args: Any) -> Expr:
    """The one node of a class with these parts."""
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
        return OPS.total(args[0], args[1])
    if cls == "Mul":
        start: Expr = Const(args[0])
        return reduce(OPS.mul, args[1], start)
    build: dict[str, Callable[..., Expr]] = {
        "FloorDiv": OPS.floordiv, "Mod": OPS.mod, "Min": OPS.minimum, "Max": OPS.maximum, "Const": Const, "Symbol": Symbol,
    }  # fmt: skip
    return build[cls](*args)


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


def maybe(x: object) -> Expr | None:
    """``x`` as an ``Expr`` if it is an integer, and no ``SymInt``."""
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
    e = maybe(x)
    if e is None:
        raise TypeError(f"expected an integer or an Expr, got {x!r}")
    return e


def as_int(x: Int) -> Int:
    """A plain int when the value is known, else the expression."""
    return x.value if isinstance(x, Const) else x


ZERO = Const(0)
ONE = Const(1)
MINUS_ONE = Const(-1)
