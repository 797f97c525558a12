"""``Program``: what lowering makes and scheduling works on: memory, and the tasks that fill it.

Stage: loop.  In: nests and library calls, one by one.  Out: all of them in program order, with buffers, inputs, outputs
and the sizes that are symbols.  Read next: ``lower``, which fills it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compiler.loop import ir
from compiler.loop.emit import Names
from compiler.loop.interp import identity
from compiler.loop.ir import ArrayView, Buffer
from compiler.loop.nest import Nest
from compiler.sym.expr import Symbol
from compiler.sym.ranges import Interval
from tinytorch.dtypes import DType


@dataclass
class ExternCall:
    """A row that runs as a library call on memory; ``number`` is its place in program order."""

    number: int
    step: ir.Extern

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(a.buffer for a in self.step.args if isinstance(a, ArrayView))

    @property
    def writes(self) -> frozenset[str]:
        return frozenset(v.buffer for v in self.step.outs)


@dataclass
class Program:
    """What lowering makes: memory and the tasks that fill it, in an order that respects their dependencies."""

    inputs: list[Buffer] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    fills: dict[str, Any] = field(default_factory=dict)
    tasks: list[Nest | ExternCall] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    names: Names = field(default_factory=Names)


def fill_of(combine: str, dtype: DType) -> Any:
    """The identity of a combine as a plain number, for ``Alloc.fill``."""
    return identity(combine, (dtype,))[0].item()


# --- who uses which memory ---
Task = Nest | ExternCall


def users(program: Program) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The numbers of the tasks that write each buffer, and of those that read it."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for t in program.tasks:
        for b in writes(t):
            writers.setdefault(b, []).append(t.number)
        for b in reads(t):
            readers.setdefault(b, []).append(t.number)
    return writers, readers


def reads(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.reads) if isinstance(t, Nest) else t.reads


def writes(t: Task) -> frozenset[str]:
    return frozenset(a.buffer for a in t.writes) if isinstance(t, Nest) else t.writes
