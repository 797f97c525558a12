"""A plan as one callable: kernels compiled, memory laid out, and a host function written for just this plan.

Stage: codegen_numba.  In: ``Plan``, ``Config``.  Out: ``Built``: ``built(arrays, sizes) -> arrays``; ``built.source``
is the host function, ``built.kernels`` the kernels' text.  Kernels between two library calls run in one foreign call.
What a call needs of its own (table, arena) is a ``Context``, taken from a list and put back, so calls may overlap.
Read next: ``layout``, ``places``, ``host_text``, ``runtime``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from codegen_numba import blas, kernels, layout, matmul, narrow, pool, runtime, templates, together
from codegen_numba.analysis import known
from codegen_numba.built import Built
from codegen_numba.compile import Source
from codegen_numba.emit import Argument, Emitter
from codegen_numba.host_text import HostText
from codegen_numba.layout import Chunk, text_of
from codegen_numba.matmul import Packed, Template
from codegen_numba.rebase import rebase
from codegen_numba.schedule import Phase, Tune, phases
from codegen_numba.sources import PREPARE, fill_source
from codegen_numba.together import Pair
from codegen_numba.tune import tuned, tuned_call
from compiler import logs
from compiler.config import Config
from compiler.loop.ir import Alloc, ArrayView, Buffer, Extern, Int, Kernel, Plan, Run, Scalar
from compiler.sym.expr import Expr, Symbol, as_int, lift

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


class Builder(HostText):
    """Walks the steps of a plan and records what to launch for each."""

    def build(self) -> Built:
        self.calls: dict[int, Tune] = {}  # choices for library calls, by their place
        self.templates = self._templates()
        own = (t for found in self.templates.values() for t in found)
        used = {v.buffer for t in own for v in t.slots if isinstance(v, ArrayView)}
        rebased = [rebase(k) for k in self.plan.kernels]
        self.moves = [moved for _, moved in rebased]
        self.steps = {n: self._phases(k) for n, (k, _) in enumerate(rebased)}
        self.pairs = self._pairs([k for k, _ in rebased])
        self._name_addresses(used | {a for s in self.plan.steps if isinstance(s, Run) for a in s.args})
        self._walk_steps()
        return self._finish()

    def _templates(self) -> dict[int, list[Template]]:
        """Steps that are library calls run as phases."""
        found: dict[int, list[Template]] = {}
        families, strict = narrow.templates(self.plan, self.buffers), self.config.numerics == "strict"
        for n, s in enumerate(self.plan.steps):
            if not isinstance(s, Extern):
                continue
            if n not in families and self.config.autotune and not strict:
                behind = together.behind(self.plan, n)
                places = (n,) if behind is None else (n, behind)
                self.calls[n] = tuned_call(self.plan, places, self.buffers, self.config, self.tune)
            way = self.calls.get(n, self.tune).way or ("library" if strict else "")  # whose sums are eager's
            made = families.get(n) or templates.of(s, self.buffers, way)
            if made is not None:
                found[n] = made
        return found

    def _pairs(self, rebased: list[Kernel]) -> dict[int, tuple[int, Pair]]:
        """Kernels that run in turn with the library call before them: the call's place and how, by their own."""
        found: dict[int, tuple[int, Pair]] = {}
        phases = {n: [s.phase for s in steps] for n, steps in self.steps.items()}
        for n, pair in together.pairs(self.plan, self.buffers, self.memory, self.templates, rebased, phases):
            block = together.block(pair, self.templates[n][-1], self.threads, self.calls.get(n, self.tune).together)
            step, call = self.plan.steps[pair.run], self.plan.steps[n]
            assert isinstance(step, Run) and isinstance(call, Extern)
            if block and not any(self.moves[step.kernel].values()):
                together.keep_alive(call, pair.run, self.memory)
                found[pair.run] = n, replace(pair, block=block)
        return found

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
                    self._run(kernel, args, dict(sizes), self.pairs.get(n))
                case Extern():
                    if any(n == call for call, _ in self.pairs.values()):
                        continue  # with the kernel behind it
                    if n in self.templates:
                        self._run_templates(n, self.templates[n])
                    else:
                        self._launch()
                        self._extern(step)
        self._launch()

    def _record(
        self, source: Source, slots: list[Any], extent: Any, parts: Any, align: int, messages: Any = ()
    ) -> None:
        self.records.append([kernels.begin(source), slots, extent, parts, align])
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

    def _run(
        self, index: int, args: tuple[str, ...], sizes: dict[str, int], pair: tuple[int, Pair] | None = None
    ) -> None:
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
            if pair is not None and step is self.steps[index][0]:
                self._run_together(*pair, source, slots)
            else:
                self._record(source, slots, self.table.number(phase.extent), own, phase.align, step.messages)

    def _run_together(self, call: int, pair: Pair, source: Source, others: list[Any]) -> None:
        """A library call's template, and what follows it, in one record: their words lie behind its own."""
        *before, t = self.templates[call]
        self._run_templates(call, before)
        self._show(t.source)
        words = [self._template_slot(x, t, call, None) for x in t.slots]
        own = len(together.TOGETHER.params)
        slots = [
            self._entry(t.source), self._own_word(own), self._entry(source), self._own_word(own + len(words)),
            *map(self.table.number, (pair.block, pair.steps, pair.per)), *words, *others,
        ]  # fmt: skip
        extent, parts = self.table.number(pair.pieces), self._template_parts(t)
        self._record(together.TOGETHER, slots, extent, parts, max(1, t.align // pair.steps))
        self.names[-1] = f"{t.source.name}, {source.name}"

    def _entry(self, source: Source) -> Any:
        return self.table.fix(("entry", source), kernels.begin(source))

    def _own_word(self, n: int) -> Any:
        """The address of a record's own word ``n`` while it runs."""
        return self.table.fix(("room", n), n)

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

    def _parts(self, extent: Int, cost: Int, tune: Tune) -> Any:
        """Into how many parts a range is cut: one if it is cheap."""
        each = max(1, tune.parallel // 2)
        total, most = known(extent * cost), self.threads * tune.parts
        if self.threads == 1 or cost == 0:
            return self.table.number(1)
        if total is not None:
            parts = max(1, min(most, total // each, known(extent) or 1))
            return self.table.number(parts - parts % self.threads if parts > self.threads else parts)
        text = f"max(1, min({most}, ({text_of(extent * cost)}) // {each}, {text_of(extent)}))"
        return self.table.vary(("parts", text), text)

    # --- library calls that run as phases ---
    def _run_templates(self, step: int, found: list[Template]) -> None:
        """Between telling BLAS to leave the threads to us, and telling it that we are done."""
        self._enter_blas()
        first = self._template_parts(found[0]) if found else None
        for t in found:
            self._show(t.source)
            slots = [self._template_slot(x, t, step, first) for x in t.slots]
            parts = first if t is found[0] else self._template_parts(t)
            self._record(t.source, slots, self.table.number(t.extent), parts, t.align)

    def _enter_blas(self) -> None:
        if not self.in_blas and blas.find() is not None:
            self._blas(blas.ENTER, "set_threads", "get_threads")
            self.in_blas = True

    def _template_parts(self, t: Template) -> Any:
        work, extent = known(t.work), known(t.extent)
        shared = self.threads if work is None or work > matmul.SMALL else 1
        if extent is None and shared > 1:
            text = f"max(1, min({shared}, {text_of(t.extent)}))"
            return self.table.vary(("parts", text), text)
        return self.table.number(shared if extent is None else max(1, min(shared, extent)))

    def _template_slot(self, x: Any, t: Template, step: int, parts: Any) -> Any:
        if isinstance(x, ArrayView):
            return self.address(x.buffer, x.offset * self.buffers[x.buffer].dtype.itemsize)
        if isinstance(x, Packed):
            return self._scratch(("work", "packed", x.view), x.bytes)
        if isinstance(x, tuple):
            return self.table.fix(x, x[1])
        if x == "scratch":
            return self._scratch(("work", step, "template"), lift(t.scratch) * self.threads)
        if x == "shared":
            most = max(t.shared for found in self.templates.values() for t in found)
            return self._scratch(("work", "shared"), most)
        return parts if x == "parts" else self.table.number(x)

    def _blas(self, source: Source, *functions: str) -> None:
        library = blas.find()
        addresses = [self.table.fix(("blas", f), getattr(library, f)) for f in functions]
        state = self.table.fix(("blas", "state"), blas.STATE.ctypes.data)
        one = self.table.number(1)
        self._record(source, [state, *addresses], one, one, pool.ALWAYS)  # both or neither, also behind an error

    # --- into the host function ---
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

# --- small helpers ------------------------------------------------------------------------------------------------------
def fixed(e: Int, sizes: dict[str, int]) -> Int:
    """``e`` with numbers for these sizes."""
    return as_int(e.subs({Symbol(s): n for s, n in sizes.items()})) if isinstance(e, Expr) else e
