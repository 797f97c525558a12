"""What a vjp rule will keep, read from the rule itself before it runs.

Stage: eager.  In: a rule, ``vjp(out, *args)``.  Out: for every choice of inputs that want a gradient, which arguments the
functions for them close over.  With that the tape keeps the arguments alone and lets the rule make its functions in
backward: recording a call is then a few attribute reads.  Read next: ``tape``.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

#: the places of arguments, and whether the output is kept beside them
Kept: TypeAlias = tuple[tuple[int, ...], bool]
_DECIDES = ("CALL", "LOAD_ATTR", "LOAD_METHOD", "JUMP", "STORE_ATTR", "COMPARE", "BINARY")


def reads_out(vjp: Callable[..., Any] | None) -> bool:
    """Whether the rule looks at the output at all; if not, none is handed to it."""
    code = getattr(vjp, "__code__", None)
    if code is None:
        return True
    first = code.co_varnames[0]
    return any(i.argval == first for i in dis.get_instructions(code) if i.opname not in ("MAKE_CELL", "COPY_FREE_VARS"))


def kept_arguments(vjp: Callable[..., Any] | None) -> list[Kept] | None:
    """``kept[mask]``: what the functions for the inputs in ``mask`` (bit i: input i) close over.

    None for a rule that does more than make functions: it may look at its arguments, so it has to run at once.
    """
    code = getattr(vjp, "__code__", None)
    if vjp is None or code is None or code.co_flags & 0x0C or code.co_kwonlyargcount:  # *args, **kwargs
        return None
    if any(i.opname.startswith(_DECIDES) or "JUMP" in i.opname for i in dis.get_instructions(code)):
        return None
    arity = code.co_argcount - 1
    markers: list[Any] = [object() for _ in range(arity + 1)]  # the output's first
    places = {id(m): i - 1 for i, m in enumerate(markers)}
    reads = [_places(fn, places) for fn in vjp(*markers)]
    if None in reads or len(reads) > arity:
        return None
    masks = [[fn or () for i, fn in enumerate(reads) if mask >> i & 1] for mask in range(1 << arity)]
    every = [set().union(*chosen) for chosen in masks]
    return [(tuple(sorted(places - {-1})), -1 in places) for places in every]


def _places(fn: Any, places: dict[int, int]) -> tuple[int, ...] | None:
    """Which markers ``fn`` holds in its cells; None if it holds anything else."""
    if fn is None:
        return ()
    if type(fn) is not FunctionType:
        return None
    found = [places.get(id(cell.cell_contents)) for cell in fn.__closure__ or ()]
    return None if None in found else tuple(p for p in found if p is not None)
