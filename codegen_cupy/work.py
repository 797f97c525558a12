"""The works of a recipe as a graph will hold them: the bytes each touches, and about how long it takes and fills the card.

Stage: codegen.  In: ``Recipe``, ``Places``, where the results of the graph lie.  Out: ``Work``s for ``lanes``.  Times are rough (an
H200's rates); that only costs speed.  Bytes are exact or too many; were they too few, results would be wrong.
Read next: ``lanes``, ``graphs``.
"""

from __future__ import annotations

from collections.abc import Mapping

from codegen_cupy.arena import Places, bytes_of, rounded
from codegen_cupy.effects import effects
from codegen_cupy.host import Launch, Memory, Recipe
from codegen_cupy.kernel_text import Source
from codegen_cupy.lanes import Span, Work
from codegen_cupy.matmul import Product
from codegen_cupy.schedule import MULTIPROCESSORS

#: Microseconds that any work takes; bytes to or from memory, and multiply-adds, in one: plain, as tf32, of half types.
LATENCY, MEMORY = 2.0, 3.5e6
PLAIN, TF32, HALF = 25e6, 150e6, 300e6
RESIDENT = 1024  # threads that keep a multiprocessor busy
ALONE = 64 << 10  # bytes of shared memory of a kernel beside which no other runs
TILE, DEPTH = 64, 512  # of a product, about: what a block makes, and the least it sums up

COPY = Source(
    name="copy_input",
    text="""extern "C" __global__ void __launch_bounds__(256) copy_input(const char* from, char* to, long long n) {
    long long i = blockIdx.x * 256ll + threadIdx.x, step = gridDim.x * 256ll;
    bool wide = ((unsigned long long)from | (unsigned long long)to) % 8 == 0;
    long long words = wide ? n / 8 : 0;
    for (long long j = i; j < words; j += step) ((long long*)to)[j] = ((const long long*)from)[j];
    for (long long j = words * 8 + i; j < n; j += step) to[j] = from[j];
}
""",
    buffers=("from", "to"), sizes=("n",), size_bytes=8, scratch=(), messages=(), block=(256, 1), work=1,
)  # fmt: skip


def copy_of(name: str, size: int) -> Launch:
    """The launch that copies an input into memory of the graph."""
    return Launch(COPY, (max(1, min(1024, size // 2048)), 1), (f"{name}/from", name), (size,), ())


class Works:
    """Makes the works of one recipe.  ``results``: the first byte of each buffer that lies with the graph's results."""

    def __init__(self, recipe: Recipe, places: Places, results: Mapping[str, int]) -> None:
        self.home = places.home
        self.size = {m.name: bytes_of(m) for m in (*recipe.given, *(s for s in recipe.steps if isinstance(s, Memory)))}
        self.spans: dict[str, Span] = {}
        for b in self.size:
            h = self.home[b]
            offset, space = (places.offsets[h], "arena") if h in places.offsets else (results.get(h, 0), "results")
            alone = h not in places.offsets and h not in results
            self.spans[b] = (h, 0, 1) if alone else (space, offset, offset + rounded(self.size[h]))

    def span(self, buffer: str) -> Span:
        """The memory whose first byte a buffer has, as far as its home goes."""
        return self.spans.get(buffer, (buffer, 0, 1))

    def of(self, step: Launch | Product) -> Work:
        """The work of a step."""
        reads, writes = ([self.span(b) for b in dict.fromkeys(bs)] for bs in effects(step))
        if isinstance(step, Product):
            us, share, name = *_product(step), f"product {step.m} x {step.n} x {step.k}"
            alone = step.tf32 or step.dtype.itemsize == 2
        else:
            us, share, name = *_launch(step, sum(self.size.get(b, 0) for b in step.buffers)), step.source.name
            alone = step.source.shared >= ALONE
        return Work(name, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)), share, us, alone and share > 0.5)

    def fill(self, name: str, span: Span) -> Work:
        """Memory set to one value."""
        moving = (span[2] - span[1] if span[2] > 1 else self.size.get(name, 0)) / MEMORY
        return Work(f"fill {name}", (), (span,), moving / (LATENCY + moving), LATENCY + moving)

    def copy(self, name: str) -> Work:
        """An input into memory of the graph, under whose name everything else reads the copy."""
        moving = 2 * self.size[name] / MEMORY
        source: Span = (f"{name}/from", 0, 1)
        return Work(f"copy {name}", (source,), (self.span(name),), moving / (LATENCY + moving), LATENCY + moving)


def _launch(s: Launch, size: int) -> tuple[float, float]:
    """Microseconds of a kernel, and the share of the card it fills: by its threads or by its bytes."""
    threads = s.grid[0] * s.grid[1] * s.source.block[0] * s.source.block[1]
    filled = min(1.0, threads / (MULTIPROCESSORS * RESIDENT))
    moving = size / MEMORY
    us = LATENCY + moving / max(filled, 1 / 16)  # few threads ask for few bytes at a time
    return us, max(filled, moving / us)


def _product(p: Product) -> tuple[float, float]:
    """The same of a library's product, which splits deep sums until they fill the card."""
    rate = HALF if p.dtype.itemsize == 2 else TF32 if p.tf32 else PLAIN
    blocks = -(-p.m // TILE) * -(-p.n // TILE) * p.batch * len(p.repeats)
    blocks *= max(1, min(MULTIPROCESSORS // blocks, p.k // DEPTH))
    filled = min(1.0, blocks / MULTIPROCESSORS)
    rounds = max(p.m, TILE) * max(p.n, TILE) * p.k * p.batch * len(p.repeats)
    return LATENCY + rounds / (rate * filled), filled
