"""Decoding and assembling: code survives the round trip, and every opcode of this CPython has an answer."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import dis
import functools
import inspect
import json.decoder
import subprocess
import types
import typing
from collections.abc import Iterator
from typing import Any

import bytecode
import capture_cases
import pytest

from compiler.capture import instrs
from compiler.capture.opcodes.refused import REFUSED
from compiler.capture.resume import Point, live_variables, resume_code
from compiler.capture.translate import Frame

MODULES = (bisect, contextlib, dataclasses, dis, functools, inspect, json.decoder, subprocess, typing, bytecode.cfg, capture_cases)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for k in code.co_consts:
        if isinstance(k, types.CodeType):
            yield from codes(k)


def listing(code: types.CodeType) -> tuple[list[Any], dict[int, Any]]:
    """Instructions by meaning, and the handler of each."""
    rows = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    offsets = [i.offset for i in rows]

    def at(offset: int) -> int:
        return bisect.bisect_left(offsets, offset)

    meaning = []
    for i in rows:
        arg: Any = at(i.argval) if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs else i.argval
        meaning.append((i.opname, repr(arg), i.positions))
    handlers: dict[int, Any] = {}
    for e in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        handlers.update({k: (at(e.target), e.depth, e.lasti) for k in range(at(e.start), at(e.end))})
    return meaning, handlers


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_round_trip_changes_nothing(module: types.ModuleType) -> None:
    source = inspect.getsource(module)
    count = 0
    for code in codes(compile(source, str(module.__file__), "exec")):
        again = instrs.assemble(instrs.decode(code).instrs, code)
        assert listing(again) == listing(code), code
        for name in (
            "co_name", "co_qualname", "co_filename", "co_firstlineno", "co_flags", "co_argcount", "co_posonlyargcount",
            "co_kwonlyargcount", "co_freevars", "co_cellvars",
        ):  # fmt: skip
            assert getattr(again, name) == getattr(code, name)
        count += 1
    assert count > 3


def test_assembled_code_runs() -> None:
    def f(a: int, *rest: int, k: int = 2) -> list[int]:
        total = []
        for r in rest:
            try:
                total.append(a // r + k)
            except ZeroDivisionError:
                total.append(-1)
        return total

    instrs_, _ = instrs.copy_instrs(instrs.decode(f.__code__).instrs)
    g = types.FunctionType(instrs.assemble(instrs_, f.__code__), globals(), "g", None, None)
    g.__kwdefaults__ = {"k": 2}
    assert g(7, 1, 0, 2) == f(7, 1, 0, 2) == [9, -1, 5]


def test_every_opcode_is_modelled_or_refused_by_name() -> None:
    ops = [op for op in dis.opmap if not op.startswith("INSTRUMENTED") and op != "CACHE"]
    without = [op for op in ops if getattr(Frame, op, None) is None]
    assert without == []
    refused = [op for op in ops if op in REFUSED]
    assert len(refused) < 30
    assert {"BINARY_OP", "CALL", "FOR_ITER", "SEND", "MATCH_CLASS"}.isdisjoint(refused)


def test_unknown_cpython_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrs, "VERSION", (3, 99))
    with pytest.raises(RuntimeError, match=r"CPython 3\.11, 3\.12, 3\.13"):
        instrs.check_version()


def test_live_variables_are_those_read_later() -> None:
    def f(a: int, b: int) -> int:
        c = a + 1
        b = 2
        return c + b

    live = live_variables(f.__code__)
    last_store = max(i.index for i in instrs.decode(f.__code__).instrs if i.op.startswith("STORE_FAST"))
    assert "a" not in live[last_store + 1]
    assert "a" in live[1]
    assert "b" not in live[1]


def test_resume_code_goes_on_in_the_middle() -> None:
    def f(a: int) -> tuple[int, str]:
        b = a + 1
        try:
            c = b * 2
        except ValueError:
            c = 0
        return c, "end"

    body = instrs.decode(f.__code__).instrs
    multiply = next(i for i in body if i.op == "BINARY_OP" and i.arg.name == "MULTIPLY")
    code = resume_code(f.__code__, Point(multiply.index, ("value", "value"), ()))
    assert types.FunctionType(code, globals())(10, 4) == (40, "end")
