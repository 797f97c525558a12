"""Which tiles a product gets: a model of the time of a schedule, fitted to times on an H200, and those worth trying.

Stage: codegen.  In: a ``Problem``.  Out: ``Tiles``, likeliest first.  The tuner (``ways``) runs the first few; without it the
first is taken.  Read next: ``gemm``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from codegen_cupy.gemm import SHARED_LIMIT, Problem, Tiles, possible
from codegen_cupy.host import Launch, Memory
from codegen_cupy.schedule import MULTIPROCESSORS
from tinytorch.dtypes import float32

#: Tiles by (rows, columns): warps down and across, for tensor cores and for plain arithmetic.
SHAPES: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int]]] = {
    (16, 128): ((1, 4), (1, 4)), (32, 128): ((1, 4), (1, 4)), (32, 64): ((1, 2), (1, 2)), (64, 64): ((2, 2), (2, 2)),
    (64, 128): ((2, 2), (2, 2)), (128, 64): ((2, 2), (4, 2)), (128, 128): ((2, 2), (2, 4)), (128, 256): ((2, 4), (2, 4)),
    (256, 128): ((4, 2), (4, 2)),
}  # fmt: skip
#: The same for groups of four warps.
GROUPED: dict[tuple[int, int], tuple[int, int]] = {
    (64, 128): (4, 1), (64, 256): (4, 1), (128, 128): (8, 1), (128, 256): (8, 1), (256, 128): (8, 1),
}  # fmt: skip


def label(t: Tiles) -> str:
    """A schedule in a word, for tables."""
    parts = f" {t.parts} parts" if t.parts > 1 else ""
    return f"{t.m}x{t.n}x{t.k} {t.down}x{t.across} warps{' grouped' if t.grouped else ''} {t.stages} stages{parts}"


def tiles(p: Problem, m: int, n: int, stages: int = 3, k: int = 0, parts: int = 0) -> Tiles:
    """Tiles of this shape, with a depth that suits the arithmetic and as many parts as fill the machine."""
    down, across = SHAPES[m, n][0 if p.tensor else 1]
    return _filled(p, Tiles(m, n, k or (32 if p.tensor else 16), down, across, stages), parts)


def grouped_tiles(p: Problem, m: int, n: int, stages: int = 4, parts: int = 0) -> Tiles:
    """Tiles of this shape for groups of four warps."""
    down, across = GROUPED[m, n]
    return _filled(p, Tiles(m, n, 64, down, across, stages, grouped=True), parts)


def _filled(p: Problem, t: Tiles, parts: int) -> Tiles:
    """With so many blocks to a depth; if 0, with what costs least: one, or as many as make rounds of blocks whole."""
    if parts or p.piece:
        return _short(p, replace(t, parts=parts or 1))
    blocks, most = -(-p.rows // t.m) * -(-p.columns // t.n) * p.batch, -(-p.depth // t.k) // 8
    counts = {max(1, min(most, MULTIPROCESSORS * n // blocks)) for n in (1, 2, 3, 4)}
    return min((_short(p, replace(t, parts=c)) for c in sorted({1, *counts})), key=lambda t: cost(p, t))


def _short(p: Problem, t: Tiles) -> Tiles:
    """With no more stages than a block has steps, and one for the products: the memory of others lets more blocks run at once."""
    steps = max(-(-q.depth // (t.k * t.parts)) for q in (p, *p.others))
    return replace(t, stages=max(2, min(t.stages, steps + 1)))


def default_tiles(p: Problem, *, grouped: bool = False) -> Tiles:
    """A good schedule without measuring."""
    return next((t for t in candidates(p, grouped=grouped)), Tiles())


def candidates(p: Problem, *, grouped: bool = False) -> list[Tiles]:
    """Schedules worth trying, likeliest first; ``grouped``: has the device wgmma?"""
    made = [tiles(p, m, n) for m, n in SHAPES]
    if grouped and p.dtype is not float32:
        made += [min((grouped_tiles(p, m, n, s) for s in (4, 3)), key=lambda t: cost(p, t)) for m, n in GROUPED]
    # where fetches decide, the same tiles cost alike with wgmma and without: the fewer instructions first
    return sorted((t for t in made if possible(p, t)), key=lambda t: (cost(p, t), not t.grouped))


#: Of the plain problem's time, what the model must promise for one that lays out operands first.  It was fitted without such
#: ones; gathered convolutions took 1.0 to 2.4 times what it says.
WORTH_LAYING = 0.9


def cheaper(plain: Problem, laid: Problem | None, *, grouped: bool = False) -> Problem:
    """Which of two problems with the same result is taken without measuring."""
    if laid is None or not laid.tensor:
        return plain
    before, after = (min((whole_cost(p, t) for t in candidates(p, grouped=grouped)), default=inf) for p in (plain, laid))
    return laid if after < WORTH_LAYING * before else plain


#: Multiply-adds that a multiprocessor was seen to do in a clock: in plain float32, as tf32, in half types, by wgmma.
#: (In float32 a thread reads its operands from shared memory, the more often the fewer sums it makes: ``OPERANDS``.)
RATES, OPERANDS = (105, 320, 900, 1500), 10
LANES = 128  # instructions of a multiprocessor in a clock
CACHE = 24  # bytes that a multiprocessor gets from the second cache in a clock
WIRE = 2400  # bytes to or from memory in a clock
ANOTHER_LAUNCH = 5000  # clocks


def cost(p: Problem, t: Tiles) -> float:
    """About how many clocks a schedule takes: whole rounds of blocks over the multiprocessors, where each step of the depth has
    its products and its fetches, which few warps cannot overlap; then what it takes to join parts."""
    blocks = -(-p.rows // t.m) * -(-p.columns // t.n) * p.batch * t.parts
    depth = t.k * -(-p.depth // (t.k * t.parts))
    rounds, resident = -(-blocks // MULTIPROCESSORS), blocks_at_once(p, t)
    products = t.m * t.n / RATES[3 if t.grouped else 2 if p.dtype is not float32 else 1 if p.tensor else 0]
    if not p.tensor:
        products *= 1 + OPERANDS * t.threads / (t.m * t.n)
    fetches = (t.m * p.a.effort + t.n * p.b.effort) / LANES
    warps = min(rounds, resident) * t.threads / 32
    join = ANOTHER_LAUNCH + 8 * t.parts * p.rows * p.columns * p.batch / WIRE if t.parts > 1 else 0
    copies = sum(n * p.dtype.itemsize for n, o in ((t.m, p.a), (t.n, p.b)) if getattr(o, "copied", False)) / CACHE
    return rounds * depth * max(products + fetches, copies) * (1 + 3 / warps) + join


def whole_cost(p: Problem, t: Tiles) -> float:
    """With the problem's other pieces, and what lays out operands: each launch, and each byte read and written."""
    moved = sum(2 * s.items * s.dtype.itemsize for s in p.before if isinstance(s, Memory))
    launches = sum(isinstance(s, Launch) for s in p.before)
    return sum(cost(q, t) for q in (p, *p.others)) + moved / WIRE + launches * ANOTHER_LAUNCH


def blocks_at_once(p: Problem, t: Tiles) -> int:
    """How many blocks registers and shared memory of a multiprocessor hold, about."""
    registers = min(255, 80 + t.m * t.n // t.threads * (1 if p.tensor else 2))
    return max(1, min(65536 // (registers * t.threads), SHARED_LIMIT // t.shared(p.dtype.itemsize)))
