"""Rows that a block asks for before it works on the one at hand: in registers, or in shared memory.

Stage: codegen.  In: the kept rows of a ``RowKernel`` whose blocks do many points each.  Out: lines of C++ that ask, and that
take what was asked for.  In registers the next row costs as many as this one; in shared memory (``Schedule.waits``
"shared") it costs none, and arrives without passing through any.  A thread takes only what it asked for itself, so that
no barrier is needed.  Read next: ``rows``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen_cupy.body import Emitter
from codegen_cupy.kept import Kept, Key, each_round, part, part_type, read_part
from codegen_cupy.nest import Flat, value_at
from codegen_cupy.schedule import MOST_AHEAD, SHARED_LIMIT
from codegen_cupy.spell import cast, from_memory, memory_type, safe
from compiler.loop.ir import Load, Loop
from compiler.sym.expr import lift


@dataclass
class Ahead:
    """``next``: where the next of those kept rows wait that differ from point to point; ``scalars``: the point's own values."""

    e: Emitter
    kept: Kept
    next: dict[Key, str] = field(default_factory=dict)
    scalars: list[tuple[Load, str]] = field(default_factory=list)
    shared: int = 0  # bytes

    def declare(self) -> None:
        """Where the next rows wait; nowhere if they are too many."""
        e, s = self.e, self.e.schedule
        rows = {k: x for k, x in self.kept.rows.items() if k not in self.kept.loaded and not isinstance(x[1], Flat)}
        if not rows or len(rows) > MOST_AHEAD:
            return
        for key, (load, loop) in rows.items():
            self.next[key] = f"{safe(load.name)}_next"
            if s.waits != "shared":
                e.line(f"{part_type(e, load)} {self.next[key]}[{s.chunks}];")
                continue
            if s.vector * e.buffers[load.buffer].dtype.itemsize % 16:
                raise ValueError("rows reach shared memory in pieces of 16 bytes")
            self.shared += self._bytes(load, loop)
        if self.shared > SHARED_LIMIT:
            raise ValueError(f"{self.shared} bytes of shared memory")
        if self.shared:
            self._divide_pool(rows)
        self._declare_scalars()

    def _divide_pool(self, rows: dict[Key, tuple[Load, Loop]]) -> None:
        e, at = self.e, 0
        e.line(f"SHARED_POOL(waiting, {self.shared});")
        for key, (load, loop) in rows.items():
            t = part_type(e, load)
            e.line(f"{t}* const {self.next[key]} = reinterpret_cast<{t}*>(waiting{f' + {at}' if at else ''});")
            at += self._bytes(load, loop)

    def _bytes(self, load: Load, loop: Loop) -> int:
        """Of a row in shared memory."""
        return -(-value_at(loop.extent, {}) * self.e.buffers[load.buffer].dtype.itemsize // 128) * 128

    def _declare_scalars(self) -> None:
        e = self.e
        known = {a.name for a in e.nest.axes} | set(e.kernel.sizes)
        for s in e.nest.body:
            if isinstance(s, Load) and not s.mask and s.buffer not in e.kernel.writes:
                names = {n.name for n in lift(s.index).free_symbols}
                if names and names <= known:
                    self.scalars.append((s, f"{safe(s.name)}_next"))
                    e.line(f"{memory_type(e.buffers[s.buffer].dtype)} {safe(s.name)}_next;")

    def ask(self, point: str, points: str) -> None:
        """Read the rows of another point."""
        e, s = self.e, self.e.schedule
        if not self.next:
            return
        with e.block(f"if ({point} < {points})"):
            e.line(f"const {e.int_type} point = {point};")
            e.unflatten(e.nest.axes, "point")
            for load, name in self.scalars:
                e.line(f"{name} = {safe(load.buffer)}[{e.index(load.index)}];")
            for key, name in self.next.items():
                load, loop = self.kept.rows[key]
                with each_round(e, loop):
                    if s.waits == "shared":
                        size = s.vector * e.buffers[load.buffer].dtype.itemsize
                        for at in range(0, size, 16):
                            to = f"{name} + {part(s)}" if not at else f"(char*)({name} + {part(s)}) + {at}"
                            source = f"{safe(load.buffer)} + {e.index(load.index)}"
                            source = source if not at else f"(const char*)({source}) + {at}"
                            e.line(f"copy_16({to}, {source}, true);")
                    else:
                        read_part(e, name, load)
        if s.waits == "shared":
            e.line("copies_end_group();")

    def take(self) -> None:
        """What was asked for becomes the row at hand."""
        e, s = self.e, self.e.schedule
        if self.shared:
            e.line("copies_wait<0>();")
        for key, name in self.next.items():
            row = self.kept.names[key]
            if s.waits == "shared":
                with each_round(e, self.kept.rows[key][1]):
                    e.line(f"{row}[c] = {name}[{part(s)}];")
            else:
                e.pragma("unroll")
                e.line(f"for (int c = 0; c < {s.chunks}; ++c) {row}[c] = {name}[c];")
            self.kept.loaded.add(key)
        for load, name in self.scalars:
            d = e.buffers[load.buffer].dtype
            e.line(f"const {memory_type(d)} {name}_now = {name};")
            e.staged[id(load)] = cast(from_memory(f"{name}_now", d), d, load.dtype)
