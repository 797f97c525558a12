"""Large arrays a block at a time: what a chain of ufuncs makes in between then stays in the processor's cache.

Stage: eager, on the CPU, off the tape.  In: a function that treats the elements of a tensor alike.  Out: the same function,
which is called with one block after another where the tensor is large.  A tape wants to see its operators, and so does a
tracer: both get the function itself.  Read next: ``nn.functional.activations``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinytorch import tape
from tinytorch.ops.spell_numpy import BLOCK
from tinytorch.tape import mode, wants_grad
from tinytorch.tensor import Tensor


def by_blocks(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``fn(x, *numbers)``: every element of the result comes from that of ``x`` in its place."""

    @functools.wraps(fn)
    def called(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not _large(input) or any(isinstance(a, Tensor) or a is True for a in (*args, *kwargs.values())):
            return fn(input, *args, **kwargs)
        data = input._data
        out = np.empty_like(data)
        flat, into = data.reshape(-1), out.reshape(-1)
        with tape.grad_mode(False):
            for i in range(0, flat.size, BLOCK):
                part = Tensor._wrap(flat[i : i + BLOCK], input.device)
                into[i : i + BLOCK] = fn(part, *args, **kwargs)._data
        result = Tensor._wrap(out, input.device)
        if mode.inference:
            result._inference = True
        return result

    return called


def _large(x: Any) -> bool:
    """A long stretch of memory on the CPU, and nobody watches the operators."""
    data = getattr(x, "_data", None)
    if type(data) is not np.ndarray or data.size < 4 * BLOCK or mode.interpreter is not None or mode.grad and wants_grad(x):
        return False
    return data.flags.c_contiguous and data.dtype.char in "fd"
