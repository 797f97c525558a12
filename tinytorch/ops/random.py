"""Random rows: functions of a state, a shape and a place in the stream, so that a mask can be made twice.

Stage: eager, read by all.  In: ``state`` (int64 tensor [seed, offset]) and ``shift``, the place of this draw after the
state's offset.  Out: fresh tensors with the same bits on every device.  ``rng`` gives states out.  Read next: ``philox``, ``rng``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops import philox
from tinytorch.ops.opdef import Meta, Op, Shape
from tinytorch.ops.philox import Draw


def _drawn(xp: Any, state: Any, shape: Shape, shift: int, draw: Draw) -> Any:
    seed, offset = (int(v) for v in state)
    numel = 1
    for s in shape:
        numel *= int(s)
    return philox.fill(xp, seed, offset + int(shift), numel, draw).reshape(tuple(shape))


def _uniform_kernel(xp: Any, state: Any, shape: Shape, shift: int, dtype: DType) -> Any:
    return _drawn(xp, state, shape, shift, philox.UNIFORM).astype(dtype.np, copy=False)


uniform = Op(
    name="uniform",
    kind="random",
    infer=lambda state, shape, shift, dtype: Meta(tuple(shape), dtype),
    kernel=_uniform_kernel,
    body=lambda s, word, dtype: s.cast(
        s.mul(s.cast(s.shr(word, s.const(8, dtypes.uint32)), dtypes.float32), s.const(2.0**-24, dtypes.float32)), dtype
    ),
    doc="body maps the philox word of an element to its value",
)
bits = Op(
    name="random_bits",
    kind="random",
    infer=lambda state, shape, shift: Meta(tuple(shape), dtypes.int64),
    kernel=lambda xp, state, shape, shift: _drawn(xp, state, shape, shift, philox.LONG),
    body=lambda s, word: s.cast(word, dtypes.int64),
    doc="a word of 32 random bits, as int64",
)
