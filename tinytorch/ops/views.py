"""View rows: the same memory seen otherwise.

Stage: eager, read by all.  In: a tensor.  Out: a view.  ``infer`` gives shape and strides (in elements), the kernel the
view itself; ``body(index, shape, **params)`` maps an index of the output to one of the input of shape ``shape``, which
is all that lowering needs to make a view cost nothing.  Read next: ``contract``, ``index``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytorch.ops.opdef import TABLE, Meta, Op, Shape

Index = Sequence[Any]


# --- expand -----------------------------------------------------------------------------------------------------------
def _expand_infer(x: Meta, shape: Shape) -> Meta:
    extra = len(shape) - len(x.shape)
    if extra < 0:
        raise RuntimeError(
            f"expand(sizes: {list(shape)}): the number of sizes provided ({len(shape)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({len(x.shape)})"
        )
    strides: list[Any] = [0] * extra
    for i, (have, want) in enumerate(zip(x.shape, shape[extra:], strict=True)):
        if isinstance(have, int) and have == 1 and not (isinstance(want, int) and want == 1):
            strides.append(0)
        elif have != want:
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton "
                f"dimension {i + extra}.  Target sizes: {list(shape)}.  Tensor sizes: {list(x.shape)}"
            )
        else:
            strides.append(x.strides[i] if x.strides else None)
    return Meta(tuple(shape), x.dtype, tuple(strides))


def _expand_vjp(out: Any, x: Any, shape: Shape) -> Any:
    return (lambda g: g,)  # the engine sums over what was broadcast


expand = Op(
    name="expand",
    kind="view",
    infer=_expand_infer,
    kernel=lambda xp, x, shape: xp.broadcast_to(x, shape) if xp.__name__ != "numpy" else _broadcast(xp, x, shape),
    body=lambda index, shape, **_: tuple(
        0 if isinstance(size, int) and size == 1 else i for i, size in zip(index[len(index) - len(shape) :], shape)
    ),
    vjp=_expand_vjp,
    recompute="free",
)


def _broadcast(xp: Any, x: Any, shape: Shape) -> Any:
    """A writable broadcast, which NumPy's own is not."""
    extra = len(shape) - x.ndim
    strides = (0,) * extra + tuple(
        0 if have == 1 and want != 1 else s for have, want, s in zip(x.shape, shape[extra:], x.strides, strict=True)
    )
    return xp.ndarray(tuple(shape), x.dtype, x, 0, strides) if x.flags.c_contiguous else (
        xp.lib.stride_tricks.as_strided(x, tuple(shape), strides)
    )  # fmt: skip


# --- permute ----------------------------------------------------------------------------------------------------------
def _permute_infer(x: Meta, dims: tuple[int, ...]) -> Meta:
    if sorted(dims) != list(range(len(x.shape))):
        raise RuntimeError(f"permute(dims={list(dims)}): not a permutation of the {len(x.shape)} dimensions")
    assert x.strides is not None
    return Meta(tuple(x.shape[d] for d in dims), x.dtype, tuple(x.strides[d] for d in dims))


def inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(dims)), key=dims.__getitem__))


permute = Op(
    name="permute",
    kind="view",
    infer=_permute_infer,
    kernel=lambda xp, x, dims: x.transpose(dims),
    body=lambda index, shape, dims: tuple(index[i] for i in inverse(dims)),
    vjp=lambda out, x, dims: (lambda g: permute(g, dims=inverse(dims)),),
    recompute="free",
)


# --- view -------------------------------------------------------------------------------------------------------------
def numel(shape: Shape) -> Any:
    n: Any = 1
    for s in shape:
        n = n * s
    return n


