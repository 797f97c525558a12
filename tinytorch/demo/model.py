"""The digits and a classifier for them.

Stage: demo.  In: the data file.  Out: tensors, and a module.  Read next: ``training``.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np

import tinytorch as torch
from tinytorch import nn


class Digits(NamedTuple):
    """Images as rows of 64 numbers in [0, 1], labels 0..9."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load_digits(device: str = "cpu", test_share: float = 0.2) -> Digits:
    """The 1,797 digits, split the same way every time; every class has its share in both parts."""
    with files("tinytorch.demo").joinpath("data/digits.npz").open("rb") as f, np.load(f) as data:
        images, labels = data["images"], data["labels"]
    x = images.reshape(len(images), -1).astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(x))
    test = np.concatenate([c[: round(test_share * len(c))] for c in (order[labels[order] == k] for k in range(10))])
    train = np.setdiff1d(order, test)
    parts = (x[train], labels[train].astype(np.int64), x[test], labels[test].astype(np.int64))
    return Digits(*(torch.from_numpy(np.ascontiguousarray(p)).to(device) for p in parts))


def classifier(hidden: int = 512, dropout: float = 0.3) -> nn.Module:
    """Two hidden layers, each Linear, GELU, dropout, layer norm."""
    return nn.Sequential(
        nn.Linear(64, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.LayerNorm(hidden),
        nn.Linear(hidden, hidden // 2),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.LayerNorm(hidden // 2),
        nn.Linear(hidden // 2, 10),
    )
