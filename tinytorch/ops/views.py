"""View rows: the same memory seen otherwise.

Stage: eager, read by all.  In: a tensor.  Out: a view.  ``infer`` gives shape and strides (in elements), the kernel the
view itself; ``body(index, shape, **params)`` maps an index of the output to one of the input of shape ``shape``, which
is all that lowering needs to make a view cost nothing.  Read next: ``contract``, ``indexing``.
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
            f"expand({x.dtype.title}Tensor{{{list(x.shape)}}}, size={list(shape)}): the number of sizes provided ({len(shape)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({len(x.shape)})"
        )
    strides: list[Any] = [0] * extra
    for i, (have, want) in reversed(list(enumerate(zip(x.shape, shape[extra:], strict=True)))):
        if isinstance(have, int) and have == 1 and not (isinstance(want, int) and want == 1):
            strides.insert(extra, 0)
        elif have != want:
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton "
                f"dimension {i + extra}.  Target sizes: {list(shape)}.  Tensor sizes: {list(x.shape)}"
            )
        else:
            strides.insert(extra, x.strides[i] if x.strides else None)
    return Meta(tuple(shape), x.dtype, tuple(strides))


def _expand_vjp(out: Any, x: Any, shape: Shape) -> Any:
    return (lambda g: g,)  # the engine sums over what was broadcast


expand = Op(
    name="expand",
    kind="view",
    infer=_expand_infer,
    kernel=lambda xp, x, shape: xp.broadcast_to(x, shape) if xp.__name__ != "numpy" else _broadcast(xp, x, shape),
    body=lambda index, shape_in, shape: tuple(
        0 if isinstance(size, int) and size == 1 else i for i, size in zip(index[len(index) - len(shape_in) :], shape_in)
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
    if len(set(dims)) != len(dims):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    if sorted(dims) != list(range(len(x.shape))):
        raise RuntimeError(f"permute(dims={list(dims)}): not a permutation of the {len(x.shape)} dimensions")
    assert x.strides is not None
    return Meta(tuple(x.shape[d] for d in dims), x.dtype, tuple(x.strides[d] for d in dims))


def inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(dims)), key=dims.__getitem__))


permute: Op = Op(
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


def _view_body(index: Index, shape: Shape, shape_out: Shape) -> tuple[Any, ...]:
    """Blocks of dimensions that hold equally many elements map to each other; within a block, count through it."""
    if any(isinstance(s, int) and s == 0 for s in shape):
        return (0,) * len(shape)  # nothing is looked at
    out: list[Any] = []
    for ins, outs in _blocks(shape, shape_out):
        flat: Any = 0
        for d in outs:
            flat = flat * shape_out[d] + index[d]
        block: list[Any] = []
        for d in reversed(ins):
            first = d == ins[0]
            block.append(flat if first else flat % shape[d])
            flat = flat if first else flat // shape[d]
        out += reversed(block)
    return tuple(out)


def _blocks(a: Shape, b: Shape) -> list[tuple[range, range]]:
    """Dimensions of ``a`` and of ``b``, cut wherever both have the same number of elements to the right."""

    def cuts(shape: Shape) -> dict[Any, int]:
        places, n = {1: len(shape)}, 1
        for d in range(len(shape) - 1, -1, -1):
            n = n * shape[d]
            places[n] = d
        return places

    left, right = cuts(a), cuts(b)
    ends = [(left[n], right[n]) for n in left if n in right]
    starts = [*ends[1:], (0, 0)]
    blocks = [(range(i, k), range(j, m)) for (i, j), (k, m) in zip(starts, [(len(a), len(b)), *starts[:-1]])]
    return blocks[::-1]


def _view_vjp(out: Any, x: Any, shape: Shape) -> Any:
    before = tuple(x.shape)
    return (lambda g: reshape(g, before),)


view = Op(
    name="view",
    kind="view",
    infer=_view_infer,
    kernel=lambda xp, x, shape: x.reshape(shape),
    body=lambda index, shape_in, shape: _view_body(index, shape_in, shape),
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


# --- diagonal, unfold -------------------------------------------------------------------------------------------------
def _diagonal_infer(x: Meta, offset: int, dim1: int, dim2: int) -> Meta:
    assert x.strides is not None
    rows, cols = x.shape[dim1], x.shape[dim2]
    length = min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols)
    length = max(length, 0)
    keep = [d for d in range(len(x.shape)) if d not in (dim1, dim2)]
    start = offset * x.strides[dim2] if offset >= 0 else -offset * x.strides[dim1]
    return Meta(
        (*(x.shape[d] for d in keep), length),
        x.dtype,
        (*(x.strides[d] for d in keep), x.strides[dim1] + x.strides[dim2]),
        start if length else 0,
    )


def _diagonal_kernel(xp: Any, x: Any, offset: int, dim1: int, dim2: int) -> Any:
    out = xp.diagonal(x, offset, dim1, dim2)
    if xp.__name__ == "numpy":
        out.flags.writeable = x.flags.writeable
    return out


def _diagonal_body(index: Index, shape: Shape, offset: int, dim1: int, dim2: int) -> tuple[Any, ...]:
    *others, at = index
    rest = iter(others)
    places = {dim1: at + max(-offset, 0), dim2: at + max(offset, 0)}
    return tuple(places[d] if d in places else next(rest) for d in range(len(shape)))


def _diagonal_vjp(out: Any, x: Any, offset: int, dim1: int, dim2: int) -> Any:
    shape = tuple(x.shape)
    return (lambda g: TABLE["diagonal_backward"](g, shape=shape, offset=offset, dim1=dim1, dim2=dim2),)


diagonal = Op(
    name="diagonal",
    kind="view",
    infer=_diagonal_infer,
    kernel=_diagonal_kernel,
    body=_diagonal_body,
    vjp=_diagonal_vjp,
    recompute="free",
)


def _unfold_infer(x: Meta, dim: int, size: Any, step: Any) -> Meta:
    assert x.strides is not None
    if not x.shape:
        return Meta((size,), x.dtype, (1,))
    if size > x.shape[dim]:
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is {x.shape[dim]} but size is {size}")
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    return Meta(shape, x.dtype, (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim]))


def _unfold_kernel(xp: Any, x: Any, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return x.reshape(1)[:size]
    windows = xp.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:dim], (x.shape[dim] - size) // step + 1, *x.shape[dim + 1 :], size),
        (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim]),
    )
    return windows


unfold = Op(
    name="unfold",
    kind="view",
    infer=_unfold_infer,
    kernel=_unfold_kernel,
    body=lambda index, shape, dim, size, step: (
        (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1]) if shape else ()
    ),
    vjp=lambda out, x, dim, size, step: (_unfold_vjp(tuple(x.shape), dim, size, step),),
    recompute="free",
    doc="windows of ``size`` every ``step`` along dim, as a new last dimension",
)


def _unfold_vjp(shape: Shape, dim: int, size: Any, step: Any) -> Any:
    return lambda g: TABLE["unfold_backward"](g, shape=shape, dim=dim, size=size, step=step)


# --- unsqueeze, squeeze: views that keep strides as they are ----------------------------------------------------------
def _unsqueeze_infer(x: Meta, dim: int) -> Meta:
    assert x.strides is not None
    new = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
    return Meta((*x.shape[:dim], 1, *x.shape[dim:]), x.dtype, (*x.strides[:dim], new, *x.strides[dim:]))


def _unsqueeze_kernel(xp: Any, x: Any, dim: int) -> Any:
    new = x.shape[dim] * x.strides[dim] if dim < x.ndim else x.itemsize
    return restride(xp, x, (*x.shape[:dim], 1, *x.shape[dim:]), (*x.strides[:dim], new, *x.strides[dim:]))


unsqueeze = Op(
    name="unsqueeze",
    kind="view",
    infer=_unsqueeze_infer,
    kernel=_unsqueeze_kernel,
    body=lambda index, shape, dim: (*index[:dim], *index[dim + 1 :]),
    vjp=lambda out, x, dim: (lambda g: squeeze(g, dims=(dim,)),),
    recompute="free",
)


def _squeeze_vjp(out: Any, x: Any, dims: tuple[int, ...]) -> Any:
    def of_x(g: Any) -> Any:
        for d in sorted(dims):
            g = unsqueeze(g, dim=d)
        return g

    return (of_x,)


squeeze: Op = Op(
    name="squeeze",
    kind="view",
    infer=lambda x, dims: Meta(
        tuple(s for d, s in enumerate(x.shape) if d not in dims),
        x.dtype,
        tuple(s for d, s in enumerate(x.strides) if d not in dims),
    ),
    kernel=lambda xp, x, dims: x.reshape([s for d, s in enumerate(x.shape) if d not in dims])
    if x.flags.c_contiguous
    else x.squeeze(tuple(dims)),
    body=lambda index, shape, dims: _squeeze_body(index, shape, dims),
    vjp=_squeeze_vjp,
    recompute="free",
    doc="without dims, all of size 1: the callers have checked",
)


def _squeeze_body(index: Index, shape: Shape, dims: tuple[int, ...]) -> tuple[Any, ...]:
    rest = iter(index)
    return tuple(0 if d in dims else next(rest) for d in range(len(shape)))


# --- complex numbers as pairs -----------------------------------------------------------------------------------------
def _part(name: str, offset: int, factor: complex | None) -> Op:
    def vjp(out: Any, x: Any) -> Any:
        dtype = x.dtype
        if factor is None:
            return (lambda g: TABLE["cast"](g, dtype=dtype),)
        return (lambda g: TABLE["mul"](TABLE["cast"](g, dtype=dtype), factor),)

    return Op(
        name=name,
        kind="view",
        infer=lambda x: Meta(x.shape, x.dtype.to_real(), tuple(s * 2 for s in x.strides), offset),
        kernel=lambda xp, x: getattr(x, name),
        vjp=vjp,
        recompute="free",
        doc="of complex tensors; a view, as in PyTorch",
    )


real = _part("real", 0, None)
imag = _part("imag", 1, 1j)
view_as_real = Op(
    name="view_as_real",
    kind="view",
    infer=lambda x: Meta((*x.shape, 2), x.dtype.to_real(), (*(s * 2 for s in x.strides), 1)),
    kernel=lambda xp, x: xp.stack([x.real, x.imag], -1)
    if x.size == 0
    else restride(xp, x.real, (*x.shape, 2), (*x.strides, x.itemsize // 2)),
    vjp=lambda out, x: (lambda g: view_as_complex(g.contiguous()),),
    recompute="free",
)


def _view_as_complex_infer(x: Meta) -> Meta:
    assert x.strides is not None
    for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True):
        if isinstance(s, int) and s % 2 and isinstance(n, int) and n > 1:
            raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
    return Meta(x.shape[:-1], x.dtype.to_complex(), tuple(s // 2 for s in x.strides[:-1]))


def _view_as_complex_kernel(xp: Any, x: Any) -> Any:
    if getattr(x.data, "ptr", 0) % (2 * x.itemsize):  # no GPU reads a number there: a copy, then, and no view
        x = x.copy()
    return x.view(xp.complex64 if x.itemsize == 4 else xp.complex128)[..., 0]


view_as_complex: Op = Op(
    name="view_as_complex",
    kind="view",
    infer=_view_as_complex_infer,
    kernel=_view_as_complex_kernel,
    vjp=lambda out, x: (lambda g: view_as_real(g),),
    recompute="free",
)
bitcast = Op(
    name="bitcast",
    kind="view",
    infer=lambda x, dtype: Meta(x.shape, dtype, x.strides),
    kernel=lambda xp, x, dtype: x.view(dtype.np),
    recompute="free",
    doc="the same bytes as another type of the same width",
)


def restride(xp: Any, x: Any, shape: Shape, strides: Shape) -> Any:
    """The memory of ``x`` from its first element with these sizes and byte strides, writable."""
    if xp.__name__ == "numpy" and x.size:
        return xp.lib.stride_tricks.as_strided(x, shape, strides)
    return x.reshape(shape) if not x.size else xp.lib.stride_tricks.as_strided(x, shape, strides)


def undone(chain: Sequence[tuple[Op, dict[str, Any]]]) -> tuple[tuple[Op, dict[str, Any]], ...]:
    """The steps back of ``permute``, ``squeeze`` and ``unsqueeze``, which show all of the memory in another order."""
    back: list[tuple[Op, dict[str, Any]]] = []
    for op, params in reversed(chain):
        if op is permute:
            back.append((permute, {"dims": inverse(params["dims"])}))
        elif op is unsqueeze:
            back.append((squeeze, {"dims": (params["dim"],)}))
        else:
            assert op is squeeze
            back += [(unsqueeze, {"dim": d}) for d in sorted(params["dims"])]
    return tuple(back)
