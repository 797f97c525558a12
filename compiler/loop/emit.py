"""The handler that records: rows' scalar bodies become loop-IR statements.

Stage: loop.  In: calls of the scalar vocabulary, on ``V``s.  Out: a list of statements, each value computed once.
A row's body cannot tell this handler from eager's, which is how one body serves both.  Read next: ``lower``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from compiler.loop import ir
from compiler.loop.build import result_dtype
from compiler.loop.ir import Int, Scalar, Value
from compiler.sym.expr import Const, Expr, Symbol, as_int
from compiler.sym.ranges import Interval, less, nonnegative
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bool_, int64
from tinytorch.ops.scalars import VOCABULARY
from tinytorch.ops.spell_numpy import handler

Index = tuple[Int, ...]


class V(NamedTuple):
    """A scalar while recording: a name or a known number, and its type."""

    value: Value
    dtype: DType

    @property
    def known(self) -> bool:
        return not isinstance(self.value, str)


class Names:
    """Fresh names, unique within one compilation, so that loop nests can be joined without renaming."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def __call__(self, stem: str) -> str:
        n = self.count.get(stem, 0)
        self.count[stem] = n + 1
        return f"{stem}{n}"


@cache
def number(value: Any, dtype: DType) -> V:
    """A literal of ``dtype``, rounded and wrapped as that type does."""
    return _number(value, dtype)


def _number(value: Any, dtype: DType) -> V:
    with np.errstate(all="ignore"):
        if isinstance(value, int) and not isinstance(value, bool) and dtype.kind in "iu":
            value = np.array(value & 0xFFFF_FFFF_FFFF_FFFF, np.uint64).astype(dtype.np)
        x = np.asarray(value).astype(dtype.np)[()]
    if dtype.kind == "b":
        return V(bool(x), dtype)
    if dtype.kind in "iu":
        return V(int(x), dtype)
    return V(math.nan if math.isnan(x) else float(x), dtype)


class Emitter:
    """Records statements over the axes in ``ranges``.  ``fast`` keeps half-precision intermediates in float32."""

    def __init__(self, names: Names, ranges: dict[Symbol, Interval]) -> None:
        self.names = names
        self.ranges = ranges
        self.stmts: list[ir.Stmt] = []
        self.seen: dict[Any, V] = {}
        self.exprs: dict[str, Expr] = {}  # values that are index arithmetic
        self.mask: V | None = None  # where false, nothing may be loaded

    # --- the vocabulary ---
    def __getattr__(self, fn: str) -> Callable[..., V]:
        if fn not in VOCABULARY:
            raise AttributeError(f"{fn} is not in the scalar vocabulary")
        return lambda *args: self.let(fn, args)

    def let(self, fn: str, args: tuple[V, ...], dtype: DType | None = None) -> V:
        dtype = dtype or result_dtype(fn, tuple(a.dtype for a in args))
        assert dtype is not None, fn
        simple = simpler(self, fn, args, dtype)
        if simple is not None:
            return simple
        if all(a.known for a in args):
            return fold(fn, args, dtype)
        key = (fn, dtype, *((type(a.value), repr(a.value)) for a in args))
        return self._once(key, lambda name: ir.Let(name, fn, tuple(a.value for a in args), dtype), dtype)

    def const(self, value: Any, dtype: DType) -> V:
        return _number(value, dtype) if isinstance(value, float) else number(value, dtype)

    def like(self, value: Any, x: V) -> V:
        """The number ``value`` in the type of ``x``."""
        return self.const(value, x.dtype)

    def cast(self, x: V, dtype: DType) -> V:
        if x.dtype is dtype:
            return x
        return _number(x.value, dtype) if x.known else self.let("cast", (x,), dtype)

    def bitcast(self, x: V, dtype: DType) -> V:
        return x if x.dtype is dtype else self.let("bitcast", (x,), dtype)

    # --- memory and indices ---
    def index(self, expr: Int) -> V:
        """Index arithmetic as an int64 value."""
        e = simplify(expr, self.ranges)
        if isinstance(e, Const):
            return V(e.value, int64)
        if isinstance(e, Symbol) and e not in self.ranges and any(
            isinstance(s, ir.Load | ir.Let | ir.Index) and s.name == e.name for s in self.stmts
        ):  # fmt: skip
            return V(e.name, int64)
        out = self._once(("index", e), lambda name: ir.Index(name, as_int(e)), int64)
        self.exprs[str(out.value)] = e
        return out

    def load(self, buffer: str, index: Int, dtype: DType, other: Scalar = 0) -> V:
        mask = self.mask
        if mask is not None and mask.known:
            if not mask.value:
                return _number(other, dtype)
            mask = None
        e = as_int(simplify(index, self.ranges))
        name = mask.value if mask is not None else None
        assert name is None or isinstance(name, str)
        if mask is None:
            other = 0
        key = ("load", buffer, e, name, repr(other))
        return self._once(key, lambda n: ir.Load(n, buffer, e, dtype, name, other), dtype)

    def store(self, buffer: str, index: Int, value: V, mode: Any = "set", mask: V | None = None) -> None:
        if mask is not None and mask.known:
            if not mask.value:
                return
            mask = None
        e = as_int(simplify(index, self.ranges))
        self.stmts.append(ir.Store(buffer, e, value.value, mode, None if mask is None else str(mask.value)))

    @contextmanager
    def where_only(self, mask: V) -> Iterator[None]:
        """Inside the block memory is touched, and checks count, only where ``mask`` holds; loads give 0 elsewhere."""
        before = self.mask
        self.mask = mask if before is None else self.both(before, mask)
        try:
            yield
        finally:
            self.mask = before

    def check(self, cond: V, message: str, value: V | None = None) -> None:
        if self.mask is not None and not self.mask.known:
            cond = self.bit_or(cond, self.bit_not(self.mask))
        if cond.known and cond.value:
            return
        at = None if value is None or value.known else str(value.value)
        if value is not None and value.known:
            message = message.format(value.value)
        if cond.known:  # fails whenever it is reached: still a statement, so that an empty loop raises nothing
            name = self.names("v")
            self.stmts.append(ir.Let(name, "const", (False,), bool_))
            cond = V(name, bool_)
        key = ("check", cond.value, message, at)
        if key not in self.seen:
            self.seen[key] = cond
            self.stmts.append(ir.Check(str(cond.value), message, at))

    def as_index(self, x: V) -> Expr:
        """A value used in an index: the arithmetic that made it, else a symbol of its name."""
        x = self.cast(x, int64)
        return Const(int(x.value)) if x.known else self.exprs.get(str(x.value), Symbol(str(x.value)))

    def between(self, e: Int, low: Int, high: Int) -> V:
        """``low <= e < high`` as a bool value, decided now where the ranges tell."""
        e = simplify(e, self.ranges)
        out = V(True, bool_)
        if not nonnegative(e - low, self.ranges):
            out = self.ge(self.index(e), self.index(low))
        if not less(e, high, self.ranges):
            below = self.lt(self.index(e), self.index(high))
            out = self.both(out, below)
        return out

    def both(self, a: V, b: V) -> V:
        if a.known:
            return b if a.value else a
        if b.known:
            return a if b.value else b
        return self.bit_and(a, b)

    def _once(self, key: Any, make: Callable[[str], ir.Stmt], dtype: DType) -> V:
        found = self.seen.get(key)
        if found is None:
            name = self.names("v")
            self.stmts.append(make(name))
            found = self.seen[key] = V(name, dtype)
        return found


