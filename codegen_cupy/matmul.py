"""Matrix products by cublasLt, through ctypes: no copies, straight into ``out``, and allowed inside a graph capture.

Stage: codegen.  In: a ``matmul`` call of a plan.  Out: a ``Product``, a value that says what the library is asked for:
column-major layouts, transposes, batches.  ``by_numpy`` does what a ``Product`` says on any memory, so that all but
the library's own call is tested without a GPU.  Read next: ``launch``, ``graphs``.

cublasLt counts columns first.  A row-major result is the column-major result of the swapped, transposed product.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from codegen_cupy.host import Call, Recipe, Step, View
from compiler.config import config
from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.functions.misc import get_float32_matmul_precision

#: cudaDataType_t, and cublasComputeType_t with the type of alpha and beta.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14, "complex64": 4, "complex128": 5}
COMPUTE = {
    "float32": (68, 0), "float64": (70, 1), "float16": (68, 0), "bfloat16": (68, 0), "complex64": (68, 4), "complex128": (70, 5),
}  # fmt: skip
FAST_TF32 = 77
WORKSPACE = 32 << 20
TUNED = 1 << 28  # multiply-adds from which the library's choices are timed, under ``max-autotune``
MOST_CALLS = 64  # batches that no single stride describes run one by one, up to so many


@dataclass(frozen=True)
class Matrix:
    """A column-major operand in elements: column ``j`` starts ``j * ld`` after the first; ``stride`` from batch to batch."""

    rows: int
    cols: int
    ld: int
    stride: int
    transposed: bool


@dataclass(frozen=True)
class Product:
    """``D = op(A) @ op(B)``, column-major, for ``batch`` matrices.

    ``buffers`` and ``offsets`` (in elements) are of A, B and D; ``repeats`` holds further offsets, one triple per call,
    where the batches do not lie one stride apart.
    """

    dtype: DType
    a: Matrix
    b: Matrix
    d: Matrix
    batch: int
    buffers: tuple[str, str, str]
    offsets: tuple[int, int, int]
    repeats: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    tf32: bool = False
    alignment: int = 16  # bytes, of every operand's start
    tuned: bool = False  # time the library's choices

    @property
    def m(self) -> int:
        return self.d.rows

    @property
    def n(self) -> int:
        return self.d.cols

    @property
    def k(self) -> int:
        return self.a.rows if self.a.transposed else self.a.cols


# --- from a call to a product -----------------------------------------------------------------------------------------
def products(call: Call, types: Mapping[str, DType], aligned: bool) -> list[Step]:
    """The library calls for one ``matmul`` row; none if the layouts need copies (the row's own kernel makes them)."""
    x, y = call.args
    assert isinstance(x, View) and isinstance(y, View)
    made = describe(x, y, call.outs[0], types[x.buffer], aligned=aligned, tf32=allow_tf32())
    return [made] if made else []


def tuned(recipe: Recipe) -> Recipe:
    """The recipe with products that time the library's choices."""
    steps = tuple(replace(s, tuned=True) if isinstance(s, Product) else s for s in recipe.steps)
    return replace(recipe, steps=steps)


def describe(x: View, y: View, out: View, dtype: DType, *, aligned: bool = True, tf32: bool = False) -> Product | None:
    """The product that writes ``out = x @ y``; None if cublasLt cannot read these layouts."""
    if dtype.name not in TYPES or 0 in x.shape or 0 in y.shape:
        return None
    swap = _follows(out, column_major=False)
    if swap:
        a, b, d = _turned(y), _turned(x), _turned(out)
    elif _follows(out, column_major=True):
        a, b, d = x, y, out
    else:
        return None
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    layouts = [_matrix(a, m, k), _matrix(b, k, n), _matrix(d, m, n)]
    batches = _batches(a, b, d)
    if batches is None or any(z is None for z in layouts):
        return None
    count, strides, repeats = batches
    (la, ta), (lb, tb), (ld, _) = layouts  # type: ignore[misc]
    item = dtype.itemsize
    starts = [z.offset + r[i] for r in repeats for i, z in enumerate((a, b, d))] + [s for s in strides if count > 1]
    wide = 16 if aligned and not any(s * item % 16 for s in starts) else item
    return Product(
        dtype,
        Matrix(*((k, m) if ta else (m, k)), la, strides[0], ta),
        Matrix(*((n, k) if tb else (k, n)), lb, strides[1], tb),
        Matrix(m, n, ld, strides[2], False),
        count,
        (a.buffer, b.buffer, d.buffer),
        (a.offset, b.offset, d.offset),
        repeats,
        tf32 and dtype is dtypes.float32,
        wide,
    )


def _turned(v: View) -> View:
    shape, stride = (*v.shape[:-2], v.shape[-1], v.shape[-2]), (*v.stride[:-2], v.stride[-1], v.stride[-2])
    return View(v.buffer, shape, stride, v.offset)


def _follows(v: View, *, column_major: bool) -> bool:
    """Whether the matrices of ``v`` lie in this order, without a gap inside of a column (row)."""
    (rows, cols), (rs, cs) = v.shape[-2:], v.stride[-2:]
    if not column_major:
        (rows, cols), (rs, cs) = (cols, rows), (cs, rs)
    return (rs == 1 or rows == 1) and (cols == 1 or cs >= rows)


def _matrix(v: View, rows: int, cols: int) -> tuple[int, bool] | None:
    """(leading dimension, transposed) of a ``rows`` x ``cols`` operand."""
    rs, cs = v.stride[-2:]
    if _follows(v, column_major=True):
        return (cs if cols > 1 else rows), False
    if _follows(v, column_major=False):
        return (rs if rows > 1 else cols), True
    return None


def _batches(*views: View) -> tuple[int, tuple[int, ...], tuple[tuple[int, int, int], ...]] | None:
    """(matrices per call, their strides, offsets of the calls): as many dimensions as lie evenly make one call."""
    dims = [(n, tuple(v.stride[i] for v in views)) for i, n in enumerate(views[0].shape[:-2]) if n != 1]
    count, strides = 1, (0, 0, 0)
    while dims:
        n, s = dims[-1]
        if count > 1 and s != tuple(count * t for t in strides):
            break
        strides = strides if count > 1 else s  # type: ignore[assignment]
        count *= n
        dims.pop()
    calls = 1
    for n, _ in dims:
        calls *= n
    if calls > MOST_CALLS:
        return None
    repeats = tuple(_offsets(dims))
    return count, strides, repeats


def _offsets(dims: list[tuple[int, tuple[int, ...]]]) -> Iterator[tuple[int, int, int]]:
    for index in product(*(range(n) for n, _ in dims)):
        a, b, d = (sum(i * s[z] for i, (_, s) in zip(index, dims, strict=True)) for z in range(3))
        yield a, b, d


def allow_tf32() -> bool:
    """PyTorch's switch: ``set_float32_matmul_precision`` other than "highest"."""
    return get_float32_matmul_precision() != "highest"


# --- what a product means ---------------------------------------------------------------------------------------------
def by_numpy(p: Product, a: int, b: int, d: int) -> None:
    """The product on host memory, read and written by address; half types multiply in float32 and round once."""
    wide = dtypes.float32.np if p.dtype.itemsize == 2 else p.dtype.np
    for pa, pb, pd in addresses(p, a, b, d):
        x, y = _host(p.a, p.batch, p.dtype, pa), _host(p.b, p.batch, p.dtype, pb)
        with np.errstate(all="ignore"):
            _host(p.d, p.batch, p.dtype, pd)[...] = (x.astype(wide) @ y.astype(wide)).astype(p.dtype.np)


def addresses(p: Product, a: int, b: int, d: int) -> Iterator[tuple[int, int, int]]:
    """Where A, B and D of each call start, given where their buffers do."""
    item = p.dtype.itemsize
    for r in p.repeats:
        ra, rb, rd = ((o + i) * item for o, i in zip(p.offsets, r, strict=True))
        yield a + ra, b + rb, d + rd


def _host(m: Matrix, batch: int, dtype: DType, address: int) -> np.ndarray[Any, Any]:
    """op(matrix) of every batch, as an array over raw memory."""
    item = dtype.itemsize
    span = ((batch - 1) * m.stride + (m.cols - 1) * m.ld + m.rows) * item
    block: Any = (ctypes.c_char * span).from_address(address)
    strides = (m.stride * item, item, m.ld * item)
    array = np.ndarray((batch, m.rows, m.cols), dtype.np, np.frombuffer(block, np.uint8), 0, strides)
    return array.transpose(0, 2, 1) if m.transposed else array


# --- the library ------------------------------------------------------------------------------------------------------
class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


def library_paths() -> list[str]:
    """Where cublasLt may be: the wheels ``nvidia-cublas*``, the CUDA toolkit, the loader's own search."""
    found: list[str] = []
    for base in sys.path:
        for inside in ("nvidia/cublas/lib", "nvidia/cu13/lib", "nvidia/cu12/lib"):
            found += sorted(glob.glob(os.path.join(base, inside, "libcublasLt.so.*")))
    for root in (os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        if root:
            found += sorted(glob.glob(os.path.join(root, "lib64", "libcublasLt.so.*")))
    return [*dict.fromkeys(found), "libcublasLt.so.13", "libcublasLt.so.12"]


@cache
def library() -> ctypes.CDLL | None:
    """cublasLt, or None."""
    for path in library_paths():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _bytes(p: Product, m: Matrix) -> int:
    return ((p.batch - 1) * m.stride + m.cols * m.ld) * p.dtype.itemsize


def _ok(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"cublasLt: {what} failed with status {code}")


class Handle:
    """The library's context and the work space of each stream, on one device.

    ``timer(fn)`` gives the time that what ``fn`` enqueues on ``stream()`` takes; ``noise`` fills memory with numbers.
    """

    def __init__(
        self, alloc: Callable[[int], Any], stream: Callable[[], int], timer: Callable[[Callable[[], None]], float],
        noise: Callable[[Any, int, DType], None],
    ) -> None:  # fmt: skip
        lib = library()
        if lib is None:
            raise RuntimeError("cublasLt was not found: pip install nvidia-cublas-cu12, or install the CUDA toolkit")
        self.lib, self.alloc, self.stream, self.timer, self.noise = lib, alloc, stream, timer, noise
        self.handle = ctypes.c_void_p()
        _ok(lib.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")
        self.spaces: dict[int, Any] = {}
        self.plans: dict[Any, Prepared] = {}
        self.lock = threading.Lock()

    def prepared(self, p: Product) -> Prepared:
        """The descriptors of a product and its algorithm; equal products share them."""
        key = (p.dtype, p.a, p.b, p.d, p.batch, p.tf32, p.alignment, p.tuned)
        with self.lock:
            if key not in self.plans:
                made = self.plans[key] = Prepared(self, p)
                if p.tuned and p.m * p.n * p.k * p.batch >= TUNED and len(made.choices) > 1 and not config.deterministic:
                    self._tune(made)
            return self.plans[key]

    def _tune(self, made: Prepared) -> None:
        """On memory of our own, if there is some to spare, and on random numbers: with zeros the chip takes less power
        and runs faster, which turns the order of the choices round."""
        p = made.product
        try:
            blocks = [self.alloc(_bytes(p, m)) for m in (p.a, p.b, p.d)]
        except Exception:  # out of memory: the library's first choice is a fine one
            return
        a, b, d = (block.ptr for block in blocks)
        for m, block in ((p.a, blocks[0]), (p.b, blocks[1])):
            self.noise(block, _bytes(p, m), p.dtype)
        tune(made, self.timer, a, b, d, self.stream())

    def workspace(self, stream: int) -> int:
        """Scratch memory of this stream: calls on one stream follow each other, so they may share it."""
        found = self.spaces.get(stream)
        if found is None:
            found = self.spaces[stream] = self.alloc(WORKSPACE)
        return int(found.ptr)


class Prepared:
    """Descriptors and algorithm of a product."""

    def __init__(self, handle: Handle, p: Product) -> None:
        self.handle, lib = handle, handle.lib
        self.product = p
        compute, scale = COMPUTE[p.dtype.name]
        self.desc = ctypes.c_void_p()
        compute = FAST_TF32 if p.tf32 else compute
        _ok(lib.cublasLtMatmulDescCreate(ctypes.byref(self.desc), compute, scale), "cublasLtMatmulDescCreate")
        for attribute, m in ((3, p.a), (4, p.b)):
            flag = ctypes.c_int32(int(m.transposed))
            code = lib.cublasLtMatmulDescSetAttribute(self.desc, attribute, ctypes.byref(flag), ctypes.c_size_t(4))
            _ok(code, "cublasLtMatmulDescSetAttribute")
        self.layouts = [self._layout(m) for m in (p.a, p.b, p.d)]
        numbers: dict[int, Any] = {0: ctypes.c_float * 1, 1: ctypes.c_double * 1, 4: ctypes.c_float * 2, 5: ctypes.c_double * 2}
        number = numbers[scale]
        self.alpha, self.beta = number(1.0), number(0.0)
        self.choices = self._choices(8)
        self.choice = self.choices[0]
        self._arguments()

    def _layout(self, m: Matrix) -> ctypes.c_void_p:
        lib, out, p = self.handle.lib, ctypes.c_void_p(), self.product
        code = lib.cublasLtMatrixLayoutCreate(
            ctypes.byref(out), TYPES[p.dtype.name], ctypes.c_uint64(m.rows), ctypes.c_uint64(m.cols), ctypes.c_int64(m.ld)
        )
        _ok(code, "cublasLtMatrixLayoutCreate")
        if p.batch > 1:
            for attribute, value in ((5, ctypes.c_int32(p.batch)), (6, ctypes.c_int64(m.stride))):
                size = ctypes.c_size_t(ctypes.sizeof(value))
                _ok(lib.cublasLtMatrixLayoutSetAttribute(out, attribute, ctypes.byref(value), size), "layout attribute")
        return out

    def _choices(self, most: int) -> list[Heuristic]:
        """The library's own list, likeliest first."""
        lib, wish = self.handle.lib, ctypes.c_void_p()
        _ok(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(wish)), "cublasLtMatmulPreferenceCreate")
        settings: list[tuple[int, Any]] = [(1, ctypes.c_size_t(WORKSPACE))]
        settings += [(n, ctypes.c_uint32(self.product.alignment)) for n in (5, 6, 7, 8)]
        for attribute, value in settings:
            size = ctypes.c_size_t(ctypes.sizeof(value))
            _ok(lib.cublasLtMatmulPreferenceSetAttribute(wish, attribute, ctypes.byref(value), size), "preference")
        found, results = ctypes.c_int(), (Heuristic * most)()
        a, b, d = self.layouts
        code = lib.cublasLtMatmulAlgoGetHeuristic(
            self.handle.handle, self.desc, a, b, d, d, wish, most, results, ctypes.byref(found)
        )
        lib.cublasLtMatmulPreferenceDestroy(wish)
        _ok(code, f"the choice of an algorithm for {self.product}")
        good = [r for r in results[: found.value] if r.state == 0]
        if not good:
            raise RuntimeError(f"cublasLt has no algorithm for {self.product}")
        return good

    def _arguments(self) -> None:
        """What every call passes, made once: building ctypes objects takes longer than the call."""
        a, b, d = self.layouts
        self.before = (self.handle.handle, self.desc, ctypes.byref(self.alpha))
        self.la, self.lb, self.ld, self.beta_ref = a, b, d, ctypes.byref(self.beta)
        self.use(self.choice)

    def use(self, choice: Heuristic) -> None:
        self.choice = choice
        self.algo = ctypes.byref(choice, Heuristic.algo.offset)
        self.space = ctypes.c_size_t(choice.workspace)

    def run(self, a: int, b: int, d: int, stream: int) -> None:
        """Enqueue the product on memory at these addresses."""
        pd = ctypes.c_void_p(d)
        scratch = ctypes.c_void_p(self.handle.workspace(stream) if self.choice.workspace else 0)
        code = self.handle.lib.cublasLtMatmul(
            *self.before, ctypes.c_void_p(a), self.la, ctypes.c_void_p(b), self.lb, self.beta_ref, pd, self.ld, pd, self.ld,
            self.algo, scratch, self.space, ctypes.c_void_p(stream),
        )  # fmt: skip
        if code:
            raise RuntimeError(f"cublasLt: {self.product} failed with status {code}")


def tune(prepared: Prepared, timer: Callable[[Callable[[], None]], float], a: int, b: int, d: int, stream: int) -> float:
    """Time the library's choices on this memory and keep the fastest; gives its time.  ``d`` is overwritten."""
    best: tuple[float, Heuristic] | None = None
    for choice in prepared.choices:
        prepared.use(choice)
        try:
            took = timer(lambda: prepared.run(a, b, d, stream))
        except RuntimeError:  # one that the library lists and then refuses
            continue
        if best is None or took < best[0]:
            best = took, choice
    assert best is not None
    prepared.use(best[1])
    return best[0]


EXTERN_KERNELS = {"matmul": products}
