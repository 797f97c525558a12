"""Which values may be computed by the hardware's approximations: those that half precision rounds anyway.

Stage: codegen.  In: ``Nest``.  Out: names of values.  The contract gives a float32 result 2 ulp; a float16 or bfloat16
result only needs its own, so ``exp`` may be ``ex2.approx`` and a division ``rcp.approx`` if all that comes of them is
stored in a half type, or if they are made of half-precision numbers and only sums of them are stored.  Also which values
are computed in one piece with others then, and which are rounded in fast numerics too.
Read next: ``spell`` (``ROUGH``), ``body``.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen_cupy.nest import Nest, used
from codegen_cupy.spell import HALVES
from compiler.loop.ir import Buffer, Check, Index, Let, Load, Loop, Stmt, Store, Update, Value, walk
from tinytorch.dtypes import float32

_HALF = 2  # bytes


def rough(nest: Nest, buffers: dict[str, Buffer]) -> frozenset[str]:
    """Names of float32 values that need no more than half precision."""
    stmts = list(walk(nest.body))
    exact = _wanted_by(stmts, buffers, through_sums=True)
    direct = _wanted_by(stmts, buffers, through_sums=False)
    halves = _made_of_halves(stmts, buffers)
    values = [s.name for s in stmts if isinstance(s, Let) and s.dtype is float32]
    sums = [s.names[0] for s in stmts if isinstance(s, Update) and s.combine == "softmax" and halves.issuperset(_names(s.values))]
    return frozenset(n for n in values if n not in direct and (n not in exact or n in halves)) | frozenset(sums)


def _wanted_by(stmts: list[Stmt], buffers: dict[str, Buffer], *, through_sums: bool) -> set[str]:
    """Names that something exact depends on: a wider store, a comparison, a place in memory."""
    makers: dict[str, list[str]] = {}
    todo: list[str] = []
    for s in stmts:
        if isinstance(s, Let):
            if s.dtype is float32 or s.dtype.itemsize == _HALF and s.dtype.kind == "f":
                makers.setdefault(s.name, []).extend(_names(s.args))
            else:
                todo += _names(s.args)
        elif isinstance(s, Store):
            d = buffers[s.buffer].dtype
            half = d.kind == "f" and d.itemsize == _HALF
            todo += [n for n in used(s) if not (half and n == s.value)]
        elif isinstance(s, Update):
            simple = s.combine == "add" and len(s.names) == 1
            if not simple:
                todo += _names(s.values)
            elif through_sums:
                makers.setdefault(s.names[0], []).extend(_names(s.values))
        elif isinstance(s, (Check, Index, Load, Loop)):
            todo += list(used(s))
    found: set[str] = set()
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            todo += makers.get(n, ())
    return found


def _made_of_halves(stmts: list[Stmt], buffers: dict[str, Buffer]) -> set[str]:
    """Names computed from half-precision reads (and whole numbers) alone."""
    sources: dict[str, set[bool]] = {}
    for s in stmts:
        if isinstance(s, Load):
            d = buffers[s.buffer].dtype
            sources[s.name] = {d.itemsize == _HALF} if d.kind == "f" else set()
        elif isinstance(s, Let):
            sources[s.name] = set().union(*(sources.get(n, set()) for n in _names(s.args)))
        elif isinstance(s, Update):
            for name in s.names:
                sources.setdefault(name, set()).update(*(sources.get(n, set()) for n in _names(s.values)))
    return {n for n, halves in sources.items() if halves == {True}}


def _names(values: Iterable[object]) -> list[str]:
    return [v for v in values if isinstance(v, str)]


# --- in one piece ----------------------------------------------------------------------------------------------------
def erfs_plus_one(nest: Nest, rough: frozenset[str]) -> dict[str, str]:
    """``erf`` values that are only ever used in ``1 + erf(x)``, which is computed as a whole: name -> x."""
    stmts = list(walk(nest.body))
    found = {s.name: s.args[0] for s in stmts if isinstance(s, Let) and s.fn == "erf" and s.name in rough and isinstance(s.args[0], str)}
    for s in stmts:
        plus_one = isinstance(s, Let) and s.fn == "add" and 1.0 in s.args and s.name in rough
        for n in () if plus_one else used(s):
            found.pop(n, None)
    return found


def above_one(nest: Nest) -> frozenset[str]:
    """Values of the form ``1 + exp(...)``: their inverse needs no care."""
    stmts = [s for s in walk(nest.body) if isinstance(s, Let)]
    exps = {s.name for s in stmts if s.fn in ("exp", "exp2")}
    return frozenset(
        s.name for s in stmts if s.fn == "add" and any(a in exps for a in s.args) and any(_at_least_one(a) for a in s.args)
    )


def _at_least_one(a: Value) -> bool:
    return not isinstance(a, str) and a >= 1


# --- rounded all the same --------------------------------------------------------------------------------------------
def drawn(nest: Nest) -> frozenset[str]:
    """Random numbers on their way from words to the type they are drawn in: rounded to it, since eager draws the same."""
    out: set[str] = set()
    for s in walk(nest.body):
        if isinstance(s, Let) and (s.fn == "philox" or (s.fn in ("shr", "cast", "mul") and s.args[0] in out)):
            out |= {s.name} if s.dtype.name not in HALVES else set()
    return frozenset(out)
