"""``tinytorch.backends``: the switches that training scripts set.  Mirrors ``torch.backends``.

``cuda.matmul.allow_tf32`` is another name for ``set_float32_matmul_precision``: compiled CUDA products of float32 may
round their factors to TF32.  The others are remembered and change nothing: there is no cuDNN here to tell.
Read next: ``functions.misc``.
"""

from __future__ import annotations

from tinytorch.device import cuda_available
from tinytorch.functions.misc import get_float32_matmul_precision, set_float32_matmul_precision


class _Matmul:
    """``torch.backends.cuda.matmul``."""

    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        set_float32_matmul_precision("high" if allowed else "highest")


class _Cuda:
    """``torch.backends.cuda``."""

    def __init__(self) -> None:
        self.matmul = _Matmul()

    def is_built(self) -> bool:
        """Whether there is a GPU, or its emulator, to run on."""
        return cuda_available()


class _Cudnn:
    """``torch.backends.cudnn``: remembered only."""

    enabled = True
    benchmark = False
    deterministic = False
    allow_tf32 = True

    def is_available(self) -> bool:
        return False


cuda, cudnn = _Cuda(), _Cudnn()

__all__ = ["cuda", "cudnn"]
