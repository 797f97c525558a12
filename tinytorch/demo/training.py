"""One training run, eager or compiled: the same Python either way.

Stage: demo.  In: settings.  Out: losses, times, accuracy; a live line per epoch.  Read next: ``stages``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn, optim
from tinytorch.demo.model import Digits, classifier


@dataclass(frozen=True)
class Settings:
    epochs: int = 15
    batch: int = 64
    lr: float = 3e-3
    seed: int = 0
    device: str = "cpu"


@dataclass
class Run:
    """What one training came to; times in seconds."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    def step_time(self) -> float:
        """The median: compiling and other people's work do not count."""
        ordered = sorted(self.seconds)
        return ordered[len(ordered) // 2]


@dataclass
class Parts:
    """A model, its optimizer, and the two functions a step calls."""

    model: nn.Module
    optimizer: optim.Optimizer
    schedule: optim.lr_scheduler.LRScheduler
    loss: Callable[[Any, Any], Any]
    update: Callable[[], Any]


def parts(settings: Settings, wrap: Callable[[Any], Any]) -> Parts:
    """A fresh model and optimizer from the seed, with ``wrap`` around what shall be compiled.

    The learning rate is a tensor: the schedule changes it in place, and the compiled step need not be compiled again.
    """
    torch.manual_seed(settings.seed)
    model = classifier().to(settings.device)
    rate = torch.full((), settings.lr, device=settings.device)
    optimizer = optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    return Parts(model, optimizer, schedule, wrap(loss), wrap(optimizer.step))


def step(p: Parts, x: torch.Tensor, y: torch.Tensor) -> float:
    """Forward, backward, update; the loss as a number."""
    p.optimizer.zero_grad()
    loss = p.loss(x, y)
    loss.backward()
    p.update()
    return loss.item()  # type: ignore[no-any-return]


def train(name: str, settings: Settings, data: Digits, p: Parts, show: Callable[[str], None]) -> Run:
    """All epochs.  Same seed, same batches, same dropout masks, whoever computes."""
    run = Run()
    torch.manual_seed(settings.seed + 1)
    order = torch.Generator().manual_seed(settings.seed)
    n = len(data.train_x) - len(data.train_x) % settings.batch
    for epoch in range(settings.epochs):
        places = torch.randperm(len(data.train_x), generator=order)[:n].to(settings.device)
        for batch in places.split(settings.batch):
            x, y = data.train_x[batch], data.train_y[batch]
            begin = time.perf_counter()
            run.losses.append(step(p, x, y))
            run.seconds.append(time.perf_counter() - begin)
        p.schedule.step()
        run.accuracy = accuracy(p.model, data)
        steps = n // settings.batch
        mean = sum(run.losses[-steps:]) / steps
        spent = sum(run.seconds[-steps:]) / steps * 1e3
        show(
            f"{name:8}  epoch {epoch + 1:2}/{settings.epochs}  loss {mean:.4f}  test accuracy {run.accuracy:7.2%}  "
            f"{spent:8.2f} ms a step"
        )
    return run


def accuracy(model: nn.Module, data: Digits) -> float:
    """The share of test images the model gets right, dropout off."""
    model.eval()
    with torch.no_grad():
        right = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
    model.train()
    return right  # type: ignore[no-any-return]
