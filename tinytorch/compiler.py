"""``tinytorch.compiler``: what stands around ``compile``.  Mirrors ``torch.compiler``.

Stage: eager's side of the door.  Names are looked up in ``compiler.api`` when first asked for, so that importing
tinytorch imports no compiler.  Read next: ``compiler.api``.
"""

from __future__ import annotations

import importlib
from typing import Any

from tinytorch.tracing import is_compiling

#: where each name is found
_DOORS = {
    "compiler.api": (
        "allow_in_graph", "assume_constant_result", "compile", "disable", "error_on_graph_break", "explain",
        "graph_break", "list_backends", "list_mode_options", "list_options", "lookup_backend", "mark_dynamic",
        "mark_static", "maybe_mark_dynamic", "nested_compile_region", "register_backend", "reset", "set_stance",
    ),
    "compiler.aot.autograd": ("aot_autograd",),
    "compiler.config": ("config",),
    "compiler.timing": ("compile_times",),
    "compiler.logs": ("counters", "set_logs"),
}  # fmt: skip
_WHERE = {name: module for module, names in _DOORS.items() for name in names}

is_dynamo_compiling = is_compiling

__all__ = ["cudagraph_mark_step_begin", "is_compiling", "is_dynamo_compiling", *_WHERE]


def is_exporting() -> bool:
    """There is no export yet, so False.  Mirrors ``torch.compiler.is_exporting``."""
    return False


def cudagraph_mark_step_begin() -> None:
    """Nothing: results that somebody holds are not overwritten.  Mirrors ``torch.compiler.cudagraph_mark_step_begin``."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"tinytorch.compiler has no {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted(__all__)
