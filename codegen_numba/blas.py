"""The matrix product of the BLAS that NumPy brings, as an address that kernels can call.

Stage: codegen_numba.  In: NumPy's own extension module.  Out: addresses of ``cblas_sgemm`` and ``cblas_dgemm`` and of
the switch for their threads; ``None`` where NumPy was built with a BLAS that hides them, and then ``externs`` uses
``numpy.matmul``.  Kernels share a product among our own workers, so while one runs the library is told to use one
thread; a counter of users puts its setting back when the last one leaves.  Read next: ``matmul``, ``attention``.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from codegen_numba.compile import Source
from tinytorch.dtypes import DType

#: (prefix, suffix) of symbols in the libraries NumPy's wheels bring: 64-bit integers.
SPELLINGS = (("scipy_", "64_"), ("", "64_"))
NEEDED = ("cblas_sgemm", "cblas_dgemm", "openblas_set_num_threads", "openblas_get_num_threads")
ROW_MAJOR, PLAIN, TURNED = 101, 111, 112


@dataclass(frozen=True)
class Blas:
    """Addresses."""

    sgemm: int
    dgemm: int
    set_threads: int
    get_threads: int

    def gemm(self, dtype: DType) -> int:
        return self.dgemm if dtype.name == "float64" else self.sgemm


@cache
def find() -> Blas | None:
    try:
        library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    except (ImportError, OSError):
        return None
    for before, after in SPELLINGS:
        names = [f"{before}{n}{after}" for n in NEEDED]
        try:
            blas = Blas(*(ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names))
        except AttributeError:
            continue
        return blas if _works(blas) else None
    return None


def _works(blas: Blas) -> bool:
    """One product, compared: a wrong width of integers would show."""
    i64, i32, f64 = ctypes.c_int64, ctypes.c_int32, ctypes.c_double
    call = ctypes.CFUNCTYPE(None, i32, i32, i32, i64, i64, i64, f64, i64, i64, i64, i64, f64, i64, i64)(blas.dgemm)
    a, b, c = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.zeros((2, 4))
    call(ROW_MAJOR, PLAIN, PLAIN, 2, 4, 3, 1.0, a.ctypes.data, 3, b.ctypes.data, 4, 0.0, c.ctypes.data, 4)
    return bool(np.allclose(c, a @ b))


# --- one thread while kernels share the work -------------------------------------------------------------------------
#: lock, users, the setting to put back
STATE = np.zeros(24, np.int64)

ENTER = Source(
    "blas_enter",
    "def blas_enter(state, setter, getter, start, stop, part):\n"
    "    while not compare_and_swap(state, 0, 0, 1):\n"
    "        pause()\n"
    "    if state[8] == 0:\n"
    "        state[16] = ask(getter)\n"
    "        tell(setter, 1)\n"
    "    state[8] += 1\n"
    "    atomic_store(state, 0, 0)\n",
    (("state", "int64"), ("setter", "size"), ("getter", "size")),
    alias=True,
    pool=True,
)
LEAVE = Source(
    "blas_leave",
    "def blas_leave(state, setter, start, stop, part):\n"
    "    while not compare_and_swap(state, 0, 0, 1):\n"
    "        pause()\n"
    "    state[8] -= 1\n"
    "    if state[8] == 0:\n"
    "        tell(setter, state[16])\n"
    "    atomic_store(state, 0, 0)\n",
    (("state", "int64"), ("setter", "size")),
    alias=True,
    pool=True,
)
