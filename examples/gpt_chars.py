"""A small GPT that guesses the next character: held-out loss below 2.1 nats (guessing by frequency gives 3.3).

``python examples/gpt_chars.py [--compile]``
"""

from __future__ import annotations

import sys
from typing import Any

import text
from training import fit, options

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn

CONTEXT = 64


class Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, alphabet: int, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(alphabet, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.05)

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def sample(model: GPT, prompt: Any, length: int) -> Any:
    """``length`` more characters, drawn one by one."""
    with torch.no_grad():
        for _ in range(length):
            weights = model(prompt[:, -CONTEXT:])[:, -1].softmax(-1)
            prompt = torch.cat([prompt, torch.multinomial(weights, 1)], 1)
    return prompt


def main(argv: list[str] | None = None) -> float:
    """The held-out loss, in nats a character."""
    args = options(steps=500, argv=argv)
    torch.manual_seed(args.seed)
    train, test, alphabet = text.load()
    model = GPT(alphabet).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.full((), 3e-3, device=args.device), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    def loss_of(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    fit(args, model, loss_of, optimizer, text.batches(train, args.steps, 16, CONTEXT, args.seed), schedule, clip=1.0)
    with torch.no_grad():
        losses = [loss_of(x.to(args.device), y.to(args.device)).item() for x, y in text.batches(test, 20, 16, CONTEXT, 1)]
    loss = sum(losses) / len(losses)
    print(f"held-out loss {loss:.3f} nats a character")
    return loss


if __name__ == "__main__":
    sys.exit(main() > 2.1)
