"""The host function's text: one call from arrays to arrays, and what it names.

Stage: codegen_numba, a part of ``build``.  In: the records of a program, lines for what runs between launches.  Out: ``Built``.
Read next: ``built``, ``build``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen_numba import externs, layout, lend, runtime
from codegen_numba.analysis import known
from codegen_numba.built import Built, Context
from codegen_numba.layout import ERROR, FIRST, VALUE, WHO, text_of
from codegen_numba.places import Places
from compiler import logs
from compiler.loop.ir import ArrayView, Buffer, Extern, Int
from compiler.sym.expr import Expr

Array = npt.NDArray[Any]


@dataclass
class HostText(Places):
    records: list[list[Any]] = field(default_factory=list)  # of the program: entry, meanings..., alignment
    messages: list[tuple[str, ...]] = field(default_factory=list)  # by record
    names: list[str] = field(default_factory=list)  # by record
    texts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    views: list[tuple[ArrayView, str]] = field(default_factory=list)
    looked: bool = False  # a library call looks at a temporary, which without elements needs a block to lie in too

    # --- arrays for library calls, and results ---
    def _extern(self, step: Extern) -> None:
        name = f"x{len(self.namespace)}"
        self.namespace[name] = externs.caller(step)
        args = [self._look(a) if isinstance(a, ArrayView) else repr(a) for a in step.args]
        outs = [self._look(o) for o in step.outs]
        sizes = ", ".join(f"{s!r}: {s}" for s in externs.sizes_of(step))
        self.lines.append(f"{name}({', '.join([*([f'{{{sizes}}}'] if sizes else []), *args, *outs])})")

    def _look(self, v: ArrayView) -> str:
        """A view as a Python expression: an array at hand, or one made from it."""
        root, dtype = self.memory.root(v.buffer), self.buffers[v.buffer].dtype
        if isinstance(root, str):
            return self._of_array(f"a{self.inputs[root]}", self.buffers[root], v)
        if id(root) in self.memory.kept:
            return self._of_array(self.outputs[id(root)], root.buffer, v)
        self.looked = True
        shape, strides = _tuple(v.shape), _tuple([s * dtype.itemsize for s in v.stride])
        kind = self._constant(dtype.np)
        at = f"{root.offset} + {text_of(v.offset * dtype.itemsize)}"
        made = f"ndarray({shape}, {kind}, c.block.array, {at} + c.block.skip, {strides})"
        if self.plan.sizes:
            return made
        self.views.append((v, made))
        return f"c.views[{len(self.views) - 1}]"

    def _of_array(self, name: str, base: Buffer, v: ArrayView) -> str:
        if (v.shape, v.stride, v.offset) == (base.shape, base.stride, 0) and base.dtype is self.buffers[
            v.buffer
        ].dtype:
            return name
        order = _permutation(base, v)
        if order is not None and base.dtype is self.buffers[v.buffer].dtype:
            return f"{name}.T" if order == (1, 0) else f"{name}.transpose({order})"
        strides = _tuple([s * self.buffers[v.buffer].dtype.itemsize for s in v.stride])
        kind = self._constant(self.buffers[v.buffer].dtype.np)
        return f"look({name}, {_tuple(v.shape)}, {strides}, {text_of(v.offset)}, {kind})"

    def _constant(self, value: Any) -> str:
        for name, have in self.namespace.items():
            if have is value:
                return name
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _allocate_outputs(self) -> list[str]:
        lines = []
        for c in {id(c): c for c in self.memory.chunk.values() if id(c) in self.memory.kept}.values():
            b = c.buffer
            name, kind = self.outputs[id(c)], self._constant(b.dtype.np)
            size = known(layout.bytes_of(b))
            empty = "empty" if size is not None and size < lend.LEAST else "lent"
            if layout.span(b) == b.numel and _is_contiguous(b):
                lines.append(f"{name} = {empty}({_tuple(b.shape)}, {kind})")
            else:
                strides = _tuple([s * b.dtype.itemsize for s in b.stride])
                flat = f"{empty}(({text_of(layout.span(b))},), {kind})"
                lines.append(f"{name} = ndarray({_tuple(b.shape)}, {kind}, {flat}, 0, {strides})")
        return lines

    def _results(self) -> str:
        out = []
        for v in self.plan.outputs:
            if isinstance(v, ArrayView):
                out.append(self._result(v))
            else:
                out.append(text_of(v) if isinstance(v, Expr) else repr(v))
        return f"[{', '.join(out)}]"

    def _result(self, v: ArrayView) -> str:
        root = self.memory.root(v.buffer)
        base = self.buffers[root] if isinstance(root, str) else root.buffer
        name = f"a{self.inputs[root]}" if isinstance(root, str) else self.outputs[id(root)]
        return self._of_array(name, base, v)

    def _finish(self) -> Built:
        table, launches = self.table, self.lines
        self.records[0][1].append(table.number(len(self.derived)))
        places, program = [0], []
        for entry, slots, extent, parts, align in self.records:
            program += [entry(), len(slots), table.word(extent), table.word(parts), align, *map(table.word, slots)]
            places.append(len(program))
        words = FIRST + len(table.variable) + len(table.fixed)
        room = max((len(r[1]) for r in self.records), default=0) + 1
        body = self._allocate_outputs()
        arena = self.arena
        if isinstance(arena, list):
            body += arena
        body.append("c = contexts.pop() if contexts else new()")
        needs = "top" if isinstance(arena, list) and arena else str(arena) if isinstance(arena, int) and (arena or self.looked) else ""
        if needs:
            body.append(f"base = take(c, {needs})")
        if table.variable:
            values = ", ".join(t for _, t in table.variable)
            body.append(f"pack(c.table, {8 * FIRST}, {values})")
        body += [line.format(*places) if line.startswith("launch(") else line for line in launches]
        if needs:
            body.append("give(c)")
        body += ["contexts.append(c)", f"return {self._results()}"]
        names = ", ".join(f"a{n}" for n in range(len(self.plan.inputs)))
        head = [f"{names}{',' if len(self.plan.inputs) == 1 else ''} = arrays"] if names else []
        head += (
            [f"{', '.join(self.plan.sizes)}{',' if len(self.plan.sizes) == 1 else ''} = sizes"]
            if self.plan.sizes
            else []
        )
        source = "\n".join(["def call(arrays, sizes):", *("    " + line for line in head + body), ""])
        self._bind(np.array(program, np.int64), words, room, places)
        logs.artifact("kernels", "host", source)
        records = [(n, a, b) for n, a, b in zip(self.names, places, places[1:], strict=False)]
        return Built(source, self.texts, self.namespace, records)

    def _bind(self, program: Array, words: int, room: int, places: list[int]) -> None:
        """Everything the host function names."""
        table, views, messages = self.table, self.views, self.messages
        moves = np.array(
            [[table.word(m), table.word(base), table.word(by)] for m, base, by in self.derived] or [[0, 0, 0]], np.int64
        )
        fixed = [(table.word(m), m, v() if callable(v) else v) for m, v in table.fixed]
        rooms = [(w, 8 * v) for w, m, v in fixed if isinstance(m, tuple) and m[0] == "room"]
        moving = [(w, v) for w, m, v in fixed if isinstance(m, tuple) and m[0] in ("arena", "private", "work")]
        contexts: list[Context] = []
        makers = [compile(text, "<view>", "eval") for _, text in views]
        scope = {"ndarray": np.ndarray, **self.namespace}

        def new() -> Context:
            c = Context(program, words, room)
            for word, meaning, value in fixed:
                own = {"error": c.table.ctypes.data, "table": c.table.ctypes.data, "moves": moves.ctypes.data}
                c.table[word] = own.get(meaning, value)
            for word, offset in rooms:
                c.table[word] = c.room.ctypes.data + offset
            return c

        def take(c: Context, size: int) -> int:
            block = runtime.take_arena(size)
            if block is not c.block:
                c.block = block
                for word, offset in moving:
                    c.table[word] = block.base + offset
                c.views = [eval(m, scope, {"c": c}) for m in makers]
            return block.base

        def give(c: Context) -> None:
            runtime.give_arena(c.block)  # type: ignore[arg-type]

        def fail(c: Context) -> None:
            at = places.index(int(c.table[WHO]))
            code, c.table[ERROR] = int(c.table[ERROR]), 0
            raise IndexError(messages[at][code - 1].format(int(c.table[VALUE])))

        if any(p > 1 for p in self._most_parts()):
            runtime.ensure_pool()
        self.namespace.update(
            contexts=contexts, new=new, take=take, give=give, fail=fail, launch=runtime.execute(),
            pack=struct.Struct(f"={len(table.variable)}q").pack_into, empty=np.empty, lent=lend.empty,
            ndarray=np.ndarray, look=externs.look,
        )  # fmt: skip

    def _most_parts(self) -> list[int]:
        return [r[3][1] if r[3][0] == "number" and isinstance(r[3][1], int) else 2 for r in self.records]


# --- small helpers ------------------------------------------------------------------------------------------------------
def _tuple(values: Any) -> str:
    inside = ", ".join(map(text_of, values))
    return f"({inside},)" if len(tuple(values)) == 1 else f"({inside})"


def _is_contiguous(b: Buffer) -> bool:
    want: Int = 1
    for n, s in zip(reversed(b.shape), reversed(b.stride), strict=True):
        if s != want and known(n) != 1:
            return False
        want = want * n
    return True


def _permutation(base: Buffer, v: ArrayView) -> tuple[int, ...] | None:
    """The order of ``base``'s dimensions that gives the view, if it is only that."""
    if v.offset != 0 or len(v.shape) != len(base.shape):
        return None
    have = list(zip(base.shape, base.stride, strict=True))
    order: list[int] = []
    for item in zip(v.shape, v.stride, strict=True):
        found = next((n for n, x in enumerate(have) if x == item and n not in order), None)
        if found is None:
            return None
        order.append(found)
    return tuple(order)
