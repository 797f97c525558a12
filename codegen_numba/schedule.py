"""How a kernel is cut into phases that threads can share.

Stage: codegen_numba.  In: a ``Kernel``.  Out: ``Phase``s, run one after the other, each a function over a range that
may be cut into parts.  A nest of map loops becomes one range over all its iterations (``flat``: a part may begin in
the middle of a row), or over its outer loops if the body has loops of its own (``rows``).  Stores that combine go to
a private copy per part, joined by a phase of its own.  Read next: ``emit`` (the text of a phase).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from codegen_numba import analysis, strips
from codegen_numba.analysis import Body, ceil_div, cost, has_loop, hint, known, product
from codegen_numba.cut import cut
from codegen_numba.spell import HALVES
from compiler.loop.ir import Buffer, Check, Int, Kernel, Load, Loop, Store, walk
from tinytorch.dtypes import DType, float32

#: Private copies larger than this (elements, all parts together) are not made.
PRIVATE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Tune:
    """What the tuner may choose, and tests may make small."""

    block: int = 1024  # terms of a sum that may be regrouped before it goes to a wider accumulator
    scratch: int = 512  # the same where a block's values are written down first
    few: int = 32  # terms up to which a reduction is unrolled and nothing of that is done
    parallel: int = 400_000  # cost (units of ``analysis.COSTS``) below which no thread is woken
    parts: int = 4  # parts per thread: more than one evens out threads that are late
    strip: int = 256  # neighbours whose inner loops run together, where those jump through memory
    tile: tuple[int, int] = (64, 128)  # tile of a loop that goes against the grain of some array
    way: str = ""  # products and convolutions: by "own" tiles or by the "library"; "": by size
    together: int = 0  # bytes of a product that the kernel behind it waits for; 0: by its size, -1: all of it
    around: int = 0  # bytes a kernel must touch for its results to go around the caches; 0: what the last cache holds


@dataclass(frozen=True)
class Private:
    """A private copy per part of a buffer that is combined into."""

    buffer: Buffer
    mode: str
    dtype: DType  # of the copy: half-precision sums are kept in float32

    @property
    def name(self) -> str:
        return f"{self.buffer.name}_part"


@dataclass(frozen=True)
class Phase:
    """``kind`` says what [start, stop) counts: ``flat`` iterations of a perfect nest, ``rows`` iterations of the
    outer loops, ``strips`` pieces of the innermost map loop, ``tiles`` tiles of two of the loops, ``once`` nothing
    (0, 1), ``join`` elements of a private copy."""

    kind: Literal["flat", "rows", "strips", "tiles", "once", "join"]
    loops: tuple[Loop, ...]  # the map loops the range runs over, outermost first
    body: Body
    extent: Int
    cost: Int  # of one step of the range
    privates: tuple[Private, ...] = ()
    align: int = 1  # parts begin at multiples of this
    across: str = ""  # tiles: the axis along which some arrays are contiguous that are not along the innermost
    prologue: Body = ()  # pure statements to compute first, in every part
    work: tuple[Buffer, ...] = ()  # results of blocks, written by one phase and read by later ones

    @property
    def total(self) -> Int:
        return product((self.extent, self.cost))


def phases(kernel: Kernel, threads: int, tune: Tune) -> list[Phase]:
    """The kernel as phases, in order."""
    out: list[Phase] = []
    for piece in cut(kernel.body, kernel.writes, tune.parallel):
        phase = replace(_phase(piece.body, tune), prologue=piece.prologue, work=piece.work)
        out += _privatised(kernel, phase, threads, tune)
    return out


def _phase(body: Body, tune: Tune) -> Phase:
    if len(body) != 1 or not isinstance(body[0], Loop) or body[0].kind != "map":
        return Phase("once", (), body, 1, cost(body))
    chain = [body[0]]
    while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop) and chain[-1].body[0].kind == "map":
        if analysis.names_in(chain[-1].body[0].extent) & {x.axis for x in chain}:
            break  # the inner extent depends on an outer axis
        chain.append(chain[-1].body[0])
    inner = chain[-1].body
    if not has_loop(inner):
        across = against_the_grain(chain, inner)
        if across:
            return _tiles(chain, inner, across, tune)
        return Phase("flat", tuple(chain), inner, product(x.extent for x in chain), cost(inner), align=64)
    if strips.suits(chain[-1]):
        count = ceil_div(chain[-1].extent, tune.strip)
        outer = product(x.extent for x in chain[:-1])
        each = min(tune.strip, hint(chain[-1].extent)) * cost(inner)
        return Phase("strips", tuple(chain), inner, product((outer, count)), each)
    few = next((n + 1 for n in range(len(chain)) if analysis.trip(chain[: n + 1]) >= 64), len(chain))
    rest: Body = inner if few == len(chain) else (chain[few],)
    return Phase("rows", tuple(chain[:few]), rest, product(x.extent for x in chain[:few]), cost(rest))


# --- tiles ---
def turned(body: Body, inner: str, across: str) -> list[Load | Store]:
    """The accesses that jump along ``inner`` and run along ``across``."""
    out: list[Load | Store] = []
    for s in body:
        if not isinstance(s, Load | Store) or s.mask is not None or (isinstance(s, Store) and s.mode != "set"):
            continue
        if analysis.stride(s.index, across) == 1 and _jumps(s.index, inner, analysis.stride(s.index, inner)):
            out.append(s)
    return out


def _jumps(index: Int, axis: str, step: int | None) -> bool:
    """A known stride beyond a few elements, or one size or product of sizes."""
    if step is not None:
        return abs(step) >= 8
    linear = analysis.symbolic_stride(index, axis)
    return linear is not None


def against_the_grain(chain: list[Loop], body: Body) -> str:
    """The axis along which accesses are contiguous that jump along the innermost one, if there is one."""
    if any(isinstance(s, Check) for s in body):
        return ""
    inner = chain[-1]
    for loop in reversed(chain[:-1]):
        if turned(body, inner.axis, loop.axis) and hint(loop.extent) >= 8 and hint(inner.extent) >= 8:
            return loop.axis
    return ""


def _tiles(chain: list[Loop], body: Body, across: str, tune: Tune) -> Phase:
    extents = [
        ceil_div(x.extent, tune.tile[0]) if x.axis == across else ceil_div(x.extent, tune.tile[1]) if x is chain[-1]
        else x.extent for x in chain
    ]  # fmt: skip
    each = tune.tile[0] * tune.tile[1] * cost(body)
    return Phase("tiles", tuple(chain), body, product(extents), each, across=across)


# --- stores that combine ---------------------------------------------------------------------------------------------
def _privatised(kernel: Kernel, phase: Phase, threads: int, tune: Tune) -> list[Phase]:
    """Give each part its own copy of what it combines into, or keep the phase in one part."""
    found: dict[str, Private] = {}
    buffers = {b.name: b for b in kernel.params}
    for s in walk(phase.body):
        if isinstance(s, Store) and s.mode != "set":
            b = buffers[s.buffer]
            found[b.name] = Private(b, s.mode, float32 if b.dtype.name in HALVES else b.dtype)
    if not found:
        return [phase]
    privates = tuple(found.values())
    small = all(_contiguous(p.buffer) and hint(p.buffer.numel) * threads <= PRIVATE_ELEMENTS for p in privates)
    big = hint(phase.total) >= tune.parallel and phase.kind != "once"
    wide = any(p.buffer.dtype.name in HALVES for p in privates)
    if not small or not (big or wide):
        return [_in_one_part(phase)]
    read = {s.buffer for s in walk(phase.body) if isinstance(s, Load)}
    if read & set(found):
        return [_in_one_part(phase)]
    parts = replace(phase, privates=privates)
    joins = [Phase("join", (), (), p.buffer.numel, 2 * threads, (p,), align=64) for p in privates]
    return [parts if big else _in_one_part(parts), *joins]


def _in_one_part(phase: Phase) -> Phase:
    """Costs nothing to a scheduler, so it is never shared."""
    return replace(phase, cost=0)


def _contiguous(b: Buffer) -> bool:
    want: Int = 1
    for n, s in zip(reversed(b.shape), reversed(b.stride), strict=True):
        if known(n) == 1:
            continue
        if s != want:
            return False
        want = product((want, n))
    return True
