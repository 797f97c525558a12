"""Products by our own tiles: the right factor packed once, the left one read as it lies.

Stage: codegen_numba.  In: an ``Extern`` step that names the row ``matmul``.  Out: two ``Template``s: packing, multiplying; or one.
BLAS packs both factors at every call, for whatever it is called.  Where the right factor fits the second-level
cache, ``product`` over panels of it is faster; and it can be called for few rows at a time, with the kernel behind it in
turn (``together``), where BLAS would pack the factor again each time.  A large factor is packed and multiplied in pieces of
its rows, for which the same memory serves in turn.  Where the number of rows is a symbol, the ranges say at run time whose
work it is; where the depth is one (gradients of weights), each worker packs piece after piece for itself.
Read next: ``narrow``, ``product``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen_numba import analysis, narrow, runtime
from codegen_numba.analysis import known
from codegen_numba.compile import Source
from codegen_numba.matmul import Template
from codegen_numba.matmul import matmul as by_blas
from codegen_numba.product import lanes
from compiler.loop.ir import Buffer, Extern, Int
from compiler.sym.expr import minimum

#: Rows from which packing is little beside the product; multiplications from which it is worth a thought.
FEWEST, SMALL = 64, 1 << 20
#: Elements of the packed factor: about a second-level cache.
LARGEST = 1 << 19
#: Elements from which it is packed in pieces: work memory counts as well.
PIECES = 1 << 18
#: Rows that go over all panels together, and terms that are summed before they are added to the rest.
ROWS, TERMS = 64, 256

MULTIPLY = """\
def packed(a, packed, c, n, k, a_row, a_column, c_row, done, start, stop, part):
    # rows of c = a b, panel by panel of b
    for i in range(start, stop, {rows}):
        for p in range(quotient(n + {width} - 1, {width})):
            for at in range(0, k, {terms}):
                product(c, i * c_row + p * {width}, c_row, a, i * a_row + at * a_column, a_row, a_column,
                    packed, (p * k + at) * {width}, {width}, least({rows}, stop - i), least({width}, n - p * {width}),
                    least({terms}, k - at), done + at)
"""

DEEP = """\
def deep(a, b, c, packed, n, k, ldb, a_row, a_column, c_row, start, stop, part):
    # rows of c = a b, a piece of the sums after the other; k may be nothing
    room = part * {room}
    for first in range(0, greatest(k, 1), {length}):
        depth = least({length}, k - first)
        for p in range(quotient(n + {width} - 1, {width})):
            for i in range(depth):
                for j in range(least({width}, n - p * {width})):
                    packed[room + (p * depth + i) * {width} + j] = b[(first + i) * ldb + p * {width} + j]
        for i in range(start, stop, {rows}):
            for p in range(quotient(n + {width} - 1, {width})):
                for at in range(0, greatest(depth, 1), {terms}):
                    product(c, i * c_row + p * {width}, c_row, a, i * a_row + (first + at) * a_column, a_row, a_column,
                        packed, room + (p * depth + at) * {width}, {width}, least({rows}, stop - i), least({width}, n - p * {width}),
                        least({terms}, depth - at), first + at)
"""
#: Rows for each worker that make packing the right factor for itself little.
ROWS_EACH = 128


def matmul(step: Extern, buffers: Mapping[str, Buffer], always: bool = False) -> list[Template] | None:
    """None: it cannot be, or, unless it is to be ``always``, BLAS does as well."""
    if lanes() < 16 and not always:
        return None
    if not narrow.fits(step, buffers):
        return _deep(step) if narrow.fits(step, buffers, any_depth=True) else None
    a, (c,) = narrow.factors(step)[0], step.outs
    (m, k), (_, n) = map(analysis.hint, a.shape), map(analysis.hint, c.shape)
    if not always and (m < FEWEST or m * n * k < SMALL or n * k > LARGEST):
        return None
    length = TERMS if n * k >= PIECES else k
    pieces = [(at, _terms(step, at, min(at + length, k))) for at in range(0, k, length)]
    own = [t for at, piece in pieces for t in (narrow.pack(piece, "shared"), _multiply(piece, at))]
    few = by_blas(step, buffers) if known(a.shape[0]) is None else None
    return own if few is None else _shared(few, own, minimum(a.shape[0] // max(FEWEST, SMALL // (n * k)), 1))


def _shared(few: list[Template], own: list[Template], many: Int) -> list[Template]:
    """Both ways, one of which finds nothing to do: for a few rows the other factor is not worth packing."""
    return [replace(t, extent=t.extent * n) for found, n in ((few, 1 - many), (own, many)) for t in found]


def _terms(step: Extern, start: int, stop: int) -> Extern:
    """The product of some columns of the left factor and as many rows of the right."""
    a, b = narrow.factors(step)
    left = replace(a, shape=(a.shape[0], stop - start), offset=a.offset + start * a.stride[1])
    right = replace(b, shape=(stop - start, b.shape[1]), offset=b.offset + start * b.stride[0])
    return replace(step, args=(left, right))


def _multiply(step: Extern, done: int) -> Template:
    """Set the result, or add to it what is behind the terms that are ``done``."""
    a, (c,) = narrow.factors(step)[0], step.outs
    (m, k), (_, n) = a.shape, c.shape
    sizes = (
        ("n", n), ("k", k), ("a_row", a.stride[0]), ("a_column", a.stride[1]), ("c_row", c.stride[0]), ("done", done),
    )  # fmt: skip
    params = (("a", "float32"), ("packed", "float32"), ("c", "float32"), *((x, "size") for x, _ in sizes))
    source = Source("packed", MULTIPLY.format(width=2 * lanes(), rows=ROWS, terms=TERMS), params)
    slots = (a, "shared", c, *(v for _, v in sizes))
    return Template(source, slots, m, analysis.product((m, n, k)), 8, shared=narrow.room(step).bytes, piece=n)


def _deep(step: Extern) -> list[Template] | None:
    """Sums of a symbolic number of terms; None if there are too few rows for all workers, or rows too long for a piece."""
    (a, b), (c,) = narrow.factors(step), step.outs
    (m, k), n = a.shape, analysis.hint(c.shape[1])
    workers = runtime.thread_count()
    if analysis.hint(m) < ROWS_EACH * workers or TERMS * n > PIECES:
        return None
    length = PIECES // n // TERMS * TERMS
    room = length * -(-n // (2 * lanes())) * 2 * lanes()
    sizes = (
        ("n", n), ("k", k), ("ldb", b.stride[0]), ("a_row", a.stride[0]), ("a_column", a.stride[1]), ("c_row", c.stride[0]),
    )  # fmt: skip
    params = (*((x, "float32") for x in ("a", "b", "c", "packed")), *((x, "size") for x, _ in sizes))
    text = DEEP.format(width=2 * lanes(), rows=ROWS, terms=TERMS, length=length, room=room)
    source = Source("deep", text, params)
    slots = (a, b, c, "shared", *(v for _, v in sizes))
    return [Template(source, slots, m, analysis.product((m, n, k)), 8, shared=4 * room * workers)]
