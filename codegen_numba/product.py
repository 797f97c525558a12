"""A product of small matrices that stay in cache, in registers tile by tile: what BLAS does, without its packing.

Stage: codegen_numba.  In: ``a`` with any strides, rows of ``b`` and ``c`` contiguous.  Out: c = a b, or c += a b.
A tile of 8 x 32 of ``c`` (4 x 16 without AVX-512) is held in vector registers while all of the summed axis goes by: each
step loads two vectors of a row of ``b``, and multiplies them by 8 numbers of ``a``, each spread over a vector.
Read next: ``flash``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen_numba import target

I8P, I32, I64, F32 = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64), ir.FloatType()
POINTER, TABLE = F32.as_pointer(), I64.as_pointer()

#: float32 numbers in the shortest vector.
SHORT = 8


def lanes() -> int:
    """float32 numbers in a vector."""
    return 16 if target.has("avx512f") else SHORT


def rows() -> int:
    """Rows of a tile."""
    return 8 if lanes() == 16 else 4


def product(module: ir.Module) -> ir.Function:
    """``product(c, c_row, a, a_row, a_column, b, b_row, m, n, k, keep)``: strides in elements; ``n`` a multiple of
    ``lanes()``; c is added to if ``keep`` is not 0."""
    return _function(module, "tt_product_float32", [POINTER, I64, POINTER, I64, I64, POINTER, I64, I64, I64, I64, I64])


def gathered(module: ir.Module) -> ir.Function:
    """``gathered(c, c_row, a, a_tile, b, table, m, n, k, keep)``: the same where row ``t`` of ``b`` begins ``table[t]`` elements
    from the first, so that rows may be windows of an image.  ``a`` lies tile by tile, ``rows()`` numbers for each term of
    the sum; ``a_tile`` elements for each of its rows.  ``m`` is a multiple of ``rows()``."""
    kinds = [POINTER, I64, POINTER, I64, POINTER, TABLE, I64, I64, I64, I64]
    return _function(module, "tt_gathered_float32", kinds)


def placed(module: ir.Module) -> ir.Function:
    """``placed(c, c_row, a, a_rows, a_terms, b, b_row, m, n, k, keep)``: as ``product`` where the number of row ``r`` for term
    ``t`` lies ``a_rows[r] + a_terms[t]`` elements from the first, so that ``a`` may be an image, and a row of it a place of
    a window.  ``m`` is a multiple of ``rows()``, ``n`` one of ``SHORT``."""
    kinds = [POINTER, I64, POINTER, TABLE, TABLE, POINTER, I64, I64, I64, I64, I64]
    return _function(module, "tt_placed_float32", kinds)


def _function(module: ir.Module, name: str, kinds: list[ir.Type]) -> ir.Function:
    if name in module.globals:
        return module.globals[name]
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    fn.linkage = "internal"
    for attribute in ("noinline", "nounwind"):
        fn.attributes.add(attribute)
    fn.args[0].add_attribute("noalias")
    _Writer(fn).write()
    return fn


def _fma(module: ir.Module, vector: ir.VectorType) -> ir.Function:
    name = f"llvm.fma.v{vector.count}f32"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(vector, [vector] * 3), name)


def as_it_is(back: ir.Instruction) -> None:
    """Let the loop that this branch closes begin a cache line (decoded from one line more, a tile takes up to half as long
    again), and stay one tile's: more copies of it only take time to compile."""
    module = back.function.module
    place = module.add_metadata([ir.MetaDataString(module, "llvm.loop.align"), I32(64)])
    once = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = module.add_metadata([place, I32(len(module.metadata))])
    loop.operands = (loop, place, once)  # which makes it this loop's alone
    back.set_metadata("llvm.loop", loop)


def _prefetch(module: ir.Module) -> ir.Function:
    name = "llvm.prefetch.p0"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), [I8P, I32, I32, I32]), name)


