"""Calls of ``trig``'s functions, made wide: told to the vectoriser, gathered side by side, and defined at last.

Stage: codegen_numba, between LLVM's passes.  In: IR as text.  Out: IR as text.  ``announce`` lists the vector versions
by ``vector-function-abi-variant``.  The vectoriser then unrolls its loop and calls one version several times in a
row; run one after the other their chains of dependent steps leave most of the machine idle, so ``gather`` makes one
call of twice or four times the width, which works on all chains in step and looks for huge arguments once.
``definitions`` writes the versions that are called.  Read next: ``compile``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from llvmlite import ir

from codegen_numba.llvm import F32, F64, Format
from codegen_numba.trig import define, name_of

#: Lanes the vectoriser is offered, and how many calls become one: float64's takes many registers.
LANES = {F32: (4, 8, 16), F64: (2, 4, 8, 16)}
TOGETHER = {F32: 4, F64: 2}

_SCALAR = re.compile(r'call (\w+) @"(tt_(sin|cos|tan)_f(32|64))"\([^)]*\)')
_USED = re.compile(r"@(tt_(sin|cos|tan)_f(32|64)x(\d+))\(")
_VECTOR = re.compile(
    r"  (?P<result>%\S+) = (?:tail )?call (?P<type><\d+ x \w+>) @(?P<callee>tt_(?P<name>sin|cos|tan)_f(?P<bits>32|64)"
    r"x(?P<lanes>\d+))\((?P=type) (?P<operand>%[^)]+)\)"
)


def _format(bits: str) -> Format:
    return F32 if bits == "32" else F64


def announce(text: str) -> str:
    """Tell the vectoriser, at each call and by a list LLVM must keep, which vector versions there will be."""
    found: dict[str, str] = {}

    def told(match: re.Match[str]) -> str:
        scalar, name, fmt = match[2], match[3], _format(match[4])
        wide = [(lanes, name_of(name, fmt, lanes)) for lanes in LANES[fmt]]
        for lanes, full in wide:
            t = f"<{lanes} x {match[1]}>"
            found[full] = f"declare {t} @{full}({t}) nounwind memory(none)"
        abi = ",".join(f"_ZGV_LLVM_N{lanes}v_{scalar}({full})" for lanes, full in wide)
        return f'{match[0]} nounwind memory(none) "vector-function-abi-variant"="{abi}"'

    text = _SCALAR.sub(told, text)
    if not found:
        return text
    names = ", ".join(f"ptr @{n}" for n in found)
    used = f'@llvm.compiler.used = appending global [{len(found)} x ptr] [{names}], section "llvm.metadata"'
    return "\n".join([text, *found.values(), used, ""])


def gather(text: str) -> str:
    """Neighbouring calls of one version, none of which needs another's result, as one call."""
    out: list[str] = []
    run: list[re.Match[str]] = []
    made: dict[str, str] = {}
    fresh = count()

    def flush() -> None:
        while run:
            fmt, lanes = _format(run[0]["bits"]), int(run[0]["lanes"])
            size = max(n for n in (1, 2, 4) if n <= min(len(run), TOGETHER[fmt]))
            group = run[:size]
            del run[:size]
            if size == 1:
                out.append(group[0].string)
                continue
            full = name_of(group[0]["name"], fmt, size * lanes)
            t = _type(size * lanes, group[0])
            made[full] = f"declare {t} @{full}({t}) nounwind memory(none)"
            out.extend(_wide_call(full, group, [f"%gathered{next(fresh)}" for _ in range(size)]))

    for line in text.splitlines():
        call = _VECTOR.match(line)
        if run and (
            call is None or call["callee"] != run[0]["callee"] or call["operand"] in {c["result"] for c in run}
        ):
            flush()
        if call is None:
            out.append(line)
        else:
            run.append(call)
    flush()
    return "\n".join([*out, *(d for n, d in made.items() if f"@{n}(" not in text), ""])


def _type(lanes: int, call: re.Match[str]) -> str:
    return f"<{lanes} x {'float' if call['bits'] == '32' else 'double'}>"


def _wide_call(callee: str, calls: Sequence[re.Match[str]], names: list[str]) -> list[str]:
    """Operands joined two by two, one call, and its parts under the names of the results."""
    lines: list[str] = []
    parts, lanes = [c["operand"] for c in calls], int(calls[0]["lanes"])
    total = lanes * len(parts)
    while len(parts) > 1:
        t, order, joined = _type(lanes, calls[0]), _order(0, 2 * lanes), []
        for a, b in zip(parts[::2], parts[1::2], strict=True):
            joined.append(names.pop())
            lines.append(f"  {joined[-1]} = shufflevector {t} {a}, {t} {b}, {order}")
        parts, lanes = joined, 2 * lanes
    t, result = _type(total, calls[0]), names.pop()
    lines.append(f"  {result} = call {t} @{callee}({t} {parts[0]})")
    lanes = int(calls[0]["lanes"])
    for n, c in enumerate(calls):
        lines.append(f"  {c['result']} = shufflevector {t} {result}, {t} poison, {_order(n * lanes, lanes)}")
    return lines


def _order(first: int, lanes: int) -> str:
    return f"<{lanes} x i32> <{', '.join(f'i32 {first + n}' for n in range(lanes))}>"


def definitions(text: str) -> str:
    """A module that defines the vector versions which optimised ``text`` calls; empty if it calls none."""
    module = ir.Module("vector functions")
    for _, name, bits, lanes in sorted(set(_USED.findall(re.sub(r"(?m)^(declare|@llvm).*$", "", text)))):
        define(module, name, _format(bits), int(lanes)).linkage = "linkonce_odr"
    return str(module) if module.globals else ""
