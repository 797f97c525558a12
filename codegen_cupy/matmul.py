"""Matrix products as cublasLt takes them: no copies, straight into ``out``.

Stage: codegen.  In: a ``matmul`` call of a plan.  Out: a ``Product``, a value that says what the library is asked for:
column-major layouts, transposes, batches, what to add or sum on the way (``compiler.loop.epilogue``).  ``by_numpy``
does what a ``Product`` says on any memory, so that all but the library's own call is tested without a GPU.
Read next: ``cublaslt`` (the call), ``unfused`` (where the library refuses), ``launch``, ``graphs``.

cublasLt counts columns first.  A row-major result is the column-major result of the swapped, transposed product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from codegen_cupy.host import Call, Recipe, Step, View
from compiler.loop.interp import finished
from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.functions.misc import get_float32_matmul_precision

TYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
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
    where the batches do not lie one stride apart.  ``then`` has a word for each further buffer: "bias", a vector down
    every column of D; "add", a matrix that lies as D does; "aux", such a matrix that receives what D is before its GELU;
    "dgelu", such a matrix, whose slope under the GELU the product is multiplied by; and, last and without a buffer, "gelu".
    """

    dtype: DType
    a: Matrix
    b: Matrix
    d: Matrix
    batch: int
    buffers: tuple[str, ...]
    offsets: tuple[int, ...]
    repeats: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    tf32: bool = False
    alignment: int = 16  # bytes, of every operand's start
    tuned: bool = False  # time the library's choices however short they are
    then: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The buffers that receive results."""
        return (self.buffers[2], *(b for w, b in zip(self.operands, self.buffers[3:], strict=True) if w == "aux"))

    @property
    def operands(self) -> tuple[str, ...]:
        """The words of ``then`` that have a buffer."""
        return tuple(w for w in self.then if w != "gelu")

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
    x, y, *more = call.args
    assert isinstance(x, View) and isinstance(y, View)
    made = describe(x, y, call.outs[0], types[x.buffer], aligned=aligned, tf32=allow_tf32())
    if made is None or "then" not in call.params:
        return [made] if made else []
    return [followed(made, call.params["then"], [*more, *call.outs[1:]])]


def followed(p: Product, then: tuple[str, ...], more: list[Any]) -> Product:
    """The product with what comes after it."""
    buffers, offsets = (tuple(getattr(v, name) for v in more) for name in ("buffer", "offset"))
    return replace(p, then=then, buffers=p.buffers + buffers, offsets=p.offsets + offsets)


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
        a, b, d = y.turned, x.turned, out.turned
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
def by_numpy(p: Product, *buffers: int) -> None:
    """The product on host memory, read and written by address; half types compute in float32 and round once."""
    wide = dtypes.float32.np if p.dtype.itemsize == 2 else p.dtype.np
    for pa, pb, pd, *more in addresses(p, *buffers):
        x, y = (_host(m, p.batch, p.dtype, at).astype(wide) for m, at in ((p.a, pa), (p.b, pb)))
        with np.errstate(all="ignore"):
            out = x @ y
            operands = dict(zip(p.operands, more, strict=True))
            given = [
                _vector(p.m, p.dtype, at)[:, None] if word == "bias" else _host(p.d, p.batch, p.dtype, at)
                for word, at in operands.items() if word != "aux"
            ]  # fmt: skip
            out, before = finished(np, p.then, out, [g.astype(wide) for g in given])
            _host(p.d, p.batch, p.dtype, pd)[...] = out.astype(p.dtype.np)
            if "aux" in operands:
                _host(p.d, p.batch, p.dtype, operands["aux"])[...] = before.astype(p.dtype.np)


def addresses(p: Product, *buffers: int) -> Iterator[tuple[int, ...]]:
    """Where the operands of each call start, given where their buffers do."""
    item = p.dtype.itemsize
    for r in p.repeats:
        moves = (*r, *(0 for _ in p.operands))
        yield tuple(at + (o + i) * item for at, o, i in zip(buffers, p.offsets, moves, strict=True))


def _vector(count: int, dtype: DType, address: int) -> np.ndarray[Any, Any]:
    block: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(block, dtype.np)


def _host(m: Matrix, batch: int, dtype: DType, address: int) -> np.ndarray[Any, Any]:
    """op(matrix) of every batch, as an array over raw memory."""
    item = dtype.itemsize
    span = ((batch - 1) * m.stride + (m.cols - 1) * m.ld + m.rows) * item
    block: Any = (ctypes.c_char * span).from_address(address)
    strides = (m.stride * item, item, m.ld * item)
    array = np.ndarray((batch, m.rows, m.cols), dtype.np, np.frombuffer(block, np.uint8), 0, strides)
    return array.transpose(0, 2, 1) if m.transposed else array


EXTERN_KERNELS = {"matmul": products}
