"""Sums into memory in one order: for ``config.deterministic``, where atomics would add in the order of arrival.

Stage: codegen.  In: ``Nest``.  Out: a nest whose colliding additions are one thread's, one after another.  Axes along
which no two points meet (the columns of an embedding's gradient) stay parallel.  Sums over rows that wait in registers
(``rows``) need none of this: they are joined block by block, in order.  Read next: ``rows``.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_cupy.nest import Axis, Nest
from compiler.loop.ir import Buffer, Int, Kernel, Loop, Stmt, Store, walk
from compiler.sym.expr import Symbol, coefficient, lift


def order_matters(kernel: Kernel, nest: Nest) -> list[Store]:
    """Additions (or products) of floating-point numbers into memory that several points may reach."""
    types: dict[str, Buffer] = {b.name: b for b in kernel.params}
    return [
        s for s in walk(nest.body)
        if isinstance(s, Store) and s.mode in ("add", "mul") and types[s.buffer].dtype.kind in "fc"
    ]  # fmt: skip


def in_order(kernel: Kernel, nest: Nest) -> Nest:
    """The nest with every axis along which points may meet as a loop inside a thread."""
    stores = order_matters(kernel, nest)
    parallel = tuple(a for a in nest.axes if all(_apart(s.index, a) for s in stores))
    serial = [a for a in nest.axes if a not in parallel]
    body: tuple[Stmt, ...] = nest.body
    for a in reversed(serial):
        body = (Loop(a.name, a.extent, "map", body),)
    return replace(nest, axes=parallel, body=body)


def _apart(index: Int, axis: Axis) -> bool:
    """Does every value of the axis reach places of its own?  ``extent * anything + axis`` does."""
    if coefficient(index, Symbol(axis.name)) != 1 or not isinstance(axis.extent, int):
        return False
    rest = lift(index) - Symbol(axis.name)
    _, terms = rest.split()
    return all(factor % axis.extent == 0 for _, factor in terms)
