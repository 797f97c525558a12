"""Sequences of unequal lengths: padded into one tensor, or packed without the padding.

Stage: eager.  In: tensors (L_i, *).  Out: (L, N, *) with padding, or a ``PackedSequence``.
Mirrors ``torch.nn.utils.rnn``.  Read next: ``nn.rnn``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tinytorch import ops
from tinytorch.device import array_module, cpu
from tinytorch.tensor import Tensor

__all__ = ["PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence"]


class PackedSequence(NamedTuple):
    """The rows of all sequences, step by step: ``batch_sizes[t]`` of them are that long, longest first."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None


def _integers(values: Any, like: Tensor | None = None) -> Tensor:
    array = np.asarray(values, np.int64)
    if like is None:
        return Tensor._wrap(array, cpu)
    return Tensor._wrap(array_module(like.device).asarray(array), like.device)


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """(L, N, *), or (N, L, *) with ``batch_first``: each sequence filled up with ``padding_value``."""
    longest = max(s.shape[0] for s in sequences)
    first = sequences[0]
    out = first.new_full((len(sequences), longest, *first.shape[1:]), padding_value)
    rows = []
    for i, s in enumerate(sequences):
        rest = out[i, s.shape[0] :]
        rows.append(ops.cat(s, rest, dim=0) if padding_side == "right" else ops.cat(rest, s, dim=0))
    padded = ops.cat(*(r.unsqueeze(0) for r in rows), dim=0)
    return padded if batch_first else padded.transpose(0, 1)  # type: ignore[no-any-return]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The rows of a padded batch that are not padding."""
    sizes = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths, np.int64)
    x = input.transpose(0, 1) if batch_first else input
    order = inverse = None
    if enforce_sorted:
        if np.any(sizes[:-1] < sizes[1:]):
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
                "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement."
            )
    else:
        place = np.argsort(-sizes, kind="stable")
        sizes = sizes[place]
        order, inverse = _integers(place, input), _integers(np.argsort(place, kind="stable"), input)
        x = x.index_select(1, order)
    if sizes[-1] <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element that is <= 0")
    counts = np.array([(sizes > t).sum() for t in range(int(sizes[0]))])
    data = ops.cat(*(x[t, : int(n)] for t, n in enumerate(counts)), dim=0)
    return PackedSequence(data, _integers(counts), order, inverse)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack(packed: PackedSequence, padding_value: float = 0.0) -> tuple[Tensor, Tensor]:
    """(L, N, *) in packed order, and a mask (L, N, 1) of what is no padding."""
    counts = packed.batch_sizes.tolist()
    batch, rows, masks, start = counts[0], [], [], 0
    for n in counts:
        part = packed.data[start : start + n]
        if n < batch:
            rest = part.new_full((batch - n, *part.shape[1:]), padding_value)
            part = ops.cat(part, rest, dim=0)
        rows.append(part.unsqueeze(0))
        masks.append(np.arange(batch) < n)
        start += n
    mask = array_module(packed.data.device).asarray(np.stack(masks)[:, :, None])
    return ops.cat(*rows, dim=0), Tensor._wrap(mask, packed.data.device)


def pack(x: Tensor, like: PackedSequence) -> PackedSequence:
    """(L, N, *) in packed order without its padding."""
    data = ops.cat(*(x[t, :n] for t, n in enumerate(like.batch_sizes.tolist())), dim=0)
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The padded batch, and the lengths, in the order before packing."""
    x, _ = unpack(sequence, padding_value)
    counts = np.asarray(sequence.batch_sizes.tolist())
    lengths = np.array([(counts > i).sum() for i in range(counts[0])])
    if total_length is not None:
        if total_length < x.shape[0]:
            raise ValueError(
                f"Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {x.shape[0]}"
            )
        rest = x.new_full((total_length - x.shape[0], *x.shape[1:]), padding_value)
        x = ops.cat(x, rest, dim=0)
    if sequence.unsorted_indices is not None:
        x = x.index_select(1, sequence.unsorted_indices)
        lengths = lengths[np.asarray(sequence.unsorted_indices.tolist())]
    return (x.transpose(0, 1) if batch_first else x), _integers(lengths)
