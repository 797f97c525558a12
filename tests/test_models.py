"""Small models as people write them: each trains a few steps eagerly and compiled, with the same losses.

Between them: rotary embeddings as pairs and as complex numbers, grouped keys, a cache that grows, tied weights, parameter
groups, batch statistics, padding masks, capacity-limited experts, sums over edges, gradients of gradients, two networks
that train each other, schedules, clipping.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import tinytorch as torch
import tinytorch.nn as nn
import tinytorch.nn.functional as F

Losses = Callable[[Callable[..., Any]], list[Any]]


def compiled(fn: Any) -> Any:
    return torch.compile(fn, fullgraph=True)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where all tensors of the test are made."""
    torch.compiler.reset()
    torch.set_default_device(request.param)
    yield
    torch.set_default_device("cpu")


def same(run: Losses) -> None:
    """``run(wrap)`` gives numbers; they do not depend on whether ``wrap`` compiles."""
    results = []
    for wrap in (lambda fn: fn, compiled):
        torch.manual_seed(0)
        results.append([float(v) for v in run(wrap)])
    assert results[0] == pytest.approx(results[1], rel=2e-3, abs=1e-5)
    assert len(set(results[0])) > 1 and all(map(math.isfinite, results[0]))


# --- a language model -------------------------------------------------------------------------------------------------
@dataclass
class Config:
    width: int = 8
    heads: int = 4
    groups: int = 2
    words: int = 11
    longest: int = 12
    complex_numbers: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.type_as(x) * self.weight


def angles(c: Config) -> Any:
    rates = 1.0 / (100.0 ** (torch.arange(0, c.head, 2).float() / c.head))
    return torch.outer(torch.arange(c.longest).float(), rates)


def turn_pairs(x: Any, turns: Any) -> Any:
    """The first half of each head with the second."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = (torch.cat([f(turns)] * 2, dim=-1)[None, :, None] for f in (torch.cos, torch.sin))
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def turn_complex(x: Any, turns: Any) -> Any:
    """Neighbours as real and imaginary part."""
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    by = torch.polar(torch.ones_like(turns), turns)
    return torch.view_as_real(z * by[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.q = nn.Linear(c.width, c.width, bias=False)
        self.kv = nn.Linear(c.width, 2 * c.groups * c.head, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.past: Any = None

    def forward(self, x: Any, turns: Any) -> Any:
        (b, t, _), c = x.shape, self.c
        q = self.q(x).view(b, t, c.heads, c.head)
        k, v = self.kv(x).view(b, t, 2, c.groups, c.head).unbind(2)
        turn = turn_complex if c.complex_numbers else turn_pairs
        q, k = turn(q, turns), turn(k, turns)
        if self.past is not None:
            k, v = (torch.cat((old, new), dim=1) for old, new in zip(self.past, (k, v), strict=True))
            self.past = (k, v)
        k, v = (s[:, :, :, None].expand(-1, -1, -1, c.heads // c.groups, -1).flatten(2, 3) for s in (k, v))
        q, k, v = (s.transpose(1, 2) for s in (q, k, v))
        if t == 1:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.mT / c.head**0.5 + torch.full((t, t), float("-inf")).triu(1)
            y = scores.softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class LanguageModel(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(c.words, c.width)
        self.attend, self.norms = Attention(c), nn.ModuleList(RMSNorm(c.width) for _ in range(3))
        self.gate, self.up = (nn.Linear(c.width, 12, bias=False) for _ in range(2))
        self.down = nn.Linear(12, c.width, bias=False)
        self.head = nn.Linear(c.width, c.words, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("turns", angles(c), persistent=False)

    def forward(self, tokens: Any, start: int = 0) -> Any:
        x = self.words(tokens)
        x = x + self.attend(self.norms[0](x), self.turns[start : start + tokens.shape[1]])
        y = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.head(self.norms[2](x))


@pytest.mark.parametrize("complex_numbers", [False, True])
def test_language_model_trains_and_speaks(complex_numbers: bool) -> None:
    def run(wrap: Any) -> list[Any]:
        c = Config(complex_numbers=complex_numbers)
        model = LanguageModel(c)
        thin = [p for p in model.parameters() if p.ndim < 2]
        wide = [p for p in model.parameters() if p.ndim >= 2]
        optimizer = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": thin}], lr=0.02)

        def step(tokens: Any) -> Any:
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].reshape(-1), ignore_index=0)
            loss.backward()
            size = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach(), size

        train = wrap(step)
        seen = [v for _ in range(3) for v in train(torch.randint(0, c.words, (2, 6)))]
        speak, said = wrap(model), torch.randint(1, c.words, (1, 3))
        model.attend.past = tuple(torch.zeros(1, 0, c.groups, c.head) for _ in range(2))
        with torch.no_grad():
            logits = speak(said)
            for at in range(3, 7):
                word = logits[:, -1].argmax(-1, keepdim=True)
                logits = speak(word, at)
                seen += [word, logits.abs().sum()]
        return seen

    same(run)


# --- images of several sizes ------------------------------------------------------------------------------------------
class Patches(nn.Module):
    """Positions are stretched to the image; statistics of the batch are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 4, 2, 2), nn.BatchNorm2d(4)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 10, 4))
        self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))

    def stretched(self, h: int, w: int) -> Any:
        side = int(math.sqrt(self.places.shape[1] - 1))
        if h * w == side * side:
            return self.places
        grid = self.places[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(h, w), mode="bilinear", align_corners=False)
        return torch.cat([self.places[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.cut(x)), inplace=True)
        h, w = x.shape[-2:]
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)), dim=1)
        return self.head((x + self.stretched(h, w)).mean(1))


