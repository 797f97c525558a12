"""Results too large for the caches go around them, and the next row is fetched while this one is written.

Stage: codegen_numba.  In: a kernel, rows of its results in scratch memory.  Out: the rows in memory.  An ordinary store
first reads the line it writes to, and then keeps it in place of something that will be needed.  Where a kernel moves more
than the last cache holds, its results are of no use there: they are written to a scratch row, and from there a
line at a time by stores that do neither.  Read next: ``emit``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from llvmlite import ir

from codegen_numba import analysis, llvm, target
from codegen_numba.analysis import known
from codegen_numba.layout import bytes_of
from compiler.loop.ir import Kernel, Load, Store, walk

#: Elements of a scratch row: no more lines at a time than wait in a queue while the next ones are computed.
STRIP = 256
LINE = 64  # bytes
#: Of a machine that does not tell.
CACHE = 32 << 20
#: Work for each byte (units of ``analysis.COSTS``) from which a kernel does not wait for memory.
BUSY = 6

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


# --- which --------------------------------------------------------------------------------------------------------------
@cache
def last_cache() -> int:
    """Bytes of the largest cache."""
    found = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            found.append(int(path.read_text().strip().rstrip("K")) << 10)
        except (OSError, ValueError):
            continue
    return max(found, default=CACHE)


def results(kernel: Kernel, most: int) -> frozenset[str]:
    """Buffers that the kernel only writes, if all it touches is more than ``most`` bytes; 0: what is left of the last
    cache beside other things, for kernels that wait for memory."""
    sizes = {b.name: known(bytes_of(b)) for b in kernel.params}
    total = sum(n or 0 for n in sizes.values())
    if None in sizes.values() or not most and analysis.cost(kernel.body) > BUSY * total:
        return frozenset()
    most = most or last_cache() * 3 // 4
    if total <= most:
        return frozenset()
    kept = {s.buffer for s in walk(kernel.body) if isinstance(s, Load) or isinstance(s, Store) and s.mode != "set"}
    return frozenset(b for b in kernel.writes - kept if (sizes[b] or 0) * 8 > most)


# --- how ----------------------------------------------------------------------------------------------------------------
def row_function(module: ir.Module) -> ir.Function:
    """``row(target, source, bytes)``: copied by lines around the caches; parts of lines at both ends as usual."""
    fn, b, made = _function(module, "tt_write_around", [I8.as_pointer(), I8.as_pointer(), I64])
    if not made:
        return fn
    to, source, count = fn.args
    ahead = b.and_(b.neg(b.ptrtoint(to, I64)), I64(LINE - 1))
    ahead = b.select(b.icmp_signed("<", ahead, count), ahead, count)
    whole = b.add(ahead, b.and_(b.sub(count, ahead), I64(-LINE)))
    llvm.count(b, I64(0), ahead, 1, lambda i: b.store(b.load(b.gep(source, [i])), b.gep(to, [i])))
    vector = ir.VectorType(I32, 16 if target.has("avx512f") else 8)
    hint = module.add_metadata([I32(1)])

    def line(i: ir.Value) -> None:
        for part in range(0, LINE, vector.count * 4):
            here, there = (b.bitcast(b.gep(p, [b.add(i, I64(part))]), vector.as_pointer()) for p in (source, to))
            b.store(b.load(here, align=1), there, align=vector.count * 4).set_metadata("nontemporal", hint)

    llvm.count(b, ahead, whole, LINE, line)
    llvm.count(b, whole, count, 1, lambda i: b.store(b.load(b.gep(source, [i])), b.gep(to, [i])))
    b.ret_void()
    return fn


def fetch_function(module: ir.Module, later: bool = False) -> ir.Function:
    """``fetch(source, bytes)``: ask for the lines of a row that will be read soon, or a bit later: then into the second
    cache, not the first; an address may be anything."""
    fn, b, made = _function(module, "tt_fetch_later" if later else "tt_fetch", [I8.as_pointer(), I64])
    if not made:
        return fn
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    ask = module.globals.get(name) or ir.Function(module, kind, name)
    near = I32(2 if later else 3)
    within = b.and_(b.ptrtoint(fn.args[0], I64), I64(LINE - 1))  # a row that begins inside of a line ends in one more
    first, count = b.gep(fn.args[0], [b.neg(within)]), b.add(fn.args[1], within)
    llvm.count(b, I64(0), count, LINE, lambda i: b.call(ask, [b.gep(first, [i]), I32(0), near, I32(1)]))
    b.ret_void()
    return fn


def settle(builder: ir.IRBuilder) -> None:
    """Stores around the caches are seen in no order until this."""
    if not builder.module.triple.startswith("x86_64"):
        return
    name = "llvm.x86.sse.sfence"
    module = builder.module
    builder.call(module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), []), name), [])


def _function(module: ir.Module, name: str, types: list[ir.Type]) -> tuple[ir.Function, ir.IRBuilder, bool]:
    if name in module.globals:
        return module.globals[name], None, False
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
    fn.linkage = "internal"
    for attribute in ("noinline", "nounwind"):
        fn.attributes.add(attribute)
    return fn, ir.IRBuilder(fn.append_basic_block("entry")), True
