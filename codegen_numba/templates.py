"""Which library calls run as phases of our own.

Stage: codegen_numba.  In: an ``Extern`` step.  Out: its ``Template``s, or None: then NumPy is called.  Products and
convolutions can be had by BLAS (``library``) and by our own tiles (``own``), where these know the case; which of them is
chosen without measuring stands in ``packed``, ``depthwise``, ``direct`` and ``placed``.  Read next: ``matmul``, ``flash``, ``attention``,
``convolution``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from codegen_numba import attention, convolution, depthwise, direct, flash, packed, placed, placed_weight
from codegen_numba.matmul import Template, matmul
from compiler.loop.ir import Buffer, Extern

Maker = Callable[[Extern, Mapping[str, Buffer]], "list[Template] | None"]
Own = Callable[[Extern, Mapping[str, Buffer], bool], "list[Template] | None"]

BY_ROW: dict[str, Maker] = {
    "matmul": matmul,
    "attention": lambda step, buffers: flash.forward(step, buffers) or attention.forward(step, buffers),
    "attention_backward": lambda step, buffers: flash.backward(step, buffers) or attention.backward(step, buffers),
    "conv": convolution.forward,
    "conv_input": convolution.backward_input,
    "conv_weight": convolution.backward_weight,
}
OWN: dict[str, Own] = {
    "matmul": packed.matmul,
    "conv": lambda *call: depthwise.forward(*call) or direct.forward(*call) or placed.forward(*call),
    "conv_input": lambda *call: depthwise.backward_input(*call) or direct.backward_input(*call) or placed.backward_input(*call),
    "conv_weight": lambda *call: depthwise.backward_weight(*call) or placed_weight.backward_weight(*call),
}


def of(step: Extern, buffers: Mapping[str, Buffer], way: str = "") -> list[Template] | None:
    """``way``: "own", "library", or whichever should be faster."""
    make, own = BY_ROW.get(step.fn), OWN.get(step.fn)
    if make is None:
        return None
    made = own(step, buffers, way == "own") if own is not None and way != "library" else None
    return made or make(step, buffers)


def ways(step: Extern, buffers: Mapping[str, Buffer]) -> tuple[str, ...]:
    """What there is to choose from."""
    own = OWN.get(step.fn)
    if own is None or of(step, buffers, "library") is None or own(step, buffers, True) is None:
        return ()
    return ("own", "library")
