"""Which library calls run as phases of our own.

Stage: codegen_numba.  In: an ``Extern`` step.  Out: its ``Template``, or None: then NumPy is called.
Read next: ``matmul``, ``attention``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from codegen_numba import attention
from codegen_numba.analysis import known
from codegen_numba.matmul import Template, matmul
from compiler.loop.ir import ArrayView, Buffer, Extern

BY_ROW: dict[str, Callable[[Extern, Mapping[str, Buffer]], Template | None]] = {
    "matmul": matmul, "attention": attention.forward, "attention_backward": attention.backward,
}  # fmt: skip


def of(step: Extern, buffers: Mapping[str, Buffer]) -> Template | None:
    make = BY_ROW.get(step.fn)
    views = [v for v in (*step.args, *step.outs) if isinstance(v, ArrayView)]
    if make is None or any(known(v.offset) is None for v in views):
        return None
    return make(step, buffers)
