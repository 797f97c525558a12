"""An operand that is computed while a product loads it: the pointwise kernel that the plan runs before the product.

Stage: codegen.  In: that kernel, and how the product reads what it writes.  Out: ``Computed``, an operand of ``gemm``
whose elements are the kernel's statements, written as a function of a line and a place.  The operand then lies nowhere
in memory; its inputs are read once for each tile of the result, so this is for the tuner to try.
Read next: ``gemm``, ``following`` (the same behind a product), ``ways``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from codegen_cupy.body import Emitter
from codegen_cupy.following import Coordinate, filled, place
from codegen_cupy.gemm import Matrix, Problem
from codegen_cupy.nest import Nest, needs_64_bits, nests, value_at
from codegen_cupy.schedule import Schedule
from codegen_cupy.spell import memory_type, safe, to_memory
from compiler.loop.ir import Kernel, Let, Load, Store
from compiler.sym.expr import as_int, coefficient, lift
from tinytorch.dtypes import DType


@dataclass(frozen=True)
class Preceding:
    """``kernel`` is the nest alone, with sizes filled in; its one store writes all of ``target``, densely."""

    kernel: Kernel
    nest: Nest
    target: str
    arguments: Mapping[str, str]  # the memory of each parameter

    @property
    def buffer(self) -> str:
        return self.arguments[self.target]

    @property
    def inputs(self) -> dict[str, DType]:
        """Parameters that are read."""
        return {b.name: b.dtype for b in self.kernel.params if b.name != self.target}

    @property
    def store(self) -> Store:
        return next(s for s in self.nest.body if isinstance(s, Store))

    def strides(self) -> dict[str, int]:
        found = {a.name: coefficient(self.store.index, a.symbol) for a in self.nest.axes}
        return {name: c for name, c in found.items() if isinstance(c, int)}


def preceding(kernel: Kernel, sizes: Mapping[str, int], arguments: Mapping[str, str]) -> Preceding | None:
    """The kernel as something that a product may do by itself; None if it is more than reads, arithmetic and one store."""
    found = nests(kernel)
    if len(found) != 1 or len(kernel.writes) != 1:
        return None
    nest = filled(found[0], sizes)
    stores = [s for s in nest.body if isinstance(s, Store)]
    plain = all(isinstance(s, Let | Store) or (isinstance(s, Load) and not s.mask) for s in nest.body)
    if not plain or len(stores) != 1 or stores[0].mode != "set" or stores[0].mask:
        return None
    if any(isinstance(s, Let) and s.fn == "philox" for s in nest.body):
        return None
    (target,) = kernel.writes
    if any(isinstance(s, Load) and s.buffer == target for s in nest.body):
        return None
    numel = next(value_at(b.numel, sizes) for b in kernel.params if b.name == target)
    used = [b for b in kernel.params if b.name == target or any(isinstance(s, Load) and s.buffer == b.name for s in nest.body)]
    made = Preceding(replace(kernel, params=tuple(used), sizes=(), body=nest.body), nest, target, arguments)
    strides = made.strides()
    rest = as_int(lift(stores[0].index).subs({a.symbol: 0 for a in nest.axes}))
    dims = [(value_at(a.extent, {}), strides.get(a.name, -1)) for a in nest.axes]
    return made if rest == 0 and _fills(dims) and prod(n for n, _ in dims) == numel else None


def _fills(dims: list[tuple[int, int]]) -> bool:
    """Do these (extent, stride) reach every place of a block once?"""
    step = 1
    for n, stride in sorted((d for d in dims if d[0] != 1), key=lambda d: d[1]):
        if stride != step:
            return False
        step *= n
    return True


@dataclass(frozen=True)
class Computed:
    """An operand that lies as ``matrix`` says where it is written, and is not."""

    matrix: Matrix
    batches: tuple[int, ...]
    by: Preceding
    strict: bool = False

    copied = False
    effort = 24

    @property
    def deep(self) -> bool:
        return self.matrix.deep

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(self.by.arguments[name] for name in self.by.inputs)

    def types(self, side: str) -> str:
        m, inputs = self.matrix, self.by.inputs
        lines, length = (m.free, m.depth) if m.deep else (m.depth, m.free)
        line_step, place_step = (m.free_step, m.depth_step) if m.deep else (m.depth_step, m.free_step)
        zs = [f"z{i}" for i in range(len(self.batches))]
        members = [f"const {memory_type(d)}* {safe(name)};" for name, d in inputs.items()] + [f"int {z};" for z in zs]
        inside = (Coordinate("l", lines, line_step), Coordinate("p", length, place_step))
        coordinates = (*inside, *(Coordinate(z, n, s) for z, n, s in zip(zs, self.batches, m.strides, strict=True)))
        return "\n".join([
            f"// Operand {side}, computed while it is loaded.",
            f"struct Made{side} {{", "    static constexpr bool MOVED = false;", "    using Place = int;", *(f"    {x}" for x in members),
            "    __device__ int line(int l) const { return l; }", "    __device__ int place(int p) const { return p; }",
            "    __device__ elem at(int l, int p) const {", f"        if (l >= {lines} || p >= {length}) return elem();",
            *self._statements(coordinates), "    }", "};",
        ])  # fmt: skip

    def _statements(self, coordinates: tuple[Coordinate, ...]) -> list[str]:
        by, strides = self.by, self.by.strides()
        e = Emitter(by.kernel, by.nest, Schedule("pointwise", strict=self.strict), depth=2)
        for a in by.nest.axes:
            e.line(f"const int {safe(a.name)} = {place(strides[a.name], value_at(a.extent, {}), coordinates)};")
            e.text[a.name] = safe(a.name)
        for s in by.nest.body:
            if isinstance(s, Store):
                d = e.buffers[by.target].dtype
                e.line(f"return {to_memory(e.stored_value(s, e.buffers[by.target]), d)};")
            else:
                e.statement(s)
        return e.lines

    def made(self, side: str, names: tuple[str, ...]) -> str:
        given = ", ".join([*names, *(f"z{i}" for i in range(len(self.batches)))])
        corner = "tile.row" if side == "A" else "tile.column"
        line, at = (corner, "first") if self.deep else ("first", corner)
        return f"Gathered<{side}_LINES, {side}_LENGTH, {side}_DEEP, Made{side}> from_{side}(Made{side}{{{given}}}, {line}, {at});"


def computed(p: Problem, by: Preceding, *, strict: bool = False) -> Problem | None:
    """The product with the operand that ``by`` writes computed; None if there is none, or it is not all of it, as it lies."""
    made: dict[str, Any] = {}
    types = dict(p.types)
    for side in ("a", "b"):
        m = getattr(p, side)
        if isinstance(m, Matrix) and m.buffer == by.buffer:
            dims = [(m.free, m.free_step), (m.depth, m.depth_step), *zip(p.batches, m.strides, strict=True)]
            total = prod(value_at(a.extent, {}) for a in by.nest.axes)
            if m.offset or needs_64_bits(by.kernel, by.nest, {}) or not _fills(dims) or prod(n for n, _ in dims) != total:
                return None
            made[side] = Computed(m, p.batches, by, strict)
    if len(made) != 1 or next(b.dtype for b in by.kernel.params if b.name == by.target) is not p.dtype:
        return None
    for name, d in by.inputs.items():
        types[by.arguments[name]] = d
    if any(types.get(b, p.dtype) is not p.dtype for o in (p.a, p.b) if o not in (getattr(p, s) for s in made) for b in o.buffers):
        return None
    return replace(p, types=types, **made)
