"""Graphs for the loop compiler's tests: an eager program recorded on fake tensors, nothing else of the pipeline."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from compiler.config import Config
from compiler.fake import FakeInterp, fake_like
from compiler.ir import Graph, GraphModule
from compiler.loop import compile_graph, interp
from compiler.loop.host import kernel_count
from compiler.loop.printer import format_plan, parse_plan
from compiler.loop.verify import verify
from tinytorch import dispatch, tape


class Recorder(FakeInterp):
    """A fake interpreter that writes a node for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self.nodes: dict[int, Any] = {}
        self.held: list[Any] = []

    def give(self, t: Any, node: Any) -> None:
        node.meta["val"] = t
        self.nodes[id(t._data)] = node
        self.held.append(t)

    def run(self, op: Any, args: Any, params: Any) -> Any:
        out = super().run(op, args, params)
        nodes = tuple(self.nodes[id(a._data)] if hasattr(a, "_data") else a for a in args)
        node = self.graph.call_function(op, nodes, params)
        if isinstance(out, tuple):
            node.meta["val"] = out
            for i, o in enumerate(out):
                self.give(o, self.graph.call_function(operator.getitem, (node, i)))
        else:
            self.give(out, node)
        return out


def trace(fn: Any, *tensors: Any, fakes: Any = None) -> GraphModule:
    """``fn(*tensors)`` as a functional graph of rows."""
    rec = Recorder()
    fakes = [fake_like(t) for t in tensors] if fakes is None else fakes
    for n, f in enumerate(fakes):
        rec.give(f, rec.graph.placeholder(f"arg{n}"))
    with dispatch.use(rec), tape.grad_mode(False):
        out = fn(*fakes)
    many = out if isinstance(out, tuple | list) else (out,)
    rec.graph.output(tuple(None if o is None else rec.nodes[id(o._data)] for o in many))
    return GraphModule({}, rec.graph)


def run(fn: Any, *tensors: Any, order: Any = "shuffle", rtol: float = 2e-5, atol: float = 2e-6, **config: Any) -> Any:
    """Compile ``fn``, check the plan in every way there is, compare with eager; returns the plan."""
    gm = trace(fn, *tensors)
    plan = compile_graph(gm, Config().replace(config))
    verify(plan)
    text = format_plan(plan)
    assert parse_plan(text) == plan, text
    got = interp.run_plan(plan, [t._data for t in tensors], order=order)
    with tape.grad_mode(False):
        expected = fn(*tensors)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    for g, e in zip(got, expected, strict=True):
        e = e._data
        assert g.dtype == e.dtype and g.shape == e.shape, text
        kind = np.float64 if g.dtype.kind in "fV" else g.dtype
        np.testing.assert_allclose(g.astype(kind), e.astype(kind), rtol=rtol, atol=atol, err_msg=text)
    return plan


def kernels(plan: Any) -> int:
    return kernel_count(plan)
