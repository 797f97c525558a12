"""Words for the scheduler: atomic memory, locks of the C library, a call by address.

Stage: codegen_numba, used by ``pool`` only.  In: the types of a call.  Out: LLVM instructions.
Read next: ``pool``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from codegen_numba import types
from codegen_numba.intrinsics import Word

I64, I32 = ir.IntType(64), ir.IntType(32)
BYTES = ir.IntType(8).as_pointer()
ENTRY = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64, I64])
POINTER = types.CPointer(types.int64)
NAMES: dict[str, Any] = {}


def word(name: str, result: types.Type, body: Callable[..., ir.Value]) -> None:
    """``name`` of operands (pointers to int64, or int64), written by ``body(builder, *values)``."""

    def typed(*args: types.Type) -> Any:
        return result(*(POINTER if isinstance(a, types.CPointer) else types.int64 for a in args))

    def write(builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        return body(builder, *values)

    NAMES[name] = Word(name, typed, write)


def _swap(b: ir.IRBuilder, p: ir.Value, at: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    return b.extract_value(b.cmpxchg(b.gep(p, [at]), old, new, "seq_cst", "seq_cst"), 1)


def _library(name: str, *offsets: int) -> Callable[..., ir.Value]:
    """A call of the C library on addresses inside a block of words."""

    def body(b: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        places = [b.bitcast(b.gep(values[0], [at]), BYTES) for at in values[1:]]
        type = ir.FunctionType(I32, [BYTES] * len(places))
        fn = b.module.globals.get(name) or ir.Function(b.module, type, name)
        return b.call(fn, places)

    return body


def _pause(b: ir.IRBuilder) -> ir.Value:
    hint = {"x86_64": "pause", "amd64": "pause", "aarch64": "yield", "arm64": "yield"}.get(
        platform.machine().lower(), ""
    )
    return b.asm(ir.FunctionType(ir.VoidType(), []), hint, "~{memory}", [], True)


def _call(b: ir.IRBuilder, entry: ir.Value, *values: ir.Value) -> ir.Value:
    return b.call(b.inttoptr(entry, ENTRY.as_pointer()), values)


def _ask(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    fn = b.inttoptr(address, ir.FunctionType(I32, []).as_pointer())
    return b.sext(b.call(fn, []), I64)


def _tell(b: ir.IRBuilder, address: ir.Value, n: ir.Value) -> ir.Value:
    fn = b.inttoptr(address, ir.FunctionType(ir.VoidType(), [I32]).as_pointer())
    return b.call(fn, [b.trunc(n, I32)])


word("ask", types.int64, _ask)
word("tell", types.void, _tell)
word("atomic_load", types.int64, lambda b, p, at: b.load_atomic(b.gep(p, [at]), "seq_cst", 8))
word("atomic_store", types.void, lambda b, p, at, v: b.store_atomic(v, b.gep(p, [at]), "seq_cst", 8))
word("atomic_add", types.int64, lambda b, p, at, v: b.atomic_rmw("add", b.gep(p, [at]), v, "seq_cst"))
word("compare_and_swap", types.boolean, _swap)
word("as_pointer", POINTER, lambda b, v: b.inttoptr(v, I64.as_pointer()))
word("as_integer", types.int64, lambda b, p: b.ptrtoint(p, I64))
word("call", types.void, _call)
word("pause", types.void, _pause)
word("yield_thread", types.void, lambda b: _library("sched_yield")(b, None))
word("mutex_lock", types.void, _library("pthread_mutex_lock"))
word("mutex_unlock", types.void, _library("pthread_mutex_unlock"))
word("cond_wait", types.void, _library("pthread_cond_wait"))
word("cond_broadcast", types.void, _library("pthread_cond_broadcast"))
