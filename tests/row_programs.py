"""Random programs over the whole table of rows, each value with the bound of its error.

A program is drawn one step after another, each run eagerly at once: shapes and types are eager's own, a step that eager
refuses is no step, and a row that is not continuous is only given arguments every machine agrees on.  ``programs()`` draws
by Hypothesis, which shrinks what fails; ``rolled(seed)`` by dice, which is faster and repeats itself less.  A ``Program``
prints as the Python that makes it.  Types, layouts (transposed, reversed, strided, broadcast, shifted) and sizes around
the edges of blocks and vectors are drawn too, and so are NaN, infinities, the ends of integer ranges and empty tensors.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from program_bounds import CONTINUOUS, Value, exact, met, result

from tinytorch import dtypes
from tinytorch.device import cpu
from tinytorch.ops import TABLE
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor

REFUSES = (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError)
MOST = 700  # elements of one value
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
TYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")
LAYOUTS = ("C", "C", "C", "F", "reversed", "strided", "broadcast", "shifted")

UNARY = (
    "neg abs sign square relu floor ceil trunc round isnan logical_not clone contiguous bit_not exp exp2 expm1 log log2 "
    "log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid sqrt_or_zero "
    "tanh sin erf relu neg abs square"
).split()
BINARY = (
    "add sub mul div floordiv mod fmod pow maximum minimum clamp_min clamp_max copysign atan2 eq ne lt le gt ge bit_and "
    "bit_or bit_xor shl shr overwrite add sub mul maximum minimum floordiv mod"
).split()
#: step kind -> how often
KINDS = {
    "unary": 10, "binary": 14, "where": 2, "cast": 3, "reduce": 4, "extreme": 1, "var": 1, "scan": 2, "expand": 1,
    "permute": 2, "view": 2, "slice": 2, "select": 1, "diagonal": 1, "unfold": 1, "squeeze": 1, "complex": 1, "bitcast": 1,
    "slice_backward": 1, "diagonal_backward": 1, "unfold_backward": 1, "slice_scatter": 2, "cat": 2, "flip": 1, "gather": 1,
    "scatter": 2, "index_select": 1, "index_add": 1, "index": 1, "index_put": 2, "create": 1, "random": 1, "matmul": 1,
}  # fmt: skip
BAG = [k for k, n in KINDS.items() for _ in range(n)]
#: as in ``test_rows_compiled``: types that the functions which use a row never hand to it
NO_SUCH_TYPES = {"b": ("var", "floordiv", "mod", "fmod", "round"), "u": ("var", "round"), "i": ("var", "round")}


@dataclass
class Step:
    name: str
    args: tuple[Any, ...]  # numbers, and places in the pool as ("v", n)
    params: dict[str, Any]

    def __call__(self, pool: list[Tensor]) -> Tensor:
        return TABLE[self.name](*(pool[a[1]] if isinstance(a, tuple) else a for a in self.args), **self.params)


@dataclass
class Program:
    inputs: list[Tensor] = field(default_factory=list)
    #: the pool: inputs first, then one value a step; inputs may be drawn late, so both carry their place
    values: list[Value] = field(default_factory=list)
    steps: list[Step | int] = field(default_factory=list)  # a step, or the number of an input
    outputs: list[int] = field(default_factory=list)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        pool: list[Tensor] = []
        for s in self.steps:
            pool.append(inputs[s] if isinstance(s, int) else s(pool))
        return tuple(pool[o] for o in self.outputs)

    def __repr__(self) -> str:
        lines = []
        for n, (s, v) in enumerate(zip(self.steps, self.values, strict=True)):
            if isinstance(s, int):
                a = v.array
                what = f"input{s}  # {a.dtype}{list(a.shape)} strides {a.strides}: {str(a.ravel()[:8].tolist())[:110]}"
            else:
                args = [f"v{a[1]}" if isinstance(a, tuple) else repr(a) for a in s.args]
                args += [f"{k}={x}" for k, x in s.params.items()]
                what = f"ops.{s.name}({', '.join(args)})  # {v.array.dtype}{list(v.shape)}"
            lines.append(f"v{n} = {what}")
        return "\n".join([*lines, f"return {', '.join(f'v{o}' for o in self.outputs)}"])


class Grower:
    """Draws a program with ``roll(low, high)``, a whole number between the two; one method for each kind of step."""

    def __init__(self, roll: Callable[[int, int], int]) -> None:
        self.roll = roll
        self.program = Program()
        self.data = np.random.default_rng(roll(0, 2**16))

    # --- drawing ---
    def one(self, items: Any) -> Any:
        return items[self.number(0, len(items) - 1)]

    def number(self, low: int, high: int) -> int:
        return self.roll(low, high) if high > low else low

    def shuffled(self, n: int) -> list[int]:
        left = list(range(n))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(n)]

    def flag(self) -> bool:
        return bool(self.number(0, 1))

    def pick(self, ok: Any = lambda v: True) -> int | None:
        good = [n for n, v in enumerate(self.program.values) if ok(v)]
        if not good:
            return None
        recent = good[-3:]
        return self.one(recent) if self.flag() else self.one(good)

    def value(self, n: int) -> Value:
        return self.program.values[n]

    def dimension(self, ok: Any = lambda v: True) -> tuple[int, int] | None:
        a = self.pick(lambda v: v.shape and ok(v))
        return None if a is None else (a, self.number(0, len(self.value(a).shape) - 1))

    # --- inputs ---
    def shape(self) -> tuple[int, ...]:
        shape: list[int] = []
        for _ in range(self.number(0, 4)):
            n = self.one(SIZES)
            shape.append(n if int(np.prod([*shape, n])) <= MOST else 1)
        return tuple(shape)

    def numbers(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Small multiples of 1/8, ordinary numbers, or edges among small ones."""
        how = self.one(["grid", "grid", "normal", "edges"])
        if dtype.kind == "b":
            return self.data.integers(0, 2, shape) == 1
        if dtype.kind in "iu":
            ends = np.iinfo(dtype.np)
            low = self.data.integers(max(-7, int(ends.min)), 8, shape).astype(dtype.np)
            odd = np.array([ends.max, ends.min, ends.max - 1, 0, 1], dtype.np)
            return np.where(self.data.random(shape) < 0.3, self.data.choice(odd, shape), low) if how == "edges" else low
        grid = self.data.integers(-32, 33, shape) / 8
        if how == "normal":
            grid = self.data.standard_normal(shape)
        if how == "edges":
            top = 65504.0 if dtype.name == "float16" else 3e38
            odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, top, -top, 1e-7, -1e-40, 1.0])
            grid = np.where(self.data.random(shape) < 0.3, self.data.choice(odd, shape), grid)
        with np.errstate(all="ignore"):
            return np.asarray(grid).astype(dtype.np)

    def laid_out(self, a: np.ndarray) -> np.ndarray:
        how = self.one(LAYOUTS)
        if how == "C" or not a.ndim:
            return np.ascontiguousarray(a).reshape(a.shape)
        if how == "F":
            return np.asfortranarray(a)
        if how == "reversed":
            return a[tuple(slice(None, None, -1) for _ in a.shape)]
        if how == "strided":
            block = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
            view = block[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
            view[...] = a
            return view
        if how == "shifted":
            flat = np.zeros(a.size + 3, a.dtype)
            flat[3:] = a.ravel()
            return flat[3:].reshape(a.shape)
        d = self.number(0, a.ndim - 1)
        return np.broadcast_to(a[(slice(None),) * d + (slice(0, 1),)], a.shape)

    def input(self, array: np.ndarray) -> int:
        t = Tensor._wrap(array, cpu)
        self.program.steps.append(len(self.program.inputs))
        self.program.inputs.append(t)
        self.program.values.append(exact(t))
        return len(self.program.values) - 1

    def start(self) -> None:
        shape = self.shape()
        name = self.one(TYPES)
        for n in range(self.number(1, 3)):
            dtype = dtypes.BY_NAME[name if self.flag() else self.one(TYPES)]
            own = tuple(1 if n and self.number(0, 3) == 0 else k for k in shape)[self.number(0, 1) * min(n, 1) :]
            self.input(self.laid_out(self.numbers(own, dtype)))

    # --- steps ---
    def step(self, name: str, *args: Any, **params: Any) -> None:
        """Run a row on places of the pool and numbers (written as ``("n", x)``); keep it if eager takes it."""
        plain = met([a[1] if isinstance(a, tuple) else self.value(a) for a in args])
        values = [a for a in plain if isinstance(a, Value)]
        if any(name in NO_SUCH_TYPES.get(v.kind, ()) for v in values):
            return
        if name not in CONTINUOUS and not all(v.exact for v in values):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                out = TABLE[name](*[a.t if isinstance(a, Value) else a for a in plain], **params)
            except REFUSES:
                return
            if out._data.size > MOST:
                return
            kept = result(name, out, plain, params)
        self.program.steps.append(Step(name, tuple(a[1] if isinstance(a, tuple) else ("v", a) for a in args), params))
        self.program.values.append(kept)

    def grow(self) -> None:
        getattr(self, "do_" + self.one(BAG))()

    def do_unary(self) -> None:
        name = self.one(UNARY)
        a = self.pick(lambda v: name in CONTINUOUS or v.exact)
        if a is not None:
            self.step(name, a)

    def other(self, a: int, ok: Any = lambda v: True) -> Any:
        """A second operand: a tensor that broadcasts with the first, or a number."""
        v = self.value(a)
        if self.number(0, 4) == 0:
            whole = self.one([0, 1, 2, 3, -1, -3])
            return ("n", whole if v.kind in "iub" or self.flag() else self.one([0.5, -1.25, 0.1, 3.7]))
        return self.pick(lambda w: ok(w) and _broadcast(w.shape, v.shape) is not None)

    def do_binary(self) -> None:
        name = self.one(BINARY)
        smooth = lambda v: v.kind != "c" and (name in CONTINUOUS or v.exact)  # noqa: E731
        a = self.pick(smooth)
        if a is None:
            return
        b = self.other(a, smooth)
        if b is None or name == "pow" and not self._may_be_power(a, b) or name == "overwrite" and isinstance(b, tuple):
            return
        if name == "overwrite" and not all(_fits(self.value(x), self.value(y).t.dtype) for x, y in ((a, b), (b, a))):
            return
        self.step(name, *((a, b) if self.flag() else (b, a)) if not isinstance(b, tuple) else (a, b))

    def _may_be_power(self, a: int, b: Any) -> bool:
        return self.value(a).kind == "f" and (isinstance(b, tuple) or self.value(b).kind == "f")

    def do_where(self) -> None:
        c = self.pick(lambda v: v.kind == "b")
        a = self.pick(lambda v: c is not None and _broadcast(v.shape, self.value(c).shape) is not None)
        if a is not None:
            b = self.other(a, lambda v: _broadcast(v.shape, self.value(c).shape) is not None)
            if b is not None:
                self.step("where", c, a, b)

    def do_cast(self) -> None:
        a = self.pick(lambda v: v.kind != "c")
        dtype = dtypes.BY_NAME[self.one(TYPES)]
        v = self.value(a) if a is not None else None
        if v is None or dtype.kind in "biu" and not v.exact:
            return
        if not _fits(v, dtype):
            return
        self.step("cast", a, dtype=dtype)

    def do_reduce(self) -> None:
        name = self.one(["sum", "sum", "amax", "amin", "prod", "any", "all"])
        a = self.pick(lambda v: v.kind != "c" and (name in CONTINUOUS or v.exact))
        if a is not None:
            rank = len(self.value(a).shape)
            dims = tuple(d for d in range(rank) if self.flag()) or ((self.number(0, rank - 1),) if rank else ())
            self.step(name, a, dim=dims, keepdim=self.flag())

    def do_var(self) -> None:
        found = self.dimension(lambda v: v.kind == "f" and np.isfinite(v.array.astype(np.float64)).all())
        if found and self.value(found[0]).shape[found[1]] > 1:
            self.step("var", found[0], dim=(found[1],), keepdim=self.flag(), correction=self.number(0, 1))

    def do_extreme(self) -> None:
        found = self.dimension(lambda v: v.exact and v.kind not in "cb")
        if found:
            self.step(self.one(["argmax", "argmin"]), found[0], dim=found[1], keepdim=self.flag())

    def do_scan(self) -> None:
        name = self.one(["cumsum", "cumsum", "cumprod"])
        found = self.dimension(lambda v: v.kind not in "cb" and (name == "cumsum" or v.exact))
        if found:
            self.step(name, found[0], dim=found[1])

    # --- views ---
    def do_expand(self) -> None:
        a = self.pick(lambda v: 1 in v.shape or len(v.shape) < 4)
        if a is not None:
            shape = tuple(self.one([2, 3, 5]) if n == 1 and self.flag() else n for n in self.value(a).shape)
            self.step("expand", a, shape=(2, *shape) if self.number(0, 2) == 0 else shape)

    def do_permute(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 1)
        if a is not None:
            self.step("permute", a, dims=tuple(self.shuffled(len(self.value(a).shape))))

    def do_view(self) -> None:
        a = self.pick()
        n = int(np.prod(self.value(a).shape, dtype=int))
        cut = self.one([d for d in range(1, n + 1) if n % d == 0] or [1])
        rest = n // cut
        cut2 = self.one([d for d in range(1, rest + 1) if rest % d == 0] or [1])
        shapes = [(n,), (cut, rest), (cut, cut2, rest // cut2), (1, n, 1)] + [()] * (n == 1)
        self.step("view", a, shape=self.one(shapes))

    def _span(self, n: int) -> tuple[int, int, int, int]:
        start = self.number(0, n)
        stop, step = self.number(start, n), self.number(1, 3)
        return start, stop, step, (stop - start + step - 1) // step

    def do_slice(self) -> None:
        if found := self.dimension():
            start, stop, step, _ = self._span(self.value(found[0]).shape[found[1]])
            self.step("slice", found[0], dim=found[1], start=start, stop=stop, step=step)

    def do_select(self) -> None:
        if (found := self.dimension()) and (n := self.value(found[0]).shape[found[1]]):
            self.step("select", found[0], dim=found[1], index=self.number(0, n - 1))

    def do_diagonal(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 1)
        if a is not None:
            d1, d2 = self.shuffled(len(self.value(a).shape))[:2]
            self.step("diagonal", a, offset=self.number(-2, 2), dim1=d1, dim2=d2)

    def do_unfold(self) -> None:
        if found := self.dimension():
            n = self.value(found[0]).shape[found[1]]
            self.step("unfold", found[0], dim=found[1], size=self.number(0, min(n, 3)), step=self.number(1, 3))

    def do_squeeze(self) -> None:
        a = self.pick()
        shape = self.value(a).shape
        if self.flag():
            self.step("unsqueeze", a, dim=self.number(0, len(shape)))
        else:
            self.step("squeeze", a, dims=tuple(d for d, n in enumerate(shape) if n == 1 and self.flag()))

    def do_complex(self) -> None:
        a = self.pick(lambda v: v.kind == "c")
        if a is None:
            b = self.pick(lambda v: v.t.dtype.name in ("float32", "float64") and v.shape[-1:] == (2,) and v.exact)
            if b is not None:
                self.step("view_as_complex", b)
            return
        name = self.one(["real", "imag", "view_as_real", "conj", "neg", "abs", "add", "mul"])
        self.step(name, a, *[a] * (name in ("add", "mul")))

    def do_bitcast(self) -> None:
        quiet = lambda v: v.kind != "f" or not np.isnan(v.array.astype(np.float64)).any()  # noqa: E731 - nor are a NaN's bits
        a = self.pick(lambda v: v.exact and v.kind in "iuf" and quiet(v))
        if a is None:
            return
        have = self.value(a).t.dtype
        same = [d for d in dtypes.ALL if d.kind in "iu" and d.itemsize == have.itemsize and d is not have]
        if same:
            self.step("bitcast", a, dtype=self.one(same))

    # --- index rows ---
    def do_slice_backward(self) -> None:
        if found := self.dimension(lambda v: v.kind != "c"):
            n, start, step = self.value(found[0]).shape[found[1]], self.number(0, 3), self.number(1, 3)
            stop = start + max(n - 1, 0) * step + (n > 0)
            self.step("slice_backward", found[0], dim=found[1], size=stop + self.number(0, 2), start=start, stop=stop, step=step)

    def do_slice_scatter(self) -> None:
        """What writing into a slice becomes."""
        if not (found := self.dimension(lambda v: v.kind != "c")):
            return
        v = self.value(found[0])
        start, stop, step, count = self._span(v.shape[found[1]])
        want = tuple(count if d == found[1] else n for d, n in enumerate(v.shape))
        src = self.pick(lambda w: w.shape == want and w.t.dtype is v.t.dtype)
        if src is None:
            src = self.input(self.laid_out(self.numbers(want, v.t.dtype)))
        self.step("slice_scatter", found[0], src, dim=found[1], start=start, stop=stop, step=step)

    def do_diagonal_backward(self) -> None:
        a = self.pick(lambda v: 0 < len(v.shape) < 4 and v.kind != "c")
        if a is not None:
            *rest, n = self.value(a).shape
            offset = self.number(-2, 2)
            shape = (*rest, n + max(0, -offset), n + max(0, offset))
            self.step("diagonal_backward", a, shape=shape, offset=offset, dim1=len(rest), dim2=len(rest) + 1)

    def do_unfold_backward(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 1 and v.kind != "c" and v.shape[-1] and v.shape[-2])
        if a is not None:
            *rest, count, width = self.value(a).shape
            step = self.number(1, 3)
            shape = (*rest, (count - 1) * step + width + self.number(0, step - 1))
            self.step("unfold_backward", a, shape=shape, dim=len(rest), size=width, step=step)

    def do_cat(self) -> None:
        if not (found := self.dimension(lambda v: v.kind != "c")):
            return
        a, d = found
        shape = self.value(a).shape
        alike = lambda w: len(w.shape) == len(shape) and all(  # noqa: E731
            x == y or k == d for k, (x, y) in enumerate(zip(w.shape, shape, strict=True))
        )
        parts = [self.pick(lambda w: w.kind != "c" and alike(w)) for _ in range(self.number(1, 3))]
        self.step("cat", a, *(p for p in parts if p is not None and self.value(p).t.dtype is self.value(a).t.dtype), dim=d)

    def do_flip(self) -> None:
        a = self.pick()
        self.step("flip", a, dims=tuple(d for d in range(len(self.value(a).shape)) if self.flag()))

    def places(self, n: int, shape: Any, low: int = 0) -> int:
        return self.input(self.laid_out(self.data.integers(low, max(n, 1), tuple(shape))))

    def do_gather(self) -> None:
        if (found := self.dimension()) and (n := self.value(found[0]).shape[found[1]]):
            shape = list(self.value(found[0]).shape)
            shape[found[1]] = self.number(0, 4)
            self.step("gather", found[0], self.places(n, shape), dim=found[1])

    def do_scatter(self) -> None:
        name = self.one(["scatter", "scatter_add", "scatter_add", "scatter_reduce"])
        ok = lambda v: v.kind not in "cb" and (name != "scatter_reduce" or v.exact)  # noqa: E731
        if not (found := self.dimension(ok)) or not self.value(found[0]).shape[found[1]]:
            return
        a, d = found
        v = self.value(a)
        shape = list(v.shape)
        shape[d] = self.number(0, min(4, v.shape[d]))
        src = self.pick(lambda w: list(w.shape) == shape and w.t.dtype is v.t.dtype and ok(w))
        if src is None:
            src = self.input(self.laid_out(self.numbers(tuple(shape), v.t.dtype)))
        if name == "scatter":  # each place once: of two writes either may win
            order = self.data.permuted(np.arange(v.shape[d]))[: shape[d]]
            index = self.input(np.broadcast_to(order.reshape([-1 if k == d else 1 for k in range(len(shape))]), shape).copy())
        else:
            index = self.places(v.shape[d], shape)
        more = {"reduce": self.one(["amax", "amin"]), "include_self": self.flag()} if name == "scatter_reduce" else {}
        self.step(name, a, index, src, dim=d, **more)

    def do_index_select(self) -> None:
        if (found := self.dimension()) and (n := self.value(found[0]).shape[found[1]]):
            self.step("index_select", found[0], self.places(n, (self.number(0, 5),)), dim=found[1])

    def do_index_add(self) -> None:
        if (found := self.dimension(lambda v: v.kind not in "cb")) and (n := self.value(found[0]).shape[found[1]]):
            v = self.value(found[0])
            count = self.number(0, 5)
            shape = tuple(count if d == found[1] else k for d, k in enumerate(v.shape))
            src = self.input(self.laid_out(self.numbers(shape, v.t.dtype)))
            self.step("index_add", found[0], self.places(n, (count,)), src, dim=found[1])

    def _indices(self, shape: tuple[int, ...], dim: int) -> list[int] | None:
        """Index tensors for one or two dimensions from ``dim`` on, which broadcast; negative places count from the end."""
        sizes = shape[dim : dim + self.number(1, 2)]
        if not all(sizes):
            return None
        form = (self.number(1, 3), self.number(1, 3))
        return [self.places(n, form if k else (1, form[1]), -n) for k, n in enumerate(sizes)]

    def do_index(self) -> None:
        if (found := self.dimension()) and (at := self._indices(self.value(found[0]).shape, found[1])):
            self.step("index", found[0], *at, dim=found[1])

    def do_index_put(self) -> None:
        if not (found := self.dimension(lambda v: v.kind not in "cb")):
            return
        a, d = found
        v = self.value(a)
        if self.flag() and v.shape[d]:  # every place at most once
            order = self.data.permuted(np.arange(v.shape[d]))[: self.number(0, 4)]
            at: list[int] | None = [self.input(order)]
            accumulate = False
        else:
            at, accumulate = self._indices(v.shape, d), True
        if at is None:
            return
        form = np.broadcast_shapes(*[self.value(i).shape for i in at])
        shape = (*v.shape[:d], *form, *v.shape[d + len(at) :])
        src = self.input(self.numbers(shape if self.flag() else (), v.t.dtype))
        self.step("index_put", a, src, *at, dim=d, accumulate=accumulate)

    # --- the rest ---
    def do_create(self) -> None:
        if self.flag():
            self.step("iota", size=self.one(SIZES), device=cpu)
        else:
            dtype = dtypes.BY_NAME[self.one(TYPES)]
            self.step("full", shape=self.shape(), value=self.number(0, 3), dtype=dtype, device=cpu)

    def do_random(self) -> None:
        state = self.input(self.data.integers(0, 2**40, 2))
        if self.flag():
            self.step("uniform", state, shape=self.shape(), shift=self.number(0, 9), dtype=dtypes.BY_NAME[self.one(FLOATS)])
        else:
            self.step("random_bits", state, shape=self.shape(), shift=self.number(0, 9))

    def do_matmul(self) -> None:
        a = self.pick(lambda v: len(v.shape) == 2 and v.t.dtype.name in ("float32", "float64"))
        if a is None:
            return
        v = self.value(a)
        b = self.pick(lambda w: len(w.shape) == 2 and w.t.dtype is v.t.dtype and w.shape[0] == v.shape[1])
        if b is None:
            b = self.input(self.laid_out(self.numbers((v.shape[1], self.number(1, 5)), v.t.dtype)))
        self.step("matmul", a, b)


def _fits(v: Value, dtype: Any) -> bool:
    """May the value be cast?  What C leaves undefined is nobody's business."""
    if dtype.kind not in "iu" or v.kind != "f":
        return True
    ends, w = np.iinfo(dtype.np), v.array.astype(np.float64)
    return bool(((w > float(ends.min) - 1) & (w < float(ends.max))).all())


def _broadcast(a: Any, b: Any) -> Any:
    try:
        return broadcast_shapes(a, b)
    except RuntimeError:
        return None


def grown(roll: Callable[[int, int], int], steps: int) -> Program:
    g = Grower(roll)
    g.start()
    for _ in range(g.number(min(3, steps), steps)):
        g.grow()
    p = g.program
    if not any(isinstance(s, Step) for s in p.steps):
        g.step("clone", 0)
    made = [n for n, s in enumerate(p.steps) if isinstance(s, Step)]
    used = {a[1] for n in made for a in p.steps[n].args if isinstance(a, tuple)}
    # what nobody reads, or most of the work would be dead; and now and then a value in the middle
    p.outputs = sorted({n for n in made if n not in used} | {g.one(made) for _ in range(g.number(0, 1))})
    return p


@st.composite
def programs(draw: Any, steps: int = 10) -> Program:
    return grown(lambda low, high: draw(st.integers(low, high)), steps)


def rolled(seed: int, steps: int = 10) -> Program:
    return grown(random.Random(seed).randint, steps)
