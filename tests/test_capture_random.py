"""Random programs: compiled equals eager in values, exceptions, state, aliases, random numbers, and the order of what was done."""

from __future__ import annotations

import dataclasses
import os
import warnings

from capture_helpers import differences
from capture_programs import arguments, build, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.backends.eager import eager
from compiler.capture import entry
from compiler.config import config as default_config

#: Loops whose body breaks and whose lists grow need an entry per length; that limit is not what is tested here.
CONFIG = dataclasses.replace(default_config, recompile_limit=200)
#: ``TT_RANDOM_PROGRAMS=10000`` for the long run.
EXAMPLES = int(os.environ.get("TT_RANDOM_PROGRAMS", "60"))


#: What ran in this process before: (seed, breaks).
BEFORE: list[tuple[int, bool]] = []


def check(seed: int, breaks: bool, fullgraph: bool = False) -> None:
    """Compiled equals eager, and nothing fell back to eager, which would be equal too."""
    before = BEFORE[-40:]
    BEFORE.append((seed, breaks))
    fn, text = build(seed, breaks)
    expected = [outcome(fn, arguments(s)) for s in (seed, seed + 1, seed)]
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", message="tinytorch.compile")
        compiled = entry.compile_function(fn, eager, fullgraph=fullgraph, config=CONFIG)
        got = [outcome(compiled, arguments(s)) for s in (seed, seed + 1, seed)]
    wrong = [str(w.message) for w in told if str(w.message).startswith("tinytorch.compile")]
    wrong += differences(got, expected, "calls")
    assert not wrong, "\n".join([f"program {seed}, breaks={breaks}, after {before}:", text, *wrong])


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 10**9))
def test_programs_with_breaks(seed: int) -> None:
    check(seed, breaks=True)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 10**9))
def test_programs_without_breaks(seed: int) -> None:
    check(seed, breaks=False)


def test_a_handler_that_begins_at_a_long_jump() -> None:
    """In a resume function of this program the span of a handler begins at an EXTENDED_ARG."""
    check(920258, breaks=True)
