"""Averages of weights over training: running means, exponential means, and the schedule and statistics they want.

Stage: eager.  In: a model while it trains.  Out: another model of averaged weights (Izmailov et al., Averaging Weights Leads to
Wider Optima, 2018).  Mirrors ``torch.optim.swa_utils``.  Read next: ``lr_scheduler``.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinytorch import tape
from tinytorch.functions.creation import tensor
from tinytorch.nn.batchnorm import _BatchNorm
from tinytorch.nn.module import Module
from tinytorch.optim.lr_scheduler import LRScheduler
from tinytorch.optim.optimizer import Optimizer
from tinytorch.tensor import Tensor

#: (average, parameter, how many were averaged) -> the new average
Average = Callable[[Any, Any, Any], Any]


# --- what an average may be -------------------------------------------------------------------------------------------
def get_swa_avg_fn() -> Average:
    """The mean of all."""
    return lambda average, p, n: average + (p - average) / (n + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """A mean that forgets: each step keeps the share ``decay``."""
    _check_decay(decay)
    return lambda average, p, n: decay * average + (1 - decay) * p


def get_swa_multi_avg_fn() -> Average:
    """``get_swa_avg_fn`` for lists, in place."""
    return _each(lambda n: 1 / (n + 1))


def get_ema_multi_avg_fn(decay: float = 0.999) -> Average:
    """``get_ema_avg_fn`` for lists, in place."""
    _check_decay(decay)
    return _each(lambda n: 1 - decay)


def _check_decay(decay: float) -> None:
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def _each(share: Callable[[int], float]) -> Average:
    def update(averages: Sequence[Tensor], parameters: Sequence[Tensor], n: Any) -> None:
        for average, p in zip(averages, parameters, strict=True):
            if average.is_floating_point():
                average.lerp_(p.to(average.dtype), share(int(n)))
            else:
                average.copy_(p)

    return update


# --- the averaged model -----------------------------------------------------------------------------------------------
class AveragedModel(Module):
    """A copy of ``model`` whose parameters are averages; the mean of all unless a function says otherwise.

    ``avg_fn`` averages one tensor, ``multi_avg_fn`` lists in place.  Buffers are copied, or with ``use_buffers`` averaged.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Average | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        assert avg_fn is None or multi_avg_fn is None, "Only one of avg_fn and multi_avg_fn should be provided"
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the model as it is now into the average."""
        parts = (lambda m: itertools.chain(m.parameters(), m.buffers())) if self.use_buffers else (lambda m: m.parameters())
        averages = [t.detach() for t in parts(self.module)]
        now = [t.detach().to(a.device) for t, a in zip(parts(model), averages, strict=True)]
        n = self.n_averaged.item()
        with tape.grad_mode(False):
            if n == 0:
                for a, t in zip(averages, now, strict=True):
                    a.copy_(t)
            elif self.avg_fn is None:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(averages, now, self.n_averaged)
            else:
                for a, t in zip(averages, now, strict=True):
                    a.copy_(self.avg_fn(a, t, self.n_averaged))
            if not self.use_buffers:
                for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                    mine.detach().copy_(theirs)
            self.n_averaged += 1


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of batch norms anew, from one pass over ``loader`` (batches, or tuples led by one)."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return
    training, momenta = model.training, [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    model.train()
    with tape.grad_mode(False):
        for batch in loader:
            x = batch[0] if isinstance(batch, list | tuple) else batch
            model(x if device is None else x.to(device))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    model.train(training)


# --- the schedule -----------------------------------------------------------------------------------------------------
class SWALR(LRScheduler):
    """From the rate at hand to ``swa_lr`` in ``anneal_epochs`` steps, along a cosine or a line, and then no further."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        rates = swa_lr if isinstance(swa_lr, list | tuple) else [swa_lr] * len(optimizer.param_groups)
        if len(rates) != len(optimizer.param_groups):
            raise ValueError(
                f"swa_lr must have the same length as optimizer.param_groups: swa_lr has {len(rates)}, "
                f"optimizer.param_groups has {len(optimizer.param_groups)}"
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must by one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs, self.cosine = anneal_epochs, anneal_strategy == "cos"
        super().__init__(optimizer, last_epoch)

    def _share(self, step: float) -> float:
        """How much of the way is done."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self.cosine else t

    def get_lr(self) -> list[Any]:
        step = max(1, self.last_epoch) if self.anneal_epochs == 0 else self.last_epoch
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for lr, group in zip(self._current(), self.optimizer.param_groups, strict=True):
            goal = group["swa_lr"]
            start = goal if before == 1 else (lr - before * goal) / (1 - before)
            rates.append(goal * now + start * (1 - now))
        return rates
