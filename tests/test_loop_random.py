"""Random programs of pointwise rows, views, reductions, indexing and random numbers: fused = eager."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_helpers import run

from tinytorch import dtypes, ops
from tinytorch.device import cpu
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor

UNARY = [ops.exp, ops.tanh, ops.neg, ops.abs, ops.square, ops.sin, ops.erf]
BINARY = [ops.add, ops.sub, ops.mul, ops.maximum, ops.minimum]
#: programs per test; ``TT_FUZZ_EXAMPLES=100000`` runs a hundred thousand
EXAMPLES = int(os.environ.get("TT_FUZZ_EXAMPLES", "300"))
SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8])


class Program:
    """A program drawn step by step: ``steps`` append values to ``pool``; running it is deterministic."""

    def __init__(self, draw, shapes):
        self.draw = draw
        self.shapes = list(shapes)
        self.steps = []

    def pick(self, ok=lambda shape: True):
        good = [n for n, s in enumerate(self.shapes) if ok(s)]
        return self.draw(st.sampled_from(good)) if good else None

    def add(self, step, shape):
        self.steps.append(step)
        self.shapes.append(tuple(shape))

    def grow(self):
        kind = self.draw(st.sampled_from(
            ["unary", "unary", "binary", "binary", "reduce", "reduce", "permute", "view", "slice", "back", "where",
             "expand", "gather", "select", "scatter", "scan", "extreme", "var", "cat", "rows", "flip"]
        ))  # fmt: skip
        getattr(self, kind)()

    def unary(self):
        a, op = self.pick(), self.draw(st.sampled_from(UNARY))
        self.add(lambda p: ops.minimum(op(p[a]), 4.0), self.shapes[a])

    def binary(self):
        a = self.pick()
        fits = lambda s: _broadcast(s, self.shapes[a]) is not None  # noqa: E731
        b = self.pick(fits)
        op = self.draw(st.sampled_from(BINARY))
        self.add(lambda p: ops.tanh(op(p[a], p[b])), _broadcast(self.shapes[a], self.shapes[b]))

    def reduce(self):
        a = self.pick(lambda s: len(s) > 0)
        if a is None:
            return
        shape = self.shapes[a]
        dim = tuple(sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
        keep = self.draw(st.booleans())
        op = self.draw(st.sampled_from([ops.sum, ops.amax, ops.amin]))
        new = tuple(1 if d in dim else n for d, n in enumerate(shape) if keep or d not in dim)
        scale = 1 / np.prod([shape[d] for d in dim]) if op is ops.sum else 1.0
        self.add(lambda p: ops.mul(op(p[a], dim=dim, keepdim=keep), float(scale)), new)

    def permute(self):
        a = self.pick(lambda s: len(s) > 1)
        if a is None:
            return
        dims = tuple(self.draw(st.permutations(range(len(self.shapes[a])))))
        self.add(lambda p: ops.permute(p[a], dims=dims), [self.shapes[a][d] for d in dims])

    def view(self):
        a = self.pick()
        n = int(np.prod(self.shapes[a], dtype=int))
        cut = self.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
        rest = n // cut
        cut2 = self.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        new = self.draw(st.sampled_from([(n,), (cut, rest), (cut, cut2, rest // cut2)]))
        self.add(lambda p: ops.view(ops.contiguous(p[a]), shape=new), new)

    def slice(self):
        a = self.pick(lambda s: any(n > 1 for n in s))
        if a is None:
            return
        d = self.draw(st.sampled_from([d for d, n in enumerate(self.shapes[a]) if n > 1]))
        n = self.shapes[a][d]
        start = self.draw(st.integers(0, n - 1))
        stop = self.draw(st.integers(start + 1, n))
        step = self.draw(st.integers(1, 3))
        new = list(self.shapes[a])
        new[d] = (stop - start + step - 1) // step
        self.add(lambda p: ops.slice(p[a], dim=d, start=start, stop=stop, step=step), new)

    def back(self):
        a = self.pick(lambda s: len(s) > 0)
        if a is None:
            return
        d = self.draw(st.integers(0, len(self.shapes[a]) - 1))
        n = self.shapes[a][d]
        start, step, more = self.draw(st.integers(0, 3)), self.draw(st.integers(1, 3)), self.draw(st.integers(0, 2))
        stop = start + (n - 1) * step + 1
        new = list(self.shapes[a])
        new[d] = stop + more
        if int(np.prod(new)) > 512:
            return
        self.add(lambda p: ops.slice_backward(p[a], dim=d, size=new[d], start=start, stop=stop, step=step), new)

    def where(self):
        a = self.pick()
        b = self.pick(lambda s: s == self.shapes[a])
        self.add(lambda p: ops.where(ops.gt(p[a], 0.1), p[b], ops.mul(p[a], 0.5)), self.shapes[a])

    def expand(self):
        a = self.pick(lambda s: 1 in s)
        if a is None:
            return
        new = tuple(3 if n == 1 else n for n in self.shapes[a])
        if int(np.prod(new)) <= 512:
            self.add(lambda p: ops.expand(p[a], shape=new), new)

    def index(self, a, d, count):
        at = self.draw(st.lists(st.integers(0, self.shapes[a][d] - 1), min_size=count, max_size=count))
        new = list(self.shapes[a])
        new[d] = count
        line = [1] * len(new)
        line[d] = count
        data = np.broadcast_to(np.array(at).reshape(line), new).copy()
        return Tensor._wrap(data, cpu), new

    def gather(self):
        a = self.pick(lambda s: len(s) > 0)
        if a is None:
            return
        d = self.draw(st.integers(0, len(self.shapes[a]) - 1))
        index, new = self.index(a, d, self.draw(st.integers(1, 4)))
        number = self.constant(index)
        self.add(lambda p: ops.gather(p[a], p.constants[number], dim=d), new)

    def scatter(self):
        a = self.pick(lambda s: len(s) > 0)
        if a is None:
            return
        d = self.draw(st.integers(0, len(self.shapes[a]) - 1))
        b = self.pick(lambda s: len(s) == len(self.shapes[a]) and all(x == y or k == d for k, (x, y) in enumerate(zip(s, self.shapes[a], strict=True))))  # fmt: skip
        index, _ = self.index(a, d, self.shapes[b][d])
        number = self.constant(index)
        source = lambda p: ops.cast(p[b], dtype=p[a].dtype)  # noqa: E731 - an argmax makes float32 of halves
        self.add(lambda p: ops.tanh(ops.scatter_add(p[a], p.constants[number], source(p), dim=d)), self.shapes[a])

    def select(self):
        a = self.pick(lambda s: len(s) > 0)
        if a is None:
            return
        d = self.draw(st.integers(0, len(self.shapes[a]) - 1))
        i = self.draw(st.integers(0, self.shapes[a][d] - 1))
        self.add(lambda p: ops.select(p[a], dim=d, index=i), [n for k, n in enumerate(self.shapes[a]) if k != d])

    def dimension(self):
        a = self.pick(lambda s: len(s) > 0)
        return (None, 0) if a is None else (a, self.draw(st.integers(0, len(self.shapes[a]) - 1)))

    def scan(self):
        a, d = self.dimension()
        if a is not None:
            op = self.draw(st.sampled_from([ops.cumsum, ops.cumprod]))
            self.add(lambda p: ops.tanh(op(p[a], dim=d)), self.shapes[a])

    def extreme(self):
        a, d = self.dimension()
        if a is None:
            return
        op = self.draw(st.sampled_from([ops.argmax, ops.argmin]))
        new = [n for k, n in enumerate(self.shapes[a]) if k != d]
        # of rounded values, so that ties are real ties on both sides
        self.add(lambda p: ops.mul(op(ops.round(ops.mul(p[a], 8.0)), dim=d, keepdim=False), 0.125), new)

    def var(self):
        a, d = self.dimension()
        if a is not None and self.shapes[a][d] > 1:
            new = [1 if k == d else n for k, n in enumerate(self.shapes[a])]
            self.add(lambda p: ops.tanh(ops.var(p[a], dim=(d,), keepdim=True, correction=1)), new)

    def cat(self):
        a, d = self.dimension()
        if a is None:
            return
        alike = lambda s: len(s) == len(self.shapes[a]) and all(  # noqa: E731
            x == y or k == d for k, (x, y) in enumerate(zip(s, self.shapes[a], strict=True))
        )
        b = self.pick(alike)
        new = list(self.shapes[a])
        new[d] += self.shapes[b][d]
        self.add(lambda p: ops.cat(p[a], ops.neg(p[b]), p[a], dim=d) if new[d] < 5 else ops.cat(p[a], p[b], dim=d),
                 [n + self.shapes[a][d] if k == d and new[d] < 5 else n for k, n in enumerate(new)])  # fmt: skip

    def rows(self):
        a, d = self.dimension()
        if a is None:
            return
        at = np.array(self.draw(st.lists(st.integers(0, self.shapes[a][d] - 1), min_size=1, max_size=4)))
        number = self.constant(Tensor._wrap(at, cpu))
        new = [len(at) if k == d else n for k, n in enumerate(self.shapes[a])]
        if self.draw(st.booleans()):
            self.add(lambda p: ops.index_select(p[a], p.constants[number], dim=d), new)
        else:
            picked = lambda p: ops.index_select(p[a], p.constants[number], dim=d)  # noqa: E731
            self.add(lambda p: ops.tanh(ops.index_add(p[a], p.constants[number], picked(p), dim=d)), self.shapes[a])

    def flip(self):
        a, d = self.dimension()
        if a is not None:
            self.add(lambda p: ops.flip(p[a], dims=(d,)), self.shapes[a])

    def constant(self, t):
        self.constants.append(t)
        return len(self.constants) - 1

    constants: list


class Pool(list):
    constants: list


def _broadcast(a, b):
    try:
        return broadcast_shapes(a, b)
    except RuntimeError:
        return None


@st.composite
def programs(draw, steps=10):
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(SIZES) for _ in range(rank))
    drop = tuple(n if draw(st.booleans()) else 1 for n in shape)
    program = Program(draw, [shape, drop])
    program.constants = []
    for _ in range(draw(st.integers(1, steps))):
        program.grow()
    outputs = sorted(draw(st.sets(st.integers(2, max(2, len(program.shapes) - 1)), min_size=1, max_size=4)))
    outputs = sorted({*(o for o in outputs if o < len(program.shapes)), len(program.shapes) - 1})

    def fn(x, y, *constants):
        pool = Pool([x, y])
        pool.constants = constants
        for step in program.steps:
            pool.append(step(pool))
        return tuple(pool[o] for o in outputs)

    data = np.random.default_rng(draw(st.integers(0, 9)))
    layout = draw(st.sampled_from(["C", "F", "reversed"]))
    x = data.normal(size=shape).astype(np.float32)
    x = np.asarray(x, order="F") if layout == "F" else x[::-1] if layout == "reversed" and rank else x
    y = data.normal(size=drop).astype(np.float32)
    return fn, [Tensor._wrap(x, cpu), Tensor._wrap(y, cpu), *program.constants]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from(["forward", "backward", "shuffle"]))
def test_fused_is_eager(program, order):
    fn, tensors = program
    run(fn, *tensors, order=order, rtol=1e-4, atol=1e-5)


@settings(max_examples=EXAMPLES // 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from(["float16", "bfloat16"]), st.sampled_from(["fast", "strict"]))
def test_half_precision(program, dtype, numerics):
    fn, tensors = program
    wide = dtypes.BY_NAME[dtype]
    halves = [Tensor._wrap(t._data.astype(wide.np), cpu) if t._data.dtype.kind == "f" else t for t in tensors]
    tolerance = 0.02 if dtype == "float16" else 0.2
    run(fn, *halves, rtol=tolerance, atol=tolerance, numerics=numerics)
