"""Owners: the models and optimizers that a call is about, by which compilations of one code object are counted.

Stage: capture (run time).  In: a call.  Out: weak references to its modules and optimizers.  Models of different structure
that go through one function (or through ``Module.__call__``) each need entries of their own; that is no reason to take
one of them for a function that never stops changing.  Read next: ``runtime.CodeCache``, which counts.
"""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

from tinytorch.nn.module import Module
from tinytorch.optim.optimizer import Optimizer

Owners = tuple["weakref.ref[Any]", ...]


def owners_of(fn: FunctionType, values: tuple[Any, ...]) -> Owners:
    """Modules and optimizers among the arguments of a call, and among what its function closes over."""
    return tuple(weakref.ref(v) for v in (*values, *_closed_over(fn)) if isinstance(v, Module | Optimizer))


def _closed_over(fn: FunctionType) -> list[Any]:
    found = []
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing in it yet
            pass
    return found


def same(a: Owners, b: Owners) -> bool:
    """The same objects, all still there."""
    return len(a) == len(b) and all(x() is y() is not None for x, y in zip(a, b, strict=True))


def gone(a: Owners) -> bool:
    return any(x() is None for x in a)
