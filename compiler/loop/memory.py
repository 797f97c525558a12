"""When buffers begin and end, and which memory they share.

Stage: loop.  In: launches in order.  Out: a ``Plan`` with ``Alloc`` before the first use of a buffer and ``Free`` after
its last.  A new buffer takes the memory of a free one of the same size; outputs, which the caller keeps, never do, so
everything else may live in one arena for good.  Read next: ``interp`` (what a plan means).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer, Kernel, Plan
from compiler.loop.program import Program
from compiler.loop.verify import span
from compiler.sym.expr import lift


@dataclass
class Launch:
    """A kernel on buffers, or an extern call."""

    kernel: Kernel | None
    args: tuple[str, ...]
    extern: ir.Extern | None

    def uses(self) -> Iterable[str]:
        if self.extern is None:
            return self.args
        views = (*self.extern.args, *self.extern.outs)
        return [v.buffer for v in views if isinstance(v, ArrayView)]


def plan(program: Program, launches: list[Launch], donated: frozenset[str], config: Any) -> Plan:
    """Place allocations and frees around the launches."""
    return _Planner(program, launches, donated, config.reuse_buffers).run()


class _Planner:
    def __init__(self, program: Program, launches: list[Launch], donated: frozenset[str], reuse: bool) -> None:
        self.program = program
        self.launches = launches
        self.reuse = reuse
        self.inputs = {b.name for b in program.inputs}
        self.kept = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
        self.last = {b: n for n, launch in enumerate(launches) for b in launch.uses()}
        self.free: dict[Any, list[str]] = {}
        self.steps: list[ir.Step] = []
        self.live: set[str] = set()
        self.donated = donated & self.inputs - self.kept

    def run(self) -> Plan:
        kernels: list[Kernel] = []
        for n, launch in enumerate(self.launches):
            for b in dict.fromkeys(launch.uses()):
                if b not in self.inputs and b not in self.live:
                    self.allocate(self.program.buffers[b])
            if launch.extern is not None:
                self.steps.append(launch.extern)
            else:
                assert launch.kernel is not None
                self.steps.append(ir.Run(len(kernels), launch.args))
                kernels.append(launch.kernel)
            for b in dict.fromkeys(launch.uses()):
                if self.last[b] == n and b not in self.kept and (b not in self.inputs or b in self.donated):
                    self.steps.append(ir.Free(b))
                    self.free.setdefault(kind(self.program.buffers[b]), []).append(b)
        for b in sorted(self.kept - self.inputs - self.live):  # outputs that are nothing but a fill
            self.allocate(self.program.buffers[b])
        sizes = tuple(self.program.sizes)
        return Plan(tuple(self.program.inputs), tuple(self.program.outputs), tuple(kernels), tuple(self.steps), sizes)

    def allocate(self, buffer: Buffer) -> None:
        self.live.add(buffer.name)
        old = None
        if self.reuse and buffer.name not in self.kept:
            free = self.free.get(kind(buffer))
            old = free.pop() if free else None  # the last freed is the likeliest in cache
        self.steps.append(ir.Alloc(buffer, self.program.fills.get(buffer.name), old))


def kind(b: Buffer) -> Any:
    """Buffers of one kind fit each other's memory."""
    low, high = span(b)
    return b.device, str(lift(high) - low if b.shape else lift(1)), b.dtype.itemsize
