"""From kernel source to machine code: Numba's front half, then LLVM with our own choice of passes.

Stage: codegen_numba.  In: source of one function over C pointers and integers.  Out: an ELF object whose entry is
``void tt_entry(int64 *args, int64 start, int64 stop, int64 part)``.  Numba parses, types and lowers (25 ms for a kernel,
where its whole pipeline with wrappers takes three times that); what comes out needs neither Numba nor Python's API
to run, so a cached object starts without importing Numba.  Read next: ``load``.
"""

from __future__ import annotations

import linecache
import re
import threading
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from codegen_numba import target
from codegen_numba.load import ENTRY

_lock = threading.RLock()


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


def compile_source(source: Source) -> bytes:
    """Machine code for this CPU, as a relocatable object."""
    with _lock:
        module = optimise(front(source))
        return bytes(target.machine().emit_object(module))


def assembly(source: Source) -> str:
    """The same as text, for ``TT_LOGS=asm`` and tests."""
    with _lock:
        return str(target.machine().emit_assembly(optimise(front(source))))


# --- Numba's half ----------------------------------------------------------------------------------------------------
def front(source: Source) -> str:
    """LLVM IR of the function and its entry, before optimisation."""
    from numba.core import types

    from codegen_numba import numba_front

    arguments = [types.int64 if t == "size" else types.CPointer(getattr(types, t)) for _, t in source.params]
    function = define(source)
    module, inner = numba_front.lower(function, (*arguments, types.int64, types.int64, types.int64), source.alias)
    if source.contract:
        allow_contraction(module)
    add_entry(module, inner, source)
    return str(module)


def define(source: Source) -> Any:
    """The function object; its text is known to ``linecache``, so tracebacks and Numba's errors show it."""
    from codegen_numba.intrinsics import NAMES

    filename = f"<tinytorch kernel {source.name}>"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = dict(NAMES)
    if source.pool:
        from codegen_numba.atomics import NAMES as ATOMICS

        namespace.update(ATOMICS)
    exec(compile(source.text, filename, "exec"), namespace)
    return namespace[source.name]


def allow_contraction(module: Any) -> None:
    """Flag float arithmetic the source wrote itself; ours inside the elementary functions is marked exact."""
    for function in module.functions:
        for block in function.blocks:
            for instr in block.instructions:
                if instr.opname in ("fadd", "fsub", "fmul") and not getattr(instr, "exact", False):
                    instr.flags = [*instr.flags, "contract"]


def add_entry(module: Any, inner: Any, source: Source) -> None:
    """``entry(args, start, stop, part)``: unpack the block of arguments and call the function."""
    from llvmlite import ir

    i64 = ir.IntType(64)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64.as_pointer(), i64, i64, i64]), ENTRY)
    entry.attributes.add("nounwind")
    b = ir.IRBuilder(entry.append_basic_block())
    ret, exc = (t.pointee for t in inner.function_type.args[:2])
    values = [b.alloca(ret), b.alloca(exc)]
    for n, want in enumerate(inner.function_type.args[2:-3]):
        word = b.load(b.gep(entry.args[0], [i64(n)]))
        values.append(b.inttoptr(word, want) if isinstance(want, ir.PointerType) else word)
    b.call(inner, [*values, *entry.args[1:]])
    b.ret_void()
    inner.linkage = "internal"
    inner.attributes.add("noinline")  # its arguments keep their noalias
    inner.attributes.add("nounwind")


# --- LLVM's half -----------------------------------------------------------------------------------------------------
def optimise(text: str) -> Any:
    """LLVM's O3; then the vector versions of functions it chose to call are added and inlined."""
    from codegen_numba import vectors

    module = _parse(vectors.announce(text))
    _run_passes(module, vectorise=True)
    wide = vectors.gather(str(module)) if "tt_" in text else ""
    extra = vectors.definitions(wide)
    if extra:
        module = _parse(re.sub(r"(?m)^@llvm\.compiler\.used.*$", "", wide))
        module.link_in(_parse(extra))
        _run_passes(module, vectorise=False)
    return module


def _parse(text: str) -> Any:
    module = llvm.parse_assembly(text)
    module.verify()
    return module


def _run_passes(module: Any, vectorise: bool) -> None:
    tuning = llvm.create_pipeline_tuning_options(speed_level=3 if vectorise else 2)
    tuning.loop_vectorization = tuning.loop_interleaving = tuning.slp_vectorization = vectorise
    tuning.loop_unrolling = vectorise
    builder = llvm.create_pass_builder(target.machine(), tuning)
    builder.getModulePassManager().run(module, builder)
