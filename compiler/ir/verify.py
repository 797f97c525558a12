"""When a graph module is right: structure, attributes, sizes and types.

Stage: ir, run between all stages under ``TT_VERIFY=1``.  In: a ``GraphModule``.  Out: nothing, or ``VerifyError``.
Read next: ``rewrite``, whose passes are verified before and after.
"""

from __future__ import annotations

from typing import Any

from compiler.config import config
from compiler.errors import VerifyError
from compiler.ir import meta
from compiler.ir.graph import Graph, Node, map_nodes
from compiler.ir.lint import failing, lint
from compiler.ir.module import GraphModule
from compiler.ir.printer import source
from compiler.ir.record import parse, same
from compiler.sym.expr import expr_of
from tinytorch import dispatch
from tinytorch.ops.opdef import Meta, Op


def verify(gm: GraphModule, *, functional: bool = False, level: int | None = None) -> None:
    """Check ``gm``; cheap enough to run after every pass.

    ``functional``: only rows, ``getitem`` and nothing impure, as after ahead-of-time autograd.
    ``level`` (``config.verify`` if not given): 1 structure and types, 2 also that the print parses back to the graph.
    """
    level = config.verify if level is None else level
    if level < 1:
        return
    lint(gm.graph)
    nodes = list(gm.graph.nodes)
    bound = set(meta.size_sources(gm.graph))
    late = meta.late_sources(gm.graph)
    for i, node in enumerate(nodes):
        fail = failing(nodes, i)
        if node.op == "get_attr" and node.target not in gm.attributes:
            fail(f"the module holds no {node.target!r}; it has {', '.join(gm.attributes) or 'nothing'}")
        loose = {s.name for s in meta.symbols_in((node.args, node.kwargs))} - bound
        if loose and any(p.meta.get("val") is not None for p in gm.graph.placeholders):
            fail(f"no input tells the size {', '.join(sorted(loose))}")
        if functional:
            _check_functional(node, fail)
        _check_type(node, fail)
        bound.update(name for name, _ in late.get(node, ()))
    if level >= 2:
        _check_round_trip(gm.graph)


def _check_functional(node: Node, fail: Any) -> None:
    if node.op == "call_method":
        fail("a functional graph has no method calls")
    if node.op == "call_function" and not isinstance(node.target, Op):
        if getattr(node.target, "__name__", "") != "getitem":
            fail(f"a functional graph has only operator rows, got {node.target!r}")
    if node.op == "call_function" and node.is_impure():
        fail("a functional graph has no side effects")


def _check_type(node: Node, fail: Any) -> None:
    """The recorded value is what the row infers from its inputs' recorded values."""
    val = node.meta.get("val")
    if val is None or node.op != "call_function" or not isinstance(node.target, Op):
        return
    if any(n.meta.get("val") is None for n in node.all_input_nodes):
        return
    args, kwargs = map_nodes((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        found = node.target.infer(*[dispatch.meta_of(a) for a in args], **kwargs)
    except Exception as e:
        fail(f"{node.target} does not accept its arguments: {e}")
        return
    got = found if isinstance(found, tuple) and not isinstance(found, Meta) else (found,)
    want = val if isinstance(val, tuple) else (val,)
    if _shown(got) != _shown(want):
        fail(f"recorded as {meta.describe(val)}, but {node.target} gives {_shown(got)}")


def _shown(values: tuple[Any, ...]) -> str:
    """Shapes and types as text: comparing symbolic sizes as numbers would record guards."""
    parts = []
    for v in values:
        shape, dtype = (v.shape, v.dtype) if isinstance(v, Meta) else (v._data.shape, v.dtype)
        parts.append(f"{dtype.name}[{', '.join(str(e) if (e := expr_of(s)) is not None else str(s) for s in shape)}]")
    return ", ".join(parts)


def _check_round_trip(graph: Graph) -> None:
    src = source(graph, comments=True)
    difference = same(parse(src.text, src.objects), graph)
    if difference is not None:
        raise VerifyError(f"the printed graph parses to another one: {difference}\n{src.text}")
