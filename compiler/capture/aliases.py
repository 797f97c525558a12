"""Aliases: what a whole trace relies on: which objects are one, and which memory is shared.

Stage: capture.  In: a finished trace.  Out: its last guards.  Each looks at all inputs together, so they come at the end.
Read next: ``memory``, what the guard of memory does; ``guards``.
"""

from __future__ import annotations

from types import CellType
from typing import TYPE_CHECKING

from compiler.capture.memory import Layout
from compiler.capture.values.base import Value
from compiler.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


def guard_aliases(tx: Tracer) -> None:
    guard_keys(tx)
    guard_changed(tx)
    guard_memory(tx)


def guard_keys(tx: Tracer) -> None:
    """Objects that were told apart as keys are apart."""
    sources = [v.source for v in tx.distinct.values() if v.source is not None]
    sources = [s for s in sources if s.text not in tx.namespace.objects]
    if len(sources) > 1:
        ids = ", ".join(f"id({{{i}}})" for i in range(len(sources)))
        tx.guards.add("ALIAS", f"len({{{{{ids}}}}}) == {len(sources)}", *sources)


def guard_changed(tx: Tracer) -> None:
    """A change of one object relies on the others of its type being others."""
    changed = {type(_identity(v).real()) for v in tx.effects.touched.values() if not isinstance(v, TensorValue)}
    for kind in changed - {CellType}:
        found = {v.source.text: v.source for v in tx.by_id.values() if type(v.real()) is kind and v.source is not None}
        sources = [s for text, s in found.items() if text not in tx.namespace.objects]
        if len(sources) > 1:
            ids = ", ".join(f"id({{{i}}})" for i in range(len(sources)))
            tx.guards.add("ALIAS", f"len({{{{{ids}}}}}) == {len(sources)}", *sources)


def guard_memory(tx: Tracer) -> None:
    """A graph that writes to an input relies on which inputs share that memory, and on how they lie there."""
    inputs = [v for v in tx.inputs if isinstance(v, TensorValue) and v.source is not None and v.obj is not None]
    written = [i for i, v in enumerate(inputs) if v.fake._data.storage in tx.written]
    if written and len(inputs) > 1:
        layout = tx.namespace.source(Layout([v.obj._data for v in inputs if v.obj is not None], written), "layout")
        parts = [v.source.attr("_data") for v in inputs if v.source is not None]
        form = f"{{0}}({', '.join(f'{{{i + 1}}}' for i in range(len(parts)))})"
        tx.guards.add("MEMORY", form, layout, *parts)


def _identity(v: Value) -> Value:
    """The object that a change of ``v`` changes: the owner of an instance dict."""
    owner = getattr(v, "owner", None)
    return owner if isinstance(owner, Value) else v
