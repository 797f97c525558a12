"""A graph as a Python program, and back.

Stage: ir.  In: a ``Graph``.  Out: source text which runs as it stands, and which ``record.parse`` turns into an equal
graph: every stage of the compiler is a program one can read, edit and run again.  Read next: ``record``, ``interp``.

Over each group of lines stands the user's line it comes from; after each line the type of its value.  Names used:
``torch`` (tinytorch), ``ops`` (the rows), ``operator``, ``math``, ``self`` (the module's attributes), size symbols.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

import tinytorch
from compiler.ir import meta
from compiler.ir.graph import Graph, Node, nodes_in
from compiler.sym.expr import expr_of
from tinytorch.device import Device
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import Op

INFIX: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
PREFIX: dict[Any, str] = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}

#: What printed code may name without asking.
NAMESPACE: dict[str, Any] = {
    "torch": tinytorch, "ops": tinytorch.ops, "operator": operator, "math": math, "builtins": builtins,
}  # fmt: skip


@dataclass
class Source:
    """Program text, and the objects it names that no import can reach."""

    text: str
    objects: dict[str, Any] = field(default_factory=dict)

    def namespace(self) -> dict[str, Any]:
        return {**NAMESPACE, **self.objects}


def source(
    graph: Graph, *, name: str = "forward", comments: bool = True, sizes: bool = True, free: bool = False
) -> Source:
    """The graph as ``def forward(self, ...)``.

    Without ``sizes`` the lines that read size symbols from the inputs are left out: the bare graph, for comparing.
    ``free`` adds ``del`` after last uses, so that memory goes early.
    """
    objects: dict[str, Any] = {}
    spell = _Speller(objects)
    lines = _signature(graph, name, spell, comments, sizes)
    lines += [f"    {text}" for text in _sizes(graph)] if sizes else []
    last_uses = _last_uses(graph) if free else {}
    late = meta.late_sources(graph) if sizes else {}
    where = None
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        here = meta.frame(node)
        if comments and here is not None and here != where:
            lines += ["", f"    {meta.frame_comment(here)}"]
        where = here or where
        lines.append("    " + _statement(node, spell, comments))
        for symbol, dim in late.get(node, ()):
            lines.append(f"    {_read_size(symbol, node, dim)}")
        if node in last_uses:
            lines.append(f"    del {', '.join(last_uses[node])}")
    if len(lines) == 1:
        lines.append("    pass")
    return Source("\n".join(lines) + "\n", objects)


def _signature(graph: Graph, name: str, spell: _Speller, comments: bool, sizes: bool) -> list[str]:
    params = []
    for p in graph.placeholders:
        default = f"={spell(p.args[0])}" if p.args else ""
        kind = ": int" if sizes and expr_of(p.meta.get("val")) is not None else ""
        params.append((f"{p.name}{kind}{default}", meta.describe(p.meta.get("val")) if comments else ""))
    if not any(about for _, about in params):
        return [f"def {name}({', '.join(['self', *(p for p, _ in params)])}):"]
    rows = [f"    {p},{'  # ' + about if about else ''}" for p, about in params]
    return [f"def {name}(", "    self,", *rows, "):"]


def _sizes(graph: Graph) -> Iterator[str]:
    sources = meta.size_sources(graph)
    for name in meta.used_symbols(graph):
        if name in sources:
            p, dim = sources[name]
            if dim is not None or p.name != name:
                yield _read_size(name, p, dim)


def _read_size(symbol: str, node: Node, dim: int | None) -> str:
    return f"{symbol} = int({node.name})" if dim is None else f"{symbol} = {node.name}.shape[{dim}]"


def _last_uses(graph: Graph) -> dict[Node, list[str]]:
    """For each node, the names nobody reads after it."""
    done: set[Node] = set()
    sizes = {p for p, _ in meta.size_sources(graph).values()}
    out: dict[Node, list[str]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            done.update(node.all_input_nodes)
            continue
        ends = [n for n in (*node.all_input_nodes, node) if n not in done and n not in sizes]
        done.update(ends)
        if ends and node.op != "placeholder":
            out[node] = [n.name for n in ends]
    return out


def _statement(node: Node, spell: _Speller, comments: bool) -> str:
    if node.op == "output":
        return f"return {spell(node.args[0])}"
    about = meta.describe(node.meta.get("val")) if comments else ""
    return f"{node.name} = {expression(node, spell)}" + (f"  # {about}" if about else "")


def expression(node: Node, spell: Callable[[Any], str]) -> str:
    """The right-hand side of a node's line."""
    if node.op == "get_attr":
        return f"self.{node.target}"
    if node.op == "call_method":
        receiver = _closed(node.args[0], spell)
        return f"{receiver}.{node.target}({_arguments(node.args[1:], node.kwargs, spell)})"
    target, args = node.target, node.args
    if not node.kwargs and nodes_in(args[:1]):  # a proxy on the left answers the operator: it prints as one
        if target in INFIX and len(args) == 2:
            return f"{_closed(args[0], spell)} {INFIX[target]} {_closed(args[1], spell)}"
        if target in PREFIX and len(args) == 1:
            return f"{PREFIX[target]}{_closed(args[0], spell)}"
        if target is operator.getitem and isinstance(args[0], Node):
            return f"{spell(args[0])}[{_subscript(args[1], spell)}]"
        if target is getattr and len(args) == 2 and isinstance(args[0], Node) and str(args[1]).isidentifier():
            return f"{spell(args[0])}.{args[1]}"
    return f"{spell(target)}({_arguments(args, node.kwargs, spell)})"


