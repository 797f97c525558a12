"""``repr`` of tensors.  Mirrors PyTorch's layout: one width for all elements, four decimals, long ones summarised.

Stage: eager.  In: a tensor.  Out: text.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinytorch import dtypes, late


class Options:
    """As ``torch.set_printoptions`` sets them."""

    precision = 4
    threshold = 1000
    edgeitems = 3
    linewidth = 80
    sci_mode: bool | None = None


def set_printoptions(**options: Any) -> None:
    """``precision``, ``threshold``, ``edgeitems``, ``linewidth``, ``sci_mode``.  Mirrors ``torch.set_printoptions``."""
    for name, value in options.items():
        if not hasattr(Options, name):
            raise TypeError(f"set_printoptions() got an unexpected keyword argument '{name}'")
        setattr(Options, name, value)


def tensor_text(self: Any) -> str:
    data = self._data if self.device.type == "cpu" else late.host_copy(self._data)
    if not isinstance(data, np.ndarray):
        return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"
    notes = []
    if self.device.type != "cpu":
        notes.append(f"device='{self.device}'")
    usual = (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_)
    if data.size == 0 and data.ndim != 1:
        notes.append(f"size={tuple(data.shape)}")
    if (
        self.dtype not in usual
        and self.dtype is not dtypes.complex64
        or data.size == 0
        and self.dtype is dtypes.int64
    ):
        notes.append(f"dtype={self.dtype}")
    if self._made_by()[0] is not None:
        notes.append(f"grad_fn={self.grad_fn!r}")
    elif self.requires_grad:
        notes.append("requires_grad=True")
    prefix = "tensor("
    body = "[]" if data.size == 0 else _body(data, len(prefix))
    return _joined(prefix + body, notes, len(prefix))


def _joined(text: str, notes: list[str], indent: int) -> str:
    last = len(text) - text.rfind("\n") - 1
    for note in notes:
        if last + len(note) + 2 > Options.linewidth:
            text += ",\n" + " " * indent + note
            last = indent + len(note)
        else:
            text += ", " + note
            last += len(note) + 2
    return text + ")"


def _body(data: Any, indent: int) -> str:
    if data.dtype.kind == "V":
        data = data.astype(np.float32)
    short = data.size > Options.threshold
    shown = _summary(data) if short else data
    form = _formatter(shown.reshape(-1))
    return _nested(data, form, indent, short)


def _summary(data: Any) -> Any:
    """Only the elements that will be shown: they decide the width."""
    edge = Options.edgeitems
    for d, n in enumerate(data.shape):
        if n > 2 * edge:
            data = np.take(data, [*range(edge), *range(n - edge, n)], d)
    return data


def _formatter(values: Any) -> Any:
    if values.dtype.kind == "c":
        real, imag = _formatter(values.real), _formatter(values.imag)

        def pair(v: Any) -> str:
            right = imag(v.imag).strip()
            return real(v.real) + (right if right.startswith("-") else "+" + right) + "j"

        return pair
    text = _text_of(values)
    shaping = values[np.isfinite(values) & (values != 0)] if values.dtype.kind == "f" else values
    width = max((len(text(v)) for v in shaping), default=1)
    return lambda v: text(v).rjust(width)


def _text_of(values: Any) -> Any:
    if values.dtype.kind not in "f":
        return lambda v: str(v.item())
    finite = np.abs(values[np.isfinite(values) & (values != 0)].astype(np.float64))
    digits = Options.precision
    if not finite.size:
        return lambda v: f"{float(v):.0f}." if math.isfinite(v) else str(float(v))
    low, high = float(finite.min()), float(finite.max())
    whole = bool(np.all(finite == np.ceil(finite)))
    if whole:
        wide = high / low > 1000 or high > 1e8
        if Options.sci_mode if Options.sci_mode is not None else wide and high > 1e8:
            return lambda v: f"{float(v):.{digits}e}"
        return lambda v: f"{float(v):.0f}." if math.isfinite(v) else str(float(v))
    far = high / low > 1000 or high > 1e8 or low < 1e-4
    if Options.sci_mode if Options.sci_mode is not None else far:
        return lambda v: f"{float(v):.{digits}e}"
    return lambda v: f"{float(v):.{digits}f}" if math.isfinite(v) else str(float(v))


def _nested(data: Any, form: Any, indent: int, short: bool) -> str:
    if data.ndim == 0:
        return form(data[()]).strip() if data.dtype.kind != "c" else form(data[()])
    edge = Options.edgeitems
    cut = short and data.shape[0] > 2 * edge
    rows = (
        [*range(edge), None, *range(data.shape[0] - edge, data.shape[0])]
        if cut
        else list(range(data.shape[0]))
    )
    if data.ndim == 1:
        parts = [" ..." if r is None else form(data[r]) for r in rows]
        width = max(1, len(parts[0]) + 2)
        per_line = max(1, (Options.linewidth - indent) // width)
        lines = [", ".join(parts[i : i + per_line]) for i in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    inner = ["..." if r is None else _nested(data[r], form, indent + 1, short) for r in rows]
    gap = "," + "\n" * (data.ndim - 1) + " " * (indent + 1)
    return "[" + gap.join(inner) + "]"
