"""Matrix products as our own CUDA text: a tile of the result per block, on the tensor cores or in plain float32.

Stage: codegen.  In: a ``Problem`` (how the operands lie, what becomes of the result) and ``Tiles``.  Out: ``Launch``es.
Where cublasLt is faster it is used (``ways``); what it cannot do is an operand that is computed while it is
read, and a result that goes through a whole pointwise nest before it reaches memory.  A large depth over a small result
is cut into parts that blocks sum side by side; a second kernel, made from loop IR, joins them.
Read next: ``gemm_schedules`` (which tiles), ``gemm.cuh``, ``gemm_tiles.cuh``, ``gemm_tensor.cuh``, ``gemm_wgmma.cuh`` (the text),
``following`` (results), ``convolution``, ``preceding`` (operands).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd, prod
from pathlib import Path
from typing import Protocol

from codegen_cupy.body import Emitter
from codegen_cupy.following import Coordinate, Following, joined_parts, stored
from codegen_cupy.helpers import needed
from codegen_cupy.host import Launch, Memory, Release, Step, View
from codegen_cupy.kernel_text import Source, finish
from codegen_cupy.nest import Nest, value_at
from codegen_cupy.schedule import Schedule, Situation
from codegen_cupy.sources import sources
from codegen_cupy.spell import memory_type
from compiler.loop.ir import Buffer, Kernel
from tinytorch.dtypes import DType, bfloat16, float16, float32

#: What a block may use of shared memory on compute capability 9.0 (8.0 allows 163 KiB).
SHARED_LIMIT = 227 << 10
MOST_BATCHES = 65535  # of the grid's second dimension


@dataclass(frozen=True)
class Tiles:
    """The schedule of a product: a block makes ``m`` by ``n`` of the result in steps of depth ``k``, ``down`` by ``across``
    warps, ``stages`` tiles in flight; ``parts`` blocks share the depth; ``resident`` blocks fit a multiprocessor."""

    m: int = 128
    n: int = 128
    k: int = 32
    down: int = 2
    across: int = 2
    stages: int = 3
    resident: int = 1
    parts: int = 1
    grouped: bool = False  # four warps together, by wgmma (compute capability 9.0)

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    def shared(self, itemsize: int) -> int:
        return max(self.stages * (self.m + self.n) * self.k * itemsize, self.m * (self.n + 8) * 4)


# --- operands ---------------------------------------------------------------------------------------------------------
class Operand(Protocol):
    """Where a kernel finds A or B.  ``deep``: does it lie in memory along the depth?  ``buffers``: the memory it reads."""

    @property
    def deep(self) -> bool: ...
    @property
    def buffers(self) -> tuple[str, ...]: ...
    @property
    def effort(self) -> int:
        """About how many instructions it takes to fetch an element."""
        ...

    def types(self, side: str) -> str:
        """Device code that the kernel needs first; ``side`` is "A" or "B"."""
        ...

    def made(self, side: str, names: tuple[str, ...]) -> str:
        """A declaration of ``from_A`` or ``from_B``; the tile's corner is ``tile``, the part's first step of depth ``first``."""
        ...


@dataclass(frozen=True)
class Matrix:
    """An operand that lies in memory: ``free`` rows of A (columns of B) times ``depth``, batches ``strides`` apart."""

    buffer: str
    free: int
    depth: int
    free_step: int
    depth_step: int
    offset: int
    strides: tuple[int, ...] = ()
    copied: bool = False  # in chunks of 16 bytes

    @property
    def deep(self) -> bool:
        return self.depth_step == 1 or self.free_step != 1

    @property
    def buffers(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def effort(self) -> int:
        return 1 if self.copied else 12

    def types(self, side: str) -> str:
        return ""

    def made(self, side: str, names: tuple[str, ...]) -> str:
        (name,) = names
        at = " + ".join([name, *([str(self.offset)] if self.offset else []), *(f"z{i} * {s}ll" for i, s in enumerate(self.strides) if s)])
        corner = "tile.row" if side == "A" else "tile.column"
        line, place = (corner, "first") if self.deep else ("first", corner)
        lines, length = (self.free, self.depth) if self.deep else (self.depth, self.free)
        line_step, place_step = (self.free_step, self.depth_step) if self.deep else (self.depth_step, self.free_step)
        shape = f"{side}_LINES, {side}_LENGTH, {side}_DEEP"
        if self.copied:
            return f"Copied<{shape}> from_{side}({at}, {line_step}, {line}, {place}, {lines}, {length});"
        how = f"Strided{{{at}, {line_step}, {place_step}, {lines}, {length}}}"
        return f"Gathered<{shape}, Strided> from_{side}({how}, {line}, {place});"


def matrix(buffer: str, v: View, free: int, dtype: DType, *, aligned: bool) -> Matrix:
    """The operand in a view (batch..., ., .) whose dimension ``free`` (-2 or -1) is not summed over."""
    depth = -3 - free
    per = 16 // dtype.itemsize
    m = Matrix(buffer, v.shape[free], v.shape[depth], v.stride[free], v.stride[depth], v.offset, v.stride[:-2])
    fast, step = (m.depth, m.free_step) if m.deep else (m.free, m.depth_step)
    lies = m.depth_step == 1 if m.deep else True
    even = not any(x % per for x in (fast, step, m.offset, *m.strides))
    return replace(m, copied=aligned and lies and even)


# --- problems ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Problem:
    """``rows`` by ``columns`` sums over ``depth``, for each of ``batches``; what ``following`` makes of them."""

    dtype: DType
    rows: int
    columns: int
    depth: int
    a: Operand
    b: Operand
    following: Following
    coordinates: tuple[Coordinate, ...]  # of an element of the product, in terms of z0.., row, column
    run: int  # neighbouring columns that are neighbours in the product, for sure: all, or those of one image
    batches: tuple[int, ...] = ()
    tf32: bool = False
    name: str = "gemm"
    aligned: bool = True  # does all memory begin at multiples of 16 bytes?
    numbers: str = ""  # declarations of what the coordinates name, made from row and column
    types: Mapping[str, DType] = field(default_factory=dict)  # of the operands' buffers, where not ``dtype``
    piece: bool = False  # of a result whose rest other problems make
    others: tuple[Problem, ...] = ()  # those
    before: tuple[Step, ...] = ()  # what lays out operands first, in memory that is free again behind the product

    @property
    def tensor(self) -> bool:
        return self.dtype is not float32 or self.tf32

    @property
    def batch(self) -> int:
        return prod(self.batches)


def possible(p: Problem, t: Tiles) -> bool:
    """Does the text compile for these tiles, and a launch of it run?"""
    item, per = p.dtype.itemsize, 16 // p.dtype.itemsize
    wm, wn = t.m // t.down, t.n // t.across
    if p.dtype not in (float32, float16, bfloat16) or t.threads > 1024 or t.shared(item) > SHARED_LIMIT:
        return False
    if p.batch * t.parts > MOST_BATCHES or (p.piece and t.parts > 1) or (wm % 16 or wn % 16) or (not p.tensor and wn % 32):
        return False
    if (wm * wn) // 32 > 128:  # sums a thread
        return False
    if t.grouped and (item != 2 or t.k != 64 or t.down % 4 or wn % 64):
        return False
    for operand, side in ((p.a, t.m), (p.b, t.n)):
        lines, length = (side, t.k) if operand.deep else (t.k, side)
        if length < 2 * per or (p.tensor and item == 4 and not operand.deep and length < 32):
            return False
        if getattr(operand, "copied", False):
            chunks = length // per
            if t.threads % chunks or lines % (t.threads // chunks):
                return False
        else:
            lanes = min(32, length * item // 4)
            if lines % (t.down * t.across * (32 // lanes)):
                return False
    return True


def launches(p: Problem, t: Tiles, *, strict: bool = False) -> list[Step]:
    """The product under a schedule."""
    free = [Release(s.name) for s in p.before if isinstance(s, Memory)]
    if t.parts == 1:
        made = [(q, *write(q, t, strict=strict)) for q in (p, *p.others)]
        return [*p.before, *(launch(q, t, source, buffers) for q, source, buffers in made), *free]
    total = p.batch * p.rows * p.columns
    name = f"{p.following.name}_parts"
    parts = stored(name, float32, (t.parts, total), (total, 1), 0)
    source, buffers = write(replace(p, following=parts, coordinates=(Coordinate("part", t.parts, total), *p.coordinates)), t)
    steps: list[Step] = [*p.before, Memory(name, float32, (t.parts, total), (total, 1)), launch(p, t, source, buffers), *free]
    joined = joined_parts(p.following, t.parts, total)
    return [*steps, *launched(joined, {**p.following.arguments, "Parts": name}, strict=strict), Release(name)]


def launched(
    kernel: Kernel, arguments: Mapping[str, str], *, aligned: bool = True, strict: bool = False,
    pick: Callable[[Kernel, Nest, Situation], Schedule] | None = None,
) -> list[Launch]:  # fmt: skip
    """The launches of a kernel of known sizes."""
    out = []
    for s in sources(kernel, {}, aligned=aligned, strict=strict, pick=pick).sources:
        scratch = tuple(value_at(x.items, {}) * x.itemsize for x in s.scratch)
        blocks = min(value_at(s.work, {}), s.max_blocks)
        out.append(Launch(s, (blocks, s.split), tuple(arguments[b] for b in s.buffers), (), scratch))
    return out


def launch(p: Problem, t: Tiles, source: Source, buffers: tuple[str, ...]) -> Launch:
    blocks = -(-p.rows // t.m) * -(-p.columns // t.n)
    return Launch(source, (blocks, p.batch * t.parts), buffers, (), ())


# --- the text ---------------------------------------------------------------------------------------------------------
@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def write(p: Problem, t: Tiles, *, strict: bool = False) -> tuple[Source, tuple[str, ...]]:
    """The kernel, and the buffer for each of its pointers."""
    a = [Buffer(f"A{i or ''}", p.types.get(b, p.dtype), (), ()) for i, b in enumerate(p.a.buffers)]
    b = [Buffer(f"B{i or ''}", p.types.get(x, p.dtype), (), ()) for i, x in enumerate(p.b.buffers)]
    kernel = p.following.kernel
    kernel = replace(kernel, params=(*a, *b, *kernel.params), origin=(), lines=(), sizes=())
    vector = p.following.vector(gcd(p.run, t.n)) if p.aligned else 1
    schedule = Schedule("pointwise", vector=vector, threads=t.threads, resident=t.resident, strict=strict, restrict=False, wide=p.following.wide)
    e = Emitter(kernel, p.following.nest, schedule)
    _body(e, p, t, vector)
    if not p.following.stores_product:  # nobody reads it from memory, and it may have none
        e.kernel = replace(kernel, params=tuple(b for b in kernel.params if b.name != p.following.product))
    source = finish(e, p.name, work=1, block=(t.threads, 1))
    code = source.text[source.text.index('extern "C"') :]
    products = ("gemm_fragments.cuh", "gemm_wgmma.cuh" if t.grouped else "gemm_tensor.cuh") if p.tensor else ("gemm_plain.cuh",)
    parts = [_constants(p, t), *map(_file, ("gemm_tiles.cuh", *products, "gemm.cuh")), p.a.types("A"), p.b.types("B")]
    text = "\n".join([*(x for x in parts if x), code])
    given = {**dict(zip((x.name for x in a), p.a.buffers, strict=True)), **dict(zip((x.name for x in b), p.b.buffers, strict=True)), **p.following.arguments}
    made = replace(source, text=f"{needed(text)}\n\n{p.following.comment}{text}", shared=t.shared(p.dtype.itemsize))
    return made, tuple(given.get(x, x) for x in source.buffers)


def _constants(p: Problem, t: Tiles) -> str:
    flag = lambda x: "true" if x else "false"  # noqa: E731
    return "\n".join([
        f"using elem = {memory_type(p.dtype)};",
        f"constexpr int M = {p.rows}, N = {p.columns};  // of the result, summed over {p.depth}",
        f"constexpr int BM = {t.m}, BN = {t.n}, BK = {t.k}, WARPS_M = {t.down}, WARPS_N = {t.across}, STAGES = {t.stages};",
        f"constexpr bool A_DEEP = {flag(p.a.deep)}, B_DEEP = {flag(p.b.deep)}, GROUPED = {flag(t.grouped)};",
    ])  # fmt: skip


def _body(e: Emitter, p: Problem, t: Tiles, vector: int) -> None:
    names = lambda side, buffers: tuple(f"{side}{i or ''}" for i in range(len(buffers)))  # noqa: E731
    e.line("SHARED_POOL(pool, SHARED_BYTES);")
    e.line("const Corner tile = corner(M, N);")
    steps = -(-p.depth // t.k)
    if t.parts > 1:
        each = -(-steps // t.parts)
        e.line(f"const int part = blockIdx.y % {t.parts}, first = part * {each * t.k};  // of the depth")
        e.line(f"const int steps = {steps} - part * {each} < {each} ? {steps} - part * {each} : {each};")
    else:
        e.line(f"const int first = 0, steps = {steps};")
    left = f"blockIdx.y / {t.parts}" if t.parts > 1 else "blockIdx.y"
    for i in range(len(p.batches) - 1, -1, -1):
        e.line(f"const int z{i} = {left}{f' % {p.batches[i]}' if i else ''};")
        left = f"{left} / {p.batches[i]}"
    e.line(p.a.made("A", names("A", p.a.buffers)))
    e.line(p.b.made("B", names("B", p.b.buffers)))
    e.line("Sums sums;")
    e.line("clear(sums);")
    e.line("sum_products(sums, (elem*)pool, from_A, from_B, steps);")
    e.line("float* tile_sums = (float*)pool;")
    e.line("spread(sums, tile_sums);")
    step = f"{t.threads} * {vector}" if vector > 1 else f"{t.threads}"
    start = f"threadIdx.x * {vector}" if vector > 1 else "threadIdx.x"
    with e.block(f"for (int i = {start}; i < BM * BN; i += {step})"):
        e.line("const int row = tile.row + i / BN, column = tile.column + i % BN;")
        e.line("if (row >= M || column >= N) continue;")
        if p.numbers:
            e.line(p.numbers)
        p.following.write(e, p.coordinates, vector, "tile_sums[i / BN * SUMS_PITCH + i % BN{}]")


# --- products of arrays -----------------------------------------------------------------------------------------------
def matmul(x: View, y: View, out: View, dtype: DType, *, then: Following | None = None, aligned: bool = True, tf32: bool = False) -> Problem | None:
    """``out = x @ y``; with ``then``, what follows is done instead of storing ``out``, which it knows as a dense block.
    None if the result's rows have gaps inside, or something is empty."""
    if 0 in (*x.shape, *y.shape) or dtype not in (float32, float16, bfloat16):
        return None
    if then is not None and not out.whole:
        return None
    if out.stride[-1] != 1 and out.shape[-1] != 1:
        if then is not None or (out.stride[-2] != 1 and out.shape[-2] != 1):
            return None
        x, y, out = y.turned, x.turned, out.turned
    x, y, out = _fewer_batches(x, y, out)
    rows, columns = out.shape[-2:]
    batches = out.shape[:-2]
    a, b = matrix(x.buffer, x, -2, dtype, aligned=aligned), matrix(y.buffer, y, -1, dtype, aligned=aligned)
    names, coordinates, stride = [*(f"z{i}" for i in range(len(batches))), "row", "column"], [], 1
    for name, n in zip(reversed(names), reversed(out.shape), strict=True):
        coordinates.append(Coordinate(name, n, stride))
        stride *= n
    last = then or stored(out.buffer, dtype, out.shape, out.stride, out.offset)
    return Problem(
        dtype, rows, columns, x.shape[-1], a, b, last, tuple(reversed(coordinates)), columns, batches, tf32 and dtype is float32, aligned=aligned,
    )  # fmt: skip


def _fewer_batches(*views: View) -> tuple[View, ...]:
    """The views with batch dimensions joined where all three lie evenly, and those of one matrix left out."""
    dims: list[tuple[int, list[int]]] = []
    for i, n in enumerate(views[0].shape[:-2]):
        strides = [v.stride[i] for v in views]
        if n == 1:
            continue
        if dims and dims[-1][1] == [n * s for s in strides]:
            dims[-1] = dims[-1][0] * n, strides
        else:
            dims.append((n, strides))
    shape = tuple(n for n, _ in dims)
    return tuple(
        View(v.buffer, (*shape, *v.shape[-2:]), (*(s[i] for _, s in dims), *v.stride[-2:]), v.offset)
        for i, v in enumerate(views)
    )
