"""Where everything of a plan lies: words of the table, bytes of the arena, records of the program.

Stage: codegen_numba.  In: a ``Plan``.  Out: a ``Layout`` that ``build`` writes the host function from.
The table begins with words that differ from call to call (addresses of inputs and outputs, sizes, and what follows
from sizes), which the host packs in one go; what never changes comes after.  Temporaries share one arena by
lifetime.  Read next: ``build``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from codegen_numba.analysis import known
from compiler.loop.ir import Alloc, ArrayView, Buffer, Extern, Free, Int, Plan, Run
from compiler.sym.expr import Expr, lift

LINE = 64  # bytes: temporaries begin at cache lines
ERROR, VALUE, WHO, FIRST = 0, 1, 2, 3  # words of the table: the error and its value, the record, the first free one


def text_of(e: Int) -> str:
    """A size expression as Python over the plan's size names."""
    return str(e)


def span(b: Buffer) -> Int:
    """Elements from the first to the last."""
    out: Expr = lift(1)
    for n, s in zip(b.shape, b.stride, strict=True):
        if known(n) == 0:
            return 0
        out = out + (lift(n) - 1) * s
    return out if known(out) is None else known(out)  # type: ignore[return-value]


def bytes_of(b: Buffer) -> Int:
    n = lift(span(b)) * b.dtype.itemsize
    value = known(n)
    return n if value is None else value


@dataclass
class Chunk:
    """Memory of a buffer, which is alive from step ``first`` to step ``last``."""

    buffer: Buffer
    first: int
    last: int
    offset: int | str = 0  # bytes into the arena; text if it depends on sizes

    @property
    def size(self) -> Int:
        return bytes_of(self.buffer)


@dataclass
class Memory:
    """Which chunk each allocated buffer is in, which chunks the caller keeps."""

    chunk: dict[str, Chunk] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)  # ids of chunks that are outputs
    donated: dict[str, str] = field(default_factory=dict)  # buffers that lie in an input

    def root(self, name: str) -> str | Chunk:
        """An input's name, or a chunk."""
        name = self.donated.get(name, name)
        return self.chunk.get(name, name)


def memory_of(plan: Plan) -> Memory:
    """A chunk for each buffer that does not lie in an input.

    Also for one that the plan puts where another of its size was: to ``place``, that is memory like any other, which in
    between may be a third one's."""
    out = Memory()
    inputs = {b.name for b in plan.inputs}
    for n, step in enumerate(plan.steps):
        match step:
            case Alloc(buffer, _, reuse):
                root = None if reuse is None else out.root(reuse)
                if isinstance(root, str):
                    out.donated[buffer.name] = root
                else:
                    out.chunk[buffer.name] = Chunk(buffer, n, n)
            case Run(_, args, _):
                _touch(out, args, n)
            case Extern(_, args, outs):
                _touch(out, [v.buffer for v in (*args, *outs) if isinstance(v, ArrayView)], n)
            case Free():
                pass
    out.kept = {id(out.chunk[v.buffer]) for v in plan.outputs if isinstance(v, ArrayView) and v.buffer in out.chunk}
    assert not inputs & set(out.chunk)
    return out


def _touch(memory: Memory, names: Sequence[str], step: int) -> None:
    for name in names:
        root = memory.root(name)
        if isinstance(root, Chunk):
            root.last = step


def place(chunks: list[Chunk]) -> int | list[str]:
    """Give each chunk its offset; returns the arena's size in bytes, or lines that compute it from sizes.

    Known sizes: biggest first, each at the lowest place free during its life.  Symbolic ones: so too among those that are
    multiples of the same product of sizes; of the others a chunk takes over the place of a dead one of equal size."""
    if all(known(c.size) is not None for c in chunks):
        offsets, total = _pack(chunks, _whole_lines)
        for c in chunks:
            c.offset = offsets[id(c)]
        return total
    return _place_symbolic(chunks)


def _pack(chunks: list[Chunk], bytes_of: Callable[[Chunk], int]) -> tuple[dict[int, int], int]:
    """Offsets by the chunks' ids, and bytes in all."""
    placed: list[tuple[int, int, Chunk]] = []
    for c in sorted(chunks, key=lambda c: -bytes_of(c)):
        size, at = bytes_of(c), 0
        for begin, end, other in sorted(placed, key=lambda p: p[0]):
            if other.first <= c.last and c.first <= other.last and begin < at + size and at < end:
                at = end
        placed.append((at, at + size, c))
    return {id(c): at for at, _, c in placed}, max((end for _, end, _ in placed), default=0)


def _whole_lines(c: Chunk) -> int:
    return -(-(known(c.size) or 0) // LINE) * LINE


def _multiple(c: Chunk) -> tuple[int, Expr] | None:
    """A chunk's bytes as whole lines times a product of sizes, if they are that."""
    constant, terms = lift(c.size).split()
    if not terms:
        return _whole_lines(c), lift(1)
    (product, times), *more = terms
    return None if constant or more or times % LINE else (times, product)


def _place_symbolic(chunks: list[Chunk]) -> list[str]:
    lines: list[str] = []
    alike: dict[Expr, dict[int, int]] = {}  # product of sizes -> how many times it the chunks have, by their ids
    for c in chunks:
        found = _multiple(c)
        if found is not None:
            alike.setdefault(found[1], {})[id(c)] = found[0]
    for n, (product, times) in enumerate(alike.items()):
        offsets, total = _pack([c for c in chunks if id(c) in times], lambda c, times=times: times[id(c)])  # type: ignore[misc]
        lines += [f"g{n} = top", f"top += {text_of(total * product)}"]
        for c in chunks:
            if id(c) in offsets:
                c.offset = f"g{n} + {text_of(offsets[id(c)] * product)}" if offsets[id(c)] else f"g{n}"
    grouped = {k for times in alike.values() for k in times}
    places: list[tuple[str, Int, int]] = []  # name, size, last step
    for n, c in enumerate(sorted((c for c in chunks if id(c) not in grouped), key=lambda c: c.first)):
        size = c.size
        free = next((k for k, (_, have, last) in enumerate(places) if have == size and last < c.first), None)
        if free is not None:
            name = places[free][0]
            places[free] = (name, size, c.last)
        else:
            name = f"m{n}"
            lines += [f"{name} = top", f"top += -(-({text_of(size)}) // {LINE}) * {LINE}"]
            places.append((name, size, c.last))
        c.offset = name
    return ["top = 0", *lines] if lines else []


class Table:
    """Words by what they mean; the variable ones first."""

    def __init__(self) -> None:
        self.variable: list[tuple[Any, str]] = []  # (meaning, Python text of the value)
        self.fixed: list[tuple[Any, Any]] = []  # (meaning, int, or a function of a context)
        self._place: dict[Any, tuple[bool, int]] = {}

    def vary(self, meaning: Any, text: str) -> Any:
        if meaning not in self._place:
            self._place[meaning] = (True, len(self.variable))
            self.variable.append((meaning, text))
        return meaning

    def fix(self, meaning: Any, value: Any) -> Any:
        if meaning not in self._place:
            self._place[meaning] = (False, len(self.fixed))
            self.fixed.append((meaning, value))
        return meaning

    def number(self, e: Int) -> Any:
        """The word that holds a size expression."""
        value = known(e)
        return self.fix(("number", value), value) if value is not None else self.vary(("number", str(e)), text_of(e))

    def word(self, meaning: Any) -> int:
        """Its place; settled once everything is entered."""
        varies, n = self._place[meaning]
        return FIRST + n if varies else FIRST + len(self.variable) + n

    def __contains__(self, meaning: Any) -> bool:
        return meaning in self._place
