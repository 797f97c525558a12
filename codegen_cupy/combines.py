"""Accumulators in C++: for each combine of the loop IR its type, start, update and join, and how it is done to memory.

Stage: codegen.  In: the ``combine`` name and component types of an ``Init``.  Out: pieces of C++.
Read next: ``helpers.cuh`` (the functors and atomic functions), ``joins``, ``body``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from codegen_cupy.spell import from_memory, literal, memory_type, register_type, spell, to_memory
from tinytorch.dtypes import DType

_JOINS = {
    "add": "Sum", "mul": "Product", "max": "Greatest", "min": "Least", "and": "All", "or": "Any", "xor": "Parity",
    "argmax": "ArgGreatest", "argmin": "ArgLeast", "welford": "MergeMoments", "softmax": "MergeExpSum",
}  # fmt: skip
_STRUCTS = {
    "argmax": ("Ranked", ("value", "index")), "argmin": ("Ranked", ("value", "index")),
    "welford": ("Moments", ("mean", "m2", "count")), "softmax": ("ExpSum", ("peak", "sum")),
}  # fmt: skip
_FNS = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum", "and": "bit_and", "or": "bit_or",
        "xor": "bit_xor"}  # fmt: skip


def extreme(d: DType, sign: int) -> float | int | bool:
    """The largest (``sign`` 1) or smallest (-1) value of a type."""
    if d.kind == "b":
        return sign > 0
    if d.kind == "f":
        return sign * math.inf
    bits = 8 * d.itemsize
    if d.is_signed:
        return 2 ** (bits - 1) - 1 if sign > 0 else -(2 ** (bits - 1))
    return 2**bits - 1 if sign > 0 else 0


def identity(combine: str, d: DType) -> float | int | bool:
    """The value that changes nothing."""
    if combine in ("max", "argmax", "softmax"):
        return extreme(d, -1)
    if combine in ("min", "argmin"):
        return extreme(d, 1)
    if combine == "and":
        return True if d.kind == "b" else -1
    return 1 if combine == "mul" else 0


@dataclass(frozen=True)
class Accumulator:
    """The C++ variable of one ``Init``; ``names`` are the loop IR's, one per component."""

    names: tuple[str, ...]
    combine: str
    dtypes: tuple[DType, ...]

    @property
    def scalar(self) -> str:
        return register_type(self.dtypes[0])

    @property
    def type(self) -> str:
        struct = _STRUCTS.get(self.combine)
        return f"{struct[0]}<{self.scalar}>" if struct else self.scalar

    @property
    def bytes(self) -> int:
        """Of one in memory."""
        scalar = self.dtypes[0].itemsize
        width = max(scalar, 4) if self.dtypes[0].kind == "f" else scalar
        return {"argmax": 16, "argmin": 16, "welford": 3 * width, "softmax": 2 * width}.get(self.combine, width)

    @property
    def join(self) -> str:
        """A functor expression that combines two values of ``type``."""
        return f"{_JOINS[self.combine]}<{self.scalar}>()"

    @property
    def start(self) -> str:
        d = self.dtypes[0]
        first = literal(identity(self.combine, d), d)
        if self.combine in ("argmax", "argmin"):
            return f"{self.type}{{{first}, 0x7fffffffffffffffll}}"
        if self.combine in ("welford", "softmax"):
            zero = literal(0, d)
            return f"{self.type}{{{', '.join([first, *[zero] * (len(self.names) - 1)])}}}"
        return first

    def component(self, variable: str, i: int) -> str:
        struct = _STRUCTS.get(self.combine)
        return f"{variable}.{struct[1][i]}" if struct else variable

    def update(self, variable: str, values: tuple[str, ...]) -> list[str]:
        """Statements that take one element into the accumulator."""
        if self.combine in _FNS:
            d = self.dtypes[0]
            return [f"{variable} = {spell(_FNS[self.combine], (variable, values[0]), d, d)};"]
        return [f"{variable} = {self.join}({variable}, {self.element(values)});"]

    def element(self, values: tuple[str, ...]) -> str:
        """One element as an accumulator of its own."""
        one = literal(1, self.dtypes[0])
        if self.combine == "welford":
            return f"{self.type}{{{values[0]}, {literal(0, self.dtypes[0])}, {one}}}"
        if self.combine == "softmax":
            return f"{self.type}{{{values[0]}, {one}}}"
        if self.combine in ("argmax", "argmin"):
            return f"{self.type}{{{values[0]}, {values[1]}}}"
        return values[0]


# --- in memory -------------------------------------------------------------------------------------------------------
def atomic(mode: str, pointer: str, value: str, d: DType) -> str:
    """A statement that combines ``value`` into ``*pointer``, whoever else does at the same time."""
    if mode == "add" and d.name in ("float32", "float64", "int32"):
        return f"atomicAdd({pointer}, {value});"
    if mode == "add" and d.name == "int64":
        return f"atomicAdd((unsigned long long*)({pointer}), (unsigned long long){value});"
    join = f"{_JOINS[mode]}<{register_type(d)}>()"
    if d.itemsize >= 4:
        return f"atomic_combine({pointer}, {value}, {join});"
    raw = memory_type(d)
    one = from_memory("was", d)
    result = to_memory(f"{join}({one}, {value})", d)
    return f"atomic_combine_narrow({pointer}, [&]({raw} was) {{ return {result}; }});"
