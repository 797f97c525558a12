"""A plan as one callable: kernels compiled, memory laid out, and a host function written for just this plan.

Stage: codegen_numba.  In: ``Plan``, ``Config``.  Out: ``Built``: ``built(arrays, sizes) -> arrays``; ``built.source``
is the host function, ``built.kernels`` the kernels' text.  Kernels between two library calls run in one foreign call.
What a call needs of its own (table, arena) is a ``Context``, taken from a list and put back, so calls may overlap.
Read next: ``layout``, ``runtime``, ``externs``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen_numba import blas, externs, kernels, layout, lend, matmul, narrow, pool, runtime, templates
from codegen_numba.analysis import known
from codegen_numba.built import Built, Context
from codegen_numba.compile import Source
from codegen_numba.emit import Argument, Emitter
from codegen_numba.layout import ERROR, FIRST, LINE, VALUE, WHO, Chunk, Table, text_of
from codegen_numba.matmul import Packed, Template
from codegen_numba.rebase import rebase
from codegen_numba.schedule import Phase, Tune, phases
from codegen_numba.sources import PREPARE, fill_source
from codegen_numba.tune import tuned
from compiler import logs
from compiler.config import Config
from compiler.loop.ir import Alloc, ArrayView, Buffer, Extern, Int, Kernel, Plan, Run, Scalar
from compiler.sym.expr import Expr, Symbol, as_int, lift

Array = npt.NDArray[Any]
DEFAULT = Tune()


@dataclass(frozen=True)
class Step:
    """One phase of one kernel, ready to launch: its source, what to pass, the range."""

    source: Source
    arguments: tuple[Argument, ...]
    messages: tuple[str, ...]
    phase: Phase
    tune: Tune


def build(plan: Plan, config: Config, tune: Tune | None = None) -> Built:
    """Compile ``plan``; the result is called with the input arrays and the values of ``plan.sizes``."""
    return Builder(plan, config, tune or DEFAULT).build()


@dataclass
class Builder:
    plan: Plan
    config: Config
    tune: Tune
    table: Table = field(default_factory=Table)
    records: list[list[Any]] = field(default_factory=list)  # of the program: entry, meanings..., alignment
    messages: list[tuple[str, ...]] = field(default_factory=list)  # by record
    names: list[str] = field(default_factory=list)  # by record
    texts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    privates: list[tuple[Any, Int]] = field(default_factory=list)  # (meaning, bytes) of private copies
    namespace: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Built:
        plan = self.plan
        self.threads = runtime.thread_count()
        self.memory = layout.memory_of(plan)
        self.buffers = {b.name: b for b in plan.inputs} | {
            s.buffer.name: s.buffer for s in plan.steps if isinstance(s, Alloc)
        }
        self.inputs = {b.name: n for n, b in enumerate(plan.inputs)}
        self.outputs: dict[int, str] = {}  # id of a kept chunk -> its variable
        self.views: list[tuple[ArrayView, str]] = []
        self.templates: dict[int, list[Template]] = {}  # steps that are library calls run as phases
        self._name_addresses()
        self.derived: list[tuple[Any, Any, int]] = []  # words that are others plus a number of bytes
        rebased = [rebase(k) for k in plan.kernels]
        self.moves = [moved for _, moved in rebased]
        self.steps = {n: self._phases(k) for n, (k, _) in enumerate(rebased)}
        self._walk_steps()
        return self._finish()

    # --- addresses ---
    def _name_addresses(self) -> None:
        """Words for inputs and outputs (as objects, made addresses by the first record), sizes, temporaries."""
        ask = "id({})" if runtime.DATA_WORD is not None else "{}.ctypes.data"
        used = {a for s in self.plan.steps if isinstance(s, Run) for a in s.args}
        families = narrow.templates(self.plan, self.buffers)
        for n, s in enumerate(self.plan.steps):
            found = families.get(n) or templates.of(s, self.buffers) if isinstance(s, Extern) else None
            if found is not None:
                self.templates[n] = found
                used |= {v.buffer for t in found for v in t.slots if isinstance(v, ArrayView)}
        for n, b in enumerate(self.plan.inputs):
            if any(self.memory.donated.get(u, u) == b.name for u in used):
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

    def address(self, name: str, moved: int = 0) -> Any:
        """The meaning of the word with a buffer's address, or of the place ``moved`` bytes on."""
        if moved:
            return self._moved(self.address(name), moved)
        root = self.memory.root(name)
        if isinstance(root, str):
            return ("array", root)
        if id(root) in self.memory.kept:
            return ("array", id(root))
        if isinstance(root.offset, int):
            return self.table.fix(("arena", root.offset), root.offset)
        return self.table.vary(("arena", root.offset), f"base + {root.offset}")

    def _moved(self, base: Any, by: int) -> Any:
        if base[0] == "arena" and isinstance(base[1], int):
            return self.table.fix(("arena", base[1] + by), base[1] + by)
        meaning = ("moved", base, by)
        if meaning not in self.table:
            self.table.fix(meaning, 0)
            self.derived.append((meaning, base, by))
        return meaning

    # --- kernels ---
    def _phases(self, kernel: Kernel) -> list[Step]:
        out = []
        tune = tuned(kernel, self.config, self.tune) if self.config.autotune else self.tune
        for n, phase in enumerate(phases(kernel, self.threads, tune)):
            emitter = Emitter(kernel, phase, self.config.numerics == "strict", tune)
            source, arguments, messages = emitter.source(f"{kernel.name}_{n}" if n else kernel.name)
            self._show(source)
            out.append(Step(source, arguments, messages, phase, tune))
        return out

    def _show(self, source: Source) -> None:
        self.texts[source.name] = source.text
        if logs.enabled("kernels"):
            logs.artifact("kernels", source.name, source.text)

    # --- steps ---
    def _walk_steps(self) -> None:
        self.pending = 0  # first record not yet launched
        self.in_blas = False
        self._prepare()
        for n, step in enumerate(self.plan.steps):
            match step:
                case Alloc(buffer, fill, _):
                    if fill is not None:
                        self._fill(buffer, fill)
                case Run(kernel, args, sizes):
                    self._run(kernel, args, dict(sizes))
                case Extern():
                    if n in self.templates:
                        self._run_templates(n, self.templates[n])
                    else:
                        self._launch()
                        self._extern(step)
        self._launch()

    def _record(
        self, source: Source, slots: list[Any], extent: Any, parts: Any, align: int, messages: Any = ()
    ) -> None:
        self.records.append([kernels.address(source), slots, extent, parts, align])
        self.messages.append(tuple(messages))
        self.names.append(source.name)

    def _prepare(self) -> None:
        """The first record: array objects become addresses, and moved addresses are computed."""
        objects = self.objects if runtime.DATA_WORD is not None else 0
        words = [self.table.fix("table", None), self.table.fix("moves", None)]
        self._record(PREPARE, words, self.table.number(objects), self.table.number(1), 1)

    def _fill(self, buffer: Buffer, value: Scalar) -> None:
        source = fill_source(buffer, value)
        self._show(source)
        extent = layout.span(buffer)
        self._record(
            source, [self.address(buffer.name)], self.table.number(extent), self._parts(extent, 1, self.tune), 64
        )

    def _run(self, index: int, args: tuple[str, ...], sizes: dict[str, int]) -> None:
        kernel = self.plan.kernels[index]
        bound = dict(zip((b.name for b in kernel.params), args, strict=True))
        alias = self._overlaps(kernel, bound)
        parts: Any = None
        for step in self.steps[index]:
            phase = step.phase if not sizes else replace(
                step.phase, extent=fixed(step.phase.extent, sizes), cost=fixed(step.phase.cost, sizes)
            )  # fmt: skip
            if phase.kind != "join":
                parts = self._phase_parts(phase, step.tune)
            slots = [self._slot(a, bound, phase, parts, index, sizes) for a in step.arguments]
            source = step.source if not alias else Source(**{**step.source.__dict__, "alias": True})
            own = self.table.number(1) if phase.kind == "join" else parts
            self._record(source, slots, self.table.number(phase.extent), own, phase.align, step.messages)

    def _phase_parts(self, phase: Phase, tune: Tune) -> Any:
        if phase.privates and phase.cost:
            return self.table.number(self.threads)
        return self._parts(phase.extent, phase.cost, tune)

    def _overlaps(self, kernel: Kernel, bound: dict[str, str]) -> bool:
        """May a buffer the kernel writes share memory with another?  Inputs might, with one another."""
        roots = [self.memory.root(a) for a in bound.values()]
        if len({id(r) if isinstance(r, Chunk) else r for r in roots}) < len(roots):
            return True
        written = [isinstance(self.memory.root(bound[w]), str) for w in kernel.writes]
        return any(written) and sum(isinstance(r, str) for r in roots) > 1

    def _slot(
        self, a: Argument, bound: dict[str, str], phase: Phase, parts: Any, index: int, sizes: dict[str, int]
    ) -> Any:
        if a.kind == "buffer":
            moved = self.moves[index].get(a.name, 0)
            return self.address(bound[a.name], moved * self.buffers[bound[a.name]].dtype.itemsize)
        if a.kind == "size":
            return self.table.number(sizes[a.name]) if a.name in sizes else ("number", a.name)
        if a.kind == "error":
            return self.table.fix("error", None)
        if a.kind == "parts":
            return parts
        if a.kind == "work":
            work = next(w for w in phase.work if w.name == a.name)
            return self._scratch(("work", index, a.name), work.numel * work.dtype.itemsize)
        private = next(p for p in phase.privates if p.name == a.name)
        if a.kind == "numel":
            return self.table.number(private.buffer.numel)
        size = private.buffer.numel * private.dtype.itemsize * self.threads
        return self._scratch(("private", index, a.name), size)

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

    def _parts(self, extent: Int, cost: Int, tune: Tune) -> Any:
        """Into how many parts a range is cut: one if it is cheap."""
        each = max(1, tune.parallel // 2)
        total, most = known(extent * cost), self.threads * tune.parts
        if self.threads == 1 or cost == 0:
            return self.table.number(1)
        if total is not None:
            return self.table.number(max(1, min(most, total // each, known(extent) or 1)))
        text = f"max(1, min({most}, ({text_of(extent * cost)}) // {each}, {text_of(extent)}))"
        return self.table.vary(("parts", text), text)

    # --- library calls that run as phases ---
    def _run_templates(self, step: int, found: list[Template]) -> None:
        """Between telling BLAS to leave the threads to us, and telling it that we are done."""
        if not self.in_blas:
            self._blas(blas.ENTER, "set_threads", "get_threads")
            self.in_blas = True
        first = self._template_parts(found[0])
        for t in found:
            self._show(t.source)
            slots = [self._template_slot(x, t, step, first) for x in t.slots]
            parts = first if t is found[0] else self._template_parts(t)
            self._record(t.source, slots, self.table.number(t.extent), parts, t.align)

    def _template_parts(self, t: Template) -> Any:
        work, extent = known(t.work), known(t.extent)
        shared = self.threads if work is None or work > matmul.SMALL else 1
        return self.table.number(shared if extent is None else max(1, min(shared, extent)))

    def _template_slot(self, x: Any, t: Template, step: int, parts: Any) -> Any:
        if isinstance(x, ArrayView):
            return self.address(x.buffer, (known(x.offset) or 0) * self.buffers[x.buffer].dtype.itemsize)
        if isinstance(x, Packed):
            return self._scratch(("work", "packed", x.view), x.bytes)
        if isinstance(x, tuple):
            return self.table.fix(x, x[1])
        if x == "scratch":
            return self._scratch(("work", step, "template"), lift(t.scratch) * self.threads)
        return parts if x == "parts" else self.table.number(x)

    def _blas(self, source: Source, *functions: str) -> None:
        library = blas.find()
        addresses = [self.table.fix(("blas", f), getattr(library, f)) for f in functions]
        state = self.table.fix(("blas", "state"), blas.STATE.ctypes.data)
        one = self.table.number(1)
        self._record(source, [state, *addresses], one, one, pool.ALWAYS if source is blas.LEAVE else 1)

    # --- the host function ---
    def _launch(self) -> None:
        """One foreign call for the records gathered since the last one."""
        if self.in_blas:
            self._blas(blas.LEAVE, "set_threads")
            self.in_blas = False
        if self.pending == len(self.records):
            return
        self.lines.append(f"launch(c.args, {{{self.pending}}}, {{{len(self.records)}}}, 0)")
        if any(self.messages[self.pending :]):
            self.lines += ["if c.words[0]:", "    fail(c)"]
        self.pending = len(self.records)

    def _extern(self, step: Extern) -> None:
        name = f"x{len(self.namespace)}"
        self.namespace[name] = externs.caller(step)
        args = [self._look(a) if isinstance(a, ArrayView) else repr(a) for a in step.args]
        outs = [self._look(o) for o in step.outs]
        self.lines.append(f"{name}({', '.join([*args, *outs])})")

    def _look(self, v: ArrayView) -> str:
        """A view as a Python expression: an array at hand, or one made from it."""
        root, dtype = self.memory.root(v.buffer), self.buffers[v.buffer].dtype
        if isinstance(root, str):
            return self._of_array(f"a{self.inputs[root]}", self.buffers[root], v)
        if id(root) in self.memory.kept:
            return self._of_array(self.outputs[id(root)], root.buffers[0], v)
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
            b = c.buffers[0]
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
        base = self.buffers[root] if isinstance(root, str) else root.buffers[0]
        name = f"a{self.inputs[root]}" if isinstance(root, str) else self.outputs[id(root)]
        return self._of_array(name, base, v)

    def _finish(self) -> Built:
        table, launches = self.table, self.lines
        self.records[0][1].append(table.number(len(self.derived)))
        places, program = [0], []
        for entry, slots, extent, parts, align in self.records:
            program += [entry, len(slots), table.word(extent), table.word(parts), align, *map(table.word, slots)]
            places.append(len(program))
        words = FIRST + len(table.variable) + len(table.fixed)
        room = max((len(r[1]) for r in self.records), default=0) + 1
        body = self._allocate_outputs()
        arena = self.arena
        if isinstance(arena, list):
            body += arena
        body.append("c = contexts.pop() if contexts else new()")
        wanted = arena or self.views  # views of temporaries without elements need a block to be views of
        needs = "top" if isinstance(arena, list) and arena else str(arena) if isinstance(arena, int) and wanted else ""
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
            [[table.word(m), table.word(base), by] for m, base, by in self.derived] or [[0, 0, 0]], np.int64
        )
        fixed = [(table.word(m), m, v) for m, v in table.fixed]
        moving = [(w, v) for w, m, v in fixed if isinstance(m, tuple) and m[0] in ("arena", "private", "work")]
        contexts: list[Context] = []
        makers = [compile(text, "<view>", "eval") for _, text in views]
        scope = {"ndarray": np.ndarray, **self.namespace}

        def new() -> Context:
            c = Context(program, words, room)
            for word, meaning, value in fixed:
                own = {"error": c.table.ctypes.data, "table": c.table.ctypes.data, "moves": moves.ctypes.data}
                c.table[word] = own.get(meaning, value)
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
def fixed(e: Int, sizes: dict[str, int]) -> Int:
    """``e`` with numbers for these sizes."""
    return as_int(e.subs({Symbol(s): n for s, n in sizes.items()})) if isinstance(e, Expr) else e


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
