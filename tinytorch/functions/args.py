"""What the public functions ask of their arguments: dimensions, sizes, numbers, tensors.

Stage: eager.  In: what a user passed.  Out: canonical ints and tuples for the rows, or the error PyTorch raises.
Ints may be symbolic here (``compiler.sym.SymInt``), so nothing in this room calls ``int()`` on a size.
Read next: ``functions.pointwise``.
"""

from __future__ import annotations

from numbers import Integral, Number
from typing import Any

from tinytorch.tensor import Tensor


def is_int(x: Any) -> bool:
    """A Python, NumPy or symbolic integer; bool is none."""
    return type(x) is int or (isinstance(x, Integral) and not isinstance(x, bool))


def is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex) or isinstance(x, Number)


def plain(x: Any) -> Any:
    """NumPy scalars become Python numbers; everything else passes."""
    return x.item() if type(x).__module__ == "numpy" and hasattr(x, "item") and not x.shape else x


def type_name(x: Any) -> str:
    return "Tensor" if isinstance(x, Tensor) else type(x).__name__


def need_tensor(fn: str, x: Any, name: str = "input", position: int = 1) -> None:
    """TypeError, worded as PyTorch words it, unless ``x`` is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{fn}(): argument '{name}' (position {position}) must be Tensor, not {type_name(x)}")


def size_int(x: Any) -> Any:
    """One size: an integer, or a 0-d integer tensor."""
    if is_int(x):
        return x
    if isinstance(x, Tensor) and x.dtype.kind in "iu" and x.numel() == 1:
        return x.item()
    raise TypeError(f"argument 'size' (position 1) must be tuple of ints, not {type_name(x)}")


def sizes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` are the same shape."""
    if len(args) == 1 and isinstance(args[0], tuple | list):
        args = tuple(args[0])
    return tuple(a if type(a) is int else size_int(a) for a in args)


def wrap_dim(dim: Any, ndim: int) -> int:
    """A dimension counted from the front; IndexError when there is no such one.  0-d tensors count as 1-d."""
    n = ndim or 1
    if not is_int(dim):
        raise TypeError(f"dim must be an integer, not {type_name(dim)}")
    if not -n <= dim < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})"
        )
    return dim + n if dim < 0 else dim


def wrap_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions of a reduction: None or () means all; duplicates are a RuntimeError."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(ndim))
    if not isinstance(dim, tuple | list):
        wrapped = wrap_dim(dim, ndim)
        return (wrapped,) if ndim else ()
    out = tuple(wrap_dim(d, ndim) for d in dim)
    for d in out:
        if out.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return out if ndim else ()


def pair(x: Any, n: int) -> tuple[Any, ...]:
    """One number for all ``n`` dimensions, or one each."""
    if isinstance(x, tuple | list):
        return tuple(x) * n if len(x) == 1 else tuple(x)
    return (x,) * n
