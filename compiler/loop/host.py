"""The stage as a whole: graph in, ``Plan`` out.

Stage: loop.  In: a functional ``GraphModule`` of op rows, the config.  Out: a ``Plan`` for a codegen's ``build``.
The pipeline is the body of ``compile_graph``.  Read next: ``lower``, ``fuse``, ``kernel``, ``memory``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from compiler.loop import memory, order, tidy
from compiler.loop.fuse import Fuser, Group, Task
from compiler.loop.ir import ArrayView, Kernel, Plan, Run
from compiler.loop.kernel import build
from compiler.loop.lower import Program, lower
from compiler.loop.memory import Launch
from compiler.loop.remat import recompute
from compiler.loop.rules import RULES
from compiler.loop.verify import verify

__all__ = ["RULES", "compile_graph"]


def compile_graph(gm: Any, config: Any) -> Plan:
    """Lower, fuse, order, write kernels, plan memory.  ``gm.meta["donated"]`` names inputs that may be overwritten."""
    program = lower(gm, config)
    tasks = order.ordered(grouped(program, config))
    launches = write_kernels(tasks, program)
    donated = frozenset(gm.meta.get("donated", ()))
    plan = deduplicated(memory.plan(program, launches, donated, config))
    if config.verify:
        verify(plan)
    return plan


def grouped(program: Program, config: Any) -> list[Task]:
    """Nests joined into groups, one kernel each."""
    fuser = Fuser(program, config)
    if config.fusion:
        fuser.run()
        recompute(fuser, frozenset(v.buffer for v in program.outputs if isinstance(v, ArrayView)))
    return list(fuser.tasks.values())


def write_kernels(tasks: list[Task], program: Program) -> list[Launch]:
    """Groups become kernels; buffers that live inside of one kernel only disappear."""
    users: dict[str, set[int]] = {}
    for n, t in enumerate(tasks):
        for b in t.reads | t.writes:
            users.setdefault(b, set()).add(n)
    final = {v.buffer for v in program.outputs if isinstance(v, ArrayView)}
    out: list[Launch] = []
    for t in tasks:
        if not isinstance(t, Group):
            out.append(Launch(None, (), t.step))
            continue
        needed = frozenset(b for b in t.writes if b in final or len(users[b]) > 1)
        built = build(t, program, needed)
        program.fills.update(built.fills)
        body = tidy.merged(built.body, program.ranges)
        kernel, args = tidy.canonical(body, program.buffers, title(t))
        origin = tuple(dict.fromkeys(n for nest in t.nests for n in nest.origin))
        lines = tuple(dict.fromkeys(x for nest in t.nests for x in nest.lines))
        out.append(Launch(replace(kernel, origin=origin, lines=lines), args, None))
    return out


def title(t: Group) -> str:
    """A name that tells what is fused: ``amax_sub_exp_sum`` and so on, cut to a readable length."""
    ops = dict.fromkeys(re.sub(r"_?\d+$", "", n) for nest in t.nests for n in nest.origin)
    words = [w for w in ops if w not in ("view", "expand", "permute", "cast", "full")] or list(ops) or ["copy"]
    return "_".join(words[:4])


def deduplicated(plan: Plan) -> Plan:
    """Equal kernels once, each with a name of its own."""
    kernels: list[Kernel] = []
    place: dict[Kernel, int] = {}
    new: list[int] = []
    for k in plan.kernels:
        bare = replace(k, name="", origin=(), lines=())
        if bare not in place:
            place[bare] = len(kernels)
            kernels.append(replace(k, name=f"{k.name}_{len(kernels)}"))
        new.append(place[bare])
    steps = tuple(replace(s, kernel=new[s.kernel]) if isinstance(s, Run) else s for s in plan.steps)
    return replace(plan, kernels=tuple(kernels), steps=steps)


def kernel_count(plan: Plan) -> int:
    """Launches, for tests and logs."""
    return sum(1 for _ in launches(plan))


def launches(plan: Plan) -> Iterable[Kernel]:
    """The kernels in the order they run."""
    return (plan.kernels[s.kernel] for s in plan.steps if isinstance(s, Run))
