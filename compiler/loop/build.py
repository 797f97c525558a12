"""Writing loop IR by hand: the small language in which kernels and plans print themselves.

Stage: loop.  In: a Python function over a recorder ``k`` (or ``p``).  Out: the ``Kernel`` (or ``Plan``) it describes.
A loop is ``for i in k.map(n):`` whose body Python runs once, with ``i`` a symbol; what it calls on ``k`` is recorded.
Read next: ``printer``, which writes such functions, and ``interp``, which runs what they describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from compiler.loop import ir
from compiler.loop.ir import Buffer, Int, Kernel, Plan, Scalar, Value
from compiler.sym.expr import Expr, Symbol, as_int
from tinytorch.dtypes import DType, bool_, int64, uint32
from tinytorch.ops.scalars import VOCABULARY


def result_dtype(fn: str, args: tuple[DType | None, ...]) -> DType | None:
    """What a ``Let`` gives if nothing is said; None where the operands do not tell (literals, ``cast``)."""
    if fn == "philox":
        return uint32
    kind = VOCABULARY[fn].result if fn in VOCABULARY else "target"
    if kind == "bool":
        return bool_
    if kind == "target":
        return None
    operands = args[1:] if fn == "where" else args
    return next((d for d in operands if d is not None), None)


class KernelRecorder:
    """``k`` in a printed kernel.  Values are named ``v0, v1, ...``, accumulators ``a0, ...``, axes ``i0, ...`` in the
    order of their definition; ``name=`` says otherwise."""

    def __init__(self) -> None:
        self.params: list[Buffer] = []
        self.writes: set[str] = set()
        self.sizes: list[str] = []
        self.origin: tuple[str, ...] = ()
        self.lines: tuple[tuple[str, int, str], ...] = ()
        self.dtypes: dict[str, DType] = {}
        self.values = 0
        self.axes = 0
        self.stack: list[list[ir.Stmt]] = [[]]

    # --- the signature ---
    def param(
        self, name: str, dtype: DType, shape: tuple[Int, ...], stride: tuple[Int, ...], *, device: str = "cpu"
    ) -> Buffer:
        buffer = Buffer(name, dtype, _ints(shape), _ints(stride), device)
        self.params.append(buffer)
        return buffer

    def size(self, name: str) -> Symbol:
        self.sizes.append(name)
        return Symbol(name)

    def about(self, origin: tuple[str, ...] = (), lines: tuple[tuple[str, int, str], ...] = ()) -> None:
        self.origin, self.lines = origin, lines

    # --- loops ---
    def map(self, extent: Int, name: str | None = None) -> Iterator[Symbol]:
        return self._loop("map", extent, name)

    def reduce(self, extent: Int, name: str | None = None) -> Iterator[Symbol]:
        return self._loop("reduce", extent, name)

    def scan(self, extent: Int, name: str | None = None) -> Iterator[Symbol]:
        return self._loop("scan", extent, name)

    def _loop(self, kind: Any, extent: Int, name: str | None) -> Iterator[Symbol]:
        axis = name or f"i{self.axes}"
        self.axes += 1
        self.stack.append([])
        yield Symbol(axis)
        body = tuple(self.stack.pop())
        self.stack[-1].append(ir.Loop(axis, as_int(extent), kind, body))

    # --- statements ---
    def load(
        self, buffer: Buffer, index: Int, *, mask: Symbol | None = None, other: Scalar = 0,
        dtype: DType | None = None, name: str | None = None,
    ) -> Symbol:  # fmt: skip
        dtype = dtype or buffer.dtype
        name = self._define(name, dtype)
        self._add(ir.Load(name, buffer.name, as_int(index), dtype, None if mask is None else mask.name, other))
        return Symbol(name)

    def store(
        self, buffer: Buffer, index: Int, value: Any, *, mode: Any = "set", mask: Symbol | None = None
    ) -> None:
        self.writes.add(buffer.name)
        self._add(ir.Store(buffer.name, as_int(index), _value(value), mode, None if mask is None else mask.name))

    def index(self, expr: Int, *, name: str | None = None) -> Symbol:
        name = self._define(name, int64)
        self._add(ir.Index(name, as_int(expr)))
        return Symbol(name)

    def init(self, combine: str, *dtypes: DType, names: tuple[str, ...] | None = None) -> Any:
        """One accumulator, or a tuple of the components of one."""
        names = names or tuple(f"a{self.values + n}" for n in range(len(dtypes)))
        for name, dtype in zip(names, dtypes, strict=True):
            self._define(name, dtype)
        self._add(ir.Init(names, combine, dtypes))
        return Symbol(names[0]) if len(names) == 1 else tuple(map(Symbol, names))

    def update(self, combine: str, names: Any, *values: Any) -> None:
        names = names if isinstance(names, tuple) else (names,)
        self._add(ir.Update(tuple(n.name for n in names), combine, tuple(map(_value, values))))

    def check(self, cond: Symbol, message: str, value: Symbol | None = None) -> None:
        self._add(ir.Check(cond.name, message, None if value is None else value.name))

    def let(
        self, fn: str, *args: Any, dtype: DType | None = None, name: str | None = None, origin: tuple[str, ...] = ()
    ) -> Symbol:
        values = tuple(map(_value, args))
        dtype = dtype or result_dtype(fn, tuple(self.dtypes.get(v) if isinstance(v, str) else None for v in values))
        if dtype is None:
            raise TypeError(f"{fn}{values}: the type of the result must be given")
        name = self._define(name, dtype)
        self._add(ir.Let(name, fn, values, dtype, origin))
        return Symbol(name)

    def __getattr__(self, fn: str) -> Callable[..., Symbol]:
        if fn not in VOCABULARY:
            raise AttributeError(fn)
        return lambda *args, **keywords: self.let(fn, *args, **keywords)

    def _define(self, name: str | None, dtype: DType) -> str:
        name = name or f"v{self.values}"
        self.values += 1
        self.dtypes[name] = dtype
        return name

    def _add(self, stmt: ir.Stmt) -> None:
        self.stack[-1].append(stmt)


class PlanRecorder:
    """``p`` in a printed plan."""

    def __init__(self) -> None:
        self.inputs: list[Buffer] = []
        self.outputs: tuple[ir.ArrayView | Int | None, ...] = ()
        self.known: list[Kernel] = []
        self.steps: list[ir.Step] = []
        self.sizes: list[str] = []

    def size(self, name: str) -> Symbol:
        self.sizes.append(name)
        return Symbol(name)

    def kernels(self, *kernels: Kernel) -> None:
        self.known += kernels

    def input(
        self, name: str, dtype: DType, shape: tuple[Int, ...], stride: tuple[Int, ...], *, device: str = "cpu"
    ) -> Buffer:
        self.inputs.append(Buffer(name, dtype, _ints(shape), _ints(stride), device))
        return self.inputs[-1]

    def alloc(
        self, name: str, dtype: DType, shape: tuple[Int, ...], stride: tuple[Int, ...], *, device: str = "cpu",
        fill: Scalar | None = None, reuse: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        buffer = Buffer(name, dtype, _ints(shape), _ints(stride), device)
        self.steps.append(ir.Alloc(buffer, fill, None if reuse is None else reuse.name))
        return buffer

    def run(self, kernel: Kernel, *args: Buffer, **sizes: int) -> None:
        position = next(n for n, k in enumerate(self.known) if k is kernel)
        self.steps.append(ir.Run(position, tuple(b.name for b in args), tuple(sizes.items())))

    def view(
        self, buffer: Buffer, shape: tuple[Int, ...], stride: tuple[Int, ...], offset: Int = 0
    ) -> ir.ArrayView:
        return ir.ArrayView(buffer.name, _ints(shape), _ints(stride), as_int(offset))

    def extern(self, fn: str, *args: Any, outs: Any, origin: tuple[str, ...] = (), **params: Any) -> None:
        self.steps.append(ir.Extern(fn, args, tuple(outs), params, origin))

    def free(self, buffer: Buffer) -> None:
        self.steps.append(ir.Free(buffer.name))

    def output(self, *views: ir.ArrayView | Int | None) -> None:
        self.outputs = views


def kernel(function: Callable[[KernelRecorder], None]) -> Kernel:
    """The kernel that ``function(k)`` describes; its name is the function's."""
    k = KernelRecorder()
    function(k)
    return Kernel(
        function.__name__, tuple(k.params), frozenset(k.writes), tuple(k.sizes), tuple(k.stack[0]), k.origin, k.lines
    )


def plan(function: Callable[[PlanRecorder], None]) -> Plan:
    """The plan that ``function(p)`` describes."""
    p = PlanRecorder()
    function(p)
    return Plan(tuple(p.inputs), p.outputs, tuple(p.known), tuple(p.steps), tuple(p.sizes))


def _value(x: Any) -> Value:
    if isinstance(x, Symbol):
        return x.name
    if isinstance(x, Expr):
        raise TypeError(f"{x} is index arithmetic: make it a value by k.index(...)")
    return x  # type: ignore[no-any-return]


def _ints(xs: tuple[Int, ...]) -> tuple[Int, ...]:
    return tuple(map(as_int, xs))
