"""Sizes of tensors in the loop IR: ints, or expressions over symbols.

Stage: loop.  In: sizes and strides of fake tensors.  Out: the same as loop IR has them, how many elements there are, and
for a choice that needs a number, a guess.  Read next: ``value``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compiler.loop.ir import Int
from compiler.sym.expr import as_int, expr_of, lift

SYMBOL_HINT = 64


def ints(xs: Iterable[Any]) -> tuple[Int, ...]:
    """Sizes or strides as ints where they are known, else as expressions."""
    return tuple(as_int(e) if (e := expr_of(x)) is not None else int(x) for x in xs)


def numel(shape: tuple[Int, ...]) -> Int:
    """The number of elements."""
    n: Int = 1
    for s in shape:
        n = as_int(lift(n) * s)
    return n


def hint(n: Int) -> int:
    """A size as a number, for weighing only; unknown sizes count as 64."""
    return n if isinstance(n, int) else int(n.evaluate({s.name: SYMBOL_HINT for s in n.free_symbols}))


def dense_strides(val: Any, shape: tuple[Int, ...]) -> tuple[Int, ...] | None:
    """Eager's strides if they are a permutation of contiguous ones; None means contiguous will do."""
    strides = ints(val.stride())
    real = [(s, n) for s, n in zip(strides, shape, strict=True) if not (isinstance(n, int) and n == 1)]
    step: Int = 1
    while real:
        found = next((x for x in real if lift(x[0]) is lift(step)), None)
        if found is None:
            return None
        real.remove(found)
        step = as_int(lift(step) * found[1])
    return strides
