"""Translated code: a Python function that does what the traced one did, with its tensor work in one call.

Stage: capture.  In: values that must exist at the end, and effects.  Out: source text: call the graph, rebuild values,
replay effects, then return, or run one instruction natively and ask for a resume function.  What the text reads
from outside is read by ``check`` (``guards``) on the way and arrives as arguments.  Read next: ``resume``, ``entry``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.source import Source, literal
from compiler.capture.values.base import Lazy, Value
from compiler.capture.values.tensor import TensorValue
from compiler.sym.expr import Expr
from tinytorch.late import LateError

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer
    from compiler.ir.graph import Node


class Emitter:
    """Collects the statements of ``run``.  Asking for a value twice gives the same name."""

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self.reads: dict[Source, str] = {}  # what check carries: source, name in run
        self.outputs: dict[Node, str] = {}  # results of the graph
        self.built: list[str] = []
        self.effects: list[str] = []
        self._lines = self.built
        self._names: dict[int, str] = {}
        self._alive: list[Value] = []
        self._pending: set[int] = set()
        self._count = 0

    # --- what values call ---
    def load(self, value: Value) -> str:
        """Text of an expression that is ``value``."""
        if isinstance(value, Lazy) and value.value is not None:
            value = value.value
        known = self._names.get(id(value))
        if known is not None:
            return known
        if id(value) in self._pending:
            breaks.unsupported(breaks.RECURSIVE_VALUE, value.describe())
        self._pending.add(id(value))
        text = value.reconstruct(self)
        self._pending.discard(id(value))
        if id(value) in self._names:
            return self._names[id(value)]
        if not _is_atom(text):
            text = self._assign(text)
        self._remember(value, text)
        return text

    def begin(self, value: Value, text: str) -> str:
        """Make the shell of a value whose parts may refer back to it."""
        name = self._assign(text)
        self._remember(value, name)
        return name

    def finish(self, line: str) -> None:
        self._lines.append(line)

    def read(self, source: Source) -> str:
        """The object at ``source``, as it was when the call began."""
        name = self.reads.get(source)
        if name is None:
            if source.text in self.tx.locals:
                return source.text
            if source.is_name and source.text in self.tx.namespace.objects:
                return source.text
            name = self.reads[source] = self._fresh(_readable(source.text))
        return name

    def obj(self, obj: Any) -> str:
        """A name of the generated module bound to ``obj``."""
        return self.tx.namespace.name(obj)

    def constant(self, value: Any) -> str:
        text = literal(value)
        return text if text is not None else self.obj(value)

    def graph_output(self, value: TensorValue) -> str:
        node = self.tx.node_of(value)
        if node not in self.outputs:
            self.outputs[node] = f"out{len(self.outputs)}"
        return self.outputs[node]

    def expression(self, expr: Expr) -> str:
        """A symbolic size as arithmetic on what it came from."""
        text = str(expr)
        for symbol in sorted(expr.free_symbols, key=lambda s: -len(s.name)):
            source = self.tx.symbol_source(symbol.name)
            text = re.sub(rf"\b{symbol.name}\b", self.read(source), text)
        return f"({text})"

    def effects_begin(self) -> None:
        """From here on statements change the world."""
        self._lines = self.effects

    # --- names ---
    def _remember(self, value: Value, name: str) -> None:
        self._names[id(value)] = name
        self._alive.append(value)

    def _assign(self, text: str) -> str:
        name = self._fresh("t")
        self._lines.append(f"{name} = {text}")
        return name

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"{hint}_{self._count}"


def _is_atom(text: str) -> bool:
    """Text that is cheap and harmless to repeat."""
    return bool(_ATOM.fullmatch(text))


_ATOM = re.compile(r"[A-Za-z_]\w*|-?\d+(\.\d+)?(e[-+]?\d+)?|'[^'\\]*'|\"[^\"\\]*\"|\(\)")


def _readable(text: str) -> str:
    """A name that recalls a path."""
    path = text.replace("__dict__", "").replace("_modules", "").replace("_parameters", "").replace("_buffers", "")
    words = re.findall(r"[A-Za-z_]\w*", path)
    name = "_".join(w.strip("_") for w in words[-4:] if w not in ("type", "tuple"))
    return name or "value"


def print_run(emit: Emitter, call: list[str], tail: list[str], arguments: list[str], raised: list[str]) -> str:
    """The source text of ``run``: the graph's ``call``, then values, effects and ``tail``; or ``raised``, if it raises."""
    rest = [*emit.built, *emit.effects, *tail]
    if raised:
        error = [f"except {emit.obj(LateError)}:", "    raise", "except Exception as error:", "    raised = f'{type(error).__name__}: {error}'"]
        call = ["try:", *_indented(call), *error, "else:", *_indented(rest)]
        rest = raised
    lines = [*emit.tx.prologue, *call, *rest]
    return "\n".join([f"def run({', '.join(arguments)}):", *_indented(lines)]) + "\n"


def print_call(emit: Emitter, inputs: list[str]) -> str:
    """The statement that runs the graph and binds its outputs."""
    targets = "".join(f"{name}, " for name in emit.outputs.values())
    call = f"graph({', '.join(inputs)})"
    return f"{targets.rstrip() if len(emit.outputs) == 1 else targets.rstrip(', ')} = {call}" if targets else call


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
