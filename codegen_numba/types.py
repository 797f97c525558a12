"""The types of kernel source: numbers of each width, truth, pointers, nothing; and signatures.

Stage: codegen_numba.  They are Numba's types of the same names with nothing behind them, so that words (``intrinsics``)
can be typed without importing Numba.  Read next: ``front``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir


@dataclass(frozen=True)
class Type:
    """Called with types it is a signature: ``float32(int64, float32)`` takes those two and gives a float32."""

    name: str
    kind: str  # int, float, bool, void, pointer
    bits: int = 0
    signed: bool = False

    def __call__(self, *args: Type) -> Signature:
        return Signature(self, args)

    @property
    def llvm(self) -> ir.Type:
        """Of a value in a register."""
        if self.kind == "float":
            return ir.FloatType() if self.bits == 32 else ir.DoubleType()
        return ir.VoidType() if self.kind == "void" else ir.IntType(self.bits)


@dataclass(frozen=True)
class CPointer(Type):
    element: Any = None

    def __init__(self, element: Type) -> None:
        for name, value in (("name", f"{element.name}*"), ("kind", "pointer"), ("bits", 64), ("element", element)):
            object.__setattr__(self, name, value)

    @property
    def llvm(self) -> ir.Type:
        return self.element.llvm.as_pointer()


@dataclass(frozen=True)
class IntegerLiteral(Type):
    """An int64 whose value is known: what words that ask for literals see of a constant."""

    literal_value: int = 0

    def __init__(self, value: int) -> None:
        fields = {"name": "int64", "kind": "int", "bits": 64, "signed": True, "literal_value": value}
        for name, it in fields.items():
            object.__setattr__(self, name, it)


@dataclass(frozen=True)
class Signature:
    return_type: Type
    args: tuple[Type, ...]


int8, int16, int32, int64 = (Type(f"int{n}", "int", n, True) for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (Type(f"uint{n}", "int", n, False) for n in (8, 16, 32, 64))
float32, float64 = Type("float32", "float", 32), Type("float64", "float", 64)
boolean, void = Type("bool", "bool", 1), Type("void", "void")

BY_NAME = {
    t.name: t
    for t in (int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, boolean, void)
}  # fmt: skip
