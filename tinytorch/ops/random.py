"""Random rows: functions of a state, a shape and a place in the stream, so that a mask can be made twice.

Stage: eager, read by all.  In: ``state`` (int64 tensor [seed, offset]) and ``shift``, the place of this draw after the
state's offset.  Out: fresh tensors with the same bits on every device.  ``rng`` gives states out.  Read next: ``rng``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops import special
from tinytorch.ops.opdef import Meta, Op, Shape


def _words(xp: Any, state: Any, shape: Shape, shift: int) -> Any:
    seed, offset = (int(v) for v in state)
    numel = 1
    for s in shape:
        numel *= int(s)
    return special.philox_fill(xp, seed, offset + int(shift), numel).reshape(tuple(shape))


def _uniform_kernel(xp: Any, state: Any, shape: Shape, shift: int, dtype: DType) -> Any:
    """The word's top 24 bits, as a multiple of 2**-24 in [0, 1)."""
    words = _words(xp, state, shape, shift) >> np.uint32(8)
    return (words.astype(np.float32) * np.float32(2.0**-24)).astype(dtype.np)


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
    kernel=lambda xp, state, shape, shift: _words(xp, state, shape, shift).astype(xp.int64),
    body=lambda s, word: s.cast(word, dtypes.int64),
    doc="a word of 32 random bits, as int64",
)
