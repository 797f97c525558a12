"""From kernel source to machine code: a front for the source, then LLVM with our own choice of passes.

Stage: codegen_numba.  In: source of one function over C pointers and integers.  Out: an ELF object whose entry is
``void tt_entry(int64 *args, int64 start, int64 stop, int64 part)``.  What comes out needs neither Numba nor Python's API to
run, and a process that finds all its objects in the cache imports no part of the compiler.  Read next: ``translate``, ``load``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from codegen_numba import target, unlocked
from codegen_numba.load import ENTRY


@dataclass(frozen=True)
class Source:
    """One function of kernel source.  ``params`` are (name, type): a C element type, or ``"size"`` for an int64; the
    function takes them in order, then ``start, stop, part``."""

    name: str
    text: str
    params: tuple[tuple[str, str], ...]
    contract: bool = True  # may a * b + c become one rounding
    alias: bool = False  # may two pointers overlap
    pool: bool = False  # may it use the scheduler's words
    vectors: bool = True  # may LLVM make vectors of scalar code


def machine_code(text: str) -> bytes:
    """LLVM IR as a relocatable object for this CPU: any number of threads may do so side by side."""
    return unlocked.emit_object(target.machine(), optimise(text))


def assembly(source: Source) -> str:
    """The same as text, for ``TT_LOGS=asm`` and tests."""
    return str(target.machine().emit_assembly(optimise(front(source))))


# --- source to LLVM --------------------------------------------------------------------------------------------------
def front(source: Source) -> str:
    """LLVM IR of the function and its entry, before optimisation."""
    from codegen_numba.translate import translate

    module, inner = translate(source)
    if not source.vectors:
        inner.attributes.add("noimplicitfloat")
    if source.contract:
        allow_contraction(module)
    add_entry(module, inner, len(source.params))
    return str(module)


def allow_contraction(module: Any) -> None:
    """Flag float arithmetic the source wrote itself; ours inside the elementary functions is marked exact."""
    for function in module.functions:
        for block in function.blocks:
            for instr in block.instructions:
                if instr.opname in ("fadd", "fsub", "fmul") and not getattr(instr, "exact", False):
                    instr.flags = [*instr.flags, "contract"]


def add_entry(module: Any, inner: Any, params: int) -> None:
    """``entry(args, start, stop, part)``: unpack the block of arguments and call the function, whose last arguments are
    ``params`` from the block and those three; Numba's has two before, for its result and its exception."""
    from llvmlite import ir

    i64 = ir.IntType(64)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64.as_pointer(), i64, i64, i64]), ENTRY)
    entry.attributes.add("nounwind")
    b = ir.IRBuilder(entry.append_basic_block())
    own = inner.function_type.args[: -params - 3]
    values = [b.alloca(t.pointee) for t in own]
    for n, want in enumerate(inner.function_type.args[len(own) : -3]):
        word = b.load(b.gep(entry.args[0], [i64(n)]))
        values.append(b.inttoptr(word, want) if isinstance(want, ir.PointerType) else word)
    b.call(inner, [*values, *entry.args[1:]])
    b.ret_void()
    inner.linkage = "internal"
    inner.attributes.add("noinline")  # its arguments keep their noalias
    inner.attributes.add("nounwind")


# --- LLVM's half -----------------------------------------------------------------------------------------------------
def optimise(text: str) -> Any:
    """LLVM's O3; then the vector versions of functions it chose to call are added and inlined, and a fault of its mended."""
    from codegen_numba import single_lanes, vectors

    context = llvm.create_context()  # what threads may not share
    module = _parse(vectors.announce(text), context)
    _run_passes(module, vectorise=True, pairs=not _TRUTHS.search(text))
    wide = vectors.gather(str(module)) if "tt_" in text else ""
    extra = vectors.definitions(wide)
    if extra:
        module = _parse(re.sub(r"(?m)^@llvm\.compiler\.used.*$", "", wide), context)
        module.link_in(_parse(extra, context))
        _run_passes(module, vectorise=False)
    if single_lanes.found(module):
        module = _parse(single_lanes.apart(str(module)), context)
    return module


def _parse(text: str, context: Any) -> Any:
    module = llvm.parse_assembly(text, context)
    module.verify()
    return module


#: An unrolled conjunction of comparisons makes LLVM's vectoriser of straight lines (SLP) fail an assertion, which ends the
#: process; where truths are combined it has nothing to win, so it stays off.
_TRUTHS = re.compile(r"= (and|or|xor) i1 |= select  i1 [^,]+, i1 ")


def _run_passes(module: Any, vectorise: bool, pairs: bool = False) -> None:
    """``pairs``: may equal operations in straight lines become vectors?"""
    tuning = llvm.create_pipeline_tuning_options(speed_level=3 if vectorise else 2)
    tuning.loop_vectorization = tuning.loop_interleaving = vectorise
    tuning.slp_vectorization = pairs
    tuning.loop_unrolling = vectorise
    builder = llvm.create_pass_builder(target.machine(), tuning)
    unlocked.run_passes(builder.getModulePassManager(), module, builder)
