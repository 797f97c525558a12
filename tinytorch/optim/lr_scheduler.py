"""Learning rate schedules.

Stage: eager.  In: an optimizer.  Out: its groups' ``lr``, changed by ``scheduler.step()``.  A tensor ``lr`` is changed
in place, so that a compiled step need not be compiled again.  Mirrors ``torch.optim.lr_scheduler``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinytorch.optim.optimizer import Optimizer
from tinytorch.tensor import Tensor


def _set_lr(group: dict[str, Any], value: Any) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value


def _number(lr: Any) -> Any:
    return lr.item() if isinstance(lr, Tensor) else lr


class LRScheduler:
    """The base: ``step()`` counts epochs and sets each group's rate to what ``get_lr`` gives."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _number(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    f"last_epoch >= 0."
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[Any] = []
        self.step()

    def get_lr(self) -> list[Any]:
        """The rates for ``self.last_epoch``, one per group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[Any]:
        """The rates set last."""
        return self._last_lr

    def _current(self) -> list[Any]:
        return [_number(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to ``epoch``."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = getattr(self, "_closed_form", None)
        rates = self.get_lr() if epoch is None or closed is None else closed()
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            _set_lr(group, lr)
        self._last_lr = self._current()

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer and functions."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not callable(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)


class LambdaLR(LRScheduler):
    """The initial rate times ``lr_lambda(epoch)``."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        many = len(optimizer.param_groups)
        self.lr_lambdas: list[Any] = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * many
        if len(self.lr_lambdas) != many:
            raise ValueError(f"Expected {many} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class MultiplicativeLR(LambdaLR):
    """The present rate times ``lr_lambda(epoch)``."""

    def get_lr(self) -> list[Any]:
        if self.last_epoch == 0:
            return self._current()
        return [lr * fn(self.last_epoch) for lr, fn in zip(self._current(), self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """Times ``gamma`` every ``step_size`` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._current()
        return [lr * self.gamma for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Times ``gamma`` at each epoch in ``milestones``."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        return [lr * self.gamma ** self.milestones.get(self.last_epoch, 0) for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The initial rate times ``factor`` for the first ``total_iters`` epochs."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        scale = {0: self.factor}.get(self.last_epoch, 1.0)
        if self.last_epoch == self.total_iters:
            scale /= self.factor
        return [lr * scale for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        return [base * (self.factor if self.last_epoch < self.total_iters else 1) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """From ``start_factor`` to ``end_factor`` times the initial rate, evenly over ``total_iters`` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if not 0 <= end_factor <= 1:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        if self.last_epoch == 0:
            return [lr * self.start_factor for lr in self._current()]
        if self.last_epoch > self.total_iters:
            return self._current()
        ratio = self._factor(self.last_epoch) / self._factor(self.last_epoch - 1)
        return [lr * ratio for lr in self._current()]

    def _factor(self, epoch: int) -> float:
        done = min(epoch, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done

    def _closed_form(self) -> list[Any]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Times ``gamma`` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        return [lr * (self.gamma if self.last_epoch else 1) for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """Down to 0 over ``total_iters`` epochs, as (1 - epoch / total_iters) to the ``power``."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return self._current()
        left = 1 - self.last_epoch / self.total_iters
        before = 1 - (self.last_epoch - 1) / self.total_iters
        return [lr * (left / before) ** self.power for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        left = 1 - min(self.last_epoch, self.total_iters) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Along half a cosine from the initial rate to ``eta_min`` over ``T_max`` epochs (Loshchilov and Hutter, 2016)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:  # noqa: N803
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        if self.last_epoch == 0:
            return self._current()
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # at the bottom the ratio below is 0 / 0
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [
                lr + (base - self.eta_min) * rise for base, lr in zip(self.base_lrs, self._current(), strict=True)
            ]
        now = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        before = 1 + math.cos(math.pi * (self.last_epoch - 1) / self.T_max)
        return [now / before * (lr - self.eta_min) + self.eta_min for lr in self._current()]

    def _closed_form(self) -> list[Any]:
        scale = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * scale for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine over ``T_0`` epochs, then again from the top over ``T_mult`` times as many, and so on."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1  # noqa: N803
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        start, length = 0.0, self.T_0
        while self.last_epoch - start >= length:
            start, length = start + length, length * self.T_mult
        scale = (1 + math.cos(math.pi * (self.last_epoch - start) / length)) / 2
        return [self.eta_min + (base - self.eta_min) * scale for base in self.base_lrs]

    _closed_form = get_lr


class CyclicLR(LRScheduler):
    """Up and down between ``base_lr`` and ``max_lr``, once per batch (Smith, 2015); momentum goes the other way.

    ``scale_fn`` of the cycle's number, or of the step's (``scale_mode="iterations"``), replaces the mode's scale.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError("mode is invalid and scale_fn is None")
        groups = optimizer.param_groups
        if cycle_momentum and not {"momentum", "betas"} & optimizer.defaults.keys():
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.low, self.max_lrs = _per_group(groups, "base_lr", base_lr), _per_group(groups, "max_lr", max_lr)
        self.base_momentums = _per_group(groups, "base_momentum", base_momentum)
        self.max_momentums = _per_group(groups, "max_momentum", max_momentum)
        self.mode, self.gamma, self.scale_mode, self.scale_fn = mode, gamma, scale_mode, scale_fn
        self.cycle_momentum = cycle_momentum
        self.up = step_size_up
        self.down = step_size_up if step_size_down is None else step_size_down
        if last_epoch == -1:
            for group, low in zip(groups, self.low, strict=True):
                group["initial_lr"] = low
        super().__init__(optimizer, last_epoch)

    def _scale(self, cycle: int) -> float:
        if self.scale_fn is not None:
            return self.scale_fn(cycle + 1 if self.scale_mode == "cycle" else self.last_epoch)
        scales = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": self.gamma**self.last_epoch}
        return scales[self.mode]

    def get_lr(self) -> list[Any]:
        cycle, at = divmod(self.last_epoch, self.up + self.down)
        height = (at / self.up if at <= self.up else 1 - (at - self.up) / self.down) * self._scale(cycle)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                _set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.low, self.max_lrs, strict=True)]


class OneCycleLR(LRScheduler):
    """Up to ``max_lr`` and down far below the start, once in the whole training (Smith and Topin, 2017).

    ``max_lr``, ``base_momentum`` and ``max_momentum`` may be one per group.  Momentum (SGD's, or Adam's first beta) goes
    the other way: lowest where the rate is highest.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        self.total_steps = total_steps if total_steps is not None else epochs * steps_per_epoch  # type: ignore[operator]
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        groups = optimizer.param_groups
        if cycle_momentum and not {"momentum", "betas"} & optimizer.defaults.keys():
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        peak = pct_start * self.total_steps - 1
        self.ends = (peak, 2 * peak, self.total_steps - 1) if three_phase else (peak, self.total_steps - 1)
        rates = [(top / div_factor, top) for top in _per_group(groups, "max_lr", max_lr)]
        self.rates = [_stops(low, top, low / final_div_factor, three_phase) for low, top in rates]
        momenta = zip(
            _per_group(groups, "base_momentum", base_momentum),
            _per_group(groups, "max_momentum", max_momentum),
            strict=True,
        )
        self.momenta = [_stops(top, low, top, three_phase) for low, top in momenta]
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        if last_epoch == -1:
            for group, stops in zip(groups, self.rates, strict=True):
                group["initial_lr"] = stops[0]
        super().__init__(optimizer, last_epoch)

    def _at(self, stops: Sequence[float]) -> float:
        """The value at ``self.last_epoch`` on the way from stop to stop."""
        begin = 0.0
        for end, a, b in zip(self.ends, stops, stops[1:], strict=False):
            if self.last_epoch <= end or end == self.ends[-1]:
                done = (self.last_epoch - begin) / (end - begin)
                share = (1 + math.cos(math.pi * done)) / 2 if self.anneal_strategy == "cos" else 1 - done
                return b + (a - b) * share
            begin = end
        raise AssertionError("the last phase ends the loop")

    def get_lr(self) -> list[Any]:
        if self.last_epoch >= self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}"
            )
        if self.cycle_momentum:
            for group, stops in zip(self.optimizer.param_groups, self.momenta, strict=True):
                _set_momentum(group, self._at(stops))
        return [self._at(stops) for stops in self.rates]


def _stops(first: float, middle: float, last: float, three_phase: bool) -> tuple[float, ...]:
    return (first, middle, first, last) if three_phase else (first, middle, last)


def _per_group(groups: Sequence[Any], name: str, value: Any) -> list[float]:
    if not isinstance(value, list | tuple):
        return [value] * len(groups)
    if len(value) != len(groups):
        raise ValueError(f"expected {len(groups)} values for {name}, got {len(value)}")
    return list(value)


def _set_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


class SequentialLR(LRScheduler):
    """One schedule after another, changing at ``milestones``."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                f"milestone points, but got number of schedulers {len(schedulers)} and milestones {len(milestones)}"
            )
        self.optimizer = optimizer
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            _set_lr(group, group["initial_lr"])
        for scheduler in self.schedulers:
            scheduler.last_epoch -= 1
        self.schedulers[0].step()
        self._last_lr = self.schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        at = bisect_right(self.milestones, self.last_epoch)
        scheduler = self.schedulers[at]
        if at > 0 and self.milestones[at - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        own = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "schedulers")}
        return {**own, "_schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict)
        for scheduler, state in zip(self.schedulers, own.pop("_schedulers"), strict=True):
            scheduler.load_state_dict(state)
        self.__dict__.update(own)


class ChainedScheduler(LRScheduler):
    """Several schedules at once, each applied to what the others left."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self.schedulers = list(schedulers)
        self.optimizer = optimizer or self.schedulers[0].optimizer
        self._last_lr = self._current()

    def step(self, epoch: int | None = None) -> None:
        for scheduler in self.schedulers:
            scheduler.step()
        self._last_lr = self._current()

    state_dict = SequentialLR.state_dict
    load_state_dict = SequentialLR.load_state_dict


class ReduceLROnPlateau(LRScheduler):
    """Times ``factor`` when a metric has not improved for more than ``patience`` epochs: ``step(metric)``."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode {mode if mode not in ('min', 'max') else threshold_mode} is unknown!")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        many = len(optimizer.param_groups)
        self.min_lrs = list(min_lr) if isinstance(min_lr, list | tuple) else [min_lr] * many
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = self._current()

    def is_better(self, now: float, best: float) -> bool:
        margin = self.threshold if self.threshold_mode == "abs" or math.isinf(best) else self.threshold * abs(best)
        return now < best - margin if self.mode == "min" else now > best + margin

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        now = float(metrics)
        self.last_epoch += 1
        if self.is_better(now, self.best):
            self.best, self.num_bad_epochs = now, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                old = _number(group["lr"])
                if old - max(old * self.factor, low) > self.eps:
                    _set_lr(group, max(old * self.factor, low))
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._current()