def test_images_of_several_sizes() -> None:
    def run(wrap: Any) -> list[Any]:
        model = Patches()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
        net, seen = wrap(model), []
        for side in (6, 10, 8):
            loss = F.cross_entropy(net(torch.randn(2, 3, side, side)), torch.randint(0, 3, (2,)), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += [loss, model.norm.running_var.sum(), model.places.grad.abs().sum()]
        return seen

    same(run)


# --- experts and edges ------------------------------------------------------------------------------------------------
class Experts(nn.Module):
    """Each token goes to the best two experts that still have room."""

    def __init__(self, width: int = 4, count: int = 3, room: int = 3) -> None:
        super().__init__()
        self.count, self.room = count, room
        self.route = nn.Linear(width, count)
        self.wide, self.thin = (nn.Parameter(torch.randn(count, width, width)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        share, best = self.route(x).softmax(-1).topk(2)
        share /= share.sum(-1, keepdim=True)
        chosen = F.one_hot(best, self.count)
        place = (chosen.flatten(0, 1).cumsum(0) - 1).view_as(chosen)
        kept = F.one_hot(place.clamp(0, self.room - 1), self.room) * ((place < self.room) & chosen.bool())[..., None]
        there = torch.einsum("nkec,nd->ecd", kept.float(), x)
        done = torch.einsum("ecd,edf,efg->ecg", there, self.wide, self.thin)
        return torch.einsum("nk,nkec,ecd->nd", share, kept.float(), done)


class Edges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn, self.score, self.experts = nn.Linear(4, 4), nn.Linear(8, 1), Experts()

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        score = F.leaky_relu(self.score(torch.cat((x[source], x[target]), dim=-1)), 0.2).squeeze(-1)
        top = torch.full((len(x),), -9.0).scatter_reduce(0, target, score, reduce="amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(len(x)).scatter_add_(0, target, weight)
        message = self.turn(x)[source] * (weight / (total[target] + 1e-9))[:, None]
        return self.experts(torch.zeros_like(x).index_add(0, target, message))


def test_experts_over_a_graph() -> None:
    def run(wrap: Any) -> list[Any]:
        model = Edges()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        net, seen = wrap(model), []
        for _ in range(3):
            x = torch.randn(6, 4)
            loss = F.smooth_l1_loss(net(x, torch.randint(0, 6, (2, 15))), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [loss, *(p.grad.norm() for p in model.parameters())]
        return seen

    same(run)


# --- values of actions, and a teacher that follows ----------------------------------------------------------------------
def test_value_learning_with_a_slow_copy() -> None:
    def run(wrap: Any) -> list[Any]:
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        slow = copy.deepcopy(net).requires_grad_(False)
        optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01)

        def step(state: Any, action: Any, after: Any, reward: Any, last: Any) -> Any:
            value = net(state).gather(1, action[:, None]).squeeze(1)
            with torch.no_grad():
                best = net(after).argmax(1, keepdim=True)
                goal = reward + 0.9 * slow(after).gather(1, best).squeeze(1) * (~last).float()
            loss = F.huber_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            for p in net.parameters():
                p.grad.clamp_(-0.1, 0.1)
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                    old.lerp_(new, 0.1)
            return loss.detach()

        train = wrap(step)
        losses = [
            train(torch.randn(5, 3), torch.randint(0, 4, (5,)), torch.randn(5, 3), torch.rand(5), torch.rand(5) < 0.3)
            for _ in range(3)
        ]
        return [*losses, *(p.sum() for p in slow.parameters())]

    same(run)


# --- sentences to sentences -------------------------------------------------------------------------------------------
class Translator(nn.Module):
    """Made of the library's blocks: masks of padding, and of what is still to come."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0)
        self.blocks = nn.Transformer(8, 2, 1, 1, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, source: Any, target: Any) -> Any:
        hidden = source == 0
        future = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        x = self.blocks(
            self.words(source), self.words(target), tgt_mask=future,
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
        )  # fmt: skip
        return self.head(x)


def test_translation() -> None:
    def run(wrap: Any) -> list[Any]:
        model = Translator()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(source: Any, target: Any) -> Any:
            logits = model(source, target[:, :-1])
            loss = F.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        train, seen = wrap(step), []
        for _ in range(2):
            source, target = torch.randint(1, 9, (2, 5)), torch.randint(1, 9, (2, 4))
            source[0, 3:] = target[1, 2:] = 0
            seen.append(train(source, target))
        return seen

    same(run)
