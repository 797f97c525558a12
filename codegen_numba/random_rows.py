"""Random words for a stretch of a loop at once: a Philox block gives four, and neighbours share it.

Stage: codegen_numba, a part of ``emit``.  In: a straight loop body that draws word ``E % 4`` of counter
``base + E // 4``, with ``E`` counting along the loop.  Out: the stretch's words, filled into a scratch row by one call,
and the draw replaced by a read.  One element at a time would compute every block four times.  Read next: ``emit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from codegen_numba import analysis
from codegen_numba.analysis import Body
from compiler.loop.ir import Index, Int, Let
from compiler.sym.expr import FloorDiv, Mod

#: Elements of a stretch.
STRETCH = 512
KEYS = (0x9E3779B9, 0xBB67AE85)
FACTORS = (0xD2511F53, 0xCD9E8D57)


@dataclass(frozen=True)
class Draw:
    """``name`` is word ``place % 4`` of counter ``base + more + place // 4``; all but ``place`` is the same for the
    whole loop."""

    name: str
    seed: str
    base: str
    more: Int
    place: Int


def draws(body: Body, axis: str) -> list[Draw]:
    """The draws of a straight loop body that can be filled ahead."""
    made = {n: s for s in body for n in analysis.defines(s)}
    out = []
    for s in body:
        if isinstance(s, Let) and s.fn == "philox":
            found = _draw(s, made, axis)
            if found is not None:
                out.append(found)
    return out


def _draw(s: Let, made: dict[str, Any], axis: str) -> Draw | None:
    seed, counter, lane = s.args
    word = made.get(lane) if isinstance(lane, str) else None
    add = made.get(counter) if isinstance(counter, str) else None
    if (
        not isinstance(seed, str)
        or seed in made
        or not isinstance(word, Index)
        or not isinstance(add, Let)
        or add.fn != "add"
    ):
        return None
    base, quarter = add.args if isinstance(add.args[0], str) and add.args[0] not in made else reversed(add.args)
    step = made.get(quarter) if isinstance(quarter, str) else None
    if not isinstance(base, str) or base in made or not isinstance(step, Index):
        return None
    r = word.expr
    if not isinstance(r, Mod) or r.den != 4 or isinstance(step.expr, int):
        return None
    e = r.num // 4
    more = step.expr - e
    outer = {axis, *made}
    if not isinstance(e, FloorDiv) or analysis.stride(r.num, axis) != 1 or analysis.names_in(r.num) & set(made):
        return None
    return None if analysis.names_in(more) & outer else Draw(s.name, seed, base, more, r.num)


def row_function(module: ir.Module) -> ir.Function:
    """``(row, seed, counter, blocks)``: fill ``row`` with the four words of each of ``blocks`` counters."""
    name = "tt_philox_row"
    if name in module.globals:
        return module.globals[name]
    i64, i32 = ir.IntType(64), ir.IntType(32)
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [i32.as_pointer(), i64, i64, i64]), name)
    fn.linkage = "internal"
    for attribute in ("noinline", "nounwind"):
        fn.attributes.add(attribute)
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    row, seed, counter, blocks = fn.args
    entry, loop, done = b.block, fn.append_basic_block("loop"), fn.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", blocks, i64(0)), loop, done)
    b.position_at_end(loop)
    i = b.phi(i64)
    i.add_incoming(i64(0), entry)
    for lane, word in enumerate(_block(b, seed, b.add(counter, i))):
        b.store(b.trunc(word, i32), b.gep(row, [b.add(b.mul(i, i64(4)), i64(lane))]))
    following = b.add(i, i64(1))
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, blocks), loop, done)
    b.position_at_end(done)
    b.ret_void()
    return fn


def _block(b: ir.IRBuilder, seed: ir.Value, counter: ir.Value) -> list[ir.Value]:
    """Ten rounds; 64-bit registers hold 32-bit words and their products."""
    i64 = ir.IntType(64)
    low, half = i64(0xFFFFFFFF), i64(32)
    k = [b.and_(seed, low), b.lshr(seed, half)]
    c = [b.and_(counter, low), b.lshr(counter, half), i64(0), i64(0)]
    for _ in range(10):
        p = [b.mul(c[0], i64(FACTORS[0])), b.mul(c[2], i64(FACTORS[1]))]
        c = [
            b.xor(b.xor(b.lshr(p[1], half), c[1]), k[0]), b.and_(p[1], low),
            b.xor(b.xor(b.lshr(p[0], half), c[3]), k[1]), b.and_(p[0], low),
        ]  # fmt: skip
        k = [b.and_(b.add(x, i64(w)), low) for x, w in zip(k, KEYS, strict=True)]
    return c
