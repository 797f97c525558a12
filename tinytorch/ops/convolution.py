"""Convolution rows: one product over sliding windows, and its two transposes.

Stage: eager, read by all.  In: ``x`` (N, C, *sizes) and ``w`` (O, C / groups, *kernel), any number of spatial
dimensions; ``stride``, ``padding`` and ``dilation`` are tuples of ints.  Out: (N, O, *sizes).
The three rows are each other's derivatives, since the product is linear in each of (output, input, weight):
``conv`` makes the output, ``conv_input`` the input's part, ``conv_weight`` the weight's.  ``conv_input`` is also what
is called a transposed convolution.  Read next: ``nn.functional.conv``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinytorch.ops.opdef import Meta, Op, Shape

Ints = tuple[int, ...]


# --- shapes -----------------------------------------------------------------------------------------------------------
def out_size(size: Any, kernel: Any, stride: int, padding: int, dilation: int) -> Any:
    """How many windows fit along one dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _conv_infer(x: Meta, w: Meta, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Meta:
    n = len(stride)
    if len(x.shape) != n + 2 or len(w.shape) != n + 2:
        raise RuntimeError(
            f"Expected {n + 2}D input and weight to conv{n}d, but got input of size: {list(x.shape)} and weight of "
            f"size: {list(w.shape)}"
        )
    for name, values, least in (("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0)):
        if any(isinstance(v, int) and v < least for v in values):
            raise RuntimeError(f"{'non-positive' if least else 'negative'} {name} is not supported")
    if x.dtype is not w.dtype:
        raise RuntimeError(f"Input type ({x.dtype.name}) and weight type ({w.dtype.name}) should be the same")
    if x.shape[1] != w.shape[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(w.shape)}, expected input{list(x.shape)} to have "
            f"{w.shape[1] * groups} channels, but got {x.shape[1]} channels instead"
        )
    if w.shape[0] % groups:
        raise RuntimeError(f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0")
    sizes = tuple(
        out_size(s, k, st, p, d) for s, k, st, p, d in zip(x.shape[2:], w.shape[2:], stride, padding, dilation)
    )
    for size, s, k, p in zip(sizes, x.shape[2:], w.shape[2:], padding):
        if isinstance(size, int) and size <= 0:
            raise RuntimeError(
                f"Calculated padded input size per channel: ({s + 2 * p}). Kernel size: ({k}). Kernel size can't be "
                "greater than actual input size"
            )
    return Meta((x.shape[0], w.shape[0], *sizes), x.dtype)


# --- arrays -----------------------------------------------------------------------------------------------------------
def _windows(xp: Any, x: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    """A view (N, C, *kernel, *out) of the padded input: every window, without a copy of it."""
    if any(padding):
        x = xp.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    sizes = tuple(out_size(s, k, st, 0, d) for s, k, st, d in zip(x.shape[2:], kernel, stride, dilation))
    steps = x.strides[2:]
    return xp.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:2], *kernel, *sizes),
        (*x.strides[:2], *(s * d for s, d in zip(steps, dilation)), *(s * st for s, st in zip(steps, stride))),
    )


def _columns(xp: Any, x: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    """(N, groups, C / groups * kernel, out): each window as a column."""
    view = _windows(xp, x, kernel, stride, padding, dilation)
    n, c = x.shape[:2]
    return view.reshape(n, groups, c // groups * math.prod(kernel), math.prod(view.shape[2 + len(kernel) :]))


def _wide(x: Any) -> Any:
    """Half types multiply in float32."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def _conv_kernel(xp: Any, x: Any, w: Any, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    out, kernel = w.shape[0], w.shape[2:]
    cols = _columns(xp, _wide(x), kernel, stride, padding, dilation, groups)
    product = xp.matmul(_wide(w).reshape(groups, out // groups, cols.shape[2]), cols)
    sizes = (out_size(s, k, st, p, d) for s, k, st, p, d in zip(x.shape[2:], kernel, stride, padding, dilation))
    return product.reshape(x.shape[0], out, *sizes).astype(x.dtype, copy=False)


def _conv_input_kernel(
    xp: Any, g: Any, w: Any, size: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    """Each column is added back where its window was."""
    n, out = g.shape[:2]
    kernel, channels = w.shape[2:], w.shape[1] * groups
    weight = _wide(w).reshape(groups, out // groups, w.shape[1] * math.prod(kernel)).transpose(0, 2, 1)
    cols = xp.matmul(weight, _wide(g).reshape(n, groups, out // groups, math.prod(g.shape[2:])))
    cols = cols.reshape(n, channels, *kernel, *g.shape[2:])
    padded = xp.zeros((n, channels, *(s + 2 * p for s, p in zip(size, padding))), cols.dtype)
    for offset in np.ndindex(*kernel):
        place = tuple(
            slice(o * d, o * d + (m - 1) * st + 1, st) for o, d, m, st in zip(offset, dilation, g.shape[2:], stride)
        )
        padded[(slice(None), slice(None), *place)] += cols[(slice(None), slice(None), *offset)]
    inner = tuple(slice(p, p + s) for p, s in zip(padding, size))
    return xp.ascontiguousarray(padded[(slice(None), slice(None), *inner)]).astype(g.dtype, copy=False)


def _conv_weight_kernel(
    xp: Any, x: Any, g: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    n, out = g.shape[:2]
    # strides that leave a remainder: the last places of x belong to no window
    cols = _columns(xp, _wide(x), kernel, stride, padding, dilation, groups)  # (N, groups, C/groups*kernel, L)
    rows, places = _wide(g).reshape(n, groups, out // groups, cols.shape[3]), n * cols.shape[3]
    product = xp.matmul(
        rows.transpose(1, 2, 0, 3).reshape(groups, out // groups, places),
        cols.transpose(1, 0, 3, 2).reshape(groups, places, cols.shape[2]),
    )
    return product.reshape(out, x.shape[1] // groups, *kernel).astype(g.dtype, copy=False)


# --- rows -------------------------------------------------------------------------------------------------------------
def _conv_vjp(out: Any, x: Any, w: Any, **p: Any) -> Any:
    size, kernel = tuple(x.shape[2:]), tuple(w.shape[2:])
    return lambda g: conv_input(g, w, size=size, **p), lambda g: conv_weight(x, g, kernel=kernel, **p)


def _conv_input_vjp(out: Any, g: Any, w: Any, size: Shape, **p: Any) -> Any:
    kernel = tuple(w.shape[2:])
    return lambda gg: conv(gg, w, **p), lambda gg: conv_weight(gg, g, kernel=kernel, **p)


def _conv_weight_vjp(out: Any, x: Any, g: Any, kernel: Shape, **p: Any) -> Any:
    size = tuple(x.shape[2:])
    return lambda gg: conv_input(g, gg, size=size, **p), lambda gg: conv(x, gg, **p)


def _conv_input_infer(g: Meta, w: Meta, size: Shape, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Meta:
    n = len(stride)
    if len(g.shape) != n + 2 or len(w.shape) != n + 2:
        raise RuntimeError(
            f"Expected {n + 2}D input and weight to conv_transpose{n}d, but got input of size: {list(g.shape)} and "
            f"weight of size: {list(w.shape)}"
        )
    if g.dtype is not w.dtype:
        raise RuntimeError(f"Input type ({g.dtype.name}) and weight type ({w.dtype.name}) should be the same")
    if g.shape[1] != w.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(w.shape)}, expected input{list(g.shape)} to have {w.shape[0]} "
            f"channels, but got {g.shape[1]} channels instead"
        )
    return Meta((g.shape[0], w.shape[1] * groups, *size), g.dtype)


conv = Op(
    name="conv",
    kind="extern",
    infer=_conv_infer,
    kernel=_conv_kernel,
    vjp=_conv_vjp,
    recompute="save",
    doc="convolution without bias, in any number of dimensions: windows of x times w",
)
conv_input = Op(
    name="conv_input",
    kind="extern",
    infer=_conv_input_infer,
    kernel=_conv_input_kernel,
    vjp=_conv_input_vjp,
    recompute="save",
    doc="conv's cotangent of x, an input of spatial sizes ``size``; also the transposed convolution of g",
)
conv_weight = Op(
    name="conv_weight",
    kind="extern",
    infer=lambda x, g, kernel, stride, padding, dilation, groups: Meta(
        (g.shape[1], x.shape[1] // groups, *kernel), g.dtype
    ),
    kernel=_conv_weight_kernel,
    vjp=_conv_weight_vjp,
    recompute="save",
    doc="conv's cotangent of w, a weight of spatial sizes ``kernel``",
)
