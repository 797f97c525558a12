"""A library product and the kernel behind it, a block at a time: what the product makes is read while it is in cache.

Stage: codegen_numba.  In: a ``Plan``, its templates and its kernels' phases.  Out: ``Pair``s: a template and the first phase
of the kernel behind it, cut into pieces that correspond.  A product with a large result leaves it in memory, and a bias, an
activation or a norm behind it would fetch it from there.  Where piece ``i`` of the kernel's range reads and writes
of the result only what piece ``i`` of the product made, both run in turn over blocks of pieces, by the machine code
that each has anyhow.  Read next: ``build``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from codegen_numba import analysis
from codegen_numba.analysis import known
from codegen_numba.compile import Source
from codegen_numba.layout import Chunk, Memory
from codegen_numba.matmul import Template
from codegen_numba.schedule import Phase
from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer, Extern, Int, Kernel, Plan, Run, Store
from compiler.sym.expr import Expr, Symbol, as_int, lift

TOGETHER = Source(
    "together",
    "def together(first, words, then, others, block, steps, per, start, stop, part):\n"
    "    # a block of pieces, and what is done with them\n"
    "    for at in range(start, stop, block):\n"
    "        end = least(at + block, stop)\n"
    "        call(first, words, at * steps, end * steps, part)\n"
    "        call(then, others, at * per, end * per, part)\n",
    (("first", "size"), ("words", "int64"), ("then", "size"), ("others", "int64"), *((n, "size") for n in ("block", "steps", "per"))),
    alias=True,
    pool=True,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Of ``pieces`` of a product, ``block`` are made before the kernel of step ``run`` goes over them; one is ``steps`` of
    the template's range and ``per`` of the range of the kernel's first phase."""

    run: int
    pieces: int
    steps: int
    per: int
    bytes: int  # of one piece
    block: int = 1


def pairs(
    plan: Plan, buffers: Mapping[str, Buffer], memory: Memory, templates: Mapping[int, list[Template]],
    kernels: Sequence[Kernel], phases: Mapping[int, Sequence[Phase]],
) -> Iterator[tuple[int, Pair]]:  # fmt: skip
    """Library calls, by their place in the plan, that can run in turn with the kernel behind them."""
    for n, found in templates.items():
        call, run = plan.steps[n], behind(plan, n)
        if run is None or not isinstance(call, Extern) or not known(found[-1].piece):
            continue
        step = plan.steps[run]
        assert isinstance(step, Run)
        pair = _pair(found[-1], call, run, step, buffers, memory, kernels[step.kernel], phases[step.kernel])
        if pair is not None:
            yield n, pair


def behind(plan: Plan, place: int) -> int | None:
    """The step after this one, if it is a kernel's."""
    following = range(place + 1, len(plan.steps))
    n = next((n for n in following if not isinstance(plan.steps[n], ir.Alloc | ir.Free)), None)
    return n if n is not None and isinstance(plan.steps[n], Run) else None


