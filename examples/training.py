"""What the three examples share: options, the loop, a line now and then."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import tinytorch as torch
from tinytorch import nn


def options(steps: int, argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--compile", action="store_true", help="compile the loss and the optimizer's step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def fit(
    args: argparse.Namespace,
    model: nn.Module,
    loss_of: Callable[[Any, Any], Any],
    optimizer: torch.optim.Optimizer,
    data: Iterable[tuple[Any, Any]],
    schedule: Any = None,
    clip: float | None = None,
) -> None:
    """One pass over ``data``, eager or compiled."""
    wrap = torch.compile if args.compile else lambda fn: fn
    loss_of, update = wrap(loss_of), wrap(optimizer.step)
    begin = time.perf_counter()
    total, count = 0.0, 0
    for step, (x, y) in enumerate(data, 1):
        optimizer.zero_grad()
        loss = loss_of(x.to(args.device), y.to(args.device))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        update()
        if schedule is not None:
            schedule.step()
        total, count = total + loss.item(), count + 1
        if step % 100 == 0:
            spent = (time.perf_counter() - begin) / step * 1e3
            print(f"step {step:5}  loss {total / count:.3f}  {spent:7.2f} ms a step", flush=True)
            total, count = 0.0, 0
