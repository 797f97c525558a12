"""Products of matrices and vectors: ``matmul`` in all its shapes, ``mm``, ``bmm``, ``einsum``, ``outer``, ...

Stage: eager.  In: tensors.  Out: tensors, all through the one row ``ops.matmul`` (batch of matrices times batch of
matrices).  Read next: ``ops.contract``, ``functions.einsum``.
"""

from __future__ import annotations

import math
from typing import Any

from tinytorch import ops
from tinytorch.amp.policy import lower
from tinytorch.functions.args import need_tensor
from tinytorch.functions.pointwise import into
from tinytorch.ops.opdef import broadcast_shapes
from tinytorch.tensor import Tensor


@lower
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Vectors, matrices and batches of them by PyTorch's rules.  Mirrors ``torch.matmul``."""
    need_tensor("matmul", input)
    need_tensor("matmul", other, "other", 2)
    return into(out, product(input, other))


def product(a: Tensor, b: Tensor) -> Tensor:
    """``matmul`` without ``out``."""
    m, n = a.ndim, b.ndim
    if m == 2 and n == 2:
        return ops.matmul(a, b)
    if m == 0 or n == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {m}D and {n}D")
    if m == 1 and n == 1:
        if a.shape[0] != b.shape[0]:
            raise RuntimeError(
                f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{b.shape[0]}] to have the same "
                f"number of elements, but got {a.shape[0]} and {b.shape[0]} elements respectively"
            )
        return ops.matmul(a.unsqueeze(0), b.unsqueeze(1)).reshape(())
    if m == 1:
        return product(a.unsqueeze(0), b).squeeze(-2)
    if n == 1:
        if m == 2:
            return _mv(a, b)
        return product(a, b.unsqueeze(1)).squeeze(-1)
    if n == 2:  # fold the batch into rows: one large product
        rows = a.reshape(-1, a.shape[-1]) if a.numel() or a.shape[-1] else a.reshape(_rows(a), a.shape[-1])
        return ops.matmul(rows, b).reshape(*a.shape[:-1], b.shape[-1])
    try:
        batch = broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except RuntimeError as e:
        raise RuntimeError(str(e)) from None
    a = a.expand(*batch, *a.shape[-2:])
    b = b.expand(*batch, *b.shape[-2:])
    return ops.matmul(a, b)


def _rows(a: Tensor) -> Any:
    n: Any = 1
    for s in a.shape[:-1]:
        n = n * s
    return n


def _mv(a: Tensor, v: Tensor) -> Tensor:
    if a.shape[1] != v.shape[0]:
        raise RuntimeError(
            f"size mismatch, got input ({a.shape[0]}), mat ({a.shape[0]}x{a.shape[1]}), vec ({v.shape[0]})"
        )
    return ops.matmul(a, v.unsqueeze(1)).squeeze(-1)


@lower
def mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Two matrices.  Mirrors ``torch.mm``."""
    if input.ndim != 2:
        raise RuntimeError("self must be a matrix")
    if mat2.ndim != 2:
        raise RuntimeError("mat2 must be a matrix")
    return into(out, ops.matmul(input, mat2))


spmm = mm


@lower
def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Two batches of matrices.  Mirrors ``torch.bmm``."""
    if input.ndim != 3 or mat2.ndim != 3:
        raise RuntimeError("batch1 must be a 3D tensor" if input.ndim != 3 else "batch2 must be a 3D tensor")
    if input.shape[0] != mat2.shape[0] or input.shape[2] != mat2.shape[1]:
        b, _, k = input.shape
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{b}, {k}] but got: "
            f"[{mat2.shape[0]}, {mat2.shape[1]}]."
        )
    return into(out, ops.matmul(input, mat2))


@lower
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix and a vector."""
    if input.ndim != 2 or vec.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {vec.ndim}, {input.ndim}, {vec.ndim}")
    return _mv(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Two vectors."""
    if input.ndim != 1 or tensor.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors")
    return product(input, tensor)


inner_1d = dot


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Every product of an element of one vector with one of the other."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"outer: Expected 1-D argument self, but got {input.ndim}-D")
    return ops.mul(input.unsqueeze(1), vec2)


ger = outer


def _scaled(x: Tensor, by: Any) -> Tensor:
    return x if type(by) is int and by == 1 else ops.mul(x, by)


@lower
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2; with beta 0 the input's NaN do not count."""
    found = _scaled(mm(mat1, mat2), alpha)
    return found if beta == 0 else ops.add(_scaled(input, beta), found)


@lower
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    found = _scaled(mv(mat, vec), alpha)
    return found if beta == 0 else ops.add(_scaled(input, beta), found)


@lower
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    found = _scaled(outer(vec1, vec2), alpha)
    return found if beta == 0 else ops.add(_scaled(input, beta), found)


@lower
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    found = _scaled(bmm(batch1, batch2), alpha)
    return found if beta == 0 else ops.add(_scaled(input, beta), found)


def trace(input: Tensor) -> Tensor:
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return input.diagonal().sum()


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Contract the last ``dims`` of a with the first of b, or the given lists of dimensions."""
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([d % x.ndim for d in ds] for ds, x in zip(dims, (a, b), strict=True))
    for d, e in zip(left, right, strict=True):
        if a.shape[d] != b.shape[e]:
            if a.shape[d] == 1:
                b = b.sum(e, keepdim=True)
            elif b.shape[e] == 1:
                a = a.sum(d, keepdim=True)
            else:
                raise RuntimeError(
                    f"contracted dimensions need to match, but first has size {a.shape[d]} in dim {d} and second has size "
                    f"{b.shape[e]} in dim {e}"
                )
    keep_a = [d for d in range(a.ndim) if d not in left]
    keep_b = [d for d in range(b.ndim) if d not in right]
    inner = math.prod(a.shape[d] for d in left)
    rows, columns = [a.shape[d] for d in keep_a], [b.shape[d] for d in keep_b]
    x = a.permute(*keep_a, *left).reshape(math.prod(rows), inner)
    y = b.permute(*right, *keep_b).reshape(inner, math.prod(columns))
    return ops.matmul(x, y).reshape(rows + columns)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products over the last dimension of both."""
    if not input.ndim or not other.ndim:
        return ops.mul(input, other)  # type: ignore[no-any-return]
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.shape)} and {list(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: a copy of ``other`` in the place of each element."""
    n = max(input.ndim, other.ndim)
    a, b = (x.reshape(*(1,) * (n - x.ndim), *x.shape) for x in (input, other))
    pairs = ops.mul(
        a.reshape(*(s for size in a.shape for s in (size, 1))), b.reshape(*(s for size in b.shape for s in (1, size)))
    )
    return pairs.reshape(*(x * y for x, y in zip(a.shape, b.shape, strict=True)))  # type: ignore[no-any-return]


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along ``dim`` (else the first dimension of size 3)."""
    if dim is None:
        dim = next((i for i, s in enumerate(input.shape) if s == 3), None)
        if dim is None:
            raise RuntimeError("no dimension of size 3 in input")
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(f"linalg.cross: inputs dimension {dim} must have length 3. Got {input.shape[dim]} and {other.shape[dim]}")
    turned = [[x.roll(-k, dim) for k in (1, 2)] for x in (input, other)]
    (a1, a2), (b1, b2) = turned
    return ops.sub(ops.mul(a1, b2), ops.mul(a2, b1))  # type: ignore[no-any-return]
