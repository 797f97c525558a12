"""Composite operators: plain functions over rows.  Captured graphs show one as a single node; tracing opens it.

Stage: eager, opened by ahead-of-time tracing.  In: tensors.  Out: tensors.  Half types are computed in float32 and
rounded once, as PyTorch's own kernels do.  The maximum that is taken off is a constant for the tape: the result does
not depend on it.  Read next: ``nn.functional``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes
from tinytorch.amp.policy import full
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import TABLE


def _start(input: Any, dim: int, dtype: DType | None) -> tuple[Any, tuple[int, ...], DType]:
    """(wide input, the dimension as a tuple, type of the result)."""
    ndim = input.ndim
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        n = max(ndim, 1)
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    wanted = dtypes.typed(dtype, input.dtype)
    if wanted is not input.dtype:
        input = TABLE["cast"](input, dtype=wanted)
    kind = input.dtype
    if kind.kind not in "f":
        raise NotImplementedError(f'"softmax_lastdim_kernel_impl" not implemented for \'{kind.title}\'')
    if kind.itemsize == 2:
        input = TABLE["cast"](input, dtype=dtypes.float32)
    return input, (dim % ndim,) if ndim else (), kind


def _below_max(x: Any, dims: tuple[int, ...]) -> Any:
    if any(type(s) is int and s == 0 for s in x.shape):
        return x
    return TABLE["sub"](x, TABLE["amax"](x.detach(), dim=dims, keepdim=True))


def _end(x: Any, kind: DType) -> Any:
    return x if x.dtype is kind else TABLE["cast"](x, dtype=kind)


@full
def softmax(input: Any, dim: int, dtype: DType | None = None) -> Any:
    """exp(x) / sum(exp(x)) along ``dim``.  Mirrors ``torch.softmax``."""
    x, dims, kind = _start(input, dim, dtype)
    e = TABLE["exp"](_below_max(x, dims))
    return _end(TABLE["div"](e, TABLE["sum"](e, dim=dims, keepdim=True)), kind)


@full
def log_softmax(input: Any, dim: int, dtype: DType | None = None) -> Any:
    """x - log(sum(exp(x))) along ``dim``.  Mirrors ``torch.log_softmax``."""
    x, dims, kind = _start(input, dim, dtype)
    x = _below_max(x, dims)
    total = TABLE["sum"](TABLE["exp"](x), dim=dims, keepdim=True)
    return _end(TABLE["sub"](x, TABLE["log"](total)), kind)


def require_truth(input: Any, wanted: bool) -> Any:
    """IndexError unless ``bool(input)`` is ``wanted``: how a captured graph stands for a branch whose other side raises.

    Written as a lookup, which every stage knows to check; what it gives is of no use.
    """
    wrong = TABLE["eq"](input, 0) if wanted else TABLE["ne"](input, 0)
    row = TABLE["full"](shape=(1,), value=0, dtype=dtypes.int64, device=input.device)
    return TABLE["gather"](row, TABLE["cast"](TABLE["view"](wrong, shape=(1,)), dtype=dtypes.int64), dim=0)
