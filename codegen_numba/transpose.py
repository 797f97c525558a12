"""Turning a tile of memory: lines read whole, lines written whole, the corner turned in registers.

Stage: codegen_numba.  In: a source whose rows are contiguous, a destination whose rows are its columns.  Out: copied.
A loop that walks one array against its grain would use one element of each cache line and come back for the next
when the line is gone.  Blocks of 16 x 16 (8 x 8 for eight-byte elements, and where a register holds eight of four bytes)
are loaded as vectors, transposed by log2(n) rounds of shuffles, and stored as vectors.  Read next: ``emit`` (tiles).
"""

from __future__ import annotations

from llvmlite import ir

from codegen_numba import llvm, target

I64, I32 = ir.IntType(64), ir.IntType(32)


def turn(module: ir.Module, width: int) -> ir.Function:
    """``turn(src, src_stride, dst, dst_stride, rows, cols)``: ``dst[c * dst_stride + r] = src[r * src_stride + c]``
    for elements of ``width`` bits; strides in elements."""
    name = f"tt_turn_{width}"
    if name in module.globals:
        return module.globals[name]
    element = ir.IntType(width)
    pointer = element.as_pointer()
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, I64, pointer, I64, I64, I64]), name)
    fn.linkage = "internal"
    for attribute in ("noinline", "nounwind"):
        fn.attributes.add(attribute)
    fn.args[0].add_attribute("noalias")
    fn.args[2].add_attribute("noalias")
    _Writer(fn, element, 8 if width == 64 or width == 32 and not target.has("avx512f") else 16).write()
    return fn


