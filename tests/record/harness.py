"""Run a case under any library that is ``torch``-shaped, and say what came out as plain data.

Used twice: by ``record_torch.py`` under PyTorch, whose answers are kept in ``tests/data``, and by the tests under
tinytorch.  Nothing here knows which of the two it is talking to.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
INTS = ("int64", "int32", "int16", "int8", "uint8")
COMPLEX = ("complex64", "complex128")
REALS = (*FLOATS, *INTS)
ALL = (*REALS, "bool", *COMPLEX)


@dataclass(frozen=True)
class T:
    """An input: ``shape``, and where its values come from.

    kind  ``near`` (multiples of 1/8 in [-4, 4]), ``positive`` (1/8 to 4), ``unit`` (-7/8 to 7/8), ``edges`` (with NaN,
    infinities, signed zeros), ``index:n`` (0 to n - 1), ``bool``, ``different`` (no two equal)
    dtype  fixed, or None for the case's
    """

    shape: tuple[int, ...]
    kind: str = "near"
    dtype: str | None = None


@dataclass(frozen=True)
class Case:
    """``expr`` over the inputs, ``torch`` and ``F``; run once per dtype; with gradients where ``grad`` and floating."""

    name: str
    expr: str
    inputs: dict[str, T]
    dtypes: tuple[str, ...] = ("float32",)
    grad: bool = True
    setup: str = ""
    differs: str = ""  # why tinytorch's answer is another one, on purpose: then nothing is compared
    zeros: bool = True  # whether the signs of zeros count
    loose: float = 1.0  # tolerance times this

    def variants(self) -> list[tuple[str, str]]:
        return [(f"{self.name}[{d}]", d) for d in self.dtypes]


@dataclass
class Result:
    """Either an error (type name, message) or a tree of values described by ``kinds`` and the arrays themselves."""

    error: tuple[str, str] | None = None
    notes: list[Any] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)


# --- inputs -----------------------------------------------------------------------------------------------------------
def stream(name: str, n: int) -> Any:
    """``n`` numbers in [0, 2**16), the same on every machine and NumPy."""
    state = zlib.crc32(name.encode()) | 1
    out = np.empty(n, np.int64)
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFF_FFFF
        out[i] = state >> 16
    return out


def values(name: str, t: T, dtype: str) -> Any:
    """The values of an input as float64, int64 or complex128."""
    n = int(np.prod(t.shape))
    raw = stream(name, n)
    kind, _, more = t.kind.partition(":")
    if kind == "index":
        return (raw % int(more)).reshape(t.shape)
    if kind == "bool" or dtype == "bool":
        return (raw % 2 == 1).reshape(t.shape)
    whole = dtype.startswith(("int", "uint"))
    if kind == "positive":
        v = raw % 32 + 1 if not whole else raw % 5 + 1
    elif kind == "unit":
        v = raw % 15 - 7 if not whole else raw % 3 - 1
    elif kind == "different":
        v = np.argsort(raw, kind="stable") - n // 3
    else:
        v = raw % 65 - 32 if not whole else raw % 9 - 4
    if dtype == "uint8":
        v = np.abs(v)
    if whole:
        return v.astype(np.int64).reshape(t.shape)
    v = v / 8
    if kind == "edges":
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5])
        v = np.where(raw % 3 == 0, special[raw // 3 % 8], v)
    if dtype.startswith("complex"):
        v = v + 1j * ((raw >> 4) % 33 - 16) / 8
    return v.reshape(t.shape)


def tensors(torch: Any, case: Case, dtype: str, requires_grad: bool, device: str = "cpu") -> dict[str, Any]:
    made = {}
    for key, t in case.inputs.items():
        kind = t.dtype or ("bool" if t.kind == "bool" else "int64" if t.kind.startswith("index") else dtype)
        x = torch.tensor(values(f"{case.name}.{key}", t, kind).tolist(), dtype=getattr(torch, kind))
        x = x.reshape(t.shape).clone().to(device)
        if requires_grad and t.dtype is None and kind in (*FLOATS, *COMPLEX):
            x.requires_grad_(True)
        made[key] = x
    return made


# --- running ----------------------------------------------------------------------------------------------------------
def run(torch: Any, case: Case, dtype: str, device: str = "cpu") -> Result:
    differentiable = case.grad and dtype in (*FLOATS, *COMPLEX)
    result = Result()
    try:
        made = tensors(torch, case, dtype, differentiable, device)
        space = {"torch": torch, "F": torch.nn.functional, "nan": float("nan"), "inf": float("inf"), **made}
        space["dtype"] = getattr(torch, dtype)
        if case.setup:
            exec(case.setup, space)
        out = eval(case.expr, space)
        describe(torch, out, result)
        if differentiable:
            gradients(torch, out, [space[k] for k in made if made[k].requires_grad], result)
    except Exception as e:
        result.error = (type(e).__name__, str(e))
    return result


def leaves(torch: Any, out: Any) -> list[Any]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, tuple | list):
        return [x for o in out for x in leaves(torch, o)]
    return []


def describe(torch: Any, out: Any, result: Result) -> None:
    """Append the plain description of ``out``."""
    if isinstance(out, torch.Tensor):
        result.notes.append(["tensor", str(out.dtype).split(".")[-1], list(out.shape), list(out.stride())])
        result.arrays.append(plain(torch, out))
    elif isinstance(out, tuple | list) and not isinstance(out, torch.Size):
        result.notes.append(["tuple", len(out)])
        for o in out:
            describe(torch, o, result)
    elif isinstance(out, torch.dtype):
        result.notes.append(["dtype", str(out).split(".")[-1]])
    elif isinstance(out, torch.Size):
        result.notes.append(["size", [int(s) for s in out]])
    else:
        result.notes.append(["value", repr(out)])


def plain(torch: Any, x: Any) -> Any:
    x = x.detach()
    if x.dtype == torch.bfloat16:
        x = x.to(torch.float32)
    return np.array(x.contiguous().cpu().numpy())


def gradients(torch: Any, out: Any, inputs: list[Any], result: Result) -> None:
    """The gradient of a fixed weighting of all floating outputs, by each input that is a leaf."""
    total = None
    for i, o in enumerate(leaves(torch, out)):
        if not (o.is_floating_point() or o.is_complex()) or not o.requires_grad:
            continue
        n = o.numel()
        w = torch.tensor(((stream(f"weight{i}", n) % 9 - 4) / 4).tolist(), dtype=torch.float64).reshape(o.shape)
        o = torch.view_as_real(o).sum(-1) if o.is_complex() else o
        part = (o * w.to(o.device, o.dtype)).sum()
        total = part if total is None else total + part
    if total is None or not inputs:
        return
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    for g in found:
        if g is None:
            result.notes.append(["none"])
        else:
            result.notes.append(["grad", str(g.dtype).split(".")[-1], list(g.shape)])
            result.arrays.append(plain(torch, g))
