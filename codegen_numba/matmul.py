"""Matrix products as phases: rows (or columns, or whole products of a batch) shared among the workers.

Stage: codegen_numba.  In: an ``Extern`` step that names the row ``matmul``.  Out: a ``Template``: source, arguments, range
and cost, to be launched like a kernel; None if BLAS cannot take the operands as they lie, and then NumPy does.
Read next: ``attention``, ``blas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codegen_numba import blas
from codegen_numba.analysis import hint, known, product
from codegen_numba.compile import Source
from compiler.loop.ir import ArrayView, Buffer, Extern, Int

#: Products below this many multiplications (some 25 microseconds) are not shared: on a busy machine, waiting for a worker
#: that lost its core takes longer.
SMALL = 1 << 20


@dataclass(frozen=True)
class Template:
    """A phase that is no kernel of the plan.  ``slots`` match the source's parameters: a view (its address), a size
    expression, ``("blas", address)``, ``Packed`` memory, ``"scratch"`` (``scratch`` bytes for each part, shared by the
    templates of one step), ``"shared"`` (``shared`` bytes that one step's templates have at a time), or ``"parts"``, into how
    many parts the step's first template was cut."""

    source: Source
    slots: tuple[Any, ...]
    extent: Int
    work: Int  # multiplications; 0 keeps it in one part
    align: int = 1
    scratch: Int = 0  # bytes per part
    shared: int = 0
    piece: Int = 0  # elements of the result that belong together; its range makes them in order; 0: it does not


@dataclass(frozen=True)
class Packed:
    """Memory that the templates of several steps share: ``view`` in another order."""

    view: ArrayView
    bytes: int


@dataclass(frozen=True)
class Matrix:
    """The last two dimensions as BLAS sees them: turned or not, and the leading dimension."""

    turned: bool
    lead: Int


def as_matrix(rows: Int, cols: Int, row_step: Int, col_step: Int) -> Matrix | None:
    if known(cols) == 1 or col_step == 1:
        return Matrix(False, cols if known(rows) == 1 else row_step) if _fits(rows, cols, row_step) else None
    if known(rows) == 1 or row_step == 1:
        return Matrix(True, rows if known(cols) == 1 else col_step) if _fits(cols, rows, col_step) else None
    return None


def _fits(count: Int, length: Int, step: Int) -> bool:
    """Rows may not overlap (or be broadcast)."""
    if known(count) == 1:
        return True
    a, b = known(step), known(length)
    return a >= b if a is not None and b is not None else a is None


TEXT = """\
def matmul(a, b, c, gemm, ta, tb, m, n, k, lda, ldb, ldc, {strides}start, stop, part):
    # {what}
{body}"""

ROWS = """\
    gemm_{t}(gemm, ta, tb, stop - start, n, k, {t}(1.0), a, start * {a_row}, lda, b, 0, ldb, {t}(0.0), c, start * ldc, ldc)
"""
COLUMNS = """\
    gemm_{t}(gemm, ta, tb, m, stop - start, k, {t}(1.0), a, 0, lda, b, start * {b_col}, ldb, {t}(0.0), c, start, ldc)
"""
BATCH = """\
    for i in range(start, stop):
        gemm_{t}(gemm, ta, tb, m, n, k, {t}(1.0), a, {a_at}, lda, b, {b_at}, ldb, {t}(0.0), c, {c_at}, ldc)
"""


def matmul(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    a, b = step.args
    (out,) = step.outs
    library = blas.find()
    if library is None or not isinstance(a, ArrayView) or not isinstance(b, ArrayView):
        return None
    dtype = buffers[out.buffer].dtype
    if dtype.name not in ("float32", "float64") or any(buffers[v.buffer].dtype is not dtype for v in (a, b)):
        return None
    if min(len(a.shape), len(b.shape)) < 2 or known(a.shape[-1]) == 0:
        return None
    c = as_matrix(*out.shape[-2:], *out.stride[-2:])
    if c is None:
        return None
    if c.turned:  # C^T = B^T A^T
        a, b, out = _turned(b), _turned(a), _turned(out)
        c = as_matrix(*out.shape[-2:], *out.stride[-2:])
    left, right = as_matrix(*a.shape[-2:], *a.stride[-2:]), as_matrix(*b.shape[-2:], *b.stride[-2:])
    if c is None or c.turned or left is None or right is None:
        return None
    return [_template(a, b, out, left, right, c, dtype, library)]


def _turned(v: ArrayView) -> ArrayView:
    return ArrayView(
        v.buffer, (*v.shape[:-2], v.shape[-1], v.shape[-2]), (*v.stride[:-2], v.stride[-1], v.stride[-2]), v.offset
    )


def _template(
    a: ArrayView, b: ArrayView, out: ArrayView, left: Matrix, right: Matrix, c: Matrix, dtype: Any, library: Any
) -> Template:
    m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
    lead, t = out.shape[:-2], dtype.name
    count = product(lead)
    sizes: list[tuple[str, Any]] = [
        ("gemm", ("blas", library.gemm(dtype))), ("ta", blas.TURNED if left.turned else blas.PLAIN),
        ("tb", blas.TURNED if right.turned else blas.PLAIN), ("m", m), ("n", n), ("k", k), ("lda", left.lead),
        ("ldb", right.lead), ("ldc", c.lead),
    ]  # fmt: skip
    strides: list[tuple[str, Any]] = []
    if known(count) == 1:
        by_rows = hint(m) * 2 >= hint(n)
        body = (ROWS if by_rows else COLUMNS).format(
            t=t, a_row="1" if left.turned else "lda", b_col="ldb" if right.turned else "1"
        )
        extent, what, align = (m, "rows shared", 8) if by_rows else (n, "columns shared", 16)
        piece = n if by_rows else 0
    else:
        places = [_place(name, v, lead, strides) for name, v in (("a", a), ("b", b), ("c", out))]
        body = BATCH.format(t=t, **dict(zip(("a_at", "b_at", "c_at"), places, strict=True)))
        extent, what, align = count, "a batch of products", 1
        piece = product((m, n))
    names = "".join(f"{name}, " for name, _ in strides)
    text = TEXT.format(strides=names, what=what, body=body)
    params = (*((x, t) for x in "abc"), *((x, "size") for x, _ in (*sizes, *strides)))
    source = Source("matmul", text, params, alias=True)
    slots = (a, b, out, *(v for _, v in (*sizes, *strides)))
    return Template(source, slots, extent, product((count, m, n, k)), align, piece=piece)


def _place(name: str, v: ArrayView, lead: tuple[Int, ...], strides: list[tuple[str, Any]]) -> str:
    """Where product ``i`` of the batch finds its operand: the index of the batch taken apart."""
    shape, step = (
        (1,) * (len(lead) - len(v.shape) + 2) + v.shape[:-2],
        (0,) * (len(lead) - len(v.stride) + 2) + v.stride[:-2],
    )
    terms: list[str] = []
    rest = "i"
    for d in range(len(lead)):
        inner = product(lead[d + 1 :])
        if known(shape[d]) == 1 and known(lead[d]) != 1:
            size = None
        else:
            size = f"{name}_step{d}"
        last = d == len(lead) - 1
        if known(lead[d]) == 1:
            continue
        if not last:
            strides.append((f"{name}_size{d}", inner))
        here = rest if last else f"quotient({rest}, {name}_size{d})"
        if size is not None:
            strides.append((size, step[d]))
            terms.append(f"{here} * {size}")
        rest = rest if last else f"remainder({rest}, {name}_size{d})"
    return " + ".join(terms) or "0"
