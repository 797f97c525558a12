"""Masked stores of one element become plain stores: LLVM's own way writes more than the element.

Stage: codegen_numba, the end of ``compile``.  In: optimised LLVM IR as text.  Out: the same with every masked store
whose mask is constant and has one lane written as an extracted element and a store.  For such a store of numbers that
were just narrowed (float32 rounded to bfloat16, int64 to int32) LLVM 22 on AVX-512 stores the number before it was
narrowed, and so overwrites the neighbour.  Its loop vectoriser makes such masks for the last turn of loops of fewer than
sixteen turns.  Read next: ``compile``.
"""

from __future__ import annotations

import re
from typing import Any

_STORE = re.compile(
    r"call void @llvm\.masked\.store\.[\w.]+\(<\d+ x (?P<type>\w+)> (?P<value>%[^,]+), ptr (?:align (?P<align>\d+) )?"
    r"(?P<at>%[^,]+), (?:i32 (?P<old_align>\d+), )?<\d+ x i1> <(?P<mask>i1 [^>]*)>\)"
)


def found(module: Any) -> bool:
    """Does ``module`` call a masked store at all?"""
    return any(f.name.startswith("llvm.masked.store") for f in module.functions)


def apart(text: str) -> str:
    """``text`` with its masked stores of one element written plainly."""
    lines: list[str] = []
    for n, line in enumerate(text.splitlines()):
        m = _STORE.search(line)
        lanes = [lane.split()[-1] == "true" for lane in m["mask"].split(",")] if m else []
        if m is None or lanes.count(True) != 1:
            lines.append(line)
            continue
        lane, kind, align = lanes.index(True), m["type"], m["align"] or m["old_align"] or "1"
        lines += [
            f"  %lane.{n} = extractelement <{len(lanes)} x {kind}> {m['value']}, i64 {lane}",
            f"  %lane.{n}.at = getelementptr {kind}, ptr {m['at']}, i64 {lane}",
            f"  store {kind} %lane.{n}, ptr %lane.{n}.at, align {align if lane == 0 else 1}",
        ]
    return "\n".join(lines)
