"""An LSTM that guesses the next character: held-out loss below 2.2 nats (guessing by frequency gives 3.3).

``python examples/lstm_chars.py [--compile]``
"""

from __future__ import annotations

import sys
from typing import Any

import text
from training import fit, options

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn


class CharLSTM(nn.Module):
    def __init__(self, alphabet: int, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, 32)
        self.lstm = nn.LSTM(32, hidden, batch_first=True)
        self.head = nn.Linear(hidden, alphabet)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.embedding(x))[0])


def main(argv: list[str] | None = None) -> float:
    """The held-out loss, in nats a character."""
    args = options(steps=250, argv=argv)
    torch.manual_seed(args.seed)
    train, test, alphabet = text.load()
    model = CharLSTM(alphabet).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_of(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    fit(args, model, loss_of, optimizer, text.batches(train, args.steps, 32, 32, args.seed), clip=1.0)
    with torch.no_grad():
        losses = [loss_of(x.to(args.device), y.to(args.device)).item() for x, y in text.batches(test, 20, 32, 32, 1)]
    loss = sum(losses) / len(losses)
    print(f"held-out loss {loss:.3f} nats a character")
    return loss


if __name__ == "__main__":
    sys.exit(main() > 2.2)
