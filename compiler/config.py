"""The knobs, few and typed, each with an environment name.

Stage: all.  In: ``TT_*`` environment variables, ``options={...}`` of ``compile``, ``config.patch``.
Out: the instance ``config``.  Mirrors ``torch._dynamo.config`` and ``torch._inductor.config``.  Read next: ``errors``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast


def _knob(default: Any, env: str, about: str, *, choices: tuple[Any, ...] = ()) -> Any:
    return field(default=default, metadata={"env": env, "about": about, "choices": choices})


@dataclass
class Config:
    """All settings of the compiler.  Assigning checks type and choices; ``patch`` sets and restores."""

    # --- capture ---
    recompile_limit: int = _knob(8, "TT_RECOMPILE_LIMIT", "entries per code object, for each model, before it runs eager, loudly")
    accumulated_recompile_limit: int = _knob(256, "TT_ACCUMULATED_RECOMPILE_LIMIT", "entries per code object for all models")
    inline_depth: int = _knob(200, "TT_INLINE_DEPTH", "nested calls capture follows before it breaks the graph")
    unroll_limit: int = _knob(100_000, "TT_UNROLL_LIMIT", "instructions capture steps through for one graph")
    capture_scalar_outputs: bool = _knob(False, "TT_CAPTURE_SCALAR_OUTPUTS", ".item() becomes a symbolic value")
    dynamic: bool | None = _knob(None, "TT_DYNAMIC", "sizes: True symbolic, False fixed, None symbolic once they differ")
    suppress_errors: bool = _knob(False, "TT_SUPPRESS_ERRORS", "an internal error warns and runs eager")

    # --- aot and partition ---
    activation_memory_budget: float = _knob(
        1.0, "TT_ACTIVATION_MEMORY_BUDGET", "1 saves what the min cut saves, 0 recomputes all that may be"
    )
    gradients_ahead: bool = _knob(True, "TT_GRADIENTS_AHEAD", "a loss that only streams memory makes its gradients in the forward")

    # --- loop and codegens ---
    numerics: Literal["strict", "fast"] = _knob(
        "fast", "TT_NUMERICS", "strict: every rounding as eager has it", choices=("strict", "fast")
    )
    fusion: bool = _knob(True, "TT_FUSION", "fuse loops; off runs one kernel per op")
    max_fusion_size: int = _knob(64, "TT_MAX_FUSION_SIZE", "ops in one kernel")
    epilogue_fusion: bool = _knob(True, "TT_EPILOGUE_FUSION", "library products on a GPU add biases themselves")
    reuse_buffers: bool = _knob(True, "TT_REUSE_BUFFERS", "give dead buffers' memory to later ones")
    autotune: bool = _knob(False, "TT_AUTOTUNE", "time the proposed configs on the real shapes")
    coordinate_descent: bool = _knob(False, "TT_COORDINATE_DESCENT", "refine the winner one field at a time")
    deterministic: bool = _knob(False, "TT_DETERMINISTIC", "no choice by timing that can change bits")
    cudagraphs: bool = _knob(False, "TT_CUDAGRAPHS", "replay launches as a CUDA graph")
    graph_lanes: bool = _knob(True, "TT_GRAPH_LANES", "independent work of a CUDA graph side by side, where that pays")
    threads: int = _knob(0, "TT_NUM_THREADS", "threads that share a CPU kernel; 0 means one per core")
    kept_results: int = _knob(128, "TT_KEPT_RESULTS", "megabytes of large results that are gone, kept for the next; 0 none")
    compile_threads: int = _knob(0, "TT_COMPILE_THREADS", "kernels built at once; 0 means one per core")
    cpu_codegen: str = _knob("codegen_numba", "TT_CPU_CODEGEN", "package that builds CPU kernels")
    cuda_codegen: str = _knob("codegen_cupy", "TT_CUDA_CODEGEN", "package that builds CUDA kernels")
    cuda_emulate: bool = _knob(False, "TT_CUDA_EMULATE", "run CUDA kernels on the CPU emulator")

    # --- cache and debugging ---
    cache: bool = _knob(True, "TT_CACHE", "keep compiled artefacts on disk")
    cache_dir: str = _knob("", "TT_CACHE_DIR", "where; empty means a private folder of the user's cache")
    verify: int = _knob(0, "TT_VERIFY", "0 off, 1 check after every stage, 2 also the print round trip", choices=(0, 1, 2))
    disable: bool = _knob(False, "TT_COMPILE_DISABLE", "compile returns what it was given")
    debug: bool = _knob(False, "TT_COMPILE_DEBUG", "write numbered stage files")
    debug_dir: str = _knob("tt_compile_debug", "TT_COMPILE_DEBUG_DIR", "where debug files go")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            near = ", ".join(sorted(_FIELDS))
            raise AttributeError(f"there is no setting {name!r}; settings are {near}")
        object.__setattr__(self, name, _checked(name, value))

    @contextmanager
    def patch(self, changes: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Config]:
        """``with config.patch(numerics="strict"):`` sets for the block; restores also when it raises."""
        wanted = {**(changes or {}), **more}
        before = {name: getattr(self, name) for name in wanted}
        try:
            for name, value in wanted.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def replace(self, changes: Mapping[str, Any]) -> Config:
        """A copy with ``changes``; AttributeError names an unknown setting."""
        out = Config(**asdict(self))
        for name, value in changes.items():
            setattr(out, name, value)
        return out

    def key(self) -> dict[str, Any]:
        """The settings that can change what is generated: part of every cache key."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_IN_KEY}

    def describe(self) -> str:
        """A table of settings, values, environment names and meanings."""
        rows = [(f.name, repr(getattr(self, f.name)), f.metadata["env"], f.metadata["about"]) for f in fields(self)]
        wide = [max(len(r[c]) for r in rows) for c in range(3)]
        return "\n".join("  ".join([*(r[c].ljust(wide[c]) for c in range(3)), r[3]]).rstrip() for r in rows)


_FIELDS = {f.name: f for f in fields(Config)}
_NOT_IN_KEY = {
    "recompile_limit", "accumulated_recompile_limit", "suppress_errors", "kept_results", "compile_threads", "cache", "cache_dir", "verify",
    "disable", "debug", "debug_dir",
}  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "bool": (bool,), "str": (str,), "float": (float, int), "bool | None": (bool, type(None)),
}  # fmt: skip


def _checked(name: str, value: Any) -> Any:
    f = _FIELDS[name]
    types = _TYPES.get(str(f.type), (str,))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"config.{name} is a {f.type}, got {value!r}")
    choices = f.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"config.{name} is one of {choices}, got {value!r}")
    if types[0] is float:
        return float(cast(float, value))
    return value


def _parse(text: str, kind: str) -> Any:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "none": None, "": None}
    if kind.startswith("bool"):
        return words[text.strip().lower()]
    return {"int": int, "float": float}.get(kind, str)(text)


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The defaults, overridden by ``TT_*`` variables; ValueError names a variable that cannot be read."""
    out = Config()
    for f in fields(Config):
        text = environ.get(f.metadata["env"])
        if text:  # a variable set to nothing is as good as unset
            try:
                setattr(out, f.name, _parse(text, str(f.type)))
            except (KeyError, ValueError, TypeError) as e:
                raise ValueError(f"cannot read {f.metadata['env']}={text!r} as {f.type}") from e
    return out


config = from_environment()
