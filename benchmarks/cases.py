"""The measured programs, written once against the API that PyTorch and tinytorch share.

In: a module (``torch`` or ``tinytorch``) and a device.  Out: ``Case.build(torch, device)`` gives ``(fn, args)``; the
harness times ``fn(*args)`` eagerly and compiled.  ``moved`` counts the bytes that must move at least: each input read
once, each output written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[Any, str], tuple[Callable[..., Any], tuple[Any, ...]]]
    moved: int = 0  # bytes; 0: not a memory-bound case
    fresh: bool = True  # are results written to new memory, which the kernel has to map, or over old?
    train: bool = False
    kernel: bool = True  # a single fused kernel or a few, not a whole model


SIZES = {"float32": 4, "bfloat16": 2}


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(torch: Any, device: str, dtype: str, a: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(a).to(device).to(getattr(torch, dtype))


def suffix(dtype: str) -> str:
    return "" if dtype == "float32" else f" {dtype}"


def gate(rows: int, cols: int, dtype: str = "float32") -> Case:
    def build(torch: Any, device: str) -> Any:
        F = torch.nn.functional

        def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
            return F.gelu(x * w + b) * torch.sigmoid(x) + r

        args = (array(rows, cols), array(cols, seed=1), array(cols, seed=2), array(rows, cols, seed=3))
        return fn, tuple(tensor(torch, device, dtype, a) for a in args)

    return Case(f"gelu(x*w+b)*sigmoid(x)+r {rows}x{cols}{suffix(dtype)}", build, moved=3 * rows * cols * SIZES[dtype])


def softmax(rows: int, cols: int, dtype: str = "float32") -> Case:
    def build(torch: Any, device: str) -> Any:
        return (lambda x: torch.softmax(x, dim=-1)), (tensor(torch, device, dtype, array(rows, cols)),)

    return Case(f"softmax {rows}x{cols}{suffix(dtype)}", build, moved=2 * rows * cols * SIZES[dtype])


def layer_norm(rows: int, cols: int, dtype: str = "float32") -> Case:
    def build(torch: Any, device: str) -> Any:
        F = torch.nn.functional
        x, g = (tensor(torch, device, dtype, array(rows, cols, seed=s)) for s in (0, 3))
        w, b = (tensor(torch, device, dtype, array(cols, seed=s)) for s in (1, 2))
        x, w, b = x.requires_grad_(), w.requires_grad_(), b.requires_grad_()

        def fn(x: Any, w: Any, b: Any) -> Any:
            return F.layer_norm(x, (cols,), w, b)

        return fn, (x, w, b, g)

    moved = 5 * rows * cols * SIZES[dtype]
    return Case(f"layer norm fwd+bwd {rows}x{cols}{suffix(dtype)}", build, moved=moved, train=True)


def rms_norm(rows: int, cols: int, dtype: str = "float32") -> Case:
    def build(torch: Any, device: str) -> Any:
        def fn(x: Any, w: Any) -> Any:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w

        return fn, (tensor(torch, device, dtype, array(rows, cols)), tensor(torch, device, dtype, array(cols, seed=1)))

    return Case(f"RMS norm {rows}x{cols}{suffix(dtype)}", build, moved=2 * rows * cols * SIZES[dtype])


def cross_entropy(rows: int, cols: int) -> Case:
    def build(torch: Any, device: str) -> Any:
        F = torch.nn.functional
        x = torch.from_numpy(array(rows, cols)).to(device).requires_grad_()
        target = torch.from_numpy(np.random.default_rng(1).integers(0, cols, rows)).to(device)

        def fn(x: Any, target: Any) -> Any:
            return F.cross_entropy(x, target)

        return fn, (x, target, None)

    return Case(f"cross entropy fwd+bwd {rows}x{cols}", build, moved=3 * rows * cols * 4, train=True)


def column_squares(rows: int, cols: int) -> Case:
    def build(torch: Any, device: str) -> Any:
        return (lambda x: (x * x).sum(0)), (torch.from_numpy(array(rows, cols)).to(device),)

    return Case(f"(x*x).sum(0) {rows}x{cols}", build, moved=rows * cols * 4, fresh=False)


def sum_of_sin(n: int) -> Case:
    def build(torch: Any, device: str) -> Any:
        return (lambda x: torch.sin(x).sum()), (torch.from_numpy(array(n)).to(device),)

    return Case(f"sin(x).sum() {n}", build, moved=4 * n, fresh=False)


def transpose_add(n: int) -> Case:
    def build(torch: Any, device: str) -> Any:
        x, y = (torch.from_numpy(array(n, n, seed=s)).to(device) for s in (0, 1))
        return (lambda x, y: x.T + y), (x, y)

    return Case(f"x.T+y {n}x{n}", build, moved=3 * n * n * 4)


def dropout_norm(rows: int, cols: int) -> Case:
    def build(torch: Any, device: str) -> Any:
        F = torch.nn.functional
        x, r, g = (torch.from_numpy(array(rows, cols, seed=s)).to(device) for s in (0, 1, 4))
        w, b = (torch.from_numpy(array(cols, seed=s)).to(device) for s in (2, 3))
        x, r, w, b = (t.requires_grad_() for t in (x, r, w, b))

        def fn(x: Any, r: Any, w: Any, b: Any) -> Any:
            return F.layer_norm(F.dropout(x, 0.1, True) + r, (cols,), w, b)

        return fn, (x, r, w, b, g)

    return Case(f"dropout+residual+layer norm fwd+bwd {rows}x{cols}", build, moved=8 * rows * cols * 4, train=True)


def tiny() -> Case:
    def build(torch: Any, device: str) -> Any:
        def fn(x: Any) -> Any:
            y = x * 2 + 1
            y = torch.tanh(y) * x - 0.5
            y = torch.relu(y) + torch.sigmoid(x)
            return (y * y).sqrt() + x

        return fn, (torch.from_numpy(array(128)).to(device),)

    return Case("10 pointwise ops, 128 floats", build)


# --- whole training steps: fn() does everything -----------------------------------------------------------------------
def mlp_step(batch: int = 256) -> Case:
    def build(torch: Any, device: str) -> Any:
        nn = torch.nn
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)
        ).to(device)
        x = torch.from_numpy(array(batch, 784)).to(device)
        y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, batch)).to(device)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, (x, y, opt)

    return Case(f"MLP 784-512-512-10 AdamW step, batch {batch}", build, train=True, kernel=False)


def gpt(torch: Any, vocab: int, dim: int, heads: int, layers: int, context: int) -> Any:
    """A plain pre-norm GPT, as people write it."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(self.ln1(x)).split(c, dim=2)
            q, k, v = (u.view(b, t, heads, c // heads).transpose(1, 2) for u in (q, k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).contiguous().view(b, t, c))
            return x + self.out(F.gelu(self.fc(self.ln2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

        def forward(self, ids: Any) -> Any:
            pos = torch.arange(ids.shape[1], device=ids.device)
            x = self.tok(ids) + self.pos(pos)
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln(x)).flatten(0, 1)

    return GPT()


def gpt_step(dim: int = 128, context: int = 128, batch: int = 8, layers: int = 4, vocab: int = 256) -> Case:
    def build(torch: Any, device: str) -> Any:
        torch.manual_seed(0)
        model = gpt(torch, vocab, dim, dim // 32, layers, context).to(device)
        ids = np.random.default_rng(0).integers(0, vocab, (batch, context + 1))
        x = torch.from_numpy(ids[:, :-1].copy()).to(device)
        y = torch.from_numpy(ids[:, 1:].copy().reshape(-1)).to(device)
        return model, (x, y, torch.optim.AdamW(model.parameters(), lr=1e-3))

    return Case(f"GPT {layers} layers, dim {dim}, T {context}, batch {batch}, AdamW step", build, train=True, kernel=False)


def cnn_step(batch: int = 32) -> Case:
    def build(torch: Any, device: str) -> Any:
        nn = torch.nn
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
        ).to(device)  # fmt: skip
        x = torch.from_numpy(array(batch, 3, 32, 32)).to(device)
        y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, batch)).to(device)
        return model, (x, y, torch.optim.SGD(model.parameters(), lr=1e-2))

    return Case(f"2 conv + batch norm + pool SGD step, batch {batch}", build, train=True, kernel=False)


def lstm_step(batch: int = 16, length: int = 32, size: int = 128) -> Case:
    def build(torch: Any, device: str) -> Any:
        nn = torch.nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn, self.head = nn.LSTM(size, size, batch_first=True), nn.Linear(size, 10)

            def forward(self, x: Any) -> Any:
                return self.head(self.rnn(x)[0][:, -1])

        torch.manual_seed(0)
        model = Net().to(device)
        x = torch.from_numpy(array(batch, length, size)).to(device)
        y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, batch)).to(device)
        return model, (x, y, torch.optim.SGD(model.parameters(), lr=1e-2))

    return Case(f"LSTM {size}, T {length}, batch {batch}, SGD step", build, train=True, kernel=False)


def adamw(n: int = 10_000_000) -> Case:
    def build(torch: Any, device: str) -> Any:
        params = [torch.nn.Parameter(torch.from_numpy(array(n // 10, seed=i)).to(device)) for i in range(10)]
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(array(n // 10, seed=100 + i)).to(device)
        return torch.optim.AdamW(params, lr=1e-3), ()

    return Case(f"AdamW on {n} parameters", build, moved=7 * n * 4, kernel=False, fresh=False)


CPU: tuple[Case, ...] = (
    gate(4096, 1024), softmax(4096, 1024), layer_norm(4096, 1024), rms_norm(4096, 1024), cross_entropy(1024, 8192),
    column_squares(16384, 512), sum_of_sin(1 << 23), transpose_add(2048), dropout_norm(4096, 1024), tiny(),
    gate(1023, 1021), softmax(1021, 1023), layer_norm(1023, 1021),
    *(case(4096, 1024, "bfloat16") for case in (gate, softmax, layer_norm, rms_norm)),
    mlp_step(), gpt_step(), cnn_step(), lstm_step(), adamw(),
)  # fmt: skip
