"""Instructions: a code object as a list one can read, change and assemble again.

Stage: capture.  In: a code object of CPython 3.11, 3.12 or 3.13.  Out: ``Instr`` records: names and constants instead
of indices, jump targets instead of offsets, each with its place in the source and its exception handler; no caches,
no extended arguments.  The ``bytecode`` package knows the encodings; ``assemble`` hands the list back to it.
Read next: ``translate`` (what steps through the list), ``resume`` (what changes it).
"""

from __future__ import annotations

import dis
import functools
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import bytecode as bc
from bytecode.instr import InstrLocation

VERSION = sys.version_info[:2]
SUPPORTED = ((3, 11), (3, 12), (3, 13))


class Place(NamedTuple):
    """Where an instruction comes from; None where the compiler gave no position."""

    line: int | None = None
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None


class Handler(NamedTuple):
    """What an exception does: cut the stack to ``depth``, push the offset if ``lasti``, push it, go to ``target``."""

    target: Instr
    depth: int
    lasti: bool


@dataclass(eq=False, slots=True)
class Instr:
    """One instruction.  ``arg`` is what the opcode means by its argument: a name, a constant, an operator, a number."""

    op: str
    arg: Any = None
    target: Instr | None = None
    place: Place = field(default_factory=Place)
    handler: Handler | None = None
    index: int = -1  # position in the list, set by ``number``

    def __repr__(self) -> str:
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"{self.index:>4} {self.op}{arg}" + (f" -> {self.target.index}" if self.target else "")


class Code(NamedTuple):
    """A decoded function body: its instructions and the code object they come from."""

    instrs: list[Instr]
    code: CodeType


def check_version() -> None:
    """RuntimeError on a CPython whose bytecode this stage does not know."""
    if VERSION not in SUPPORTED:
        known = ", ".join(f"{a}.{b}" for a, b in SUPPORTED)
        raise RuntimeError(f"capture reads the bytecode of CPython {known}; this is {sys.version.split()[0]}")


R = TypeVar("R")


def per_code(fn: Callable[..., R]) -> Callable[..., R]:
    """Remember results per code *object*: equal code of another file is other code."""
    results: dict[tuple[Any, ...], tuple[CodeType, R]] = {}

    @functools.wraps(fn)
    def remembered(code: CodeType, *rest: Any) -> R:
        key = (id(code), *rest)
        found = results.get(key)
        if found is None:
            found = results[key] = (code, fn(code, *rest))
        return found[1]

    return remembered


@per_code
def decode(code: CodeType) -> Code:
    """The instructions of ``code``, cached: treat them as frozen (``copy_instrs`` gives a list of your own)."""
    check_version()
    instrs: list[Instr] = []
    labels: dict[Any, Instr | None] = {}
    waiting: list[Any] = []
    jumps: list[tuple[Instr, Any]] = []
    for item in bc.Bytecode.from_code(code, conserve_exception_block_stackdepth=True):
        if isinstance(item, bc.Label):
            waiting.append(item)
        elif isinstance(item, bc.Instr):
            instr = Instr(item.name, None, None, _place(item.location))
            for label in waiting:
                labels[label] = instr
            waiting.clear()
            if isinstance(item.arg, bc.Label):
                jumps.append((instr, item.arg))
            elif item.arg is not bc.UNSET:
                instr.arg = item.arg
            instrs.append(instr)
    for instr, label in jumps:
        instr.target = labels[label]
    _set_handlers(instrs, code)
    return Code(number(instrs), code)


def _set_handlers(instrs: list[Instr], code: CodeType) -> None:
    """By the code's own table: the ``bytecode`` package loses a span that begins at an EXTENDED_ARG, as in long loops."""
    offsets = [i.offset for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        handler = Handler(instrs[bisect_left(offsets, entry.target)], entry.depth, entry.lasti)
        for instr in instrs[bisect_left(offsets, entry.start) : bisect_left(offsets, entry.end)]:
            instr.handler = handler


def _place(location: InstrLocation | None) -> Place:
    if location is None:
        return Place()
    return Place(location.lineno, location.end_lineno, location.col_offset, location.end_col_offset)


def number(instrs: list[Instr]) -> list[Instr]:
    """Set every ``index``; a jump compares positions through it."""
    for i, instr in enumerate(instrs):
        instr.index = i
    return instrs


def copy_instrs(instrs: Sequence[Instr]) -> tuple[list[Instr], dict[Instr, Instr]]:
    """A copy to edit, and where each original went."""
    copies = {old: Instr(old.op, old.arg, None, old.place, None, old.index) for old in instrs}
    for old, new in copies.items():
        new.target = copies[old.target] if old.target else None
        if old.handler:
            new.handler = Handler(copies[old.handler.target], old.handler.depth, old.handler.lasti)
    return list(copies.values()), copies


def assemble(instrs: Sequence[Instr], like: CodeType, **changes: Any) -> CodeType:
    """A code object of these instructions with the names, flags and signature of ``like``.

    ``changes`` overrides attributes of the ``bytecode.Bytecode`` (``argnames``, ``cellvars``, ``name``, ...).
    """
    out = bc.Bytecode()
    for attribute, value in (_header(like) | changes).items():
        setattr(out, attribute, value)
    targets = {i.target for i in instrs if i.target} | {i.handler.target for i in instrs if i.handler}
    labels = {t: bc.Label() for t in targets}
    open_block: tuple[Handler, bc.TryBegin] | None = None
    for instr in instrs:
        if open_block is not None and instr.handler != open_block[0]:
            out.append(bc.TryEnd(open_block[1]))
            open_block = None
        if instr in labels:
            out.append(labels[instr])
        if instr.handler is not None and open_block is None:
            begin = bc.TryBegin(labels[instr.handler.target], instr.handler.lasti, instr.handler.depth)
            out.append(begin)
            open_block = (instr.handler, begin)
        out.append(_to_bytecode(instr, labels))
    if open_block is not None:
        out.append(bc.TryEnd(open_block[1]))
    # The edits of this stage never need a deeper stack than the original, but for a few pushes of a prologue.
    return out.to_code(stacksize=like.co_stacksize + 4, compute_exception_stack_depths=False)


def _header(like: CodeType) -> dict[str, Any]:
    count = like.co_argcount + like.co_kwonlyargcount
    count += bool(like.co_flags & 0x04) + bool(like.co_flags & 0x08)
    return {
        "name": like.co_name,
        "qualname": like.co_qualname,
        "filename": like.co_filename,
        "first_lineno": like.co_firstlineno,
        "flags": like.co_flags,
        "argcount": like.co_argcount,
        "posonlyargcount": like.co_posonlyargcount,
        "kwonlyargcount": like.co_kwonlyargcount,
        "argnames": list(like.co_varnames[:count]),
        "freevars": list(like.co_freevars),
        "cellvars": list(like.co_cellvars),
        "docstring": like.co_consts[0] if like.co_consts and isinstance(like.co_consts[0], str) else bc.UNSET,
    }


def _to_bytecode(instr: Instr, labels: dict[Instr, bc.Label]) -> bc.Instr:
    p = instr.place
    location = InstrLocation(p.line, p.end_line, p.column, p.end_column)
    if instr.target is not None:
        return bc.Instr(instr.op, labels[instr.target], location=location)
    if instr.arg is None and instr.op not in _MAY_LOAD_NONE:
        return bc.Instr(instr.op, location=location)
    return bc.Instr(instr.op, instr.arg, location=location)


_MAY_LOAD_NONE = {"LOAD_CONST", "RETURN_CONST"}
