"""Scalars whose Python operators write LLVM instructions: the paper on which ``math`` is written.

Stage: codegen_numba.  In: an ``llvmlite`` builder and a type.  Out: instructions.  ``V`` wraps one LLVM value (or a
vector of them: the same code serves both), so that a polynomial reads as a polynomial.  No instruction carries a
fast-math flag unless the caller asks, and those written here are marked ``exact`` so that no later pass adds one.
Read next: ``math``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from codegen_numba import target


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, its integer twin and the numbers that bit tricks need."""

    bits: int
    mantissa: int  # stored bits
    bias: int

    @property
    def flt(self) -> ir.Type:
        return ir.FloatType() if self.bits == 32 else ir.DoubleType()

    @property
    def int(self) -> ir.Type:
        return ir.IntType(self.bits)

    @property
    def magic(self) -> float:
        """Adding this rounds a small float to an integer and leaves it in the low bits of the mantissa."""
        return 1.5 * 2.0**self.mantissa


F32 = Format(32, 23, 127)
F64 = Format(64, 52, 1023)


class V:
    """An LLVM value with operators; a Python number on the other side becomes a constant of the same type."""

    __slots__ = ("m", "v")

    def __init__(self, m: Machine, v: ir.Value) -> None:
        self.m, self.v = m, v

    @property
    def is_float(self) -> bool:
        return isinstance(_element(self.v.type), (ir.FloatType, ir.DoubleType))

    def lift(self, x: V | float) -> V:
        return x if isinstance(x, V) else self.m.constant(x, self.v.type)

    def _op(self, flt: str, integer: str, other: V | float, swap: bool = False) -> V:
        a, b = self, self.lift(other)
        if swap:
            a, b = b, a
        return self.m.emit(flt if self.is_float else integer, a.v, b.v)

    def __add__(self, o: V | float) -> V:
        return self._op("fadd", "add", o)

    def __radd__(self, o: float) -> V:
        return self._op("fadd", "add", o, swap=True)

    def __sub__(self, o: V | float) -> V:
        return self._op("fsub", "sub", o)

    def __rsub__(self, o: float) -> V:
        return self._op("fsub", "sub", o, swap=True)

    def __mul__(self, o: V | float) -> V:
        return self._op("fmul", "mul", o)

    def __rmul__(self, o: float) -> V:
        return self._op("fmul", "mul", o, swap=True)

    def __truediv__(self, o: V | float) -> V:
        return self._op("fdiv", "sdiv", o)

    def __rtruediv__(self, o: float) -> V:
        return self._op("fdiv", "sdiv", o, swap=True)

    def __neg__(self) -> V:
        return self.m.emit("fneg", self.v) if self.is_float else 0 - self

    def __and__(self, o: V | int) -> V:
        return self.m.emit("and_", self.v, self.lift(o).v)

    def __or__(self, o: V | int) -> V:
        return self.m.emit("or_", self.v, self.lift(o).v)

    def __xor__(self, o: V | int) -> V:
        return self.m.emit("xor", self.v, self.lift(o).v)

    def __invert__(self) -> V:
        return self ^ -1

    def __lshift__(self, o: V | int) -> V:
        return self.m.emit("shl", self.v, self.lift(o).v)

    def __rshift__(self, o: V | int) -> V:
        """Arithmetic shift; ``lshr`` is the logical one."""
        return self.m.emit("ashr", self.v, self.lift(o).v)

    def lshr(self, o: V | int) -> V:
        return self.m.emit("lshr", self.v, self.lift(o).v)

    def _compare(self, op: str, o: V | float, signed: bool = True) -> V:
        b = self.builder
        if self.is_float:
            compare = b.fcmp_unordered if op == "!=" else b.fcmp_ordered
        else:
            compare = b.icmp_signed if signed else b.icmp_unsigned
        return V(self.m, compare(op, self.v, self.lift(o).v))

    @property
    def builder(self) -> ir.IRBuilder:
        return self.m.builder

    def __lt__(self, o: V | float) -> V:
        return self._compare("<", o)

    def __le__(self, o: V | float) -> V:
        return self._compare("<=", o)

    def __gt__(self, o: V | float) -> V:
        return self._compare(">", o)

    def __ge__(self, o: V | float) -> V:
        return self._compare(">=", o)

    def __eq__(self, o: V | float) -> V:  # type: ignore[override]
        return self._compare("==", o)

    def __ne__(self, o: V | float) -> V:  # type: ignore[override]
        return self._compare("!=", o)

    def below(self, o: V | int) -> V:
        """Unsigned less-than."""
        return self._compare("<", o, signed=False)

    __hash__ = None  # type: ignore[assignment]

    def is_nan(self) -> V:
        return V(self.m, self.builder.fcmp_unordered("uno", self.v, self.v))


