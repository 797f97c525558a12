"""Who is guilty?  Run a program through one more stage at a time until it differs from eager.

Stage: debug.  In: a function that compiles wrong, and arguments.  Out: ``Verdict``: the first stage that differs, what
differs, and within the stage the pass or setting that makes it go away.  Mirrors PyTorch's compiler bisector.
Read next: ``minify``, which makes the program small.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from compiler import api
from compiler.config import config
from compiler.debug.compare import difference, observe
from compiler.passes import tidy
from tinytorch.nn.module import Module

#: backend -> the stage it adds
STAGES: dict[str, str] = {
    "eager": "capture",
    "aot_eager": "aot: joint graph and functionalisation",
    "aot_eager_decomp_partition": "partition",
    "loops": "loop: lowering and fusion",
    "inductor": "codegen",
}

#: stage -> settings to try there, most telling first
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "partition": ({"activation_memory_budget": 0.0},),
    "loops": ({"fusion": False}, {"reuse_buffers": False}, {"numerics": "strict"}),
    "inductor": ({"cache": False}, {"threads": 1}, {"numerics": "strict"}, {"fusion": False}, {"reuse_buffers": False}),
}


@dataclass
class Verdict:
    """``guilty``: the backend of ``STAGES`` at which results first differ, or "" if none does."""

    guilty: str = ""
    difference: str = ""
    cured_by: str = ""  # what, switched off, makes the difference go away
    tried: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = list(self.tried)
        if not self.guilty:
            return "\n".join([*lines, "no stage differs from eager"])
        lines.append(f"guilty: {STAGES[self.guilty]}; {self.difference}")
        if self.cured_by:
            lines.append(f"goes away with {self.cured_by}")
        return "\n".join(lines)


def bisect(
    fn: Callable[..., Any], *, tolerance: float = 1e-3, last: str = "inductor", **options: Any
) -> Callable[..., Verdict]:
    """``bisect(fn)(*args)`` compares ``fn`` compiled by each backend, up to ``last``, with eager."""

    def run(*args: Any, **kwargs: Any) -> Verdict:
        module = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
        want = observe(fn, args, kwargs, module)
        verdict = Verdict()

        def differs(backend: str, context: AbstractContextManager[Any]) -> str:
            with context:
                api.reset()
                try:
                    return difference(want, observe(api.compile(fn, backend=backend, **options), args, kwargs, module), tolerance)
                finally:
                    api.reset()

        for backend, stage in STAGES.items():
            found = differs(backend, nullcontext())
            verdict.tried.append(f"{backend:28} {stage:40} {found or 'equal'}")
            if found:
                verdict.guilty, verdict.difference = backend, found
                verdict.cured_by = _cure(backend, differs)
                break
            if backend == last:
                break
        return verdict

    return run


def _cure(backend: str, differs: Callable[[str, AbstractContextManager[Any]], str]) -> str:
    if backend != "eager":
        for one in tidy.PASSES:
            if not differs(backend, _without(one)):
                return f"pass {one.__name__} switched off"
    for setting in SETTINGS.get(backend, ()):
        if not differs(backend, config.patch(setting)):
            return ", ".join(f"config.{k} = {v!r}" for k, v in setting.items())
    return ""


@contextmanager
def _without(one: Any) -> Any:
    """``tidy`` without one of its passes."""
    before = tidy.PASSES
    tidy.PASSES = tuple(p for p in before if p is not one)
    try:
        yield
    finally:
        tidy.PASSES = before
