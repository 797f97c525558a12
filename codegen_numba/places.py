"""Where a plan's memory is, in words of the table: inputs, results, temporaries and scratch.

Stage: codegen_numba, the ground of ``build``.  In: a ``Plan``.  Out: meanings of words, which the host function or a context
gives values.  Read next: ``host_text``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from codegen_numba import layout, runtime
from codegen_numba.analysis import known
from codegen_numba.layout import LINE, Chunk, Table, text_of
from codegen_numba.schedule import Tune
from compiler.config import Config
from compiler.loop.ir import Alloc, Int, Plan


@dataclass
class Places:
    plan: Plan
    config: Config
    tune: Tune
    table: Table = field(default_factory=Table)
    privates: list[tuple[Any, Int]] = field(default_factory=list)  # (meaning, bytes) of private copies
    derived: list[tuple[Any, Any, Any]] = field(default_factory=list)  # words that are sums of two others
    outputs: dict[int, str] = field(default_factory=dict)  # id of a kept chunk -> its variable

    def __post_init__(self) -> None:
        plan = self.plan
        self.threads = runtime.thread_count()
        self.memory = layout.memory_of(plan)
        self.buffers = {b.name: b for b in plan.inputs} | {
            s.buffer.name: s.buffer for s in plan.steps if isinstance(s, Alloc)
        }
        self.inputs = {b.name: n for n, b in enumerate(plan.inputs)}

    def _name_addresses(self, used: set[str]) -> None:
        """Words for inputs that are ``used`` and for outputs (as objects, made addresses by the first record), sizes,
        temporaries."""
        ask = "id({})" if runtime.DATA_WORD is not None else "{}.ctypes.data"
        lent = {self.memory.donated.get(u, u) for u in used}
        for n, b in enumerate(self.plan.inputs):
            if b.name in lent:
                self.table.vary(("array", b.name), ask.format(f"a{n}"))
        temporaries: list[Chunk] = []
        for c in {id(c): c for c in self.memory.chunk.values()}.values():
            if id(c) in self.memory.kept:
                name = f"o{len(self.outputs)}"
                self.outputs[id(c)] = name
                self.table.vary(("array", id(c)), ask.format(name))
            else:
                temporaries.append(c)
        self.objects = len(self.table.variable)
        for name in self.plan.sizes:
            self.table.vary(("number", name), name)
        self.temporaries = temporaries
        self.arena = layout.place(temporaries)

    def address(self, name: str, moved: Int = 0) -> Any:
        """The meaning of the word with a buffer's address, or of the place ``moved`` bytes on."""
        if known(moved) != 0:
            return self._moved(self.address(name), moved)
        root = self.memory.root(name)
        if isinstance(root, str):
            return ("array", root)
        if id(root) in self.memory.kept:
            return ("array", id(root))
        if isinstance(root.offset, int):
            return self.table.fix(("arena", root.offset), root.offset)
        return self.table.vary(("arena", root.offset), f"base + {root.offset}")

    def _moved(self, base: Any, by: Int) -> Any:
        if base[0] == "arena" and isinstance(base[1], int) and isinstance(by, int):
            return self.table.fix(("arena", base[1] + by), base[1] + by)
        meaning = ("moved", base, by)
        if meaning not in self.table:
            self.table.fix(meaning, 0)
            self.derived.append((meaning, base, self.table.number(by)))
        return meaning

    def _scratch(self, meaning: Any, size: Int) -> Any:
        """Private copies and work words live in the arena too; each has a place of its own."""
        if meaning in self.table:
            return meaning
        value = known(size)
        if isinstance(self.arena, int) and value is not None:
            at, self.arena = self.arena, self.arena + -(-value // LINE) * LINE
            return self.table.fix(meaning, at)
        if isinstance(self.arena, int):
            self.arena = [f"top = {self.arena}"]
        name = f"p{len(self.privates)}"
        self.privates.append((meaning, size))
        self.arena = [
            *(self.arena or ["top = 0"]),
            f"{name} = top",
            f"top += -(-({text_of(size)}) // {LINE}) * {LINE}",
        ]
        return self.table.vary(meaning, f"base + {name}")
