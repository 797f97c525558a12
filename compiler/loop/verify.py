"""What must hold of every kernel and plan, checked without running them.

Stage: loop.  In: IR.  Out: nothing, or ``LoopIRError`` that shows the lines around the offender.
Read next: ``interp`` (what running means).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.loop import build, ir
from compiler.loop.ir import COMBINES, Buffer, Kernel, Plan
from compiler.loop.printer import format_kernel
from compiler.sym.expr import Expr, Symbol, as_int, lift
from compiler.sym.ranges import Interval, extent, less, nonnegative
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType, bool_, int64
from tinytorch.ops.scalars import VOCABULARY


class LoopIRError(Exception):
    """A stage broke a rule of the loop IR: a fault of the compiler, never of its user."""


class _Checker:
    """Walks one kernel, holding what is in scope."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {b.name: b for b in kernel.params}
        self.scope: dict[str, DType] = {}
        self.ever: set[str] = set()
        self.ranges: dict[Symbol, Interval] = {Symbol(s): Interval(1) for s in kernel.sizes}
        self.axes: list[ir.Loop] = []
        self.open: dict[str, tuple[ir.Init, int]] = {}  # accumulator -> (its Init, loop depth there)
        self.plain_stores: set[str] = set()
        self.combining: dict[str, str] = {}
        self.stored: set[str] = set()

    def fail(self, stmt: object, why: str) -> None:
        raise LoopIRError(f"{self.kernel.name}: {why}\n  at {stmt}\n\n{format_kernel(self.kernel)}")

    def run(self) -> None:
        if len(self.buffers) != len(self.kernel.params):
            self.fail("the parameters", "two parameters have one name")
        self.block(self.kernel.body)
        if self.stored != self.kernel.writes:
            self.fail("writes", f"says it writes {sorted(self.kernel.writes)}, stores to {sorted(self.stored)}")

    def block(self, body: tuple[ir.Stmt, ...]) -> None:
        defined = dict(self.scope)
        for stmt in body:
            getattr(self, type(stmt).__name__.lower())(stmt)
        self.scope = defined | {n: d for n, d in self.scope.items() if n in defined}

    # --- names ---
    def define(self, stmt: ir.Stmt, name: str, dtype: DType) -> None:
        if name in self.ever or Symbol(name) in self.ranges or name in self.buffers:
            self.fail(stmt, f"{name} is defined twice")
        self.ever.add(name)
        self.scope[name] = dtype

    def use(self, stmt: ir.Stmt, v: ir.Value) -> DType | None:
        if not isinstance(v, str):
            return None
        if v not in self.scope:
            self.fail(stmt, f"{v} is not defined here")
        if v in self.open and self.inside_reduction(v):
            self.fail(stmt, f"{v} is read before its reduction is over")
        return self.scope[v]

    def inside_reduction(self, name: str) -> bool:
        depth = self.open[name][1]
        return any(loop.kind == "reduce" and name in updated(loop) for loop in self.axes[depth:])

    # --- statements ---
    def loop(self, loop: ir.Loop) -> None:
        axis = Symbol(loop.axis)
        if axis in self.ranges or loop.axis in self.ever:
            self.fail(loop, f"axis {loop.axis} is in use")
        self.integers(loop, loop.extent)
        self.ranges[axis] = extent(loop.extent)
        self.axes.append(loop)
        self.block(loop.body)
        self.axes.pop()
        del self.ranges[axis]
        self.ever.add(loop.axis)

    def let(self, s: ir.Let) -> None:
        if s.fn not in VOCABULARY or len(s.args) != VOCABULARY[s.fn].arity:
            self.fail(s, f"{s.fn} of {len(s.args)} operands is not in the vocabulary")
        types = tuple(self.use(s, a) for a in s.args)
        if s.fn == "where" and types[0] not in (None, bool_):
            self.fail(s, "the condition of where is a bool")
        operands = {d for d in (types[1:] if s.fn == "where" else types) if d is not None}
        if len(types) > 1 and len(operands) > 1:
            self.fail(s, f"operands of several types: {operands}")
        expected = build.result_dtype(s.fn, types)
        if expected is not None and expected is not s.dtype:
            self.fail(s, f"{s.fn} gives {expected}, not {s.dtype}")
        self.define(s, s.name, s.dtype)

    def index(self, s: ir.Index) -> None:
        self.integers(s, s.expr)
        self.define(s, s.name, int64)

    def load(self, s: ir.Load) -> None:
        self.access(s, s.buffer, s.index, s.mask)
        if s.dtype is not self.buffers[s.buffer].dtype:
            self.fail(s, f"loads {s.dtype} from a buffer of {self.buffers[s.buffer].dtype}")
        if s.buffer in self.combining:
            self.fail(s, "reads a buffer that this kernel combines into")
        self.define(s, s.name, s.dtype)

    def store(self, s: ir.Store) -> None:
        self.access(s, s.buffer, s.index, s.mask)
        dtype = self.use(s, s.value)
        if dtype is not None and dtype is not self.buffers[s.buffer].dtype:
            self.fail(s, f"stores {dtype} to a buffer of {self.buffers[s.buffer].dtype}")
        self.stored.add(s.buffer)
        if s.mode != "set":
            if self.combining.setdefault(s.buffer, s.mode) != s.mode or s.buffer in self.plain_stores:
                self.fail(s, "a buffer is combined into in one way, and not set by the same kernel")
        elif s.buffer in self.combining:
            self.fail(s, "a buffer is combined into in one way, and not set by the same kernel")
        else:
            self.plain_stores.add(s.buffer)

    def init(self, s: ir.Init) -> None:
        if COMBINES.get(s.combine) != len(s.names) or len(s.dtypes) != len(s.names):
            self.fail(s, f"{s.combine} has {COMBINES.get(s.combine)} components")
        for name, dtype in zip(s.names, s.dtypes, strict=True):
            self.define(s, name, dtype)
            self.open[name] = (s, len(self.axes))

    def update(self, s: ir.Update) -> None:
        for name in s.names:
            if name not in self.scope or name not in self.open:
                self.fail(s, f"{name} is no accumulator here")
            init, depth = self.open[name]
            if init.names != s.names or init.combine != s.combine:
                self.fail(s, f"belongs to {init}")
            if not self.axes[depth:] or any(loop.kind == "map" for loop in self.axes[depth:]):
                self.fail(s, "an update stands in reduce or scan loops begun after its Init")
        wanted = 1 if s.combine in ("welford", "softmax") else len(s.names)
        if len(s.values) != wanted:
            self.fail(s, f"{s.combine} takes {wanted} values")
        for v, name in zip(s.values, s.names, strict=False):
            dtype = self.use(s, v)
            if dtype is not None and dtype is not self.scope[name]:
                self.fail(s, f"joins {dtype} into {self.scope[name]}")

    def check(self, s: ir.Check) -> None:
        if self.use(s, s.cond) is not bool_:
            self.fail(s, "the condition is a bool")
        if s.value is not None and self.use(s, s.value) is not int64:
            self.fail(s, "the reported value is an int64")

    # --- memory ---
    def access(self, stmt: ir.Stmt, buffer: str, index: ir.Int, mask: str | None) -> None:
        if buffer not in self.buffers:
            self.fail(stmt, f"{buffer} is no parameter")
        self.integers(stmt, index)
        if mask is not None and self.use(stmt, mask) is not bool_:
            self.fail(stmt, "the mask is a bool")
        indirect = any(s not in self.ranges for s in lift(index).free_symbols)
        if mask is None and not indirect:
            self.bounds(stmt, self.buffers[buffer], index)

    def bounds(self, stmt: ir.Stmt, b: Buffer, index: ir.Int) -> None:
        if any(isinstance(as_int(loop.extent), int) and loop.extent == 0 for loop in self.axes):
            return
        low, high = span(b)
        e = simplify(index, self.ranges)
        numeric = not isinstance(low, Expr) and not isinstance(high, Expr)
        if not (nonnegative(e - low, self.ranges) and less(e, high, self.ranges)) and numeric and not self.sizes(e):
            self.fail(stmt, f"the index leaves [{low}, {high})")

    def sizes(self, e: Expr) -> bool:
        return any(s.name in self.kernel.sizes for s in e.free_symbols)

    def integers(self, stmt: ir.Stmt, e: ir.Int) -> None:
        for s in lift(e).free_symbols:
            if s in self.ranges:
                continue
            dtype = self.use(stmt, s.name)
            if dtype is None or dtype.kind not in "iu":
                self.fail(stmt, f"{s} in an index is neither axis, size nor integer value")


