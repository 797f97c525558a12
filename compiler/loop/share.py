"""Kernels that differ only in numbers become one kernel with sizes.

Stage: loop.  In: a ``Plan`` with a kernel per launch.  Out: the same plan with few kernels.  Equal ones are one; of those
that differ in where they start in a buffer, in strides or in how far an outermost loop runs, the numbers become runtime
sizes that each ``Run`` states.  So 32 time steps that read 32 slices are one kernel, and so is an optimizer's update of
parameters of many shapes.  What decides how well a kernel runs stays a number: unit strides, the extents of reductions,
of short loops and of loops side by side, divisors.  Read next: ``memory``, ``ir.Run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.loop import ir
from compiler.loop.ir import Buffer, Int, Kernel, Plan, Run, walk
from compiler.loop.verify import span
from compiler.sym.expr import Expr, Symbol, as_int, lift

#: Loops up to this long keep their length, for unrolling.
SHORT = 32
#: A kernel with more sizes than this is not worth it.
MOST_SIZES = 8
Visit = Callable[[int], Int]


def shared(plan: Plan) -> Plan:
    """The plan with equal kernels once and similar ones joined; each kernel gets a name of its own."""
    classes: dict[Kernel, list[int]] = {}
    for n, k in enumerate(plan.kernels):
        classes.setdefault(skeleton(k), []).append(n)
    kernels: list[Kernel] = []
    new: dict[int, tuple[int, tuple[tuple[str, int], ...]]] = {}
    for members in classes.values():
        for made, sizes in joined([plan.kernels[n] for n in members]):
            for place, values in sizes.items():
                new[members[place]] = len(kernels), values
            kernels.append(made)
    order = sorted(range(len(kernels)), key=lambda k: min(n for n, (at, _) in new.items() if at == k))
    rank = {k: n for n, k in enumerate(order)}
    steps = tuple(
        replace(s, kernel=rank[new[s.kernel][0]], sizes=new[s.kernel][1]) if isinstance(s, Run) else s
        for s in plan.steps
    )
    named = tuple(replace(kernels[k], name=f"{kernels[k].name}_{n}") for n, k in enumerate(order))
    return replace(plan, kernels=named, steps=steps)


Group = tuple[Kernel, dict[int, tuple[tuple[str, int], ...]]]


def joined(kernels: Sequence[Kernel]) -> list[Group]:
    """Kernels of one skeleton as few: each with the members that use it, and the sizes that give them back."""
    distinct: dict[Kernel, list[int]] = {}
    for n, k in enumerate(kernels):
        distinct.setdefault(replace(k, name="", origin=(), lines=()), []).append(n)
    if len(distinct) > 1:
        one = _one([kernels[ns[0]] for ns in distinct.values()])
        if one is not None:
            kernel, sizes = one
            return [(kernel, {n: s for ns, s in zip(distinct.values(), sizes, strict=True) for n in ns})]
    return [(kernels[ns[0]], {n: () for n in ns}) for ns in distinct.values()]


def skeleton(kernel: Kernel) -> Kernel:
    """What kernels must have in common to be joined: all but the numbers that ``rebuilt`` visits, names and shapes."""
    count = 0

    def visit(_: int) -> Int:
        nonlocal count
        count += 1
        return Symbol(f"_n{count}")

    params = tuple(Buffer(b.name, b.dtype, (), (), b.device) for b in kernel.params)
    if any(b.device != "cpu" for b in kernel.params):  # kernels for GPUs are made for their sizes
        return replace(kernel, name="", origin=(), lines=())
    return replace(rebuilt(kernel, visit), name="", origin=(), lines=(), params=params)


def rebuilt(kernel: Kernel, visit: Visit) -> Kernel:
    """The kernel with every number that may become a size passed through ``visit``, always in the same order."""
    outer = [s for s in kernel.body if isinstance(s, ir.Loop)]
    whole = len(outer) == 1 and outer[0].kind == "map"

    def stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Load | ir.Store):
            return replace(s, index=_index(s.index, visit))
        if isinstance(s, ir.Index):
            return replace(s, expr=_index(s.expr, visit))
        if isinstance(s, ir.Loop):
            long = whole and s.kind == "map" and isinstance(s.extent, int) and s.extent > SHORT
            extent = visit(s.extent) if long and isinstance(s.extent, int) else s.extent
            return replace(s, extent=extent, body=tuple(map(stmt, s.body)))
        return s

    return replace(kernel, body=tuple(map(stmt, kernel.body)))


def _index(e: Int, visit: Visit) -> Int:
    """Its constant, and the factors of its terms but for ones."""
    const, terms = lift(e).split()
    out: Expr = lift(visit(const))
    for monomial, factor in sorted(terms, key=lambda t: str(t[0])):
        out = out + (monomial * factor if abs(factor) == 1 else monomial * visit(factor))
    return as_int(out)


def _one(kernels: Sequence[Kernel]) -> tuple[Kernel, list[tuple[tuple[str, int], ...]]] | None:
    """One kernel for all of these, and its sizes for each; None if it would need too many."""
    columns = list(zip(*(_numbers(k) for k in kernels), strict=True))
    sizes = _Sizes({s for k in kernels for s in k.sizes})
    for column in sorted(columns, key=lambda c: (min(c) < 1, columns.index(c))):  # sizes are positive if they can be
        sizes.of(column)
    params = _params(kernels, sizes)
    if params is None or len(sizes.columns) > MOST_SIZES:
        return None
    numbers = iter([sizes.of(c) for c in columns])
    made = rebuilt(kernels[0], lambda _: next(numbers))
    made = replace(made, params=params, sizes=(*made.sizes, *sizes.columns))
    return made, [tuple((s, c[n]) for s, c in sizes.columns.items()) for n in range(len(kernels))]


def _numbers(kernel: Kernel) -> list[int]:
    found: list[int] = []

    def visit(n: int) -> Int:
        found.append(n)
        return n

    rebuilt(kernel, visit)
    return found


def _params(kernels: Sequence[Kernel], sizes: _Sizes) -> tuple[Buffer, ...] | None:
    """Buffers as they are declared; if not everywhere alike, as the run of elements that they span."""
    out: list[Buffer] = []
    combined = {s.buffer for s in walk(kernels[0].body) if isinstance(s, ir.Store) and s.mode != "set"}
    for declared in zip(*(k.params for k in kernels), strict=True):
        first = declared[0]
        if any(b.shape != first.shape or b.stride != first.stride for b in declared):
            ends = [span(b) for b in declared]
            if first.name in combined or any(low != 0 or not isinstance(high, int) for low, high in ends):
                return None
            first = replace(first, shape=(sizes.of(tuple(high for _, high in ends)),), stride=(1,))  # type: ignore[misc]
        out.append(first)
    return tuple(out)


class _Sizes:
    """Names for what varies between the kernels: a column has a value for each."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.columns: dict[str, tuple[int, ...]] = {}

    def of(self, column: tuple[int, ...]) -> Int:
        """A number, or an expression of few sizes."""
        if len(set(column)) == 1:
            return column[0]
        for name, known in self.columns.items():
            if len({a - b for a, b in zip(column, known, strict=True)}) == 1:
                return as_int(Symbol(name) + (column[0] - known[0]))
            times = column[0] // known[0] if known[0] else 0
            if times and all(a == b * times for a, b in zip(column, known, strict=True)):
                return as_int(Symbol(name) * times)
        name = next(n for k in range(len(self.taken) + len(self.columns) + 1) if (n := f"n{k}") not in self.taken)
        self.taken.add(name)
        self.columns[name] = column
        return Symbol(name)

