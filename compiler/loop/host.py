"""The stage as a whole: graph in, ``Plan`` out.

Stage: loop.  In: a functional ``GraphModule`` of op rows, the config.  Out: a ``Plan`` for a codegen's ``build``.
The pipeline is the body of ``compile_graph``.  Read next: ``lower``, ``epilogue``, ``placing``, ``fuse``, ``kernel``, ``memory``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from compiler import logs
from compiler.loop import epilogue, inplace, memory, order, peak, placing, rules, tidy
from compiler.loop.fuse import Fuser, Group, Task
from compiler.loop.ir import ArrayView, Buffer, Check, Extern, Kernel, Load, Plan, Run, Stmt, Store, walk
from compiler.loop.kernel import build
from compiler.loop.lower import lower
from compiler.loop.memory import Launch
from compiler.loop.program import Program
from compiler.loop.remat import recompute
from compiler.loop.share import shared
from compiler.loop.sizes import hint
from compiler.loop.verify import span, verify
from compiler.passes import products
from compiler.passes.tidy import drop_unused
from compiler.sym.expr import as_int, lift
from tinytorch.ops.opdef import TABLE

__all__ = ["compile_graph", "rules"]  # importing ``rules`` fills the table that lowering reads


def compile_graph(gm: Any, config: Any) -> Plan:
    """Lower, fuse, order, write kernels, plan memory.

    ``gm.meta["donated"]`` names inputs that may be overwritten.  ``gm.meta["inplace"]`` maps positions of outputs to
    the inputs that the caller will copy them over: where it is safe, the plan writes there itself, and the output is
    the whole input.
    """
    program = lower(simplified(gm, config), config)
    epilogue.joined(program, config)
    if config.fusion:
        placing.placed(program)
    tasks = order.ordered(grouped(program, config))
    parts = write_kernels(tasks, program)
    if config.reuse_buffers:
        parts = fewest_bytes(parts, program, gm.meta)
    launches = launched(parts, program, gm.meta)
    donated = frozenset(gm.meta.get("donated", ()))
    plan = shared(memory.plan(program, launches, donated, config))
    if config.verify:
        verify(plan)
    return plan


def simplified(gm: Any, config: Any) -> Any:
    """The graph with what only this backend profits from done to it, in a copy."""
    if config.numerics != "fast":
        return gm
    copy = gm.copy()
    if not products.lay_end_to_end(copy.graph):
        return gm
    drop_unused(copy.graph)
    return copy


def grouped(program: Program, config: Any) -> list[Task]:
    """Nests joined into groups, one kernel each."""
    fuser = Fuser(program, config)
    if config.fusion:
        fuser.run()
        recompute(fuser, frozenset(v.buffer for v in program.outputs if isinstance(v, ArrayView)))
    return list(fuser.tasks.values())


@dataclass
class Part:
    """A task with its body written, before names are canonical."""

    task: Task
    body: tuple[Stmt, ...] = ()

    @property
    def uses(self) -> frozenset[str]:
        return frozenset(self.touches)

    @cached_property
    def touches(self) -> tuple[str, ...]:
        """The buffers it uses, in the order of its text."""
        if isinstance(self.task, Group):
            return tuple(dict.fromkeys(s.buffer for s in walk(self.body) if isinstance(s, Load | Store)))
        views = (*self.task.step.args, *self.task.step.outs)
        return tuple(dict.fromkeys(v.buffer for v in views if isinstance(v, ArrayView)))

    @property
    def writes(self) -> frozenset[str]:
        if isinstance(self.task, Group):
            return frozenset(s.buffer for s in walk(self.body) if isinstance(s, Store))
        return self.task.writes

    @property
    def raises(self) -> bool:
        """Whether it may raise for what it finds in memory."""
        if not isinstance(self.task, Group):
            row = TABLE.get(self.task.step.fn)
            return row is not None and row.checks
        return any(isinstance(s, Check) for s in walk(self.body))


def write_kernels(tasks: list[Task], program: Program) -> list[Part]:
    """Groups become loops; buffers that live inside of one kernel only disappear."""
    users: dict[str, set[int]] = {}
    for n, t in enumerate(tasks):
        for b in t.reads | t.writes:
            users.setdefault(b, set()).add(n)
    final = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
    out: list[Part] = []
    for t in tasks:
        if not isinstance(t, Group):
            out.append(Part(t))
            continue
        built = build(t, program, frozenset(b for b in t.writes if b in final or len(users[b]) > 1))
        program.fills.update(built.fills)
        out.append(Part(t, tidy.merged(built.body, program.ranges)))
    return out


def fewest_bytes(parts: list[Part], program: Program, meta: Mapping[str, Any]) -> list[Part]:
    """The same in the order that holds the fewest bytes at once."""
    inputs = frozenset(b.name for b in program.inputs)
    outputs = [v.buffer for v in program.outputs if isinstance(v, ArrayView)]
    used = {b: program.buffers[b] for part in parts for b in part.touches}
    owned = peak.Memory(
        {name: size_of(b) for name, b in used.items()}, inputs, frozenset(outputs) & (used.keys() | inputs),
        frozenset(meta.get("donated", ())) & inputs - frozenset(outputs),
        overwritten(program, meta.get("inplace", {}), outputs), {name: memory.kind(b) for name, b in used.items()},
    )  # fmt: skip
    works: list[peak.Work] = []
    begun = set(inputs)
    for part in parts:
        works.append(work_of(part, begun, owned, program))
        begun.update(part.touches)
    chosen = peak.lowest(works, owned)
    logs.log("memory", str(chosen))
    return [parts[n] for n in chosen.order]


def work_of(part: Part, begun: set[str], owned: peak.Memory, program: Program) -> peak.Work:
    """A launch, with the operands that its new results might overwrite; homes first."""
    may = inplace.Takeovers(part.body, program.buffers, program.ranges)
    free = [b for b in may.loads if b not in may.stores and b not in owned.kept]
    free = [b for b in free if b not in owned.given or b in owned.donated]
    over: dict[str, tuple[str, ...]] = {}
    for target in (t for t in may.stores if t not in begun):
        home = owned.homes.get(target)
        wanted = dict.fromkeys([home, *free] if home in may.loads else free)
        over[target] = tuple(b for b in wanted if owned.kinds[b] == owned.kinds[target])
    return peak.Work(part.touches, part.writes, over, may, part.raises)


def size_of(b: Buffer) -> int:
    """Bytes from its first element to its last; unknown sizes count as lowering weighs them."""
    low, high = span(b)
    return hint(as_int(lift(high) - low if b.shape else lift(1))) * b.dtype.itemsize


def launched(parts: list[Part], program: Program, meta: Mapping[str, Any]) -> list[Launch]:
    """Results take over dead operands' memory; then every kernel gets its canonical form."""
    inputs = frozenset(b.name for b in program.inputs)
    outputs = [v.buffer for v in program.outputs if isinstance(v, ArrayView)]
    fixed = frozenset(outputs) | (inputs - frozenset(meta.get("donated", ())))
    homes = overwritten(program, meta.get("inplace", {}), outputs)
    settled = max((n + 1 for n, part in enumerate(parts) if part.raises), default=0)
    names = inplace.Renaming([p.uses for p in parts], program.buffers, program.ranges, fixed, homes, settled)
    out: list[Launch] = []
    for n, part in enumerate(parts):
        if not isinstance(part.task, Group):
            out.append(Launch(None, (), renamed_call(part.task.step, names.of)))
            continue
        if not part.body:  # no element to compute
            continue
        body = tuple(tidy.with_buffers(s, names.of) for s in part.body)
        names.kernel(n, body, inputs)
        body = tuple(tidy.with_buffers(s, names.of) for s in body)
        kernel, args = tidy.canonical(body, program.buffers, title(part.task))
        origin = tuple(dict.fromkeys(x for nest in part.task.nests for x in nest.origin))
        lines = tuple(dict.fromkeys(x for nest in part.task.nests for x in nest.lines))
        out.append(Launch(replace(kernel, origin=origin, lines=lines), args, None))
    program.outputs = [
        replace(v, buffer=names.of(v.buffer)) if isinstance(v, ArrayView) else v for v in program.outputs
    ]
    return out


