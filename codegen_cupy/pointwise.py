"""One thread per point (or per vector of neighbouring points), grid-stride; loops inside a point run in the thread.

Stage: codegen.  In: kernel, nest, schedule.  Out: ``Source``.  Also the fallback for any nest at all, since a thread
can do everything that is done at a point.  Read next: ``rows``.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_cupy.body import Emitter
from codegen_cupy.kernel_text import Source, finish
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import Nest, defined, used, vectorizable
from codegen_cupy.schedule import Schedule
from compiler.loop.ir import Int, Kernel, Let, Load, Stmt, Store, walk
from compiler.sym.expr import as_int, ceildiv, lift


def emit(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Source:
    e = Emitter(kernel, nest, schedule)
    t, v = e.int_type, schedule.vector
    points = nest.points if v == 1 else as_int(lift(nest.points) // v)
    thread = "blockIdx.x * blockDim.x + threadIdx.x"
    stride = "gridDim.x * blockDim.x"
    if schedule.wide:
        thread, stride = "(long long)blockIdx.x * blockDim.x + threadIdx.x", f"(long long){stride}"
    total = e.index(points)
    common, body = _invariant(nest) if nest.axes else ((), nest.body)
    for s in common:
        e.statement(s)
    nest = replace(nest, body=body)
    if schedule.rounds > 1:
        _in_rounds(e, nest, points, stride)
    else:
        with e.block(f"for ({t} at = {thread}; at < {total}; at += {stride})"):
            _point(e, nest)
    work = as_int(ceildiv(points, schedule.threads * schedule.rounds))
    few = any(isinstance(s, Let) and s.fn in _SLOW for s in common)
    most = FEW_THREADS if few else 2**30
    return finish(e, name, work=work, block=(schedule.threads, 1), max_blocks=most // (schedule.threads * schedule.rounds))


def _point(e: Emitter, nest: Nest) -> None:
    v = e.schedule.vector
    e.unflatten(nest.axes, "at", v)
    if v > 1 and vectorizable(nest.body):
        neighbours(e, nest.body, nest.axes[-1], v)
    else:
        for s in nest.body:
            e.statement(s)


def _in_rounds(e: Emitter, nest: Nest, points: Int, stride: str) -> None:
    """Each block takes some times its threads' vectors in one unrolled loop, whose reads the compiler puts first."""
    s, t = e.schedule, e.int_type
    if not isinstance(points, int) or points % (s.threads * s.rounds):
        raise ValueError("a thread without its last rounds would keep the others' reads behind a test")
    block = "(long long)blockIdx.x" if s.wide else "blockIdx.x"
    first = f"{block} * {s.threads * s.rounds} + threadIdx.x"
    with e.block(f"for ({t} first = {first}; first < {e.index(points)}; first += {stride} * {s.rounds})"):
        e.pragma("unroll")
        with e.block(f"for (int c = 0; c < {s.rounds}; ++c)"):
            e.line(f"const {t} at = first + c * {s.threads};")
            _point(e, nest)


#: What is worth computing once for many points: threads are then few, and each does several points.
_SLOW = frozenset("pow exp log fmod sin cos".split())
FEW_THREADS = 132 * 1024


def _invariant(nest: Nest) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """(what is the same at all points, the rest): an optimizer's bias correction need not be computed by each."""
    varying = {a.name for a in nest.axes} | {s.buffer for s in walk(nest.body) if isinstance(s, Store)}
    common: list[Stmt] = []
    rest: list[Stmt] = []
    for s in nest.body:
        plain = isinstance(s, Let) or (isinstance(s, Load) and s.mask is None and s.buffer not in varying)
        if plain and not set(used(s)) & varying:
            common.append(s)
        else:
            rest.append(s)
            varying |= set(defined((s,)))
    return tuple(common), tuple(rest)