class _Writer:
    """The body: panels of columns, in each tiles of rows, the rest in smaller tiles."""

    def __init__(self, fn: ir.Function) -> None:
        self.fn = fn
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        self.c, self.c_row, self.a, self.a_row, *rest = fn.args
        self.tiled = len(rest) == 6  # ``a`` tile by tile
        self.placed = self.a_row.type == TABLE
        self.a_column = I64(rows()) if self.tiled else rest.pop(0)
        self.b_at, self.b_row, self.m, self.n, self.k, keep = rest
        self.keep = self.b.icmp_signed("!=", keep, I64(0))
        self.prefetch = _prefetch(fn.module)

    def write(self) -> None:
        n: ir.Value = I64(0)
        for vectors, width in dict.fromkeys([(2, lanes()), (1, lanes()), *([(1, SHORT)] if self.placed else [])]):
            self.lanes, self.vector = width, ir.VectorType(F32, width)
            self.fma = _fma(self.fn.module, self.vector)
            n = self.whole(n, self.n, vectors * width, lambda n, vectors=vectors: self.panel(n, vectors))
        self.b.ret_void()

    def panel(self, n: ir.Value, vectors: int) -> None:
        m: ir.Value = I64(0)
        for count in (rows(), 1)[: 1 if self.placed or self.tiled else 2]:
            m = self.whole(m, self.m, count, lambda m, count=count: self.tile(m, n, count, vectors))

    def whole(self, start: ir.Value, stop: ir.Value, step: int, body: Any) -> ir.Value:
        """A loop over whole steps; returns where it stopped."""
        b = self.b
        before, head, inside, after = b.block, *(self.fn.append_basic_block(x) for x in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(start, before)
        following = b.add(i, I64(step))
        b.cbranch(b.icmp_signed("<=", following, stop), inside, after)
        b.position_at_end(inside)
        body(i)
        i.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)
        return i

    def tile(self, m: ir.Value, n: ir.Value, count: int, vectors: int) -> None:
        b = self.b
        places = [
            self.as_vector(b.gep(self.c, [b.add(b.mul(b.add(m, I64(r)), self.c_row), b.add(n, I64(v * self.lanes)))]))
            for r in range(count) for v in range(vectors)
        ]  # fmt: skip
        for p in places:  # a line to be written is on its way while the sums are made
            b.call(self.prefetch, [b.bitcast(p, I8P), I32(1), I32(3), I32(1)])
        start = b.mul(m, self.a_row) if self.tiled else I64(0)
        sums = self.sum_up(start, [self.row_of(m, r) for r in range(count)], n, vectors)
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        for p, s in zip(places, sums, strict=True):
            old = b.select(self.keep, b.load(p, align=4), zero)
            b.store(b.fadd(old, s), p, align=4)

    def row_of(self, m: ir.Value, r: int) -> ir.Value:
        """How many elements on the numbers of row ``m + r`` of ``a`` are, for the first term."""
        row = self.b.add(m, I64(r))
        if self.placed:
            return self.b.load(self.b.gep(self.a_row, [row]))
        return I64(r) if self.tiled else self.b.mul(row, self.a_row)

    def sum_up(self, start: ir.Value, a_rows: list[ir.Value], n: ir.Value, vectors: int) -> list[ir.Value]:
        """The loop over the summed axis, accumulators as its phis."""
        b = self.b
        before, head, inside, after = b.block, *(self.fn.append_basic_block(x) for x in ("sum", "step", "summed"))
        b.branch(head)
        b.position_at_end(head)
        k = b.phi(I64)
        sums = [b.phi(self.vector) for _ in range(len(a_rows) * vectors)]
        k.add_incoming(I64(0), before)
        for s in sums:
            s.add_incoming(ir.Constant(self.vector, [0.0] * self.lanes), before)
        walks = [self.walk(k, before, *w) for w in ((self.a, start, self.a_column), (self.b_at, n, self.b_row))]
        b.cbranch(b.icmp_signed("<", k, self.k), inside, after)
        b.position_at_end(inside)
        a, row = (here() for here, _ in walks)
        loaded = [b.load(self.as_vector(b.gep(row, [I64(v * self.lanes)])), align=4) for v in range(vectors)]
        new = []
        for r, at in enumerate(a_rows):
            spread = self.spread(b.load(b.gep(a, [at])))
            new += [b.call(self.fma, [spread, y, sums[r * vectors + v]]) for v, y in enumerate(loaded)]
        k.add_incoming(b.add(k, I64(1)), b.block)
        for _, step in walks:
            step()
        for s, x in zip(sums, new, strict=True):
            s.add_incoming(x, b.block)
        as_it_is(b.branch(head))
        b.position_at_end(after)
        return sums

    def walk(self, k: ir.Value, before: Any, start: ir.Value, at: ir.Value, step: ir.Value) -> tuple[Any, Any]:
        """The pointer of a factor along the sum: a function that gives it inside of the loop, one that moves it on."""
        b, outside = self.b, ir.IRBuilder(before)
        outside.position_before(before.terminator)
        first = outside.gep(start, [at])
        if step.type == TABLE:
            return lambda: b.gep(first, [b.load(b.gep(step, [k]))]), lambda: None
        here = b.phi(POINTER)
        here.add_incoming(first, before)
        return lambda: here, lambda: here.add_incoming(b.gep(here, [step]), b.block)

    def spread(self, x: ir.Value) -> ir.Value:
        one = self.b.insert_element(ir.Constant(self.vector, ir.Undefined), x, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.b.shuffle_vector(one, ir.Constant(self.vector, ir.Undefined), zeros)

    def as_vector(self, p: ir.Value) -> ir.Value:
        return self.b.bitcast(p, self.vector.as_pointer())
