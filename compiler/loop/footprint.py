"""How much memory a plan holds at once, and what it is made of.

Stage: loop.  In: a ``Plan``, sizes.  Out: a ``Footprint``: the step with the most live bytes and the buffers alive there,
each with what made it and what still waits for it.  ``TT_LOGS=memory`` prints it for every plan, ``explain(f)(x)
.show("memory")`` for one; nothing runs for it.  Read next: ``memory``, which places the allocations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.loop import ir
from compiler.loop.ir import ArrayView, Buffer, Plan
from compiler.loop.sizes import hint, numel
from compiler.sym.expr import lift

LARGEST = 24  # rows of the table


@dataclass(frozen=True)
class Live:
    """A buffer at the peak: its bytes, which step wrote it first, which needs it last ("" if the caller keeps it)."""

    buffer: Buffer
    size: int
    maker: str
    last: str


@dataclass(frozen=True)
class Footprint:
    """``given`` bytes of inputs, and ``peak`` more at ``step``, of which ``live`` tells, the largest first."""

    given: int
    peak: int
    step: str
    live: tuple[Live, ...]

    def __str__(self) -> str:
        lines = [f"{_bytes(self.peak)} at most, at {self.step}, besides {_bytes(self.given)} of inputs"]
        alike: dict[str, list[int]] = {}
        for x in self.live:
            shape = "x".join(map(str, x.buffer.shape)) or "scalar"
            until = f"until {x.last}" if x.last else "kept by the caller"
            alike.setdefault(f"{x.buffer.dtype.name} {shape}, from {x.maker}, {until}", []).append(x.size)
        rows = sorted(alike.items(), key=lambda row: -sum(row[1]))
        lines += [f"  {_bytes(sum(n)):>10} in {len(n):3}: {text}" for text, n in rows[:LARGEST]]
        rest = [n for _, sizes in rows[LARGEST:] for n in sizes]
        return "\n".join([*lines, f"  {_bytes(sum(rest)):>10} in {len(rest):3} others"] if rest else lines)


def footprint(plan: Plan, sizes: Mapping[str, int] | None = None) -> Footprint:
    """The plan's largest moment; unknown sizes count as lowering weighs them."""
    makers, last = _uses(plan)
    kept = {v.buffer for v in plan.outputs if isinstance(v, ArrayView)}
    alive: dict[str, tuple[Buffer, int]] = {}
    donated = {b.name for b in plan.inputs}  # and what lies in them
    now, best, where, found = 0, 0, "the beginning", dict(alive)
    for step in plan.steps:
        if isinstance(step, ir.Alloc) and step.reuse in donated:
            donated.add(step.buffer.name)
        elif isinstance(step, ir.Alloc):
            size = _size(step.buffer, sizes)
            alive[step.buffer.name] = step.buffer, size
            now += size
        elif isinstance(step, ir.Free):
            now -= alive.pop(step.buffer, (None, 0))[1]
        elif now > best:
            best, where, found = now, _name(plan, step), dict(alive)
    live = [Live(b, n, makers.get(name, "a fill"), "" if name in kept else last.get(name, "")) for name, (b, n) in found.items()]
    return Footprint(
        sum(_size(b, sizes) for b in plan.inputs), best, where, tuple(sorted(live, key=lambda x: (-x.size, x.buffer.name)))
    )


def _uses(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """The first and the last step that touch each buffer."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for step in plan.steps:
        for b in _touched(step):
            first.setdefault(b, _name(plan, step))
            last[b] = _name(plan, step)
    return first, last


def _touched(step: ir.Step) -> Iterator[str]:
    if isinstance(step, ir.Run):
        yield from step.args
    elif isinstance(step, ir.Extern):
        yield from (v.buffer for v in (*step.args, *step.outs) if isinstance(v, ArrayView))


def _name(plan: Plan, step: ir.Step) -> str:
    if isinstance(step, ir.Run):
        return plan.kernels[step.kernel].name
    return step.fn if isinstance(step, ir.Extern) else type(step).__name__


def _size(b: Buffer, sizes: Mapping[str, int] | None) -> int:
    n = numel(b.shape)
    return (lift(n).evaluate(sizes) if sizes else hint(n)) * b.dtype.itemsize


def _bytes(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"
