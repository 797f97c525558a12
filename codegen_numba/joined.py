"""Words that stand for several, where one line of arithmetic does what two would do over again.

Stage: codegen_numba, a part of ``statements``.  In: straight statements of a kernel whose numerics need not be eager's to
the bit.  Out: the same with ``1 / (1 + exp(-x))`` and ``1 + erf(x)`` as one word each, which has no need of what a function
of its own must do for results that vanish beside one.  Read next: ``joined_math``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from codegen_numba import analysis
from codegen_numba.analysis import Body
from compiler.loop.ir import Let, Stmt

LOGISTIC, ERF_PLUS_ONE = WORDS = ("logistic", "erf_plus_one")


def join(body: Body) -> Body:
    """``body`` with joined words; what it defines is read nowhere else."""
    made = {s.name: s for s in body if isinstance(s, Let)}
    if not any(s.fn in ("exp", "erf") for s in made.values()):
        return body
    uses = Counter(n for s in body for n in analysis.uses(s))
    gone: set[str] = set()
    out: list[Stmt] = []
    for s in body:
        for word, steps_of in ((LOGISTIC, _logistic), (ERF_PLUS_ONE, _erf_plus_one)):
            steps = steps_of(s, made, uses) if isinstance(s, Let) else ()
            if isinstance(s, Let) and steps:
                gone |= {x.name for x in steps}
                s = replace(s, fn=word, args=steps[-1].args)
        out.append(s)
    return tuple(s for s in out if not (isinstance(s, Let) and s.name in gone)) if gone else body


def _logistic(s: Let, made: dict[str, Let], uses: Counter[str]) -> tuple[Let, ...]:
    """The sum, the exponential and the negation behind ``1 / (1 + exp(-x))``, which nobody else reads."""
    steps = [s]
    for fn, one in (("div", 0), ("add", None), ("exp", None), ("neg", None)):
        last = steps[-1]
        if last.fn != fn or last.dtype is not s.dtype or last.dtype.kind != "f":
            return ()
        args = [a for a in last.args if isinstance(a, str)]
        if fn in ("div", "add"):
            if len(args) != 1 or [a for a in last.args if not isinstance(a, str)] != [1] or one == 0 and last.args[0] != 1:
                return ()
        if fn == "neg":
            return tuple(steps[1:])
        if args[0] not in made or uses[args[0]] != 1:
            return ()
        steps.append(made[args[0]])
    return ()


def _erf_plus_one(s: Let, made: dict[str, Let], uses: Counter[str]) -> tuple[Let, ...]:
    """The error function behind ``1 + erf(x)``, which nobody else reads."""
    names = [a for a in s.args if isinstance(a, str)]
    if s.fn != "add" or s.dtype.kind != "f" or len(names) != 1 or [a for a in s.args if not isinstance(a, str)] != [1]:
        return ()
    inner = made.get(names[0])
    fits = inner is not None and inner.fn == "erf" and inner.dtype is s.dtype and uses[inner.name] == 1
    return (inner,) if fits and inner is not None else ()
