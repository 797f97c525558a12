"""Tensors and symbolic integers: the values that become nodes and sizes of the graph.

Stage: capture.  In and out: see ``base``.  A tensor is a graph node and a fake tensor that carries its shape, type and
history.  Operations on it are ``graphs.call``; its attributes are data of the fake, or nodes.  Read next: ``graphs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.capture.values.base import Value
from compiler.sym.expr import Expr, expr_of
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.ir.graph import Node


class TensorValue(Value):
    """``node`` is None for an input that no operation has used yet."""

    def __init__(
        self, fake: Tensor, node: Node | None = None, source: Source | None = None, obj: Tensor | None = None
    ) -> None:
        self.fake = fake
        self.node = node
        self.source = source
        self.obj = obj
        self.kind: type = type(fake) if obj is None else type(obj)
        self.example: Tensor | None = None  # an input's fake as the graph's example, without what the trace did to it
        self.attrs: dict[str, Value | None] = {}  # attributes written in the trace; None if deleted

    def pytype(self) -> type:
        return self.kind

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [v for v in self.attrs.values() if v is not None]

    def describe(self) -> str:
        return f"Tensor{list(self.fake._data.shape)}"

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        name = emit.begin(self, emit.graph_output(self))
        for attribute, v in self.attrs.items():
            if v is not None:
                emit.finish(f"{name}.{attribute} = {emit.load(v)}")
        return name


class SymIntValue(Value):
    """An int whose value may differ from call to call; ``sym`` is the ``SymInt``."""

    def __init__(self, sym: Any, source: Source | None = None) -> None:
        self.sym = sym
        self.source = source

    def pytype(self) -> type:
        return int

    @property
    def expr(self) -> Expr:
        found = expr_of(self.sym)
        assert found is not None
        return found

    def describe(self) -> str:
        return f"symbolic int {self.expr}"

    def reconstruct(self, emit: Emitter) -> str:
        return emit.expression(self.expr)
