"""What loop IR means: kernels and plans executed one scalar at a time, in plain Python.

Stage: loop.  In: a ``Kernel`` or ``Plan`` and arrays.  Out: the arrays written.  Slow, and the judge of every codegen.
``order`` runs map loops forwards, backwards or shuffled, which a correct kernel cannot notice; every index is
checked.  Read next: ``verify`` (what can be said without running), ``lower``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from compiler.loop import ir
from compiler.loop.ir import Buffer, Int, Kernel, Plan
from compiler.sym.expr import Expr
from tinytorch.device import cpu
from tinytorch.dtypes import DType, bool_
from tinytorch.eager import run, wrap
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.ops.spell_numpy import handler, spelling

Order = Literal["forward", "backward", "shuffle"]
FUNCTIONS = handler(np)


def size(n: Int, sizes: Mapping[str, int]) -> int:
    return int(n.evaluate(sizes)) if isinstance(n, Expr) else int(n)


# --- accumulators ----------------------------------------------------------------------------------------------------
def lowest(dtype: DType) -> Any:
    """The identity of ``max``: -inf, the least integer, or False."""
    return _extreme(dtype, -1)


def highest(dtype: DType) -> Any:
    return _extreme(dtype, 1)


def _extreme(dtype: DType, sign: int) -> Any:
    if dtype.kind == "f":
        return dtype.np.type(sign * math.inf)
    if dtype.kind == "b":
        return np.bool_(sign > 0)
    info = np.iinfo(dtype.np)
    return dtype.np.type(info.max if sign > 0 else info.min)


def identity(combine: str, dtypes: Sequence[DType]) -> list[Any]:
    """Where an accumulator starts: joining this with ``x`` gives ``x``."""
    first = dtypes[0].np.type
    last_index = np.int64(2**63 - 1)
    match combine:
        case "add" | "xor":
            return [first(0)]
        case "mul":
            return [first(1)]
        case "max":
            return [lowest(dtypes[0])]
        case "min":
            return [highest(dtypes[0])]
        case "and":
            return [~first(0)]
        case "or":
            return [first(0)]
        case "argmax":
            return [lowest(dtypes[0]), last_index]
        case "argmin":
            return [highest(dtypes[0]), last_index]
        case "welford":
            return [d.np.type(0) for d in dtypes]
        case "softmax":
            return [lowest(dtypes[0]), dtypes[1].np.type(0)]
    raise ValueError(combine)


def join(combine: str, acc: list[Any], values: Sequence[Any]) -> list[Any]:
    """``combine(acc, values)``; any order of joining is allowed, so only rounding may depend on it."""
    x = values[0]
    a = acc[0]
    match combine:
        case "add":
            return [a + x if a.dtype.kind != "b" else a | x]
        case "mul":
            return [a * x]
        case "max":
            return [np.maximum(a, x)]
        case "min":
            return [np.minimum(a, x)]
        case "and":
            return [a & x]
        case "or":
            return [a | x]
        case "xor":
            return [a ^ x]
        case "argmax" | "argmin":
            return list(values) if _wins(combine, x, values[1], a, acc[1]) else acc
        case "welford":
            count = acc[2] + acc[2].dtype.type(1)
            delta = x - a
            mean = a + delta / count
            return [mean, acc[1] + delta * (x - mean), count]
        case "softmax":
            top = np.maximum(a, x)
            if np.isneginf(top):  # exp(-inf - -inf) must add nothing
                return [top, acc[1]]
            return [top, acc[1] * np.exp(a - top) + np.exp(x - top)]
    raise ValueError(combine)


def _wins(combine: str, x: Any, at: Any, best: Any, where: Any) -> bool:
    """Is (x, at) the better candidate: NaN before numbers, then the extreme, then the lower index."""
    nan, had = bool(np.isnan(x)), bool(np.isnan(best))
    if nan or had:
        return at < where if nan and had else nan
    return bool(at < where) if x == best else bool(x > best if combine == "argmax" else x < best)


# --- memory ----------------------------------------------------------------------------------------------------------
class Memory:
    """A strided array as one row of elements; element 0 is the array's first, wherever it lies."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        item = array.dtype.itemsize
        steps = [s // item for s in array.strides]
        assert all(s % item == 0 for s in array.strides), "strides are whole elements"
        if array.size == 0:
            self.flat, self.first = array.reshape(-1), 0
            return
        reach = [(n - 1) * s for n, s in zip(array.shape, steps, strict=True)]
        self.first = -sum(r for r in reach if r < 0)
        lowest = array[tuple(-1 if s < 0 else 0 for s in steps)] if array.ndim else array
        base = array[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in steps)] if array.ndim else array
        del lowest
        span = 1 + sum(abs(r) for r in reach)
        self.flat = np.lib.stride_tricks.as_strided(base, (span,), (item,), writeable=array.flags.writeable)

    def at(self, index: int) -> int:
        k = index + self.first
        if not 0 <= k < self.flat.shape[0]:
            raise IndexError(f"loop IR reaches element {index} of a buffer of {self.flat.shape[0]}")
        return k