def updated(loop: ir.Loop) -> frozenset[str]:
    """The accumulators that a loop's body feeds."""
    out: set[str] = set()
    for s in loop.body:
        if isinstance(s, ir.Update):
            out.update(s.names)
        elif isinstance(s, ir.Loop):
            out |= updated(s)
    return frozenset(out)


def span(b: Buffer) -> tuple[ir.Int, ir.Int]:
    """The elements ``[low, high)`` that a buffer owns, counted from its first."""
    low: ir.Int = 0
    high: ir.Int = 1
    for n, s in zip(b.shape, b.stride, strict=True):
        reach = (n - 1) * s
        if isinstance(s, int) and s < 0:
            low = low + reach
        else:
            high = high + reach
    return as_int(low), as_int(high)


def verify_kernel(kernel: Kernel) -> None:
    """LoopIRError unless names, types, scopes, accumulators, stores and (where decidable) bounds are in order."""
    _Checker(kernel).run()


def verify(plan: Plan) -> None:
    """LoopIRError unless every kernel is valid and the host program defines, writes and frees buffers in order."""
    for kernel in plan.kernels:
        verify_kernel(kernel)
    buffers = {b.name: b for b in plan.inputs}
    written = set(buffers)
    freed: set[str] = set()
    for step in plan.steps:
        _step(plan, step, buffers, written, freed)
    for v in plan.outputs:
        if isinstance(v, ir.ArrayView):
            _readable(v.buffer, buffers, written, freed)


