"""Where temporaries lie: no two at a time in one place, lines of the cache, memory of the dead used again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen_numba.layout import LINE, Chunk, place
from compiler.loop.ir import Buffer
from compiler.sym.expr import Symbol, lift
from tinytorch.dtypes import float32

S, T = Symbol("s0"), Symbol("s1")


def chunk(name: str, elements: Any, first: int, last: int) -> Chunk:
    return Chunk(Buffer(name, float32, (elements,), (1,)), first, last)


def laid(chunks: list[Chunk], **sizes: int) -> tuple[list[tuple[int, int]], int]:
    """Begin and end of each chunk in bytes, and bytes in all."""
    arena, names = place(chunks), dict(sizes)
    if isinstance(arena, list):
        exec("\n".join(arena), {}, names)
    begins = [c.offset if isinstance(c.offset, int) else eval(c.offset, {}, names) for c in chunks]
    ends = [b + lift(c.size).evaluate(sizes) for b, c in zip(begins, chunks, strict=True)]
    return list(zip(begins, ends, strict=True)), names["top"] if isinstance(arena, list) else arena


SIZES = st.sampled_from([5, 16, 100, 16 * S, 48 * S, S, 3 * S, 32 * S * T, 16 * T, 16 * S + 16, S * T, 16 * (S // 2)])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(SIZES, st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=14),
    st.sampled_from([0, 1, 2, 7, 64]), st.sampled_from([1, 2, 5]),
)  # fmt: skip
def test_what_lives_together_lies_apart(lives: list[tuple[Any, int, int]], s: int, t: int) -> None:
    chunks = [chunk(f"b{n}", size, first, first + more) for n, (size, first, more) in enumerate(lives)]
    places, total = laid(chunks, s0=s, s1=t)
    assert all(begin % LINE == 0 and end <= total for begin, end in places)
    for (a, x), (b, y) in itertools.combinations(zip(chunks, places, strict=True), 2):
        if a.first <= b.last and b.first <= a.last:
            assert x[1] <= y[0] or y[1] <= x[0] or x[0] == x[1] or y[0] == y[1]


@pytest.mark.parametrize("size", [7, S], ids=["fixed", "symbolic"])
def test_several_take_the_place_of_a_larger_one(size: Any) -> None:
    chunks = [chunk("large", 64 * size, 0, 1), chunk("half", 32 * size, 2, 4), chunk("other", 32 * size, 2, 4)]
    assert laid(chunks, s0=7)[1] == 64 * 7 * 4
