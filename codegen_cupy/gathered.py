"""Sums into places that do not depend on the point (weight gradients of a norm): they wait in registers until a team has done all
its points, and are added to memory once.

Stage: codegen.  In: a row kernel whose few blocks do many points each (``Schedule.blocks``), its combining stores.  Out: lines of
C++ before and after the points.  Teams of a block add up in shared memory, in order; blocks by atomic additions, or, with
``Schedule.ordered``, the last one adds what all have left.  Read next: ``rows``, ``kept``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from codegen_cupy.body import Emitter
from codegen_cupy.combines import atomic
from codegen_cupy.kept import aligned, each_round
from codegen_cupy.kernel_text import Scratch
from codegen_cupy.nest import Flat, Nest, vectorizable
from codegen_cupy.schedule import Schedule, inner_loops
from codegen_cupy.spell import from_memory, register_type, safe, to_memory
from compiler.loop.ir import Kernel, Loop, Store, walk
from compiler.sym.expr import Symbol, as_int, coefficient, lift
from tinytorch.dtypes import DType


def gathered(nest: Nest, kernel: Kernel) -> list[tuple[Store, Loop]]:
    """Such sums, with their loops."""
    out: list[tuple[Store, Loop]] = []
    for loop in inner_loops(nest):
        if not vectorizable(loop.body) or isinstance(loop, Flat):
            continue
        for x in loop.body:
            if isinstance(x, Store) and x.mode == "add" and x.mask is None:
                names = {n.name for n in lift(x.index).free_symbols}
                if names <= {loop.axis, *kernel.sizes} and coefficient(x.index, Symbol(loop.axis)) == 1:
                    out.append((x, loop))
    return out


def gathers_all(nest: Nest, schedule: Schedule, kernel: Kernel) -> bool:
    """Do all additions to memory wait in registers?"""
    if schedule.kind != "row" or not (schedule.blocks and schedule.chunks):
        return False
    adds = [s for s in walk(nest.body) if isinstance(s, Store) and s.mode != "set"]
    return len(gathered(nest, kernel)) == len(adds)


@dataclass(frozen=True)
class Sum:
    """``store``, in ``loop``, goes into the registers ``name``, of which a lane has one for each element of its row."""

    store: Store
    loop: Loop
    name: str
    dtype: DType

    @property
    def axis(self) -> str:
        return safe(self.loop.axis)


class Gathered:
    """The sums of one kernel while it is written."""

    def __init__(self, e: Emitter, scratch: list[Scratch]) -> None:
        self.e, self.scratch = e, scratch
        self.sums: list[Sum] = []

    def declare(self) -> None:
        """Registers for all of them, into which the points' statements add."""
        e, s = self.e, self.e.schedule
        for x, loop in gathered(e.nest, e.kernel) if s.blocks and s.chunks else ():
            sum_ = Sum(x, loop, f"{safe(x.buffer)}_sum{len(self.sums) or ''}", e.buffers[x.buffer].dtype)
            extra = "" if s.vector == 1 else f"[{s.vector}]"
            e.line(f"{register_type(sum_.dtype)} {sum_.name}[{s.chunks}]{extra} = {{}};")
            e.private[id(x)] = self._slot(sum_)
            self.sums.append(sum_)

    def scatter(self) -> None:
        """Teams of a block add up in shared memory, in order; then the block adds to memory once per element."""
        e, s = self.e, self.e.schedule
        for x in self.sums:
            if s.rows > 1:
                self._sum_over_teams(x)
            elif s.ordered:
                with self._each_element(x):
                    e.line(f"if ({x.axis} < {e.index(x.loop.extent)}) {self._part(x)} = {self._slot(x)};")
            else:
                self._add_to_memory(x)
        if s.ordered and self.sums:
            self._add_in_order()

    def _sum_over_teams(self, x: Sum) -> None:
        e, s = self.e, self.e.schedule
        e.line(f"__shared__ {register_type(x.dtype)} {x.name}_block[{s.chunks * s.team * s.vector}];")
        with e.block(f"for (int t = 0; t < {s.rows}; ++t)"):
            with e.block("if (t == team)"), self._each_element(x):
                e.line(f"{x.name}_block[{x.axis}] = t == 0 ? {self._slot(x)} : {x.name}_block[{x.axis}] + {self._slot(x)};")
            e.line("__syncthreads();")
        with self._by_the_block(x):
            if s.ordered:
                e.line(f"{self._part(x)} = {x.name}_block[{x.axis}];")
            else:
                e.line(atomic("add", f"&{self._place(x)}", f"{x.name}_block[{x.axis}]", x.dtype))

    def _add_to_memory(self, x: Sum) -> None:
        e, s = self.e, self.e.schedule
        if s.vector % 4 == 0 and x.dtype.name == "float32" and aligned(s, x.store, x.loop):
            with each_round(e, x.loop) as axis:
                for k in range(0, s.vector, 4):
                    e.text[x.loop.axis] = f"({axis} + {k})" if k else axis
                    four = ", ".join(f"{x.name}[c][{k + j}]" for j in range(4))
                    e.line(f"add_4(&{self._place(x)}, {four});")
            return
        with self._each_element(x):
            add = atomic("add", f"&{self._place(x)}", self._slot(x), x.dtype)
            e.line(f"if ({x.axis} < {e.index(x.loop.extent)}) {add}")

    # --- in order ---
    def _part(self, x: Sum, block: str = "blockIdx.x") -> str:
        """Where a block leaves its sum, for the last one to add all in order."""
        e, s = self.e, self.e.schedule
        if not any(p.name == f"{x.name}_partial" for p in self.scratch):
            items = as_int(lift(x.loop.extent) * s.blocks)
            self.scratch.append(Scratch(f"{x.name}_partial", register_type(x.dtype), items, max(4, x.dtype.itemsize)))
        return f"{x.name}_partial[{block} * {e.index(x.loop.extent)} + {x.axis}]"

    def _add_in_order(self) -> None:
        e = self.e
        self.scratch.append(Scratch("arrived", "unsigned", 1, 4, zeroed=True))
        e.line("if (!last_to_arrive(arrived, gridDim.x)) return;")
        for x in self.sums:
            with self._by_the_block(x):
                place = self._place(x)
                e.line(f"{register_type(x.dtype)} all = {from_memory(place, x.dtype)};")
                e.line(f"for (int b = 0; b < gridDim.x; ++b) all += {self._part(x, 'b')};")
                e.line(f"{place} = {to_memory('all', x.dtype)};")

    # --- elements ---
    def _place(self, x: Sum) -> str:
        return f"{safe(x.store.buffer)}[{self.e.index(x.store.index)}]"

    def _slot(self, x: Sum) -> str:
        return f"{x.name}[c]" if self.e.schedule.vector == 1 else f"{x.name}[c][k]"

    @contextmanager
    def _each_element(self, x: Sum) -> Iterator[None]:
        """Over the elements of a row that this lane holds, counted by the loop's axis."""
        e, s = self.e, self.e.schedule
        e.pragma("unroll")
        with e.block(f"for (int c = 0; c < {s.chunks}; ++c)"):
            e.pragma("unroll")
            with e.block(f"for (int k = 0; k < {s.vector}; ++k)"):
                e.line(f"const int {x.axis} = (c * {s.team} + lane) * {s.vector} + k;")
                e.text[x.loop.axis] = x.axis
                yield

    @contextmanager
    def _by_the_block(self, x: Sum) -> Iterator[None]:
        """Over all elements of a row, with the threads of the block side by side."""
        e, s = self.e, self.e.schedule
        with e.block(f"for (int {x.axis} = threadIdx.x; {x.axis} < {e.index(x.loop.extent)}; {x.axis} += {s.threads})"):
            e.text[x.loop.axis] = x.axis
            yield
