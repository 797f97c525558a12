"""``ctc_loss``: minus the log probability of a label sequence, summed over all its alignments with a longer input.

Stage: eager.  In: log probabilities over time, label sequences, lengths.  Out: a loss (Graves et al., Connectionist Temporal
Classification, 2006).  The forward recursion runs over rows, for all sequences of the batch at once; the tape makes the
backward one of it.  Mirrors ``torch.nn.functional.ctc_loss``.  Read next: ``losses``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import dtypes, ops
from tinytorch.amp.policy import full
from tinytorch.functions.creation import as_tensor
from tinytorch.nn.functional.losses import reduced
from tinytorch.nn.functional.pads import pad
from tinytorch.tensor import Tensor

#: the logarithm of a probability of zero: far below all others, yet finite, so that no difference of two is NaN
LOW = -1e30


@full
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """log_probs (T, N, C) or (T, C); targets (N, S), or all sequences one after another; lengths: one for each sequence.

    The mean divides each loss by the length of its target first.  Where no alignment fits, the loss is infinite, or zero
    (with its gradient) under ``zero_infinity``.  The gradient is that of normalised probabilities, as in PyTorch.
    """
    batched = log_probs.dim() == 3
    lp = log_probs if batched else log_probs.unsqueeze(1)
    _, count, classes = lp.shape
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    given, wanted = (_lengths(x, count, lp) for x in (input_lengths, target_lengths))
    labels = _padded(targets, target_lengths, wanted, count)
    loss = -_log_probability(lp, labels, given, wanted, blank)
    impossible = loss > -LOW / 10
    loss = ops.where(impossible, 0.0, loss + _normalising(lp, given))
    if not zero_infinity:
        loss = ops.where(impossible, float("inf"), loss)
    if reduction == "mean":
        loss = loss / ops.cast(ops.maximum(wanted, 1), dtype=loss.dtype)
    return reduced(loss if batched or reduction != "none" else loss.squeeze(0), reduction)


def _lengths(x: Any, count: Any, like: Tensor) -> Tensor:
    lengths = ops.cast(as_tensor(x, device=like.device).reshape(-1), dtype=dtypes.int64)
    if lengths.shape[0] != count:
        raise RuntimeError(f"input_lengths and target_lengths must be of size batch_size, got {lengths.shape[0]} for {count}")
    return lengths  # type: ignore[no-any-return]


def _padded(targets: Tensor, target_lengths: Any, wanted: Tensor, count: Any) -> Tensor:
    """(N, S), whichever way the targets came."""
    if targets.dim() == 2:
        return targets.long()
    if count == 1:
        return targets.long().unsqueeze(0)
    sizes = wanted.tolist() if isinstance(target_lengths, Tensor) else [int(n) for n in target_lengths]
    longest, parts, start = max(sizes), [], 0
    for n in sizes:
        parts.append(pad(targets[start : start + n].long(), (0, longest - n)))
        start += n
    return ops.cat(*(p.unsqueeze(0) for p in parts), dim=0)  # type: ignore[no-any-return]


def _log_probability(lp: Tensor, labels: Tensor, given: Tensor, wanted: Tensor, blank: int) -> Tensor:
    """Log probability of each sequence.  State 2k is the blank before label k, state 2k + 1 the label."""
    time, count, _ = lp.shape
    states = 2 * labels.shape[1] + 1
    blanks = labels.unsqueeze(-1) * 0 + blank
    extended = pad(ops.cat(blanks, labels.unsqueeze(-1), dim=2).reshape(count, states - 1), (0, 1), value=blank)
    emitted = lp.gather(2, extended.unsqueeze(0).expand(time, count, states))
    differs = extended[:, 2:] != extended[:, :-2]
    may_skip = pad(differs & (extended[:, 2:] != blank), (2, 0), value=False)
    place = ops.iota(size=states, device=lp.device)
    alpha = ops.where(place < 2, emitted[0], LOW)
    for t in range(1, time):
        one = pad(alpha, (1, 0), value=LOW)[:, :-1]
        two = ops.where(may_skip, pad(alpha, (2, 0), value=LOW)[:, :-2], LOW)
        moved = _log_sum(alpha, one, two) + emitted[t]
        alpha = ops.where((given > t).unsqueeze(1), moved, alpha)
    last = alpha.gather(1, (2 * wanted).unsqueeze(1))
    before = alpha.gather(1, ops.maximum(2 * wanted - 1, 0).unsqueeze(1))
    before = ops.where((wanted > 0).unsqueeze(1), before, LOW)
    return _log_sum(last, before).squeeze(1)


def _log_sum(*terms: Tensor) -> Tensor:
    """log of the sum of the exponentials, element by element."""
    largest = terms[0].detach()
    for t in terms[1:]:
        largest = ops.maximum(largest, t.detach())
    total: Any = None
    for t in terms:
        part = ops.exp(t - largest)
        total = part if total is None else total + part
    return largest + ops.log(total)


def _normalising(lp: Tensor, given: Tensor) -> Tensor:
    """Zero, with the gradient that the logarithm of the sum of all probabilities has: nothing, once they are normalised."""
    steps = ops.iota(size=lp.shape[0], device=lp.device)
    sums = ops.where(steps.unsqueeze(1) < given, ops.exp(lp).sum(2), 0.0).sum(0)
    return sums - sums.detach()