def fold(fn: str, args: tuple[V, ...], dtype: DType) -> V:
    """A function of known numbers, computed now by eager's own spelling."""
    with np.errstate(all="ignore"):
        values = [a.dtype.np.type(a.value) for a in args]
        h = handler(np)
        out = getattr(h, fn)(*values, dtype) if VOCABULARY[fn].result == "target" and fn != "philox" else getattr(h, fn)(*values)
    return _number(np.asarray(out)[()], dtype)


def simpler(s: Emitter, fn: str, args: tuple[V, ...], dtype: DType) -> V | None:
    """Identities that hold bit for bit, also for NaN, infinities and -0.0; small powers become products."""
    if fn == "where":
        return _simpler_where(s, args)
    if len(args) != 2:
        return _simpler_cast(s, args, dtype) if fn == "cast" else None
    a, b = args
    one_a, one_b = (x.known and x.value == 1 for x in args)
    if fn == "mul":
        return b if one_a else a if one_b else None
    if fn in ("div", "floordiv") and one_b and (fn == "div" or dtype.kind in "iu"):
        return a
    zero = b.known and b.value == 0
    if fn == "sub" and zero and dtype.kind in "iuf":
        positive = dtype.kind != "f" or math.copysign(1, float(b.value)) > 0
        return a if positive else None
    if fn == "add" and dtype.kind in "iu":
        return a if zero else b if a.known and a.value == 0 else None
    if fn == "pow" and b.known and dtype.kind in "fiu":
        return _power(s, a, b.value)
    if fn in ("bit_and", "bit_or") and dtype.kind == "b":
        return _simpler_logic(fn, a, b)
    return None


def _simpler_where(s: Emitter, args: tuple[V, ...]) -> V | None:
    c, a, b = args
    if c.known:
        return a if c.value else b
    return a if a == b and a.value == a.value else None


def _simpler_cast(s: Emitter, args: tuple[V, ...], dtype: DType) -> V | None:
    return args[0] if args[0].dtype is dtype else None


def _power(s: Emitter, x: V, exponent: Any) -> V | None:
    if exponent == 1:
        return x
    if exponent == 2:
        return s.mul(x, x)
    if exponent == 3:
        return s.mul(s.mul(x, x), x)
    if exponent == 0.5 and x.dtype.kind == "f":  # as in eager: of -inf the root is NaN
        return s.sqrt(x)
    if exponent == 4:
        square = s.mul(x, x)
        return s.mul(square, square)
    return None


def _simpler_logic(fn: str, a: V, b: V) -> V | None:
    for x, y in ((a, b), (b, a)):
        if x.known:
            return y if bool(x.value) == (fn == "bit_and") else x
    return a if a == b else None