def _pair(
    t: Template, call: Extern, run: int, step: Run, buffers: Mapping[str, Buffer], memory: Memory, kernel: Kernel,
    phases: Sequence[Phase],
) -> Pair | None:  # fmt: skip
    (out,) = call.outs
    piece, total = known(t.piece) or 0, known(analysis.product(out.shape))
    steps = known(t.extent)
    if not total or not steps or total % piece or steps % (total // piece) or not plain(out):
        return None
    bound = dict(zip((b.name for b in kernel.params), step.args, strict=True))
    result, size = memory.root(out.buffer), buffers[out.buffer].dtype.itemsize
    mine = {b for b, a in bound.items() if _same(memory.root(a), result)}
    if any(buffers[bound[b]].dtype.itemsize != size for b in mine) or not mine:
        return None
    if _overwrites([memory.root(bound[w]) for w in kernel.writes], call, memory, result):
        return None
    got = _cut(phases[0], mine, total, total // piece, dict(step.sizes))
    if got is None:
        return None
    pieces, per = got
    return Pair(run, pieces, steps // pieces, per, total // pieces * size)


def plain(v: ArrayView) -> bool:
    """Do its elements lie one behind the other from the first of the buffer on?"""
    want: Int = 1
    for n, s in zip(reversed(v.shape), reversed(v.stride), strict=True):
        if s != want and known(n) != 1:
            return False
        want = analysis.product((want, n))
    return known(v.offset) == 0


def _same(a: str | Chunk, b: str | Chunk) -> bool:
    return a is b or isinstance(a, str) and a == b


def _overwrites(written: list[str | Chunk], call: Extern, memory: Memory, result: str | Chunk) -> bool:
    """Does the kernel write where the product still reads?  Inputs of the plan may share memory with one another."""
    read = [memory.root(v.buffer) for v in call.args if isinstance(v, ArrayView)]
    inputs = any(isinstance(r, str) for r in read)
    return any(_same(r, w) for r in read for w in [*written, result]) or inputs and any(isinstance(w, str) for w in written)


def keep_alive(call: Extern, run: int, memory: Memory) -> None:
    """What the product reads is read until the kernel's step, so nothing else may lie there before."""
    for v in call.args:
        root = memory.root(v.buffer) if isinstance(v, ArrayView) else None
        if isinstance(root, Chunk):
            root.last = max(root.last, run)


#: Bytes of a block: with what the kernel reads and writes beside it, it fits a second-level cache.
BLOCK = 1 << 17


def block(pair: Pair, t: Template, threads: int, wanted: int) -> int:
    """How many pieces to make before the kernel goes over them; 0: all of them, as before."""
    few = pair.steps > 1 and pair.pieces < 4 * threads  # the product itself can be cut finer
    if wanted == 0 and (few or t.source.name not in ("packed", "direct", "placed_conv", "depthwise")):
        return 0
    pieces = max(1, (wanted or BLOCK) // pair.bytes)
    return max(t.align // pair.steps, pieces // t.align * t.align) if wanted >= 0 else 0


# --- do the pieces correspond? ------------------------------------------------------------------------------------------
def _cut(phase: Phase, mine: set[str], total: int, most: int, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """How many pieces there are, ``most`` or a part of that, and how many steps of the phase each takes, so that a
    piece touches only its own elements of the buffers ``mine``, which have ``total``."""
    if phase.kind not in ("flat", "rows") or phase.privates or phase.prologue or not phase.loops:
        return None
    extents = [_number(x.extent, sizes) for x in phase.loops]
    if None in extents:
        return None
    counts = [n or 0 for n in extents]
    steps = prod(counts)
    pieces = most if steps and steps % most == 0 else steps if steps and most % steps == 0 else 0
    if pieces < 2:
        return None
    inside = {x.axis: _number(x.extent, sizes) or 0 for x in ir.walk(phase.body) if isinstance(x, ir.Loop)}
    for s in ir.walk(phase.body):
        if isinstance(s, ir.Check) or isinstance(s, Store) and s.mode != "set":
            return None
        if isinstance(s, ir.Load | Store) and s.buffer in mine:
            index = s.index if isinstance(s.index, int) else s.index.subs({Symbol(n): v for n, v in sizes.items()})
            if not _own(index, [x.axis for x in phase.loops], counts, inside, pieces, total // pieces):
                return None
    return pieces, steps // pieces


def _own(index: Int, axes: list[str], counts: list[int], inside: Mapping[str, int], pieces: int, each: int) -> bool:
    """Is ``index``, in iteration t of the range, always in [p * each, (p + 1) * each) for the piece p that t is in?

    The outer axes that pieces are made of count the pieces, or parts of one; the rest stays within."""
    outer = next(q for q in range(len(axes) + 1) if prod(counts[:q]) % pieces == 0)
    parts = prod(counts[:outer]) // pieces
    if each % parts:
        return False
    part, weight = each // parts, 1
    least, terms = lift(index).split()
    steps = {m.name: c for m, c in terms if isinstance(m, Symbol)}
    if len(steps) < len(terms):
        return False
    for axis, count in zip(reversed(axes[:outer]), reversed(counts[:outer]), strict=True):
        if steps.pop(axis, 0) != part * weight and count > 1:
            return False
        weight *= count
    most = least
    extents = dict(zip(axes[outer:], counts[outer:], strict=True)) | dict(inside)
    for name, step in steps.items():
        if name not in extents:
            return False
        reach = step * (extents[name] - 1)
        least, most = least + min(reach, 0), most + max(reach, 0)
    return 0 <= least and most < part


def _number(e: Int, sizes: Mapping[str, int]) -> int | None:
    if isinstance(e, Expr):
        e = as_int(e.subs({Symbol(s): n for s, n in sizes.items()}))
    return known(e)
