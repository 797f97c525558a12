"""Library calls: the op rows that stay whole, run by NumPy.

Stage: codegen_numba.  In: an ``Extern`` step.  Out: a function of its arrays that fills the last ones.
Matrix products go to BLAS straight into the output; half precision by way of float32.  Read next: ``build``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from compiler.ir import meta
from compiler.loop.interp import concrete, row_kernel
from compiler.loop.ir import Extern
from tinytorch.ops.opdef import TABLE
from tinytorch.ops.spell_numpy import quiet, unquiet


def caller(step: Extern) -> Callable[..., None]:
    """``call(*args, *outs)``; before them a dict of the sizes that ``sizes_of`` names, if there are any."""
    own = SPECIAL.get(step.fn)
    return _quietly(own if own is not None and not step.params else _generic(step))


def sizes_of(step: Extern) -> list[str]:
    """The symbolic sizes in the parameters of a call, such as the height and width of what a convolution's gradient fills."""
    return list(dict.fromkeys(s.name for s in meta.symbols_in(dict(step.params))))


def _quietly(call: Callable[..., None]) -> Callable[..., None]:
    """Overflow and NaN pass without a word, as in eager and in kernels."""

    def quiet_call(*arrays: Any) -> None:
        token = quiet()
        try:
            call(*arrays)
        finally:
            unquiet(token)

    return quiet_call


def _generic(step: Extern) -> Callable[..., None]:
    kernel, count, params = row_kernel(TABLE[step.fn]), len(step.args), dict(step.params)

    def call(*arrays: Any) -> None:
        fill(params, arrays)

    def call_with_sizes(sizes: Mapping[str, int], *arrays: Any) -> None:
        fill({name: concrete(value, sizes) for name, value in params.items()}, arrays)

    def fill(numbers: dict[str, Any], arrays: tuple[Any, ...]) -> None:
        made = kernel(np, *arrays[:count], **numbers)
        many = made if isinstance(made, tuple | list) else (made,)
        for out, result in zip(arrays[count:], many, strict=True):
            np.copyto(out, result, casting="unsafe")

    return call_with_sizes if sizes_of(step) else call


def matmul(a: Any, b: Any, out: Any) -> None:
    if a.dtype.kind == "f" and a.itemsize > 2 and a.dtype == b.dtype:
        np.matmul(a, b, out=out)
    elif a.itemsize == 2 and a.dtype.kind in "fV":
        np.copyto(out, np.matmul(a.astype(np.float32), b.astype(np.float32)), casting="unsafe")
    else:
        np.copyto(out, np.matmul(a, b), casting="unsafe")


SPECIAL: dict[str, Callable[..., None]] = {"matmul": matmul}


def look(array: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: Any) -> Any:
    """A strided view counted from the array's first element; ``offset`` in elements, negative if strides are."""
    if array.dtype != dtype:
        array = array.view(dtype)
    if offset:
        step = array.itemsize if offset > 0 else -array.itemsize
        array = np.lib.stride_tricks.as_strided(array, (abs(offset) + 1,), (step,))[abs(offset) :]
    return np.lib.stride_tricks.as_strided(array, shape, strides)
