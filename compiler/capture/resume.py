"""Resume functions: the rest of a function after a graph break, as an ordinary function.

Stage: capture.  In: a code object, an instruction to go on at, and what lay on the value stack and in the variables.
Out: a code object whose arguments are these values, whose body restores them and jumps.  Exception tables stay as they
were, so a break inside ``try`` or ``with`` resumes inside it.  The result is a compile target like any other.
Read next: ``native`` (the one instruction between), ``entry``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Literal

import bytecode as bc

from compiler.capture.instrs import Handler, Instr, assemble, copy_instrs, decode, number, per_code

#: What lies on the stack: a value, the NULL of the calling convention, or the saved exception state of a handler, for
#: which the exception being handled is passed.
SlotKind = Literal["value", "null", "state"]


@dataclass(frozen=True)
class Point:
    """Where and how to go on.  ``raises``: the last value is an exception to raise into the handler at ``index``."""

    index: int
    stack: tuple[SlotKind, ...]
    variables: tuple[str, ...]
    raises: bool = False
    lasti: bool = False  # the handler also wants the offset of what raised


@per_code
def resume_code(code: CodeType, point: Point) -> CodeType:
    """The code object that takes the stack's values and then the variables, and goes on at ``point``."""
    instrs, copies = copy_instrs(decode(code).instrs)
    target = instrs[point.index]
    shared = [*code.co_freevars, *code.co_cellvars]
    for instr in instrs:
        if isinstance(instr.arg, bc.CellVar):
            instr.arg = bc.FreeVar(instr.arg.name)
        elif _loads_cell_of_argument(instr, code):
            instr.arg = bc.FreeVar(instr.arg)
    values = [f"stack_{i}" for i, kind in enumerate(point.stack) if kind != "null"]
    prologue = _prologue(point, target, values, shared, code.co_firstlineno)
    body = _reachable([*prologue, *instrs])
    names = [*values, *point.variables]
    made = assemble(
        body,
        code,
        argnames=names,
        argcount=len(names),
        posonlyargcount=0,
        kwonlyargcount=0,
        flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR),
        freevars=shared,
        cellvars=[],
        docstring=bc.UNSET,
    )
    places = {new: old.index for old, new in copies.items()}
    _origins[id(made)] = (made, code, tuple(places.get(i) for i in body))
    return made


def _loads_cell_of_argument(instr: Instr, code: CodeType) -> bool:
    """From 3.13 on a closure over an argument is built with LOAD_FAST of the argument's name, which means its cell."""
    return sys.version_info >= (3, 13) and instr.op == "LOAD_FAST" and instr.arg in code.co_cellvars


#: Resume code -> itself (kept alive), the code it goes on in, and for each of its instructions the index there.
_origins: dict[int, tuple[CodeType, CodeType, tuple[int | None, ...]]] = {}


def origin(code: CodeType, index: int) -> tuple[CodeType, int]:
    """The user's own code and instruction behind a place in a resume function, so that resuming from there again gives
    the same function as resuming from the original."""
    known = _origins.get(id(code))
    if known is None:
        return code, index
    at = known[2][index]
    assert at is not None, "a break in the prologue of a resume function"
    return origin(known[1], at)


def _prologue(point: Point, target: Instr, values: Sequence[str], shared: Sequence[str], line: int) -> list[Instr]:
    """Instructions that rebuild the stack.  Exception state is rebuilt by raising the exception again."""
    out = [Instr("COPY_FREE_VARS", len(shared))] if shared else []
    out.append(Instr("RESUME", 0))
    names = iter(values)
    for depth, kind in enumerate(point.stack):
        if kind == "null":
            out.append(Instr("PUSH_NULL"))
        elif kind == "state":
            entered = Instr("PUSH_EXC_INFO")
            out.append(Instr("LOAD_FAST", next(names)))
            out.append(Instr("RAISE_VARARGS", 1, handler=Handler(entered, depth, False)))
            out += [entered, Instr("POP_TOP")]
        else:
            out.append(Instr("LOAD_FAST", next(names)))
    if point.raises:
        last = out[-1]
        assert last.op == "LOAD_FAST"
        depth = len(point.stack) - 1
        out.append(Instr("RAISE_VARARGS", 1, handler=Handler(target, depth, point.lasti)))
    else:
        out.append(Instr("JUMP_FORWARD", None, target=target))
    for instr in out:
        instr.place = target.place if target.place.line is not None else instr.place
    return out


def _reachable(instrs: list[Instr]) -> list[Instr]:
    """The instructions that can still run, in their order; a jump to the next one is dropped."""
    number(instrs)
    seen: set[Instr] = set()
    todo = [instrs[0]]
    while todo:
        instr = todo.pop()
        if instr in seen:
            continue
        seen.add(instr)
        todo += successors(instrs, instr)
    kept = [i for i in instrs if i in seen]
    return number(kept)


_NO_FALLTHROUGH = {
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "JUMP",
}  # fmt: skip


def successors(instrs: Sequence[Instr], instr: Instr) -> list[Instr]:
    """Where control can go from here, exceptions included."""
    out: list[Instr] = []
    if instr.op not in _NO_FALLTHROUGH and instr.index + 1 < len(instrs):
        out.append(instrs[instr.index + 1])
    if instr.target is not None:
        out.append(instr.target)
    if instr.handler is not None:
        out.append(instr.handler.target)
    return out


# --- which variables matter -------------------------------------------------------------------------------------------
@per_code
def live_variables(code: CodeType) -> tuple[frozenset[str], ...]:
    """For each instruction, the local variables that may be read from there on before they are written."""
    instrs = decode(code).instrs
    reads = [_reads(i) for i in instrs]
    writes = [_writes(i) for i in instrs]
    live: list[set[str]] = [set() for _ in instrs]
    changed = True
    while changed:
        changed = False
        for instr in reversed(instrs):
            after: set[str] = set()
            for s in successors(instrs, instr):
                after |= live[s.index]
            now = reads[instr.index] | (after - writes[instr.index])
            if instr.handler is not None:  # the write may not have happened when the exception came
                now |= live[instr.handler.target.index]
            if now != live[instr.index]:
                live[instr.index] = now
                changed = True
    return tuple(frozenset(s) for s in live)


def _names(arg: object) -> tuple[str, ...]:
    parts = arg if isinstance(arg, tuple) else (arg,)
    return tuple(p for p in parts if isinstance(p, str))


def _reads(instr: Instr) -> set[str]:
    if instr.op in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_LOAD_FAST", "DELETE_FAST"):
        return set(_names(instr.arg))
    if instr.op == "STORE_FAST_LOAD_FAST":
        stored, loaded = instr.arg
        return set() if stored == loaded else set(_names(loaded))
    return set()


def _writes(instr: Instr) -> set[str]:
    if instr.op in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
        return set(_names(instr.arg))
    return {instr.arg[0]} if instr.op == "STORE_FAST_LOAD_FAST" else set()


def resume_name(code: CodeType, line: int | None) -> str:
    """What logs call the resume function."""
    return f"resume_in_{code.co_name}_at_{line or code.co_firstlineno}"

