"""Element types and the promotion table.

Stage: eager.  In: NumPy dtypes, Python scalars.  Out: ``DType`` singletons that every later stage carries.
Mirrors ``torch.dtype``, ``torch.promote_types``, ``torch.finfo``.  Read next: ``ops.scalars``.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np

from tinytorch.defaults import defaults


class DType:
    """One element type; a singleton, compared by identity.  ``kind`` is NumPy's: ``b i u f c``."""

    def __init__(self, name: str, kind: str, itemsize: int, *, rank: int) -> None:
        self.name = name
        self.kind = kind
        self.itemsize = itemsize
        self.rank = rank
        self.is_floating_point = kind == "f"
        self.is_complex = kind == "c"
        self.is_signed = kind in "ifc"

    @cached_property
    def np(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 comes from ``ml_dtypes``, imported at the first use."""
        if self.name == "bfloat16":
            import ml_dtypes

            wide: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return wide
        return np.dtype(self.name)

    def __repr__(self) -> str:
        return f"tinytorch.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.name,)

    @property
    def title(self) -> str:
        """The name that error messages use: Float, Long, ..."""
        return _TITLES[self.name]

    def to_complex(self) -> DType:
        return {"float32": complex64, "float64": complex128}.get(self.name, complex64)

    def to_real(self) -> DType:
        return {"complex64": float32, "complex128": float64}.get(self.name, self)


bool_ = DType("bool", "b", 1, rank=0)
uint8 = DType("uint8", "u", 1, rank=1)
int8 = DType("int8", "i", 1, rank=1)
int16 = DType("int16", "i", 2, rank=2)
int32 = DType("int32", "i", 4, rank=3)
int64 = DType("int64", "i", 8, rank=4)
float16 = DType("float16", "f", 2, rank=5)
bfloat16 = DType("bfloat16", "f", 2, rank=5)
float32 = DType("float32", "f", 4, rank=6)
float64 = DType("float64", "f", 8, rank=7)
complex64 = DType("complex64", "c", 8, rank=8)
complex128 = DType("complex128", "c", 16, rank=9)

#: Used inside kernels only (random bits, bit casts, unsigned index wrap); no tensor has these.
uint32 = DType("uint32", "u", 4, rank=3)
uint64 = DType("uint64", "u", 8, rank=4)

ALL: tuple[DType, ...] = (
    bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in (*ALL, uint32, uint64)}


def named(name: str) -> DType:
    """The type of this name; what pickles hold."""
    return BY_NAME[name]


_TITLES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
    "complex64": "ComplexFloat", "complex128": "ComplexDouble", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip

defaults.put(float32, defaults.now[1])


def get_default_dtype() -> DType:
    return defaults.now[0]


def set_default_dtype(dtype: DType) -> None:
    """Mirrors ``torch.set_default_dtype``: a floating type, else TypeError."""
    if not dtype.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {dtype}")
    defaults.put(dtype, defaults.now[1])


def typed(dtype: Any, default: DType) -> DType:
    """What a program means by ``dtype``: None is ``default``; Python's ``bool``, ``int``, ``float`` and ``complex`` are types too."""
    if dtype is None:
        return default
    found = dtype if isinstance(dtype, DType) else _OF_PYTHON.get(dtype) if isinstance(dtype, type) else None
    if found is None:
        raise TypeError(f"argument 'dtype' must be tinytorch.dtype, not {type(dtype).__name__}")
    return found


_OF_PYTHON = {bool: bool_, int: int64, float: float64, complex: complex128}


@cache
def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The ``DType`` of a NumPy dtype; TypeError for those no tensor can hold."""
    found = BY_NAME.get(np.dtype(dtype).name)
    if found is None:
        raise TypeError(f"can't convert np.ndarray of type {dtype}: supported are {', '.join(BY_NAME)}")
    return found


@cache
def promote_types(a: DType, b: DType) -> DType:
    """The smallest type that holds both, by PyTorch's table (int + float16 is float16; float16 + bfloat16 float32)."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: d.rank)
    if high.kind == "c":
        both64 = low is float64 or high is complex128
        return complex128 if both64 else complex64
    if {low.name, high.name} == {"uint8", "int8"}:
        return int16
    if {low.name, high.name} == {"float16", "bfloat16"}:
        return float32
    if high.name == "int8" and low.kind == "u":
        return int16
    return high


def category(dtype: DType) -> int:
    """bool 0, integer 1, floating 2, complex 3: weak operands matter only when their category is higher."""
    return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}[dtype.kind]


class finfo:  # noqa: N801 - PyTorch's name
    """Limits of a floating type.  Mirrors ``torch.finfo``; TypeError for other types."""

    def __init__(self, dtype: DType | None = None) -> None:
        dtype = dtype or get_default_dtype()
        if dtype.kind not in "fc":
            raise TypeError(f"torch.finfo() requires a floating point input type. Use torch.iinfo to handle '{dtype}'")
        real = dtype.to_real()
        if real is bfloat16:
            import ml_dtypes

            finfo_of: Any = ml_dtypes.finfo
            info: Any = finfo_of(ml_dtypes.bfloat16)
        else:
            info = np.finfo(real.np)
        self.dtype, self.bits = real.name, real.itemsize * 8
        self.min, self.max, self.eps = float(info.min), float(info.max), float(info.eps)
        self.tiny = self.smallest_normal = float(info.tiny)
        self.resolution = float(info.resolution)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.tiny:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:  # noqa: N801 - PyTorch's name
    """Limits of an integer type.  Mirrors ``torch.iinfo``."""

    def __init__(self, dtype: DType) -> None:
        if dtype.kind not in "iu":
            raise TypeError(f"torch.iinfo() requires an integer input type. Use torch.finfo to handle '{dtype}'")
        info = np.iinfo(dtype.np)
        self.dtype, self.bits, self.min, self.max = dtype.name, info.bits, int(info.min), int(info.max)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