class Machine:
    """Writes instructions for one float format; ``lanes`` > 1 writes them for vectors."""

    def __init__(self, builder: ir.IRBuilder, fmt: Format, lanes: int = 1) -> None:
        self.builder, self.fmt, self.lanes = builder, fmt, lanes
        self.types: tuple[Any, ...] = ()  # Numba's types of a word's operands, which tell signed from unsigned

    def at(self, fmt: Format) -> Machine:
        """The same place, another format."""
        return self if fmt is self.fmt else Machine(self.builder, fmt, self.lanes)

    # --- values ---
    def type(self, element: ir.Type) -> ir.Type:
        return element if self.lanes == 1 else ir.VectorType(element, self.lanes)

    def constant(self, x: float, type: ir.Type | None = None) -> V:
        type = type or self.type(self.fmt.flt)
        element = _element(type)
        value = x if isinstance(element, ir.IntType) else _rounded(float(x), element)
        if isinstance(type, ir.VectorType):
            return V(self, ir.Constant(type, [ir.Constant(element, value)] * type.count))
        return V(self, ir.Constant(type, value))

    def emit(self, op: str, *args: ir.Value) -> V:
        value = getattr(self.builder, op)(*args)
        value.exact = True
        return V(self, value)

    def intrinsic(self, name: str, *args: V) -> V:
        """Call ``llvm.<name>`` overloaded on the type of the first argument."""
        t = args[0].v.type
        full = f"llvm.{name}.{_suffix(t)}"
        fn = _declare(self.builder.module, full, ir.FunctionType(t, [a.v.type for a in args]))
        return V(self, self.builder.call(fn, [a.v for a in args]))

    # --- arithmetic LLVM has instructions for ---
    def fma(self, a: V, b: V | float, c: V | float) -> V:
        """One rounding: exact error terms depend on it."""
        return self.intrinsic("fma", a, a.lift(b), a.lift(c))

    def mad(self, a: V, b: V | float, c: V | float) -> V:
        """``a * b + c``, fused where the machine has it: for polynomials, where either rounding will do."""
        return self.intrinsic("fmuladd", a, a.lift(b), a.lift(c))

    def sqrt(self, x: V) -> V:
        return self.intrinsic("sqrt", x)

    def abs(self, x: V) -> V:
        return self.intrinsic("fabs", x)

    def copysign(self, x: V, sign: V) -> V:
        if self.fmt.flt != ir.DoubleType():
            return self.intrinsic("copysign", x, sign)
        # of a sign that was a half, LLVM would make a call to a library that is not here
        size = self.to_bits(x) & ((1 << 63) - 1)
        return self.from_bits(self.select(self.to_bits(sign) < 0, size + (-1 << 63), size))

    def rint(self, x: V) -> V:
        return self.intrinsic("roundeven", x)

    def trunc(self, x: V) -> V:
        return self.intrinsic("trunc", x)

    def select(self, cond: V, a: V | float, b: V | float) -> V:
        if not isinstance(a, V):
            a = b.lift(a) if isinstance(b, V) else self.constant(a)
        return V(self, self.builder.select(cond.v, a.v, a.lift(b).v))

    def poly(self, x: V, coefficients: Sequence[float]) -> V:
        """``c0 + c1 x + c2 x^2 ...`` by Horner's rule."""
        out = x.lift(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            out = self.mad(out, x, c)
        return out

    def pairs(self, x: V, square: V, coefficients: Sequence[float]) -> V:
        """The same in pairs, given ``x * x``: as many steps, of which half as many wait for one another.  With few
        registers too little is under way at once for waiting not to matter; with AVX-512's there is enough."""
        if target.has("avx512vl"):
            return self.poly(x, coefficients)
        out: V | None = None
        for n in reversed(range(0, len(coefficients), 2)):
            two = coefficients[n : n + 2]
            pair = x.lift(two[0]) if len(two) == 1 else self.mad(x, two[1], two[0])
            out = pair if out is None else self.mad(out, square, pair)
        assert out is not None
        return out

    def with_sign(self, x: V, sign: V) -> V:
        """``copysign`` for an ``x`` that has no sign."""
        return self.from_bits(self.to_bits(x) | (self.to_bits(sign) & -(1 << (self.fmt.bits - 1))))

    # --- bits ---
    def to_bits(self, x: V) -> V:
        return V(self, self.builder.bitcast(x.v, self.type(self.fmt.int)))

    def from_bits(self, i: V) -> V:
        return V(self, self.builder.bitcast(i.v, self.type(self.fmt.flt)))

    def power_of_two(self, k: V) -> V:
        """``2.0 ** k`` for an integer ``k`` in the range of normal numbers."""
        return self.from_bits((k + self.fmt.bias) << self.fmt.mantissa)

    def ldexp(self, x: V, k: V) -> V:
        """``x * 2**k`` with one rounding, ``k`` at most twice the exponent range: two multiplications by powers,
        or the instruction that AVX-512 has for it."""
        if _scales():
            i32 = self.type(ir.IntType(32))
            power = k.v if k.v.type == i32 else self.builder.trunc(k.v, i32)
            name = f"llvm.ldexp.{_suffix(x.v.type)}.{_suffix(i32)}"
            fn = _declare(self.builder.module, name, ir.FunctionType(x.v.type, [x.v.type, i32]))
            return V(self, self.builder.call(fn, [x.v, power]))
        half = k >> 1
        return x * self.power_of_two(half) * self.power_of_two(k - half)

    def round_to_int(self, x: V, scale: float) -> tuple[V, V]:
        """``k = round(x * scale)`` as float and as integer, without a conversion that NaN could make undefined."""
        kf, bits = self._round(x, scale, 0)
        return kf, bits - _bits(self.fmt.magic, self.fmt)

    def round_to_power(self, x: V, scale: float, down: int = 0) -> tuple[V, V]:
        """``k = round(x * scale)`` as float, and ``2.0 ** (k - down)`` if that is a normal number, or infinite if it is
        the first beyond them."""
        kf, bits = self._round(x, scale, self.fmt.bias - down)
        return kf, self.from_bits(bits << self.fmt.mantissa)

    def round_to_scale(self, x: V, scale: float) -> tuple[V, Callable[[V], V]]:
        """``k = round(x * scale)`` as float, and a function that multiplies by ``2**k`` as ``ldexp`` does."""
        if _scales():
            kf, k = self.round_to_int(x, scale)
            return kf, lambda y: self.ldexp(y, k)
        kf, bits = self._round(x, scale, 2 * self.fmt.bias)
        half = bits.lshr(1)
        first, second = (self.from_bits(b << self.fmt.mantissa) for b in (half, bits - half))
        return kf, lambda y: y * first * second

    def _round(self, x: V, scale: float, bias: int) -> tuple[V, V]:
        """``k = round(x * scale)`` as float, and bits whose low half is ``k + bias``."""
        magic = self.fmt.magic + bias
        shifted = self.mad(x, scale, magic)
        return shifted - magic, self.to_bits(shifted)

    def convert(self, x: V, fmt: Format) -> V:
        """To the other float format."""
        if fmt is self.fmt:
            return x
        op = "fpext" if fmt.bits > self.fmt.bits else "fptrunc"
        return V(self.at(fmt), getattr(self.builder, op)(x.v, self.type(fmt.flt)))

    def int_to_float(self, i: V) -> V:
        return V(self, self.builder.sitofp(i.v, self.type(self.fmt.flt)))


def _scales() -> bool:
    """Has the machine an instruction that multiplies by a power of two, with one rounding?"""
    return target.has("avx512f", "avx512vl")


def _element(t: ir.Type) -> ir.Type:
    return t.element if isinstance(t, ir.VectorType) else t


def _suffix(t: ir.Type) -> str:
    element = _element(t)
    name = {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}.get(type(element)) or f"i{element.width}"
    return f"v{t.count}{name}" if isinstance(t, ir.VectorType) else name


def _rounded(x: float, element: ir.Type) -> float:
    """llvmlite wants a float constant that its type can hold."""
    return struct.unpack("f", struct.pack("f", x))[0] if isinstance(element, ir.FloatType) else x


def _bits(x: float, fmt: Format) -> int:
    return int.from_bytes(struct.pack("<f" if fmt.bits == 32 else "<d", x), "little")


def count(b: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int, body: Callable[[ir.Value], Any]) -> None:
    """``body(i)`` for 64-bit ``i`` from ``start`` to before ``stop``; ``b`` goes on behind the loop."""
    word = start.type
    before, head, inside, after = b.block, *(b.function.append_basic_block(x) for x in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(word)
    i.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", i, stop), inside, after)
    b.position_at_end(inside)
    body(i)
    i.add_incoming(b.add(i, word(step)), b.block)
    b.branch(head)
    b.position_at_end(after)


def _declare(module: ir.Module, name: str, type: ir.FunctionType) -> ir.Function:
    found = module.globals.get(name)
    return found if found is not None else ir.Function(module, type, name)


def unwrap(x: Any) -> ir.Value:
    return x.v if isinstance(x, V) else x