def _closed(arg: Any, spell: Callable[[Any], str]) -> str:
    text = spell(arg)
    plain = isinstance(arg, Node) or (isinstance(arg, int | float) and not text.startswith("-"))
    return text if plain else f"({text})"


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], spell: Callable[[Any], str]) -> str:
    return ", ".join([*map(spell, args), *(f"{k}={spell(v)}" for k, v in kwargs.items())])


def _subscript(index: Any, spell: Callable[[Any], str]) -> str:
    if isinstance(index, slice):
        start, stop, step = ("" if p is None else spell(p) for p in (index.start, index.stop, index.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    if type(index) is tuple and index:
        return ", ".join(_subscript(i, spell) for i in index) + ("," if len(index) == 1 else "")
    return spell(index)


class _Speller:
    """Arguments as Python text; what has no text becomes a named object."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects

    def __call__(self, x: Any) -> str:
        if isinstance(x, Node):
            return x.name
        if isinstance(x, np.generic):
            x = x.item()
        if x is None or x is ... or isinstance(x, bool | int | str | bytes):
            return "..." if x is ... else repr(x)
        if isinstance(x, float | complex):
            return _number(x)
        e = expr_of(x)
        if e is not None:
            return str(e)
        return self._container(x) or self._named(x) or self._object(x)

    def _container(self, x: Any) -> str | None:
        if isinstance(x, tuple) and not hasattr(x, "_fields"):
            return f"({', '.join(map(self, x))}{',' if len(x) == 1 else ''})"
        if type(x) is list:
            return f"[{', '.join(map(self, x))}]"
        if type(x) is dict:
            return "{" + ", ".join(f"{self(k)}: {self(v)}" for k, v in x.items()) + "}"
        if isinstance(x, slice):
            return f"slice({', '.join(map(self, (x.start, x.stop, x.step)))})"
        if isinstance(x, range):
            return repr(x)
        return None

    def _named(self, x: Any) -> str | None:
        if isinstance(x, Op):
            return f"ops.{x.name}"
        if isinstance(x, DType):
            where = "" if getattr(tinytorch, x.name, None) is x else "dtypes."
            return f"torch.{where}{x.name}"
        if isinstance(x, Device):
            return f'torch.device("{x}")'
        return qualified_name(x) if callable(x) or isinstance(x, ModuleType) else None

    def _object(self, x: Any) -> str:
        for name, have in self.objects.items():
            if have is x:
                return name
        stem = getattr(x, "__name__", type(x).__name__)
        owner = getattr(x, "__self__", None)
        stem = f"{owner.__name__}_{stem}" if isinstance(owner, type) else stem  # a class method, such as a Function's apply
        stem = "".join(c if c.isalnum() else "_" for c in stem).strip("_") or "object"
        name, n = f"_{stem}", 0
        while name in self.objects:
            n += 1
            name = f"_{stem}_{n}"
        self.objects[name] = x
        return name


def _number(x: float | complex) -> str:
    if isinstance(x, complex):
        return f"complex({_number(x.real)}, {_number(x.imag)})"
    return repr(x) if math.isfinite(x) else f'float("{x}")'


def qualified_name(x: Any) -> str | None:
    """``torch.nn.functional.gelu`` and the like, if that path leads to ``x``."""
    module, name = getattr(x, "__module__", None) or "", getattr(x, "__qualname__", getattr(x, "__name__", ""))
    paths = [f"builtins.{name}", f"math.{name}", f"operator.{name}"]
    if module.split(".")[0] == "tinytorch":
        inside = module.partition(".")[2]
        paths += [f"torch.{name}", f"torch.nn.functional.{name}", f"torch.{inside}.{name}" if inside else f"torch.{name}"]
    return next((p for p in paths if _resolve(p) is x), None)


def _resolve(path: str) -> Any:
    first, *rest = path.split(".")
    found: Any = NAMESPACE[first]
    for part in rest:
        found = getattr(found, part, None)
    return found


def tabular(graph: Graph) -> str:
    """Columns opcode, name, target, args, kwargs.  Mirrors ``torch.fx.Graph.print_tabular``."""
    spell = _Speller({})
    rows = [("opcode", "name", "target", "args", "kwargs")]
    for n in graph.nodes:
        target = n.target if isinstance(n.target, str) else spell(n.target)
        kwargs = "{" + ", ".join(f"{k}: {spell(v)}" for k, v in n.kwargs.items()) + "}"
        rows.append((n.op, n.name, target, spell(n.args), kwargs))
    widths = [max(len(r[c]) for r in rows) for c in range(5)]
    rows.insert(1, tuple("-" * w for w in widths))  # type: ignore[arg-type]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows)
