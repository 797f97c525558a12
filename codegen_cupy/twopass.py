"""Online softmax and Welford updates as two plain passes, for rows that stay in registers.

Stage: codegen.  In, out: ``Nest``.  With the row at hand a second pass reads no memory, and a maximum, then a sum of
``exp(x - max)`` (a sum, then a sum of squared distances) cost one exponential (no division) per element.
Read next: ``rows``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from codegen_cupy.nest import Nest, slice_for
from compiler.loop.ir import Init, Let, Loop, Stmt, Update
from tinytorch.dtypes import DType, bool_


def two_pass(nest: Nest) -> Nest:
    inits = {s.names[0]: s for s in nest.body if isinstance(s, Init) and s.combine in ("softmax", "welford")}
    out: list[Stmt] = []
    for s in nest.body:
        if isinstance(s, Init) and s.names[0] in inits:
            out += _inits(s)
        elif isinstance(s, Loop) and s.kind == "reduce" and all(not isinstance(x, Loop) for x in s.body):
            out += _split(s, inits)
        else:
            out.append(s)
    return replace(nest, body=tuple(out))


def _inits(s: Init) -> list[Stmt]:
    first = s.names[0]
    if s.combine == "softmax":
        return [Init((first,), "max", s.dtypes[:1]), Init((f"{s.names[1]}_all",), "add", s.dtypes[1:2])]
    return [Init((f"{first}_total",), "add", s.dtypes[:1]), Init((s.names[1],), "add", s.dtypes[1:2])]


def _split(loop: Loop, inits: dict[str, Init]) -> list[Stmt]:
    """The loop with first-pass updates, then a loop with the second ones."""
    first: list[Stmt] = []
    between: list[Stmt] = []
    second: list[Stmt] = []
    after: list[Stmt] = []
    wanted: set[str] = set()
    for s in loop.body:
        if not (isinstance(s, Update) and s.names[0] in inits):
            first.append(s)
            continue
        init, value = inits[s.names[0]], s.values[0]
        d = init.dtypes[0]
        if isinstance(value, str):
            wanted.add(value)
        if s.combine == "softmax":
            first.append(Update((s.names[0],), "max", (value,)))
            second += _exp_sum(s, d)
            after += _exp_sum_end(s, d)
        else:
            first.append(Update((f"{s.names[0]}_total",), "add", (value,)))
            between += _mean(s, d, loop)
            second += _squares(s, d)
    if not second:
        return [loop]
    again = slice_for(loop.body, wanted)
    return [replace(loop, body=tuple(first)), *between, replace(loop, body=(*again, *second)), *after]


def _exp_sum(s: Update, d: DType) -> list[Stmt]:
    peak, total = s.names
    return [
        Let(f"{peak}_gap", "sub", (s.values[0], peak), d),
        Let(f"{peak}_exp", "exp", (f"{peak}_gap",), d),
        Update((f"{total}_all",), "add", (f"{peak}_exp",)),
    ]


def _exp_sum_end(s: Update, d: DType) -> list[Stmt]:
    """A row of nothing but -inf has the sum 0, not that of exp(-inf + inf)."""
    peak, total = s.names
    return [
        Let(f"{peak}_none", "eq", (peak, -math.inf), bool_),
        Let(total, "where", (f"{peak}_none", 0.0, f"{total}_all"), d),
    ]


def _mean(s: Update, d: DType, loop: Loop) -> list[Stmt]:
    mean, _, count = s.names
    return [
        Let(count, "const", (float(loop.extent),), d),  # type: ignore[arg-type]
        Let(mean, "div", (f"{mean}_total", count), d),
    ]


def _squares(s: Update, d: DType) -> list[Stmt]:
    mean, m2, _ = s.names
    return [
        Let(f"{mean}_gap", "sub", (s.values[0], mean), d),
        Let(f"{mean}_square", "mul", (f"{mean}_gap", f"{mean}_gap"), d),
        Update((m2,), "add", (f"{mean}_square",)),
    ]
