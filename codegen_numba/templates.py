"""Which library calls run as phases of our own.

Stage: codegen_numba.  In: an ``Extern`` step.  Out: its ``Template``s, or None: then NumPy is called.
Read next: ``matmul``, ``flash``, ``attention``, ``convolution``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from codegen_numba import attention, convolution, flash, packed
from codegen_numba.analysis import known
from codegen_numba.matmul import Template, matmul
from compiler.loop.ir import ArrayView, Buffer, Extern

Maker = Callable[[Extern, Mapping[str, Buffer]], "list[Template] | None"]

BY_ROW: dict[str, Maker] = {
    "matmul": lambda step, buffers: packed.matmul(step, buffers) or matmul(step, buffers),
    "attention": lambda step, buffers: flash.forward(step, buffers) or attention.forward(step, buffers),
    "attention_backward": lambda step, buffers: flash.backward(step, buffers) or attention.backward(step, buffers),
    "conv": convolution.forward,
    "conv_input": convolution.backward_input,
    "conv_weight": convolution.backward_weight,
}


def of(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    make = BY_ROW.get(step.fn)
    views = [v for v in (*step.args, *step.outs) if isinstance(v, ArrayView)]
    if make is None or any(known(v.offset) is None for v in views):
        return None
    return make(step, buffers)
