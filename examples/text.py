"""Characters to learn from: Python's own reference texts (``pydoc_data.topics``), which every installation has."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np

import tinytorch as torch


def load(characters: int = 300_000) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(training text, held-out text, size of the alphabet), as numbers of characters; the last tenth is held out.

    The texts differ a little from one Python version to the next.
    """
    text = "\n".join(topics[name] for name in sorted(topics))[:characters]
    alphabet = sorted(set(text))
    number = {c: i for i, c in enumerate(alphabet)}
    codes = np.array([number[c] for c in text], np.int64)
    cut = len(codes) * 9 // 10
    return torch.from_numpy(codes[:cut]), torch.from_numpy(codes[cut:]), len(alphabet)


def batches(text: torch.Tensor, steps: int, batch: int, length: int, seed: int = 0):  # noqa: ANN201
    """``steps`` pairs of (batch, length) inputs and the same shifted by one character."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(length)
    for _ in range(steps):
        start = torch.randint(0, len(text) - length - 1, (batch, 1), generator=generator)
        place = start + offsets
        yield text[place], text[place + 1]
