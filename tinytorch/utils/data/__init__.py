"""``tinytorch.utils.data``: datasets and the loader that makes batches of them.

Stage: eager.  Mirrors ``torch.utils.data``.  Read next: ``dataset``, ``sampler``, ``dataloader``.
"""

from tinytorch.utils.data.collate import default_collate, default_convert
from tinytorch.utils.data.dataloader import DataLoader, WorkerInfo, get_worker_info
from tinytorch.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tinytorch.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler",
    "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "WorkerInfo", "default_collate", "default_convert", "get_worker_info", "random_split",
]  # fmt: skip