# --- kernels ---------------------------------------------------------------------------------------------------------
class KernelRun:
    """One launch: names are bound in one dictionary, statement after statement."""

    def __init__(
        self, kernel: Kernel, arrays: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int], order: Order, seed: int
    ) -> None:
        self.kernel = kernel
        self.memory = {b.name: Memory(a) for b, a in zip(kernel.params, arrays, strict=True)}
        self.env: dict[str, Any] = {name: sizes[name] for name in kernel.sizes}
        self.dtypes: dict[str, DType] = {}
        self.order = order
        self.random = random.Random(seed)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self.block(self.kernel.body)

    def block(self, body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            getattr(self, type(stmt).__name__.lower())(stmt)

    def loop(self, loop: ir.Loop) -> None:
        steps: Sequence[int] = range(self.int(loop.extent))
        if loop.kind == "map" and self.order == "backward":
            steps = steps[::-1]
        elif loop.kind == "map" and self.order == "shuffle":
            steps = self.random.sample(steps, len(steps))
        for i in steps:
            self.env[loop.axis] = i
            self.block(loop.body)

    def int(self, e: Int) -> int:
        if not isinstance(e, Expr):
            return e
        return e.evaluate({s.name: int(self.env[s.name]) for s in e.free_symbols})

    def value(self, v: ir.Value, dtype: DType | None = None) -> Any:
        if isinstance(v, str):
            return self.env[v]
        return FUNCTIONS.cast(np.asarray(v), dtype)[()] if dtype is not None else v

    def let(self, s: ir.Let) -> None:
        operand = next((self.dtypes[a] for a in s.args[s.fn == "where" :] if isinstance(a, str)), s.dtype)
        if s.fn == "const":
            out = FUNCTIONS.cast(np.asarray(s.args[0]), s.dtype)[()]
        elif s.fn in ("cast", "bitcast"):
            out = getattr(FUNCTIONS, s.fn)(self.value(s.args[0]), s.dtype)[()]
        else:
            args = [self.value(a, operand if (s.fn != "where" or n) else None) for n, a in enumerate(s.args)]
            out = np.asarray(getattr(FUNCTIONS, s.fn)(*args))[()]
            if s.dtype is bool_:  # NumPy divides and rounds bools in a small type
                out = np.bool_(out)
            if out.dtype != s.dtype.np:
                raise TypeError(f"{s}: gives {out.dtype}")
        self.bind(s.name, out, s.dtype)

    def index(self, s: ir.Index) -> None:
        from tinytorch.dtypes import int64

        self.bind(s.name, np.int64(self.int(s.expr)), int64)

    def load(self, s: ir.Load) -> None:
        memory = self.memory[s.buffer]
        if s.mask is not None and not self.env[s.mask]:
            out = FUNCTIONS.cast(np.asarray(s.other), s.dtype)[()]
        else:
            out = memory.flat[memory.at(self.int(s.index))]
        self.bind(s.name, out, s.dtype)

    def store(self, s: ir.Store) -> None:
        if s.mask is not None and not self.env[s.mask]:
            return
        memory = self.memory[s.buffer]
        k = memory.at(self.int(s.index))
        value = self.value(s.value)
        if s.mode != "set":
            value = join(s.mode, [memory.flat[k]], [memory.flat.dtype.type(value)])[0]
        memory.flat[k] = value

    def init(self, s: ir.Init) -> None:
        for name, x, dtype in zip(s.names, identity(s.combine, s.dtypes), s.dtypes, strict=True):
            self.bind(name, x, dtype)

    def update(self, s: ir.Update) -> None:
        values = [self.value(v, self.dtypes[s.names[min(n, len(s.names) - 1)]]) for n, v in enumerate(s.values)]
        joined = join(s.combine, [self.env[n] for n in s.names], values)
        for name, x in zip(s.names, joined, strict=True):
            self.env[name] = self.dtypes[name].np.type(x)

    def check(self, s: ir.Check) -> None:
        if not self.env[s.cond]:
            raise IndexError(s.message if s.value is None else s.message.format(self.env[s.value]))

    def bind(self, name: str, x: Any, dtype: DType) -> None:
        if x.dtype != dtype.np:
            raise TypeError(f"{self.kernel.name}: {name} should be {dtype}, is {x.dtype}")
        self.env[name] = x
        self.dtypes[name] = dtype


def run_kernel(
    kernel: Kernel, arrays: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int] = {}, *,
    order: Order = "forward", seed: int = 0,
) -> None:  # fmt: skip
    """Launch ``kernel`` on one array per parameter (strides as the parameters say)."""
    KernelRun(kernel, arrays, sizes, order, seed).run()


