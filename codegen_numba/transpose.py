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
                r_stop = b.select(b.icmp_signed("<", r_end, rows), r_end, rows)
                c_stop = b.select(b.icmp_signed("<", c_end, cols), c_end, cols)
                llvm.count(self.b, r, r_stop, 1, lambda i: llvm.count(self.b, c, c_stop, 1, lambda j: self.one(i, j)))

    def one(self, r: ir.Value, c: ir.Value) -> None:
        self.b.store(self.b.load(self.source(r, c)), self.target(r, c))

    def source(self, r: ir.Value, c: ir.Value) -> ir.Value:
        return self.b.gep(self.fn.args[0], [self.b.add(self.b.mul(r, self.fn.args[1]), c)])

    def target(self, r: ir.Value, c: ir.Value) -> ir.Value:
        return self.b.gep(self.fn.args[2], [self.b.add(self.b.mul(c, self.fn.args[3]), r)])

    def vectors(self, r: ir.Value, c: ir.Value) -> None:
        b, n = self.b, self.n
        vector = ir.VectorType(self.element, n)
        align = self.element.width // 8
        rows = [
            b.load(b.bitcast(self.source(b.add(r, I64(k)), c), vector.as_pointer()), align=align) for k in range(n)
        ]
        step = 1
        while step < n:
            for k in range(n):
                if not k & step:
                    rows[k], rows[k + step] = self.swap(rows[k], rows[k + step], step)
            step *= 2
        for k in range(n):
            b.store(rows[k], b.bitcast(self.target(r, b.add(c, I64(k))), vector.as_pointer()), align=align)

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
