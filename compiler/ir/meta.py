"""What a node carries besides its call: the value's type, and where in the user's program it comes from.

Stage: ir.  In: ``node.meta``.  Out: texts and byte counts for printing, partitioning and explaining.
Read next: ``printer``.

Keys, all optional:

    val        a fake tensor, a tuple of them, or a ``SymInt``: shape, strides, dtype, device of the value
    stack      the user's frames, innermost last: (file, line, function, source text)
    pids       ids of the user-level operations it stands for (``compiler.debug`` follows them through the stages)
    impure     True if the node must stay though unused
    recompute  "must" or "never": overrides the row's class in the partitioner
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from compiler.ir.graph import Graph, Node
from compiler.sym.expr import Symbol, expr_of

Frame: TypeAlias = "tuple[str, int, str, str]"


def is_tensor(val: Any) -> bool:
    return hasattr(val, "_data") and hasattr(val, "device")


def describe(val: Any) -> str:
    """``float32[4, s0]``, ``SymInt(s0)``, ``(float32[], int64[3])``; empty if nothing is known."""
    if val is None:
        return ""
    if is_tensor(val):
        where = "" if val.device.type == "cpu" else f" {val.device}"
        return f"{val.dtype.name}[{', '.join(map(str, val._data.shape))}]{where}"
    if isinstance(val, tuple | list):
        return f"({', '.join(describe(v) or 'None' for v in val)})"
    e = expr_of(val)
    return f"SymInt({e})" if e is not None else type(val).__name__


def frame(node: Node) -> Frame | None:
    """The innermost user frame."""
    stack = node.meta.get("stack")
    return tuple(stack[-1]) if stack else None


def frame_comment(where: Frame) -> str:
    filename, line, function, text = where
    shown = " ".join(text.split())
    return f"# {os.path.basename(filename)}:{line} in {function}: {shown}" if shown else f"# {filename}:{line} in {function}"


def merge_stacks(nodes: Iterable[Node]) -> list[Frame]:
    """The stack of a node that replaces ``nodes``: that of the first which has one."""
    return next((list(n.meta["stack"]) for n in nodes if n.meta.get("stack")), [])


# --- sizes ------------------------------------------------------------------------------------------------------------
def symbols_in(arg: Any) -> Iterator[Symbol]:
    """The size symbols in an argument or a fake value, with repetitions."""
    e = expr_of(arg)
    if e is not None:
        yield from sorted(e.free_symbols, key=str)
    elif isinstance(arg, dict):
        for v in arg.values():
            yield from symbols_in(v)
    elif isinstance(arg, tuple | list):
        for a in arg:
            yield from symbols_in(a)
    elif isinstance(arg, slice):
        yield from symbols_in((arg.start, arg.stop, arg.step))
    elif is_tensor(arg):
        yield from symbols_in(tuple(arg._data.shape))
        yield from symbols_in(tuple(arg._data.strides))


def size_sources(graph: Graph) -> dict[str, tuple[Node, int | None]]:
    """Where a call reads each symbol: (integer placeholder, None), or (tensor placeholder, dimension)."""
    found: dict[str, tuple[Node, int | None]] = {}
    for p in graph.placeholders:
        e = expr_of(p.meta.get("val"))
        if isinstance(e, Symbol):
            found.setdefault(e.name, (p, None))
    for p in graph.placeholders:
        val = p.meta.get("val")
        for dim, size in enumerate(val._data.shape if val is not None and is_tensor(val) else ()):
            e = expr_of(size)
            if isinstance(e, Symbol):
                found.setdefault(e.name, (p, dim))
    return found


def loose_sizes(backward: Graph, forward: Iterable[Node]) -> dict[str, Any]:
    """Size symbols that no saved value or tangent shows become integer inputs of a backward; where ``forward`` has them."""
    bound = size_sources(backward)
    values = [(n.args, n.kwargs, n.meta.get("val")) for n in backward.nodes]
    loose = sorted({s.name for v in values for s in symbols_in(v)} - set(bound))
    if not loose:
        return {}
    known = {s: e for n in forward for s, e in _sizes_of(n).items()}
    out: dict[str, Any] = {}
    for name in loose:
        first = next(p for p in backward.nodes if p.op != "placeholder" or p.name.startswith("tangents"))
        with backward.inserting_before(first):
            p = backward.placeholder(name)
        out[name] = p.meta["val"] = known[name]
    return out


def _sizes_of(p: Node) -> dict[str, Any]:
    val = p.meta.get("val")
    sizes = val._data.shape if val is not None and is_tensor(val) else (val,)
    return {str(s): s for s in sizes if list(symbols_in(s))}


def late_sources(graph: Graph) -> dict[Node, list[tuple[str, int | None]]]:
    """Symbols that only running the graph tells (the size of ``nonzero``, the value of ``item``): by the node whose
    result shows them first, with the dimension, or None for an integer."""
    known = set(size_sources(graph))
    found: dict[Node, list[tuple[str, int | None]]] = {}
    for node in graph.nodes:
        val = node.meta.get("val")
        if node.op in ("placeholder", "output") or val is None:
            continue
        sizes = list(enumerate(val._data.shape)) if is_tensor(val) else [(None, val)]
        for dim, size in sizes:
            e = expr_of(size)
            if isinstance(e, Symbol) and e.name not in known:
                known.add(e.name)
                found.setdefault(node, []).append((e.name, dim))
    return found


def used_symbols(graph: Graph) -> list[str]:
    """Names of the symbols that the nodes' arguments mention, in order of first use."""
    seen = (s.name for n in graph.nodes for s in symbols_in((n.args, n.kwargs)))
    return list(dict.fromkeys(seen))


def size_env(graph: Graph, args: Iterable[Any]) -> dict[str, int]:
    """``{symbol: value}`` of one call with these arguments."""
    values = dict(zip(graph.placeholders, args, strict=False))
    env: dict[str, int] = {}
    for name, (p, dim) in size_sources(graph).items():
        env[name] = values[p] if dim is None else values[p].shape[dim]
    return env


def numel(val: Any) -> int:
    """Elements of a fake value; symbolic sizes count by their hint."""
    n = 1
    for size in val._data.shape:
        n *= hint(size)
    return n


def hint(size: Any) -> int:
    """A size as a number: itself, or the example value behind a symbolic one."""
    if isinstance(size, int):
        return size
    known = getattr(size, "hint", None)
    return 64 if known is None else int(known)


def nbytes(val: Any) -> int:
    """Memory of a value, by hints: a tensor's elements, a tuple's sum, 8 for an integer."""
    if val is None:
        return 0
    if isinstance(val, tuple | list):
        return sum(nbytes(v) for v in val)
    return numel(val) * val.dtype.itemsize if is_tensor(val) else 8


def evaluate_sizes(arg: Any, env: dict[str, int]) -> Any:
    """``arg`` with symbolic ints replaced by their values."""
    e = expr_of(arg)
    if e is not None:
        return e.evaluate(env)
    if isinstance(arg, tuple | list) and not hasattr(arg, "_fields"):
        items = [evaluate_sizes(a, env) for a in arg]
        return items if isinstance(arg, list) else tuple(items)
    if isinstance(arg, dict):
        return {k: evaluate_sizes(v, env) for k, v in arg.items()}
    if isinstance(arg, slice):
        return slice(*(evaluate_sizes(a, env) for a in (arg.start, arg.stop, arg.step)))
    return arg


