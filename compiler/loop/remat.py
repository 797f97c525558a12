"""Computing a value again in the kernel that needs it, instead of sending it through memory.

Stage: loop.  In: the groups that ``fuse`` made.  Out: groups with copies of cheap nests in them, fewer stores and loads.
A value is worth recomputing if it takes no elementary function (on a GPU, few) and all it is made of is read by its
readers anyway, or is small (the mean of a row, a bias), or no larger than the value itself (half-precision sources of a
float32 value; a residual stream that is in memory anyway, instead of its difference from the mean; a product, instead of
the product plus a bias): then no copy costs memory traffic and the value need not be stored at all.
The partitioner decides the same between forward and backward; this serves graphs that hold both, and all others.
Read next: ``order``.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.loop import ir
from compiler.loop.fuse import Fuser, Group
from compiler.loop.nest import Nest
from compiler.loop.program import ExternCall
from compiler.loop.value import HEAVY

MOST_OPS = 8
#: Elementary functions that a GPU may compute again: memory is what it waits for.
MOST_HEAVY = 1
#: A source is small if it has at most one byte for so many of the value's.
SMALL = 8


def recompute(fuser: Fuser, outputs: frozenset[str]) -> None:
    """Rewrite ``fuser.tasks``; later values first, so that a chain of them unwinds."""
    makers = [(n, key) for key, t in fuser.tasks.items() if isinstance(t, Group) for n in t.nests]
    for nest, key in sorted(makers, key=lambda m: -m[0].number):
        heavy = MOST_HEAVY if fuser.buffers[nest.writes[0].buffer].device != "cpu" else 0
        if _is_cheap(nest, heavy) and nest.writes[0].buffer not in outputs:
            _try(fuser, nest, key)


def _is_cheap(nest: Nest, heavy: int) -> bool:
    lets = [s for s in nest.body if isinstance(s, ir.Let)]
    return (
        nest.pointwise and len(nest.writes) == 1 and not nest.final and 0 < len(lets) <= MOST_OPS
        and sum(s.fn in HEAVY - {"div"} for s in lets) <= heavy
        and not any(isinstance(s, ir.Check) for s in nest.body)
    )  # fmt: skip


def _try(fuser: Fuser, nest: Nest, home: int) -> None:
    buffer = nest.writes[0].buffer
    readers = [k for k, t in fuser.tasks.items() if k != home and buffer in t.reads | t.writes]
    if not readers or len(fuser.writers[buffer]) > 1:
        return
    changed: dict[int, Group] = {}
    for key in readers:
        t = fuser.tasks[key]
        joint = None if isinstance(t, ExternCall) else _with_copy(fuser, nest, buffer, t, home)
        if joint is None:
            return
        changed[key] = joint
    fuser.tasks.update(changed)


def _with_copy(fuser: Fuser, nest: Nest, buffer: str, reader: Group, home: int) -> Group | None:
    """The reader with a nest of its own that makes the value; None if that would cost."""
    size = fuser.bytes(buffer)
    have = {r.buffer for n in reader.nests for r in n.reads} | {w.buffer for n in reader.nests for w in n.writes}
    new = {r.buffer: fuser.bytes(r.buffer) for r in nest.reads if r.buffer not in have}
    big = {b: n for b, n in new.items() if n * SMALL > size}
    if sum(big.values()) > size or (sum(big.values()) == size and not all(_stored_anyway(fuser, b, home) for b in big)):
        return None
    if any(n.number == nest.number for n in reader.nests):
        return None
    names = fuser.program.names
    own = names("buf")
    fuser.program.buffers[own] = replace(fuser.program.buffers[buffer], name=own)
    fuser.writers[own] = [nest.number]
    copy = nest.renamed({a.name: names("x") for a in nest.axes})
    copy = replace(copy, body=tuple(_moved(s, buffer, own) for s in copy.body))
    nests = tuple(replace(n, body=tuple(_moved(s, buffer, own) for s in n.body)) for n in reader.nests)
    joint = fuser.joint(Group((copy,), tuple(a.name for a in copy.axes)), Group(nests, reader.spine))
    kept = joint is not None and len(joint.spine) == len(reader.spine)
    return joint if kept else None


def _stored_anyway(fuser: Fuser, buffer: str, home: int) -> bool:
    """Is a source in memory whether or not values are recomputed from it: an input, or what another kernel writes or reads?
    It then stays there for as long as the value would, and takes as much."""
    if fuser.buffers[buffer].device == "cpu":
        return False
    return buffer not in fuser.writers or any(buffer in t.reads | t.writes for key, t in fuser.tasks.items() if key != home)


def _moved(s: ir.Stmt, old: str, new: str) -> ir.Stmt:
    return replace(s, buffer=new) if isinstance(s, ir.Load | ir.Store) and s.buffer == old else s
