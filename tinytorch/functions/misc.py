"""Questions about tensors and switches of the library that are none of the other rooms' themes.

Stage: eager.  Mirrors ``torch``'s functions of these names.
"""

from __future__ import annotations

import os
from typing import Any

from tinytorch import compiler, dtypes, ops
from tinytorch.dtypes import DType
from tinytorch.tensor import Tensor


class _Switches:
    deterministic = False
    precision = "highest"
    threads = 0


def is_tensor(obj: Any) -> bool:
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    return input.dtype.is_floating_point


def is_complex(input: Tensor) -> bool:
    return input.dtype.is_complex


def numel(input: Tensor) -> Any:
    return input.numel()


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The type that arithmetic on the two gives."""
    return ops.result_type([tensor1, tensor2])  # type: ignore[no-any-return]


def can_cast(from_: DType, to: DType) -> bool:
    """Whether the category (bool, integer, floating, complex) does not fall, nor signed become unsigned."""
    if dtypes.category(from_) > dtypes.category(to):
        return False
    return not (from_.kind == "i" and to.kind == "u") and not (
        to is dtypes.bool_ and from_ is not dtypes.bool_
    )


def set_flush_denormal(mode: bool) -> bool:
    """Never supported: subnormal numbers are ordinary numbers here."""
    return False


def set_num_threads(n: int) -> None:
    """Threads that share a kernel, for what is compiled from now on; goes before ``TT_NUM_THREADS``."""
    if n <= 0:
        raise RuntimeError("set_num_threads expects a positive integer")
    _Switches.threads = int(n)


def get_num_threads() -> int:
    """Threads that share a kernel: as ``set_num_threads`` said, else as ``TT_NUM_THREADS`` did, else one per core we may use."""
    asked = _Switches.threads or int(compiler.config.threads)
    if asked > 0:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Everything here is deterministic; the switch is remembered for those who ask."""
    _Switches.deterministic = mode


def are_deterministic_algorithms_enabled() -> bool:
    return _Switches.deterministic


def set_float32_matmul_precision(precision: str) -> None:
    """Whether compiled CUDA products of float32 may use TF32 ("high", "medium") or not ("highest"); elsewhere they do not."""
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"{precision} is not one of: highest, high, medium")
    _Switches.precision = precision


def get_float32_matmul_precision() -> str:
    return _Switches.precision