# --- plans -----------------------------------------------------------------------------------------------------------
def strided(array: np.ndarray[Any, Any], shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> Any:
    """A look at the memory of ``array``, in elements from its first one."""
    item = array.dtype.itemsize
    memory = Memory(array)
    if 0 in shape:
        return np.empty(tuple(shape), array.dtype)
    flat = memory.flat[offset + memory.first :]
    return np.lib.stride_tricks.as_strided(flat, tuple(shape), tuple(s * item for s in stride))


def run_plan(
    plan: Plan, inputs: Sequence[np.ndarray[Any, Any]], sizes: Sequence[int] = (), *, order: Order = "forward"
) -> list[Any]:
    """Run the host program; ``sizes`` in the order of ``plan.sizes``."""
    env = dict(zip(plan.sizes, sizes, strict=True))
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for buffer, array in zip(plan.inputs, inputs, strict=True):
        _check_input(buffer, array, env)
        arrays[buffer.name] = array
    for n, step in enumerate(plan.steps):
        match step:
            case ir.Alloc(buffer, fill, reuse):
                arrays[buffer.name] = _allocate(buffer, fill, arrays[reuse] if reuse is not None else None, env)
            case ir.Run(kernel, args, own):
                run_kernel(plan.kernels[kernel], [arrays[a] for a in args], {**env, **dict(own)}, order=order, seed=n)
            case ir.Extern():
                _extern(step, arrays, env)
            case ir.Free():
                pass  # a later Alloc may reuse it by name
    return [_result(v, plan, arrays, env) if isinstance(v, ir.ArrayView) else concrete(v, env) for v in plan.outputs]


def _check_input(buffer: Buffer, array: np.ndarray[Any, Any], env: Mapping[str, int]) -> None:
    shape = tuple(size(n, env) for n in buffer.shape)
    if array.shape != shape or array.dtype != buffer.dtype.np:
        raise TypeError(f"{buffer.name}: expected {buffer.dtype}{shape}, got {array.dtype}{array.shape}")
    for n, s, have in zip(shape, buffer.stride, array.strides, strict=True):
        if n > 1 and array.size and size(s, env) * array.dtype.itemsize != have:
            raise TypeError(f"{buffer.name}: expected strides {buffer.stride}, got {array.strides} bytes")


def _allocate(buffer: Buffer, fill: Any, old: Any, env: Mapping[str, int]) -> np.ndarray[Any, Any]:
    shape = [size(n, env) for n in buffer.shape]
    stride = [size(n, env) for n in buffer.stride]
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if old is None:
        flat = np.empty(span, buffer.dtype.np)
        flat.view(np.uint8).fill(0xA5)  # undefined contents should look it
    else:
        flat = Memory(old).flat.view(buffer.dtype.np)
        assert flat.shape[0] >= span, f"{buffer.name} does not fit into what it reuses"
    if fill is not None:
        flat[...] = fill
    return strided(flat, shape, stride)  # type: ignore[no-any-return]


def _result(v: ir.ArrayView, plan: Plan, arrays: Mapping[str, Any], env: Mapping[str, int]) -> Any:
    """An output that is a whole input is that very array."""
    whole = any(b.name == v.buffer and b.shape == v.shape and b.stride == v.stride and v.offset == 0 for b in plan.inputs)
    return arrays[v.buffer] if whole else _look(v, arrays, env)


def _look(v: ir.ArrayView, arrays: Mapping[str, Any], env: Mapping[str, int]) -> Any:
    shape, stride = [size(n, env) for n in v.shape], [size(n, env) for n in v.stride]
    return strided(arrays[v.buffer], shape, stride, size(v.offset, env))


def _extern(step: ir.Extern, arrays: Mapping[str, Any], env: Mapping[str, int]) -> None:
    """The row's eager kernel, copied into the output views."""
    kernel = row_kernel(TABLE[step.fn])
    args = [_look(a, arrays, env) if isinstance(a, ir.ArrayView) else a for a in step.args]
    with np.errstate(all="ignore"):
        made = library_result(kernel, np, args, {k: concrete(v, env) for k, v in step.params.items()})
    many = made if isinstance(made, tuple | list) else (made,)
    for view, result in zip(step.outs, many, strict=True):
        np.copyto(_look(view, arrays, env), result, casting="unsafe")


def row_kernel(row: Op) -> Callable[..., Any]:
    """What an extern call of the row computes.  One that has loops comes here with numbers that kernels have no words
    for (complex ones), and is computed as by eager."""
    if row.kind != "pointwise":
        if row.kernel is None:
            raise TypeError(f"{row} has no kernel to call")
        return row.kernel

    def kernel(_: Any, *arrays: Any, **params: Any) -> Any:
        args = [wrap(a, cpu) if isinstance(a, np.ndarray) else a for a in arrays]
        return run(row, tuple(args), params)._data

    return kernel


def library_result(kernel: Callable[..., Any], xp: Any, args: Sequence[Any], params: Mapping[str, Any]) -> Any:
    """What an extern call gives, by its row's own kernel; with ``then`` (``epilogue``) in float32, rounded once."""
    then = params.get("then", ())
    if not then:
        return kernel(xp, *args, **params)
    x, y, *more = args
    wide = x.astype(np.float32), y.astype(np.float32)
    made = finished(xp, then, kernel(xp, *wide), [m.astype(np.float32) for m in more])
    made = [m.astype(x.dtype) for m in made]
    return made if "aux" in then else made[0]


def finished(xp: Any, then: Sequence[str], out: Any, more: Sequence[Any]) -> list[Any]:
    """What the words make of a product, and last what it was before its GELU; ``more`` has their operands."""
    operands = iter(more)
    before = out
    for word in then:
        if word == "gelu":
            before, out = out, GELU(xp, out)
        elif word == "dgelu":
            out = SLOPE(xp, out, next(operands))
        elif word != "aux":  # a bias and a matrix are both what broadcasting makes of them
            out = out + next(operands)
    return [out, before]


#: What a product may end in, and its derivative times the product.
GELU, SLOPE = (spelling(TABLE[name]) for name in ("gelu_tanh", "gelu_tanh_grad"))


def concrete(v: Any, env: Mapping[str, int]) -> Any:
    """A parameter with its symbolic ints replaced by numbers."""
    if isinstance(v, Expr):
        return v.evaluate(env)
    if isinstance(v, tuple | list):
        return type(v)(concrete(x, env) for x in v)
    return v