def contiguous_strides(shape: Shape) -> Shape:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def view_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides that show memory of ``shape``/``strides`` as ``target``, or None where only a copy can."""
    if any(isinstance(s, int) and s == 0 for s in shape):
        return contiguous_strides(target)
    out: list[Any] = [None] * len(target)
    left = [(s, t) for s, t in zip(shape, strides, strict=True) if not (isinstance(s, int) and s == 1)]
    at = len(target) - 1
    while left:
        size, stride = left.pop()
        block, base = size, stride
        while left and left[-1][1] == stride * size:  # merge what lies together in memory
            size, stride = left.pop()
            block = block * size
        done: Any = 1
        while at >= 0 and (done != block or (isinstance(target[at], int) and target[at] == 1)):
            out[at] = base * done
            done = done * target[at]
            at -= 1
        if done != block:
            return None
    for i in range(at, -1, -1):  # leading ones
        out[i] = out[i + 1] * target[i + 1] if i + 1 < len(target) else 1
    return tuple(out)


def _view_infer(x: Meta, shape: Shape) -> Meta:
    if numel(shape) != numel(x.shape):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel(x.shape)}")
    strides = view_strides(x.shape, x.strides, shape) if x.strides is not None else contiguous_strides(shape)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return Meta(tuple(shape), x.dtype, strides)


def _view_body(index: Index, shape: Shape, **params: Any) -> tuple[Any, ...]:
    """Count through the output's elements, then find the place in the input's shape."""
    flat: Any = 0
    for i, step in zip(index, contiguous_strides(params["shape_out"]), strict=True):
        flat = flat + i * step
    out = []
    for size, step in zip(shape, contiguous_strides(shape), strict=True):
        out.append(flat // step % size)
    return tuple(out)


def _view_vjp(out: Any, x: Any, shape: Shape) -> Any:
    before = tuple(x.shape)
    return (lambda g: reshape(g, before),)


view = Op(
    name="view",
    kind="view",
    infer=_view_infer,
    kernel=lambda xp, x, shape: x.reshape(shape),
    body=lambda index, shape_in, shape: _view_body(index, shape_in, shape_out=shape),
    vjp=_view_vjp,
    recompute="free",
)


def reshape(x: Any, shape: Shape) -> Any:
    """A view where strides allow, else a view of a contiguous copy."""
    if view_strides(tuple(x.shape), x.stride(), tuple(shape)) is None:
        x = TABLE["contiguous"](x)
    return view(x, shape=tuple(shape))


# --- slice, select ----------------------------------------------------------------------------------------------------
def _slice_infer(x: Meta, dim: int, start: Any, stop: Any, step: int) -> Meta:
    assert x.strides is not None
    length = (stop - start + step - 1) // step
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :])
    return Meta(shape, x.dtype, strides, start * x.strides[dim])


def _slice_vjp(out: Any, x: Any, dim: int, start: Any, stop: Any, step: int) -> Any:
    size = x.shape[dim]
    return (lambda g: TABLE["slice_backward"](g, dim=dim, size=size, start=start, stop=stop, step=step),)


slice_ = Op(
    name="slice",
    kind="view",
    infer=_slice_infer,
    kernel=lambda xp, x, dim, start, stop, step: x[(slice(None),) * dim + (slice(start, stop, step),)],
    body=lambda index, shape, dim, start, stop, step: (*index[:dim], index[dim] * step + start, *index[dim + 1 :]),
    vjp=_slice_vjp,
    recompute="free",
    doc="0 <= start <= stop <= size and step >= 1: the callers have clamped",
)


def _select_infer(x: Meta, dim: int, index: Any) -> Meta:
    assert x.strides is not None
    return Meta(
        x.shape[:dim] + x.shape[dim + 1 :], x.dtype, x.strides[:dim] + x.strides[dim + 1 :], index * x.strides[dim]
    )


def _select_vjp(out: Any, x: Any, dim: int, index: Any) -> Any:
    size = x.shape[dim]

    def of_x(g: Any) -> Any:
        one = view(g, shape=(*g.shape[:dim], 1, *g.shape[dim:]))
        return TABLE["slice_backward"](one, dim=dim, size=size, start=index, stop=index + 1, step=1)

    return (of_x,)


select = Op(
    name="select",
    kind="view",
    infer=_select_infer,
    kernel=lambda xp, x, dim, index: x[(slice(None),) * dim + (index,)] if x.ndim > 1 else x[index : index + 1].reshape(()),
    body=lambda index_out, shape, dim, index: (*index_out[:dim], index, *index_out[dim:]),
    vjp=_select_vjp,
    recompute="free",
    doc="0 <= index < size: the callers have checked",
)