class _Writer:
    """The body: blocks over rows and columns, whole ones by vectors, the rest element by element."""

    def __init__(self, fn: ir.Function, element: ir.Type, n: int) -> None:
        self.fn, self.element, self.n = fn, element, n
        self.masks = element.width == 32 and n == 16  # AVX-512: lanes that are masked off cost nothing
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    def write(self) -> None:
        rows, cols = self.fn.args[4], self.fn.args[5]
        llvm.count(self.b, I64(0), rows, self.n, lambda r: llvm.count(self.b, I64(0), cols, self.n, lambda c: self.block(r, c)))
        self.b.ret_void()

    def block(self, r: ir.Value, c: ir.Value) -> None:
        b, n = self.b, self.n
        rows, cols = self.fn.args[4], self.fn.args[5]
        r_end, c_end = b.add(r, I64(n)), b.add(c, I64(n))
        whole = b.and_(b.icmp_signed("<=", r_end, rows), b.icmp_signed("<=", c_end, cols))
        with b.if_else(whole) as (then, otherwise):
            with then:
                self.vectors(r, c)
            with otherwise:
                self.rest(r, c)

    def rest(self, r: ir.Value, c: ir.Value) -> None:
        """At the end: by vectors of which a part is used, where there are such and that is fewer steps."""
        if not self.masks:
            return self.one_by_one(r, c)
        b, n = self.b, self.n
        left = [b.sub(x, at) for x, at in zip(self.fn.args[4:], (r, c), strict=True)]
        rows, cols = (b.select(b.icmp_signed("<", x, I64(n)), x, I64(n)) for x in left)
        with b.if_else(b.icmp_signed(">=", b.mul(rows, cols), I64(4 * n))) as (then, otherwise):
            with then:
                self.vectors(r, c, rows, cols)
            with otherwise:
                self.one_by_one(r, c)

    def one_by_one(self, r: ir.Value, c: ir.Value) -> None:
        b, rows, cols = self.b, self.fn.args[4], self.fn.args[5]
        r_end, c_end = b.add(r, I64(self.n)), b.add(c, I64(self.n))
        r_stop = b.select(b.icmp_signed("<", r_end, rows), r_end, rows)
        c_stop = b.select(b.icmp_signed("<", c_end, cols), c_end, cols)
        llvm.count(self.b, r, r_stop, 1, lambda i: llvm.count(self.b, c, c_stop, 1, lambda j: self.one(i, j)))

    def one(self, r: ir.Value, c: ir.Value) -> None:
        self.b.store(self.b.load(self.source(r, c)), self.target(r, c))

    def source(self, r: ir.Value, c: ir.Value) -> ir.Value:
        return self.b.gep(self.fn.args[0], [self.b.add(self.b.mul(r, self.fn.args[1]), c)])

    def target(self, r: ir.Value, c: ir.Value) -> ir.Value:
        return self.b.gep(self.fn.args[2], [self.b.add(self.b.mul(c, self.fn.args[3]), r)])

    def vectors(self, r: ir.Value, c: ir.Value, height: ir.Value | None = None, width: ir.Value | None = None) -> None:
        """A block; or only so many rows and columns of it."""
        n = self.n
        across, down = self.first(width), self.first(height)
        rows = [self.load(self.source(self.b.add(r, I64(k)), c), across, k, height) for k in range(n)]
        step = 1
        while step < n:
            for k in range(n):
                if not k & step:
                    rows[k], rows[k + step] = self.swap(rows[k], rows[k + step], step)
            step *= 2
        for k in range(n):
            self.store(rows[k], self.target(r, self.b.add(c, I64(k))), down, k, width)

    def first(self, count: ir.Value | None) -> ir.Value | None:
        """True for so many lanes."""
        if count is None:
            return None
        b, kind = self.b, ir.VectorType(I32, self.n)
        one = b.insert_element(ir.Constant(kind, ir.Undefined), b.trunc(count, I32), I32(0))
        all_ = b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(kind, [0] * self.n))
        return b.icmp_unsigned("<", ir.Constant(kind, list(range(self.n))), all_)

    def mask(self, lanes: ir.Value, k: int, count: ir.Value) -> ir.Value:
        """``lanes`` of vector ``k``, if it is among the first ``count``."""
        none = ir.Constant(lanes.type, [0] * self.n)
        return self.b.select(self.b.icmp_signed("<", I64(k), count), lanes, none)

    def load(self, place: ir.Value, lanes: ir.Value | None, k: int, count: ir.Value | None) -> ir.Value:
        b, vector, align = self.b, ir.VectorType(self.element, self.n), self.element.width // 8
        p = b.bitcast(place, vector.as_pointer())
        if lanes is None or count is None:
            return b.load(p, align=align)
        kind = ir.FunctionType(vector, [p.type, I32, lanes.type, vector])
        fn = self.intrinsic(f"llvm.masked.load.v{self.n}i{self.element.width}.p0", kind)
        return b.call(fn, [p, I32(align), self.mask(lanes, k, count), ir.Constant(vector, ir.Undefined)])

    def store(self, value: ir.Value, place: ir.Value, lanes: ir.Value | None, k: int, count: ir.Value | None) -> None:
        b, align = self.b, self.element.width // 8
        p = b.bitcast(place, value.type.as_pointer())
        if lanes is None or count is None:
            b.store(value, p, align=align)
            return
        kind = ir.FunctionType(ir.VoidType(), [value.type, p.type, I32, lanes.type])
        fn = self.intrinsic(f"llvm.masked.store.v{self.n}i{self.element.width}.p0", kind)
        b.call(fn, [value, p, I32(align), self.mask(lanes, k, count)])

    def intrinsic(self, name: str, kind: ir.FunctionType) -> ir.Function:
        module = self.fn.module
        return module.globals.get(name) or ir.Function(module, kind, name)

    def swap(self, low: ir.Value, high: ir.Value, step: int) -> tuple[ir.Value, ir.Value]:
        """Exchange the upper right and the lower left of each 2 x 2 of blocks of ``step`` elements."""
        n = self.n
        first = [k if not k & step else n + k - step for k in range(n)]
        second = [k + step if not k & step else n + k for k in range(n)]
        mask = ir.VectorType(I32, n)
        return (
            self.b.shuffle_vector(low, high, ir.Constant(mask, first)),
            self.b.shuffle_vector(low, high, ir.Constant(mask, second)),
        )