def overwritten(program: Program, places: Mapping[int, str], outputs: list[str]) -> dict[str, str]:
    """Result buffers, whole and handed out once, that the caller will copy over an input it gets back as nothing else."""
    homes: dict[str, str] = {}
    for position, name in places.items():
        v = program.outputs[position]
        if not isinstance(v, ArrayView) or outputs.count(v.buffer) != 1 or name in outputs:
            continue
        b = program.buffers[v.buffer]
        if v.shape == b.shape and v.stride == b.stride and name in program.buffers:
            homes[v.buffer] = name
    return homes


def renamed_call(step: Extern, name: Callable[[str], str]) -> Extern:
    """An extern call on renamed buffers."""

    def view(a: Any) -> Any:
        return replace(a, buffer=name(a.buffer)) if isinstance(a, ArrayView) else a

    return replace(step, args=tuple(map(view, step.args)), outs=tuple(map(view, step.outs)))


def title(t: Group) -> str:
    """A name that tells what is fused: ``amax_sub_exp_sum`` and so on, cut to a readable length."""
    ops = dict.fromkeys(re.sub(r"_?\d+$", "", n) for nest in t.nests for n in nest.origin)
    words = [w for w in ops if w not in ("view", "expand", "permute", "cast", "full")] or list(ops) or ["copy"]
    return "_".join(words[:4])


def kernel_count(plan: Plan) -> int:
    """Launches, for tests and logs."""
    return sum(1 for _ in launches(plan))


def launches(plan: Plan) -> Iterable[Kernel]:
    """The kernels in the order they run."""
    return (plan.kernels[s.kernel] for s in plan.steps if isinstance(s, Run))
