"""Rewriting: a pass is a named value, a rule is a pair of functions.

Stage: ir.  In: a ``GraphModule``.  Out: the same one, changed, verified before and after.
Mirrors ``torch.fx.subgraph_rewriter`` and xDSL's passes.  Read next: ``compiler.passes``, which are such values.

    DOUBLE = rule("double", lambda x: ops.add(x, x), lambda x: ops.mul(x, 2))
    run_passes(gm, [DOUBLE, ...])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compiler.errors import VerifyError
from compiler.ir.graph import Graph, Node
from compiler.ir.meta import merge_stacks
from compiler.ir.module import GraphModule
from compiler.ir.record import record
from compiler.ir.verify import verify

Binding: TypeAlias = "dict[Node, Any]"


@dataclass(frozen=True)
class Pass:
    """A change of graphs with a name.  ``run(gm)`` changes ``gm`` in place and says how often it did something."""

    name: str
    run: Callable[[GraphModule], int]

    def __call__(self, gm: GraphModule) -> int:
        verify(gm)
        changes = int(self.run(gm))
        if changes:
            gm.changed()
        try:
            verify(gm)
        except VerifyError as e:
            e.add_note(f"after pass {self.name}")
            raise
        return changes


def run_passes(
    gm: GraphModule, passes: Iterable[Pass], after: Callable[[Pass, GraphModule, int], None] | None = None
) -> dict[str, int]:
    """Run ``passes`` in order; ``after`` is called between them, to print, time or compare.  Returns change counts."""
    counts: dict[str, int] = {}
    for p in passes:
        changes = p(gm)
        counts[p.name] = counts.get(p.name, 0) + changes
        if after is not None:
            after(p, gm, changes)
    return counts


@dataclass(frozen=True)
class Match:
    """Where a pattern was found: pattern nodes to graph nodes (or constants, for the pattern's inputs)."""

    output: Node
    binding: Binding

    def values(self, pattern: Graph) -> list[Any]:
        """What stands for the pattern's inputs, in order."""
        return [self.binding[p] for p in pattern.placeholders]


def rule(
    name: str, pattern: Callable[..., Any], replacement: Callable[..., Any], where: Callable[[Match], bool] | None = None
) -> Pass:
    """A pass that replaces every match of ``pattern`` (one result) by ``replacement``, both functions of the same inputs.

    Inputs match any value; constants only their equals, of the same type and sign.  ``where`` may refuse a match.
    """
    find, put = record(pattern), record(replacement)
    if [p.name for p in find.placeholders] != [p.name for p in put.placeholders]:
        raise ValueError(f"rule {name}: pattern and replacement must take the same inputs")

    def run(gm: GraphModule) -> int:
        return replace(gm.graph, find, put, where)

    return Pass(name, run)


def replace(graph: Graph, find: Graph, put: Graph, where: Callable[[Match], bool] | None = None) -> int:
    """Replace non-overlapping matches, in order; returns their number."""
    count = 0
    for match in matches(graph, find):
        taken = [n for n in match.binding.values() if isinstance(n, Node)]
        if any(n._erased for n in taken) or (where is not None and not where(match)):
            continue
        _substitute(graph, match, find, put)
        count += 1
    return count


def matches(graph: Graph, find: Graph) -> Sequence[Match]:
    """All places where ``find`` occurs and whose inner values nobody else reads."""
    root = find.output_node.args[0]
    if not isinstance(root, Node):
        raise ValueError("a pattern returns one value")
    found = []
    for node in graph.nodes:
        binding: Binding = {}
        if _match(root, node, binding) and _closed(root, binding):
            found.append(Match(node, binding))
    return found


def _match(p: Any, x: Any, binding: Binding) -> bool:
    """Does the value ``x`` fit the pattern value ``p``?  Extends ``binding``."""
    if isinstance(p, Node):
        if p in binding:
            return _same(binding[p], x)
        if p.op == "placeholder":
            binding[p] = x
            return True
        if not isinstance(x, Node) or (p.op, p.target) != (x.op, x.target) or len(p.args) != len(x.args):
            return False
        binding[p] = x
        return p.kwargs.keys() == x.kwargs.keys() and all(
            _match(a, b, binding)
            for a, b in zip((*p.args, *p.kwargs.values()), (*x.args, *(x.kwargs[k] for k in p.kwargs)), strict=True)
        )
    if isinstance(p, tuple | list):
        fits = isinstance(x, tuple | list) and len(p) == len(x)
        return fits and all(_match(a, b, binding) for a, b in zip(p, x, strict=True))
    return _same(p, x)


def _same(a: Any, b: Any) -> bool:
    """Equal for a matcher: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    return a is b or (type(a) is type(b) and not isinstance(a, Node) and bool(a == b) and repr(a) == repr(b))


def _closed(root: Node, binding: Binding) -> bool:
    inside = {x for p, x in binding.items() if p.op != "placeholder"}
    return all(user in inside for p, x in binding.items() if p.op != "placeholder" and p is not root for user in x.users)


def _substitute(graph: Graph, match: Match, find: Graph, put: Graph) -> None:
    old = match.output
    values = dict(zip(put.placeholders, match.values(find), strict=True))
    matched = [x for p, x in match.binding.items() if p.op != "placeholder"]
    stack = merge_stacks([old, *matched])
    with graph.inserting_before(old):
        new = graph.graph_copy(put, values)
    made = [n for p, n in values.items() if p.op != "placeholder"]
    for n in made:
        n.meta["stack"] = stack
    if new in made and "val" in old.meta:
        new.meta["val"] = old.meta["val"]
    for user in list(old.users):
        user.args, user.kwargs = _swap(user.args, old, new), _swap(user.kwargs, old, new)
    while dead := [n for n in matched if not n._erased and not n.users]:
        for n in dead:
            graph.erase_node(n)


def _swap(arg: Any, old: Node, new: Any) -> Any:
    if arg is old:
        return new
    if isinstance(arg, tuple | list):
        return type(arg)(_swap(a, old, new) for a in arg)
    if isinstance(arg, dict):
        return {k: _swap(v, old, new) for k, v in arg.items()}
    return arg
