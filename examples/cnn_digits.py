"""A small convolutional network on the 1,797 handwritten digits: at least 98.5 % of the held-out ones.

``python examples/cnn_digits.py [--compile]``
"""

from __future__ import annotations

import sys

from training import fit, options

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn
from tinytorch.demo.model import load_digits


def network() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 16, 10),
    )


def main(argv: list[str] | None = None) -> float:
    """The share of held-out digits read right."""
    args = options(steps=300, argv=argv)
    torch.manual_seed(args.seed)
    data = load_digits(args.device)
    model = network().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.full((), 3e-3, device=args.device), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    order = torch.Generator().manual_seed(args.seed)
    places = (torch.randint(0, len(data.train_x), (64,), generator=order).to(args.device) for _ in range(args.steps))
    pairs = ((data.train_x[p], data.train_y[p]) for p in places)
    fit(args, model, lambda x, y: F.cross_entropy(model(x), y), optimizer, pairs, schedule)
    model.eval()
    with torch.no_grad():
        accuracy = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
    print(f"held-out accuracy {accuracy:.2%}")
    return accuracy


if __name__ == "__main__":
    sys.exit(main() < 0.985)
