"""From a list of samples to a batch.

Stage: eager.  In: samples of like structure.  Out: the same structure of tensors with one dimension more.
Mirrors ``torch.utils.data.default_collate``.  Read next: ``dataloader``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch import dtypes
from tinytorch.functions.creation import as_tensor, tensor
from tinytorch.functions.shape import stack
from tinytorch.tensor import Tensor


def default_collate(batch: list[Any]) -> Any:
    """Tensors are stacked, numbers become tensors, containers are collated member by member."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch, 0)
    if isinstance(first, np.ndarray | np.generic):
        return stack([as_tensor(np.asarray(b)) for b in batch], 0)
    if isinstance(first, float):
        return tensor(batch, dtype=dtypes.float64)
    if isinstance(first, int):
        return tensor(batch)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([b[key] for b in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(list(part)) for part in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(b) != len(first) for b in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return [default_collate(list(part)) for part in zip(*batch, strict=True)]
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        + type(first).__name__
    )


def default_convert(data: Any) -> Any:
    """NumPy arrays as tensors, inside containers too; everything else as it is."""
    if isinstance(data, np.ndarray | np.generic):
        return as_tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(default_convert(d) for d in data)
    return data
