"""Loop IR as Python text that describes itself: executing it gives an equal ``Kernel`` or ``Plan``.

Stage: loop.  In: IR.  Out: text (``TT_LOGS=loops`` shows it, the kernel cache hashes it).  Read next: ``build``, the
language of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from keyword import iskeyword
from types import CodeType
from typing import Any

from compiler.loop import build, ir
from compiler.loop.ir import Buffer, Kernel, Plan
from compiler.sym import expr as sym
from compiler.sym.expr import Expr, Symbol
from tinytorch import dtypes
from tinytorch.dtypes import DType

HEADER = "from compiler.loop.printer import *\n"
INDENT = "    "

#: What printed text may name besides what it defines.
NAMESPACE: dict[str, Any] = {
    **{("bool_" if n == "bool" else n): d for n, d in dtypes.BY_NAME.items()},
    "inf": math.inf, "nan": math.nan, "min": sym.minimum, "max": sym.maximum, "Symbol": Symbol,
    "kernel": build.kernel, "plan": build.plan,
}  # fmt: skip
globals().update(NAMESPACE)
__all__ = [*NAMESPACE, "format_kernel", "format_plan", "parse_kernel", "parse_plan"]  # noqa: PLE0604


def parse_kernel(text: str) -> Kernel:
    """Execute what ``format_kernel`` wrote."""
    space = dict(NAMESPACE)
    before = set(space)
    exec(compile(text.replace(HEADER, ""), "<kernel>", "exec"), space)
    (made,) = [v for k, v in space.items() if k not in before and k != "__builtins__"]
    return build.kernel(made) if callable(made) else made


def parse_plan(text: str) -> Plan:
    """Execute what ``format_plan`` wrote."""
    return run_code(code_of(text))


def code_of(text: str) -> CodeType:
    """The bytecode of a printed plan, which takes most of the time."""
    return compile(text.replace(HEADER, ""), "<plan>", "exec")


def run_code(code: CodeType) -> Plan:
    """The plan that such code describes."""
    space = dict(NAMESPACE)
    exec(code, space)
    made = space["program"]
    assert isinstance(made, Plan)
    return made


def format_kernel(kernel: Kernel) -> str:
    """One function over a recorder ``k``."""
    return "\n".join(_Lines().kernel(kernel)) + "\n"


def format_plan(plan: Plan) -> str:
    """A script: a function for each kernel, then ``program``, the host steps."""
    parts = [HEADER]
    parts += ["\n\n@kernel\n" + format_kernel(k) for k in plan.kernels]
    parts.append("\n\n@plan\ndef program(p):\n")
    body = list(_PlanLines(plan).lines())
    return "".join(parts) + "\n".join(INDENT + line for line in body) + "\n"


class _Lines:
    """Prints one kernel, counting definitions as the recorder will, so that only unusual names are spelled."""

    def __init__(self) -> None:
        self.values = 0
        self.axes = 0
        self.dtypes: dict[str, DType] = {}
        self.buffers: dict[str, DType] = {}

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        yield f"def {kernel.name}(k):"
        if kernel.origin or kernel.lines:
            for file, line, text in kernel.lines:
                yield f"{INDENT}# {file}:{line}: {text}"
            yield f"{INDENT}k.about({kernel.origin!r}{', ' + repr(kernel.lines) if kernel.lines else ''})"
        for size in kernel.sizes:
            yield f"{INDENT}{size} = k.size({size!r})"
        for b in kernel.params:
            self.buffers[b.name] = b.dtype
            yield f"{INDENT}{b.name} = k.param({_buffer(b)})"
        yield from self.body(kernel.body, INDENT)

    def body(self, body: tuple[ir.Stmt, ...], indent: str) -> Iterator[str]:
        if not body:
            yield f"{indent}pass"
        for stmt in body:
            if isinstance(stmt, ir.Loop):
                name = self.axis_keyword(stmt.axis)
                yield f"{indent}for {stmt.axis} in k.{stmt.kind}({stmt.extent}{name}):"
                yield from self.body(stmt.body, indent + INDENT)
            else:
                yield indent + self.statement(stmt)

    def statement(self, stmt: ir.Stmt) -> str:
        match stmt:
            case ir.Let(name, fn, args, dtype, origin):
                known = tuple(self.dtypes.get(a) if isinstance(a, str) else None for a in args)
                words = [literal(a) for a in args]
                if build.result_dtype(fn, known) is not dtype:
                    words.append(f"dtype={_dtype(dtype)}")
                if origin:
                    words.append(f"origin={origin!r}")
                words += self.name_keyword(name, dtype)
                return f"{name} = k.{fn}({', '.join(words)})"
            case ir.Index(name, expr):
                return f"{name} = k.index({', '.join([str(expr), *self.name_keyword(name, dtypes.int64)])})"
            case ir.Load(name, buffer, index, dtype, mask, other):
                words = [buffer, str(index)]
                words += [f"mask={mask}"] if mask is not None else []
                words += [f"other={literal(other)}"] if literal(other) != "0" else []
                words += [f"dtype={_dtype(dtype)}"] if dtype is not self.buffers.get(buffer) else []
                words += self.name_keyword(name, dtype)
                return f"{name} = k.load({', '.join(words)})"
            case ir.Store(buffer, index, value, mode, mask):
                words = [buffer, str(index), literal(value)]
                words += [f"mode={mode!r}"] if mode != "set" else []
                words += [f"mask={mask}"] if mask is not None else []
                return f"k.store({', '.join(words)})"
            case ir.Init(names, combine, types):
                usual = tuple(f"a{self.values + n}" for n in range(len(names)))
                for n, d in zip(names, types, strict=True):
                    self.name_keyword(n, d)
                words = [repr(combine), *map(_dtype, types)] + ([f"names={names!r}"] if names != usual else [])
                return f"{', '.join(names)} = k.init({', '.join(words)})"
            case ir.Update(names, combine, values):
                target = names[0] if len(names) == 1 else f"({', '.join(names)})"
                return f"k.update({', '.join([repr(combine), target, *map(literal, values)])})"
            case ir.Check(cond, message, value):
                return f"k.check({cond}, {message!r}{', ' + value if value is not None else ''})"
        raise TypeError(stmt)

    def name_keyword(self, name: str, dtype: DType) -> list[str]:
        usual = f"v{self.values}"
        self.values += 1
        self.dtypes[name] = dtype
        return [] if name == usual else [f"name={name!r}"]

    def axis_keyword(self, axis: str) -> str:
        usual = f"i{self.axes}"
        self.axes += 1
        return "" if axis == usual else f", name={axis!r}"


class _PlanLines:
    """Prints the host steps; ``names`` has the variable of every buffer whose own name means something else there."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        taken = {*NAMESPACE, "p", *plan.sizes, *(k.name for k in plan.kernels)}
        buffers = [b.name for b in (*plan.inputs, *(s.buffer for s in plan.steps if isinstance(s, ir.Alloc)))]
        self.names: dict[str, str] = {}
        for name in buffers:
            if name in taken or iskeyword(name):
                new = f"{name}_memory"
                while new in taken or new in buffers:
                    new += "_"
                self.names[name] = new

    def lines(self) -> Iterator[str]:
        plan = self.plan
        for size in plan.sizes:
            yield f"{size} = p.size({size!r})"
        yield f"p.kernels({', '.join(k.name for k in plan.kernels)})"
        for b in plan.inputs:
            yield f"{self.name(b.name)} = p.input({_buffer(b)})"
        for step in plan.steps:
            yield self.step(step)
        yield f"p.output({', '.join(map(self.view, plan.outputs))})"

    def name(self, buffer: str) -> str:
        return self.names.get(buffer, buffer)

    def step(self, step: ir.Step) -> str:
        match step:
            case ir.Alloc(b, fill, reuse):
                words = [_buffer(b)]
                words += [f"fill={literal(fill)}"] if fill is not None else []
                words += [f"reuse={self.name(reuse)}"] if reuse is not None else []
                return f"{self.name(b.name)} = p.alloc({', '.join(words)})"
            case ir.Run(kernel, args, sizes):
                words = [self.plan.kernels[kernel].name, *map(self.name, args), *(f"{n}={v}" for n, v in sizes)]
                return f"p.run({', '.join(words)})"
            case ir.Extern(fn, args, outs, params, origin):
                words = [repr(fn)]
                words += [self.view(a) if isinstance(a, ir.ArrayView) else literal(a) for a in args]
                words.append(f"outs=[{', '.join(map(self.view, outs))}]")
                words += [f"origin={origin!r}"] if origin else []
                words += [f"{k}={_parameter(v)}" for k, v in params.items()]
                return f"p.extern({', '.join(words)})"
            case ir.Free(buffer):
                return f"p.free({self.name(buffer)})"
        raise TypeError(step)

    def view(self, v: ir.ArrayView | ir.Int | None) -> str:
        if not isinstance(v, ir.ArrayView):
            return literal(v)
        offset = f", {v.offset}" if str(v.offset) != "0" else ""
        return f"p.view({self.name(v.buffer)}, {literal(v.shape)}, {literal(v.stride)}{offset})"


def _parameter(v: Any) -> str:
    if isinstance(v, str) or (isinstance(v, tuple) and v and all(isinstance(x, str) for x in v)):
        return repr(v)
    return literal(v)


def _buffer(b: Buffer) -> str:
    device = f", device={b.device!r}" if b.device != "cpu" else ""
    return f"{b.name!r}, {_dtype(b.dtype)}, {literal(b.shape)}, {literal(b.stride)}{device}"


def _dtype(d: DType) -> str:
    return "bool_" if d.name == "bool" else d.name


def literal(x: Any) -> str:
    """A value as text: names bare, infinities by name, types by theirs, containers of those."""
    if isinstance(x, str):
        return x
    if isinstance(x, DType):
        return _dtype(x)
    if isinstance(x, tuple):
        return f"({', '.join(map(literal, x))}{',' if len(x) == 1 else ''})"
    if isinstance(x, list):
        return f"[{', '.join(map(literal, x))}]"
    if isinstance(x, Expr):
        return str(x)
    return repr(x)