def _step(plan: Plan, step: ir.Step, buffers: dict[str, Buffer], written: set[str], freed: set[str]) -> None:
    match step:
        case ir.Alloc(buffer, fill, reuse):
            if buffer.name in buffers:
                raise LoopIRError(f"{buffer.name} is allocated twice")
            if reuse is not None:
                if reuse not in freed:
                    raise LoopIRError(f"{buffer.name} reuses {reuse}, which is not free")
                freed.discard(reuse)
                buffers.pop(reuse)
            buffers[buffer.name] = buffer
            if fill is not None or any(isinstance(n, int) and n == 0 for n in buffer.shape):
                written.add(buffer.name)
        case ir.Run(number, args, sizes):
            _sizes(plan, plan.kernels[number], dict(sizes))
            _run(plan.kernels[number], args, buffers, written, freed)
        case ir.Extern(fn, xs, outs):
            for x in xs:
                if isinstance(x, ir.ArrayView):
                    _readable(x.buffer, buffers, written, freed)
            for v in outs:
                if v.buffer not in buffers or v.buffer in freed:
                    raise LoopIRError(f"{fn} writes {v.buffer}, which is not allocated")
                written.add(v.buffer)
        case ir.Free(name):
            if name not in buffers or name in freed:
                raise LoopIRError(f"{name} is freed but not live")
            freed.add(name)


def _sizes(plan: Plan, kernel: Kernel, own: Mapping[str, int]) -> None:
    missing = set(kernel.sizes) - set(plan.sizes) - set(own)
    if missing or set(own) & set(plan.sizes) or set(own) - set(kernel.sizes):
        raise LoopIRError(f"{kernel.name} is launched with the sizes {dict(own)}, has {kernel.sizes}")
    if own:
        verify_kernel(instance(kernel, own))


def instance(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel with numbers in the place of these sizes: what a ``Run`` that states them means."""
    values: dict[Expr, ir.Int] = {Symbol(s): n for s, n in sizes.items()}

    def number(e: ir.Int) -> ir.Int:
        return as_int(lift(e).subs(values))

    def stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Load | ir.Store):
            return replace(s, index=number(s.index))
        if isinstance(s, ir.Index):
            return replace(s, expr=number(s.expr))
        if isinstance(s, ir.Loop):
            return replace(s, extent=number(s.extent), body=tuple(map(stmt, s.body)))
        return s

    params = [replace(b, shape=tuple(map(number, b.shape)), stride=tuple(map(number, b.stride))) for b in kernel.params]
    left = tuple(s for s in kernel.sizes if s not in sizes)
    return replace(kernel, params=tuple(params), sizes=left, body=tuple(map(stmt, kernel.body)))


def _run(
    kernel: Kernel, args: tuple[str, ...], buffers: Mapping[str, Buffer], written: set[str], freed: set[str]
) -> None:
    if len(args) != len(kernel.params) or len(set(args)) != len(args):
        raise LoopIRError(f"{kernel.name} takes {len(kernel.params)} different buffers, got {args}")
    for p, name in zip(kernel.params, args, strict=True):
        if name not in buffers or name in freed:
            raise LoopIRError(f"{kernel.name} uses {name}, which is not live")
        if p.dtype is not buffers[name].dtype:
            raise LoopIRError(f"{kernel.name}: {p.name} is {p.dtype}, but {name} is {buffers[name].dtype}")
        if p.name not in kernel.writes:
            _readable(name, buffers, written, freed)
    written.update(name for p, name in zip(kernel.params, args, strict=True) if p.name in kernel.writes)


def _readable(name: str, buffers: Mapping[str, Buffer], written: set[str], freed: set[str]) -> None:
    if name not in buffers or name in freed or name not in written:
        state = "freed" if name in freed else "not written" if name in buffers else "unknown"
        raise LoopIRError(f"{name} is read but {state}")
