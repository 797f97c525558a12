"""Products of a few rows with one matrix, again and again: the matrix is packed once, for all of them.

Stage: codegen_numba.  In: a ``Plan``.  Out: ``Template``s for the steps that qualify.  A recurrent net multiplies a batch of
rows by the same weight at every step.  BLAS packs its right factor anew each time, which for 16 rows costs more than
the product does.  Here the first step packs it in panels as wide as two vectors, row after row, and every step runs
``product`` over panels, shared among the workers.  Read next: ``matmul``, ``product``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from codegen_numba.analysis import hint, known
from codegen_numba.compile import Source
from codegen_numba.matmul import Packed, Template, as_matrix
from codegen_numba.product import lanes
from compiler.loop.ir import ArrayView, Buffer, Extern, Plan, Run

#: Rows from which packing is cheap beside the product, and products from which it pays.
MOST_ROWS, FEWEST = 64, 4
#: Elements of the matrix: it should stay in cache from one product to the next.
LARGEST = 1 << 18
#: An element packed costs as much as so many multiplications.
PACKING = 16

PACK = """\
def pack(b, packed, n, k, ldb, start, stop, part):
    # columns of b, {width} at a time, each panel row after row
    for p in range(start, stop):
        columns = least({width}, n - p * {width})
{body}"""
PLAIN = """\
        for i in range(k):
            for j in range(columns):
                packed[(p * k + i) * {width} + j] = b[i * ldb + p * {width} + j]
"""
TURNED = """\
        turn_over(b, p * {width} * ldb, ldb, packed, p * k * {width}, {width}, columns, k)
"""
MULTIPLY = """\
def narrow(a, packed, c, m, n, k, a_row, a_column, c_row, start, stop, part):
    # panels of columns: c = a b
    for p in range(start, stop):
        product(c, p * {width}, c_row, a, 0, a_row, a_column, packed, p * k * {width}, {width}, m, least({width}, n - p * {width}), k, 0)
"""


def templates(plan: Plan, buffers: Mapping[str, Buffer]) -> dict[int, list[Template]]:
    """For steps by their place: what to run for each, packing before the first of a family."""
    out: dict[int, list[Template]] = {}
    for places in _families(plan, buffers):
        for n in places:
            step = plan.steps[n]
            assert isinstance(step, Extern)
            out[n] = [*([pack(step, room(step))] if n == places[0] else []), _multiply(step)]
    return out


def _families(plan: Plan, buffers: Mapping[str, Buffer]) -> Iterator[list[int]]:
    """Places of products with equal right factors that nothing writes from the first to the last."""
    found: dict[ArrayView, list[int]] = {}
    for n, step in enumerate(plan.steps):
        if isinstance(step, Extern) and _qualifies(step, buffers):
            found.setdefault(factors(step)[1], []).append(n)
    for b, places in found.items():
        between = plan.steps[places[0] : places[-1]]
        if len(places) >= FEWEST and not any(b.buffer in written(plan, s) for s in between):
            yield places


def written(plan: Plan, step: object) -> set[str]:
    """Buffers that a step writes."""
    if isinstance(step, Run):
        kernel = plan.kernels[step.kernel]
        return {a for b, a in zip(kernel.params, step.args, strict=True) if b.name in kernel.writes}
    return {v.buffer for v in step.outs} if isinstance(step, Extern) else set()


def _qualifies(step: Extern, buffers: Mapping[str, Buffer]) -> bool:
    if not fits(step, buffers):
        return False
    rows, (k, n) = known(factors(step)[0].shape[0]), map(hint, factors(step)[1].shape)
    return (rows is None or 1 < rows <= MOST_ROWS) and n * k <= LARGEST


def fits(step: Extern, buffers: Mapping[str, Buffer], any_depth: bool = False) -> bool:
    """Can ``product`` make it from a packed right factor?  How many rows there are may vary, or (``any_depth``) how many terms
    a sum has; and where the matrices begin."""
    if step.fn != "matmul" or step.params or len(step.outs) != 1:
        return False
    views = [v for v in (*step.args, *step.outs) if isinstance(v, ArrayView) and len(v.shape) == 2]
    if len(views) != 3:
        return False
    vary = {(0, 1), (1, 0)} if any_depth else {(0, 0), (2, 0)}  # which dimension of which matrix
    sizes = [x for n, v in enumerate(views) for d, x in enumerate(v.shape) if (n, d) not in vary]
    if any(known(x) is None for x in (*sizes, *(s for v in views for s in v.stride))):
        return False
    if any(buffers[v.buffer].dtype.name != "float32" for v in views):
        return False
    m, k, n = (hint(x) for x in (*views[0].shape, views[2].shape[1]))
    good = m > 0 and k > 0 and n > 0 and n % lanes() == 0
    return good and views[2].stride[1] == 1 and as_matrix(*views[1].shape, *views[1].stride) is not None


def factors(step: Extern) -> tuple[ArrayView, ArrayView]:
    """Of a product that ``fits``."""
    a, b = step.args
    assert isinstance(a, ArrayView) and isinstance(b, ArrayView)
    return a, b


def room(step: Extern) -> Packed:
    """Memory for the packed right factor, the same for all that have it."""
    b = factors(step)[1]
    k, n = map(hint, b.shape)
    return Packed(b, 4 * _panels(n) * 2 * lanes() * k)


def _panels(n: int) -> int:
    return -(-n // (2 * lanes()))


def pack(step: Extern, room: Packed | str) -> Template:
    """The template that packs the right factor into ``room``."""
    b = factors(step)[1]
    matrix = as_matrix(*b.shape, *b.stride)
    assert matrix is not None
    k, n = map(hint, b.shape)
    text = PACK.format(width=2 * lanes(), body=(TURNED if matrix.turned else PLAIN).format(width=2 * lanes()))
    params = (("b", "float32"), ("packed", "float32"), ("n", "size"), ("k", "size"), ("ldb", "size"))
    return Template(Source("pack", text, params), (b, room, n, k, matrix.lead), _panels(n), PACKING * n * k)


def _multiply(step: Extern) -> Template:
    a, (c,) = factors(step)[0], step.outs
    (m, _), k, n = a.shape, hint(a.shape[1]), hint(c.shape[1])
    sizes = (("m", m), ("n", n), ("k", k), ("a_row", a.stride[0]), ("a_column", a.stride[1]), ("c_row", c.stride[0]))
    params = (("a", "float32"), ("packed", "float32"), ("c", "float32"), *((x, "size") for x, _ in sizes))
    source = Source("narrow", MULTIPLY.format(width=2 * lanes()), params)
    return Template(source, (a, room(step), c, *(v for _, v in sizes)), _panels(n), m * n * k)
