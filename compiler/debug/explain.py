"""``explain``: run a function once under the compiler and tell what became of it.

Stage: debug.  In: a function and arguments.  Out: ``Explanation``: graphs, breaks with the user's lines, guards, ops, times,
and every stage's text.  Mirrors ``torch._dynamo.explain``.  Read next: ``dump``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler import logs, timing
from compiler.backend import Backend, lookup_backend
from compiler.ir.module import GraphModule


@dataclass(frozen=True)
class Artifact:
    """One stage's result as text: ``topic`` is the stage (graph, joint, partition, loops, kernels, guards ...)."""

    topic: str
    name: str
    text: str


@dataclass
class Explanation:
    """What compiling came to.  Prints as a summary; ``show()`` prints every stage."""

    graphs: list[GraphModule] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    break_reasons: list[str] = field(default_factory=list)
    out_guards: list[str] = field(default_factory=list)
    compile_times: dict[str, float] = field(default_factory=dict)
    result: Any = None

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def ops_per_graph(self) -> list[list[str]]:
        """Targets of the calls of each captured graph."""
        return [
            [_name(n.target) for n in gm.graph.nodes if n.op in ("call_function", "call_method")] for gm in self.graphs
        ]

    @property
    def op_count(self) -> int:
        return sum(map(len, self.ops_per_graph))

    def stage(self, topic: str) -> str:
        """The texts of one stage, one after another."""
        return "\n\n".join(f"# {a.name}\n{a.text.rstrip()}" for a in self.artifacts if a.topic == topic)

    def topics(self) -> list[str]:
        return list(dict.fromkeys(a.topic for a in self.artifacts))

    def show(self, *topics: str) -> None:
        """Print stages (all, if none is named) in the order in which they were made; ValueError for one that is none."""
        for unknown in sorted({*topics} - {*logs.TOPICS}):
            raise ValueError(f"there is no stage {unknown!r}; stages are {', '.join(logs.TOPICS)}")
        for a in self.artifacts:
            if not topics or a.topic in topics:
                print(f"\n===== {a.topic}: {a.name} =====\n{a.text.rstrip()}")

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
        ]
        if self.break_reasons:
            lines.append("Break Reasons:")
            lines += [f"  {i + 1}. " + r.replace("\n", "\n     ") for i, r in enumerate(self.break_reasons)]
        for i, ops in enumerate(self.ops_per_graph):
            lines.append(f"Ops of graph {i + 1}: {', '.join(ops) or 'none'}")
        lines.append(f"Guards: {len(self.out_guards)}")
        if self.compile_times:
            times = ", ".join(f"{name} {s:.3f} s" for name, s in self.compile_times.items())
            lines.append(f"Compile Times: {times}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self)}


def explain(fn: Callable[..., Any], *, backend: str | Backend = "inductor", **options: Any) -> Callable[..., Explanation]:
    """``explain(fn)(*args)`` compiles and calls ``fn`` afresh and returns an ``Explanation``; ``result`` is what ``fn`` gave."""

    def run(*args: Any, **kwargs: Any) -> Explanation:
        from compiler import api  # the doors import this file

        out = Explanation()
        chosen = lookup_backend(backend)

        def recording(gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            out.graphs.append(gm.copy())
            return chosen(gm, examples)

        before = timing.seconds()

        def listen(topic: str, name: str, text: str) -> None:
            out.artifacts.append(Artifact(topic, name, text))

        with logs.listening(listen):
            out.result = api.compile(fn, backend=recording, **options)(*args, **kwargs)
        out.break_reasons = [a.text for a in out.artifacts if a.topic == "graph_breaks"]
        out.out_guards = [g for a in out.artifacts if a.topic == "guards" for g in _guards_in(a.text)]
        spent = {name: s - before.get(name, 0.0) for name, s in timing.seconds().items()}
        out.compile_times = {name: s for name, s in spent.items() if s > 0}
        return out

    return run


def _guards_in(text: str) -> list[str]:
    """The checks of a printed guard function."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith("if not ")]


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "name", None) or getattr(target, "__name__", target))
